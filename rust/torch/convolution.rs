//! The causal convolution of each channel.

use householder::convolution::Sizes;
use householder_binding::array::AnyArray;
use householder_binding::convolution::{self, GRADIENTS, OPERANDS};
use householder_binding::operands::{Arrays, each, named};
use householder_binding::refusal::{Reading, Refusal};

use crate::arguments::Arguments;
use crate::kernel::{Tensors, results};
use crate::tensor::{Laid, gradients, optional};

/// Those of the operands of the backward pass.
const NAMES: [&str; 4] = ["x", "weight", "bias", "grad_y"];

fn sizes(x: &Laid, weight: &Laid) -> Reading<Sizes> {
    let (&[batch, tokens, channels], &[_, taps]) = (&x.shape()[..], &weight.shape()[..]) else {
        let (x, weight) = (x.describe()?, weight.describe()?);
        return Err(Refusal::invalid(format!("expected x (B, T, C) and weight (C, taps), got {x} and {weight}")));
    };
    Ok(Sizes { batch, tokens, channels, taps })
}

/// The outputs, like `x`.
pub fn forward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (x, weight, bias, silu) = (arguments.tensor(), arguments.tensor(), arguments.optional(), arguments.flag());
    let (x, weight, bias) = (x.laid_out()?, weight.laid_out()?, optional(bias)?);
    let (y, sizes) = (x.empty_like()?, sizes(&x, &weight)?);
    let operands = named(OPERANDS, [Some(&x), Some(&weight), bias.as_ref()]);
    convolution::forward(&Arrays::with_new_results(&operands, &[("y", Some(&y))]), sizes, silu)?;
    Ok(vec![Some(y.into())])
}

/// The gradients of `x`, the weights and the bias, those that are needed.
pub fn backward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (x, weight, bias, grad_y) = (arguments.tensor(), arguments.tensor(), arguments.optional(), arguments.tensor());
    let (wants, silu) = (arguments.flags::<3>(), arguments.flag());
    let (x, weight, bias, grad_y) = (x.laid_out()?, weight.laid_out()?, optional(bias)?, grad_y.laid_out()?);
    let (sizes, tensors) = (sizes(&x, &weight)?, [Some(&x), Some(&weight), bias.as_ref(), Some(&grad_y)]);
    let gradients = gradients(tensors, wants?)?;
    convolution::backward(
        &Arrays::with_new_results(&named(NAMES, tensors), &each(GRADIENTS, &gradients)),
        sizes,
        silu,
    )?;
    Ok(results(gradients))
}
