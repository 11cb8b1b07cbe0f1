//! The gated norm of rows.

use householder_binding::array::AnyArray;
use householder_binding::gated_norm::{self, GRADIENTS, OPERANDS};
use householder_binding::operands::{Arrays, each, named};
use householder_binding::refusal::{Reading, Refusal};

use crate::arguments::Arguments;
use crate::kernel::{Tensors, results};
use crate::tensor::{Laid, gradients};

fn rows(x: &Laid) -> Reading<[usize; 2]> {
    let given = |_| Ok(Refusal::invalid(format!("expected x (N, W), got {}", x.describe()?)));
    x.shape().try_into().map_err(|shape| given(shape).unwrap_or_else(|refusal| refusal))
}

/// The outputs, like `x`.
pub fn forward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (x, z, weight) = (arguments.tensor(), arguments.tensor(), arguments.tensor());
    let (epsilon, silu) = (arguments.real(), arguments.flag());
    let (x, z, weight) = (x.laid_out()?, z.laid_out()?, weight.laid_out()?);
    let (y, shape) = (x.empty_like()?, rows(&x)?);
    let operands = named(OPERANDS, [&x, &z, &weight].map(Some));
    gated_norm::forward(&Arrays::with_new_results(&operands, &[("y", Some(&y))]), (shape, epsilon, silu))?;
    Ok(vec![Some(y.into())])
}

/// The gradients of rows, gates and weights, those that are needed.
pub fn backward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (x, z, weight, grad_y) = (arguments.tensor(), arguments.tensor(), arguments.tensor(), arguments.tensor());
    let (wants, epsilon, silu) = (arguments.flags::<3>(), arguments.real(), arguments.flag());
    let (x, z, weight, grad_y) = (x.laid_out()?, z.laid_out()?, weight.laid_out()?, grad_y.laid_out()?);
    let (shape, gradients) = (rows(&x)?, gradients([&x, &z, &weight].map(Some), wants?)?);
    let operands = named(["x", "z", "weight", "grad_y"], [&x, &z, &weight, &grad_y].map(Some));
    gated_norm::backward(&Arrays::with_new_results(&operands, &each(GRADIENTS, &gradients)), (shape, epsilon, silu))?;
    Ok(results(gradients))
}
