//! The gated norm of rows: `x (N, W)` and gates `z (N, W)`, which may have half types, and `weight (W,)`.

use householder::exponential::Exponential;
use householder::gated_norm::{self, Gradients, Operands};

use crate::arguments::Arguments;
use crate::call::{Reading, Refusal};
use crate::dtype::{Number, by_dtype};
use crate::kernel::{Results, run};
use crate::tensor::{Tensor, gradient, wanted};

/// Epsilon, and whether gates pass through `SiLU`.
type Options = (f64, bool);

fn operands<T: Number + Exponential>(
    [x, z, weight]: &[Tensor; 3],
    (epsilon, silu): Options,
) -> Reading<Operands<'_, T>> {
    let &[rows, width] = &x.shape()?[..] else {
        return Err(Refusal::invalid(format!("expected x (N, W), got {}", x.describe()?)));
    };
    Ok(Operands {
        rows,
        x: x.tokens("x", rows * width)?,
        z: z.tokens("z", rows * width)?,
        weight: weight.numbers("weight", width)?,
        epsilon: T::of(epsilon),
        silu,
    })
}

/// The outputs, like `x`.
pub fn forward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number + Exponential>(inputs: &[Tensor; 3], options: Options, y: &mut Tensor) -> Reading<()> {
        let (operands, y) = (operands::<T>(inputs, options)?, y.stored_mut()?);
        run(|context| gated_norm::forward(context, operands, y))
    }
    let (x, z, weight) = (arguments.tensor(), arguments.tensor(), arguments.tensor());
    let options = (arguments.real(), arguments.flag());
    let inputs = [x.laid_out()?, z.laid_out()?, weight.laid_out()?];
    let mut y = inputs[0].empty_like()?;
    by_dtype!(real inputs[2].dtype()?, go(&inputs, options, &mut y))?;
    Ok(vec![Some(y)])
}

/// The gradients of rows, gates and weights, those that are wanted.
pub fn backward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number + Exponential>(
        inputs: &[Tensor; 3],
        options: Options,
        grad_y: &Tensor,
        gradients: &mut [Option<Tensor>; 3],
    ) -> Reading<()> {
        let (operands, grad_y) = (operands::<T>(inputs, options)?, grad_y.tokens("grad_y", inputs[0].len()?)?);
        let [x, z, weight] = gradients.each_mut().map(Option::as_mut);
        let [x, z] = [x, z].map(|rows| rows.map(Tensor::stored_mut).transpose());
        let gradients = Gradients { x: x?, z: z?, weight: wanted(weight)? };
        run(|context| gated_norm::backward(context, operands, grad_y, gradients))
    }
    let (x, z, weight, grad_y) = (arguments.tensor(), arguments.tensor(), arguments.tensor(), arguments.tensor());
    let (wants, options) = (arguments.flags::<3>(), (arguments.real(), arguments.flag()));
    let (inputs, grad_y, wants) = ([x.laid_out()?, z.laid_out()?, weight.laid_out()?], grad_y.laid_out()?, wants?);
    let mut gradients = [const { None }; 3];
    for ((gradient_of, tensor), is_wanted) in gradients.iter_mut().zip(&inputs).zip(wants) {
        *gradient_of = gradient(Some(tensor), is_wanted)?;
    }
    by_dtype!(real inputs[2].dtype()?, go(&inputs, options, &grad_y, &mut gradients))?;
    Ok(gradients.into())
}
