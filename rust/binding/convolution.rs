//! The causal convolution of each channel: `x (B, T, C)`, which may have a half type, `weight (C, taps)` and `bias (C,)`.

use householder::convolution::{self, Gradients, Operands, Sizes};
use householder::exponential::Exponential;

use crate::by_dtype;
use crate::dtype::ArrayNumber;
use crate::operands::{Caller, given};
use crate::refusal::Reading;

/// Slots of operands, and of their gradients.
pub const OPERANDS: [&str; 4] = ["x", "weight", "bias", "grad_out"];
pub const GRADIENTS: [&str; 3] = ["grad_x", "grad_weight", "grad_bias"];

fn operands<'a, T: ArrayNumber + Exponential>(
    caller: &impl Caller<'a>,
    sizes: Sizes,
    silu: bool,
) -> Reading<Operands<'a, T>> {
    let Sizes { batch, tokens, channels, taps } = sizes;
    Ok(Operands {
        sizes,
        x: given("x", caller.tokens(0, "x", &[batch, tokens, channels])?)?,
        weight: caller.needed(1, "weight", &[channels, taps])?,
        bias: caller.read(2, "bias", &[channels])?,
        silu,
    })
}

/// The outputs, like `x`.
pub fn forward<'a>(caller: &impl Caller<'a>, sizes: Sizes, silu: bool) -> Reading<()> {
    by_dtype!(caller.dtype(1)?, real, |T| {
        let operands = operands::<T>(caller, sizes, silu)?;
        let out = given("out", caller.numbers_mut(0, &[sizes.batch, sizes.tokens, sizes.channels])?)?;
        caller.run(|context| convolution::forward(context, operands, out))
    })
}

/// The gradients of `x`, the weights and the bias, those that are wanted.
pub fn backward<'a>(caller: &impl Caller<'a>, sizes: Sizes, silu: bool) -> Reading<()> {
    by_dtype!(caller.dtype(1)?, real, |T| {
        let operands = operands::<T>(caller, sizes, silu)?;
        let vectors = [sizes.batch, sizes.tokens, sizes.channels];
        let grad_out = given("grad_out", caller.tokens(3, "grad_out", &vectors)?)?;
        let gradients = Gradients {
            x: caller.numbers_mut(0, &vectors)?,
            weight: caller.write(1, &[sizes.channels, sizes.taps])?,
            bias: caller.write(2, &[sizes.channels])?,
        };
        caller.run(|context| convolution::backward(context, operands, grad_out, gradients))
    })
}
