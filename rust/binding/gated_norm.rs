//! The gated norm of rows: `x (N, W)` and gates `z (N, W)`, which may have half types, and `weight (W,)`.

use householder::exponential::Exponential;
use householder::gated_norm::{self, Gradients, Operands};

use crate::by_dtype;
use crate::dtype::ArrayNumber;
use crate::operands::{Caller, given};
use crate::refusal::Reading;

/// Slots of operands, and of their gradients.
pub const OPERANDS: [&str; 4] = ["x", "z", "weight", "grad_out"];
pub const GRADIENTS: [&str; 3] = ["grad_x", "grad_z", "grad_weight"];

/// Rows and their width, epsilon, and whether gates pass through `SiLU`.
pub type NormOptions = ([usize; 2], f64, bool);

fn operands<'a, T: ArrayNumber + Exponential>(
    caller: &impl Caller<'a>,
    (shape, epsilon, silu): NormOptions,
) -> Reading<Operands<'a, T>> {
    Ok(Operands {
        rows: shape[0],
        x: given("x", caller.tokens(0, "x", &shape)?)?,
        z: given("z", caller.tokens(1, "z", &shape)?)?,
        weight: caller.needed(2, "weight", &shape[1..])?,
        epsilon: T::of(epsilon),
        silu,
    })
}

/// The outputs, like `x`.
pub fn forward<'a>(caller: &impl Caller<'a>, options: NormOptions) -> Reading<()> {
    by_dtype!(caller.dtype(2)?, real, |T| {
        let operands = operands::<T>(caller, options)?;
        let out = given("out", caller.numbers_mut(0, &options.0)?)?;
        caller.run(|context| gated_norm::forward(context, operands, out))
    })
}

/// The gradients of rows, gates and weights, those that are wanted.
pub fn backward<'a>(caller: &impl Caller<'a>, options: NormOptions) -> Reading<()> {
    by_dtype!(caller.dtype(2)?, real, |T| {
        let (operands, shape) = (operands::<T>(caller, options)?, options.0);
        let grad_out = given("grad_out", caller.tokens(3, "grad_out", &shape)?)?;
        let gradients = Gradients {
            x: caller.numbers_mut(0, &shape)?,
            z: caller.numbers_mut(1, &shape)?,
            weight: caller.write(2, &shape[1..])?,
        };
        caller.run(|context| gated_norm::backward(context, operands, grad_out, gradients))
    })
}
