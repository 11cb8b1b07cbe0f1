//! The causal convolution of each channel: `x (B, T, C)`, which may have a half type, `weight (C, taps)` and `bias (C,)`.

use householder::convolution::{self, Gradients, Operands, Sizes};
use householder::exponential::Exponential;

use crate::by_dtype;
use crate::dtype::ArrayNumber;
use crate::operands::{Arrays, Operands as _, given};
use crate::refusal::Reading;

/// Slots of operands, and of their gradients.
pub const OPERANDS: [&str; 4] = ["x", "weight", "bias", "grad_out"];
pub const GRADIENTS: [&str; 3] = ["grad_x", "grad_weight", "grad_bias"];

fn operands<T: ArrayNumber + Exponential>(
    arrays: &Arrays<'_>,
    sizes: Sizes,
    silu: bool,
) -> Reading<Operands<'static, T>> {
    let Sizes { batch, tokens, channels, taps } = sizes;
    Ok(Operands {
        sizes,
        x: given("x", arrays.tokens(0, "x", &[batch, tokens, channels])?)?,
        weight: arrays.needed(1, "weight", &[channels, taps])?,
        bias: arrays.read(2, "bias", &[channels])?,
        silu,
    })
}

/// The outputs, like `x`.
pub fn forward(arrays: &Arrays<'_>, sizes: Sizes, silu: bool) -> Reading<()> {
    by_dtype!(arrays.dtype(1), real, |T| {
        let operands = operands::<T>(arrays, sizes, silu)?;
        let out = given("out", arrays.numbers_mut(0, &[sizes.batch, sizes.tokens, sizes.channels])?)?;
        arrays.run(|context| convolution::forward(context, operands, out))
    })
}

/// The gradients of `x`, the weights and the bias, those that are needed.
pub fn backward(arrays: &Arrays<'_>, sizes: Sizes, silu: bool) -> Reading<()> {
    by_dtype!(arrays.dtype(1), real, |T| {
        let operands = operands::<T>(arrays, sizes, silu)?;
        let vectors = [sizes.batch, sizes.tokens, sizes.channels];
        let grad_out = given("grad_out", arrays.tokens(3, "grad_out", &vectors)?)?;
        let gradients = Gradients {
            x: arrays.numbers_mut(0, &vectors)?,
            weight: arrays.write(1, &[sizes.channels, sizes.taps])?,
            bias: arrays.write(2, &[sizes.channels])?,
        };
        arrays.run(|context| convolution::backward(context, operands, grad_out, gradients))
    })
}
