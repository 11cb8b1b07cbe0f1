//! The gated norm of rows: `x (N, W)` and gates `z (N, W)`, which may have half types, and `weight (W,)`.

use householder::exponential::Exponential;
use householder::gated_norm::{self, Gradients, Operands};

use crate::by_dtype;
use crate::dtype::ArrayNumber;
use crate::operands::{Arrays, Operands as _, given};
use crate::refusal::Reading;

/// Slots of operands, and of their gradients.
pub const OPERANDS: [&str; 4] = ["x", "z", "weight", "grad_out"];
pub const GRADIENTS: [&str; 3] = ["grad_x", "grad_z", "grad_weight"];

/// Rows and their width, epsilon, and whether gates pass through `SiLU`.
pub type NormOptions = ([usize; 2], f64, bool);

fn operands<T: ArrayNumber + Exponential>(
    arrays: &Arrays<'_>,
    (shape, epsilon, silu): NormOptions,
) -> Reading<Operands<'static, T>> {
    Ok(Operands {
        rows: shape[0],
        x: given("x", arrays.tokens(0, "x", &shape)?)?,
        z: given("z", arrays.tokens(1, "z", &shape)?)?,
        weight: arrays.needed(2, "weight", &shape[1..])?,
        epsilon: T::of(epsilon),
        silu,
    })
}

/// The outputs, like `x`.
pub fn forward(arrays: &Arrays<'_>, options: NormOptions) -> Reading<()> {
    by_dtype!(arrays.dtype(2), real, |T| {
        let operands = operands::<T>(arrays, options)?;
        let out = given("out", arrays.numbers_mut(0, &options.0)?)?;
        arrays.run(|context| gated_norm::forward(context, operands, out))
    })
}

/// The gradients of rows, gates and weights, those that are needed.
pub fn backward(arrays: &Arrays<'_>, options: NormOptions) -> Reading<()> {
    by_dtype!(arrays.dtype(2), real, |T| {
        let (operands, shape) = (operands::<T>(arrays, options)?, options.0);
        let grad_out = given("grad_out", arrays.tokens(3, "grad_out", &shape)?)?;
        let gradients = Gradients {
            x: arrays.numbers_mut(0, &shape)?,
            z: arrays.numbers_mut(1, &shape)?,
            weight: arrays.write(2, &shape[1..])?,
        };
        arrays.run(|context| gated_norm::backward(context, operands, grad_out, gradients))
    })
}
