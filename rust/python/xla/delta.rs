//! The delta rule and its gradients.
//!
//! Operands: `q (B, T, H, K)`, `k (B, T r, H, K)`, `v (B, T r, HV, V)`, `beta (B, T r, HV)` and, where given, `g (B, T, HV)` or
//! `(B, T, HV, K)` and `initial_state (B, HV, K, V)`.

use householder::delta::{self, Sizes};
use householder::exponential::Exponential;
use householder::threads::Context;

use super::frame::Frame;
use crate::by_dtype;
use crate::call::{Reading, Refusal};
use crate::delta::Call;
use crate::dtype::Number;

fn call(frame: &Frame<'_>) -> Reading<Call> {
    let [batch, tokens, heads, key_width] = frame.shape(0)?;
    let [_, steps, value_heads, value_width] = frame.shape(2)?;
    let reflections = usize::try_from(frame.integer("reflections")?).unwrap_or(0);
    let sizes = Sizes { heads, value_heads, key_width, value_width, reflections };
    if Some(steps) != tokens.checked_mul(reflections) {
        let text = format!("sizes: got {sizes:?}, {tokens} tokens and {steps} steps, which do not fit");
        return Err(Refusal::invalid(text));
    }
    Ok(Call {
        sizes,
        sequences: (0..batch).map(|i| i * tokens..(i + 1) * tokens).collect(),
        tokens: [batch, tokens],
        steps: [batch, steps],
        kept: [batch, steps.saturating_sub(1) / delta::interval(key_width, value_width)?],
        by_channel: frame.flag("by_channel")?,
        scale: frame.real("scale")?,
        normalize: frame.flag("normalize")?,
    })
}

/// Outputs, the final states and, where wanted, states for the backward pass.
pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number + Exponential>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (problem, results) = call(frame)?.forward::<T>(frame, false)?;
        Ok(delta::forward(context, &problem, results)?)
    }
    by_dtype!(real frame.dtype(0)?, go(frame, context))
}

/// Gradients of the operands, those that are wanted. Further operands: what the forward pass kept, and the gradients of
/// outputs and of final states, where given.
pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number + Exponential>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (problem, kept, cotangents, gradients) = call(frame)?.backward::<T>(frame)?;
        Ok(delta::backward(context, &problem, kept, cotangents, gradients)?)
    }
    by_dtype!(real frame.dtype(0)?, go(frame, context))
}
