//! The delta rule and its gradients.
//!
//! Operands: `q (B, T, H, K)`, `k (B, T r, H, K)`, `v (B, T r, HV, V)`, `beta (B, T r, HV)` and, where given, `g (B, T, HV)` or
//! `(B, T, HV, K)` and `initial_state (B, HV, K, V)`.

use householder::delta::{self, Cotangents, Exponential, Gate, Gradients, Operands, Problem, Results, Sizes};
use householder::error::Result;
use householder::threads::Context;

use super::c_api::{F32, F64};
use super::frame::{Frame, invalid};
use crate::array::Number;

/// The number of operands, and of gradients.
const INPUTS: usize = 6;

macro_rules! by_real {
    ($buffer:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $buffer.dtype() {
            F32 => $function::<f32>($($argument),*),
            F64 => $function::<f64>($($argument),*),
            other => Err(invalid(format!("expected floating-point numbers, got type {other}"))),
        }
    };
}

/// Shapes of the operands, of outputs and of what the forward pass keeps.
struct Shapes {
    inputs: [Vec<usize>; INPUTS],
    out: Vec<usize>,
    kept: Vec<usize>,
}

fn problem<'a, T: Number + Exponential>(frame: &Frame<'a>) -> Result<(Problem<'a, T>, Shapes)> {
    let ([batch, tokens, heads, key_width], [_, steps, value_heads, value_width]) =
        (frame.needed(0)?.shape()?, frame.needed(2)?.shape()?);
    let reflections = usize::try_from(frame.integer("reflections")?).unwrap_or(0);
    let sizes = Sizes { heads, value_heads, key_width, value_width, reflections };
    if Some(steps) != tokens.checked_mul(reflections) {
        return Err(invalid(format!("sizes: got {sizes:?}, {tokens} tokens and {steps} steps, which do not fit")));
    }
    let by_channel = frame.flag("by_channel")?;
    let state = vec![batch, value_heads, key_width, value_width];
    let mut gates = vec![batch, tokens, value_heads];
    gates.extend(by_channel.then_some(key_width));
    let kept = steps.saturating_sub(1) / delta::interval(key_width, value_width)?;
    let shapes = Shapes {
        inputs: [
            vec![batch, tokens, heads, key_width],
            vec![batch, steps, heads, key_width],
            vec![batch, steps, value_heads, value_width],
            vec![batch, steps, value_heads],
            gates,
            state,
        ],
        out: vec![batch, tokens, value_heads, value_width],
        kept: vec![batch, kept, value_heads, key_width, value_width],
    };
    let needed = |slot: usize, name: &str| frame.needed(slot)?.read::<T>(name, &shapes.inputs[slot]);
    let given = |slot: usize, name: &str| frame.given::<T>(slot, name, &shapes.inputs[slot]);
    let gate = match given(4, "g")? {
        None => Gate::None,
        Some(g) if by_channel => Gate::Channel(g),
        Some(g) => Gate::Head(g),
    };
    let problem = Problem::new(Operands {
        sizes,
        sequences: (0..batch).map(|i| i * tokens..(i + 1) * tokens).collect(),
        q: needed(0, "q")?,
        k: needed(1, "k")?,
        v: needed(2, "v")?,
        beta: needed(3, "beta")?,
        gate,
        initial: given(5, "initial_state")?,
        scale: T::of(frame.real("scale")?),
        normalize: frame.flag("normalize")?,
    })?;
    Ok((problem, shapes))
}

/// Outputs, the final states and, where wanted, states for the backward pass.
pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_real!(frame.needed(0)?, go_forward(frame, context))
}

fn go_forward<T: Number + Exponential>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let (problem, shapes) = problem::<T>(frame)?;
    let results = Results {
        out: frame.wanted(0, &shapes.out)?,
        last: frame.wanted(1, &shapes.inputs[5])?,
        kept: frame.wanted(2, &shapes.kept)?,
    };
    delta::forward(context, &problem, results)
}

/// Gradients of the operands, those that are wanted. Further operands: what the forward pass kept, and the gradients of
/// outputs and of final states, where given.
pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_real!(frame.needed(0)?, go_backward(frame, context))
}

fn go_backward<T: Number + Exponential>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let (problem, shapes) = problem::<T>(frame)?;
    let kept = frame.given(INPUTS, "kept", &shapes.kept)?;
    let cotangents = Cotangents {
        out: frame.given(INPUTS + 1, "grad_o", &shapes.out)?,
        last: frame.given(INPUTS + 2, "grad_final_state", &shapes.inputs[5])?,
    };
    let wanted = |slot: usize| frame.wanted::<T>(slot, &shapes.inputs[slot]);
    let gradients = Gradients {
        q: wanted(0)?,
        k: wanted(1)?,
        v: wanted(2)?,
        beta: wanted(3)?,
        gate: wanted(4)?,
        initial: wanted(5)?,
    };
    delta::backward(context, &problem, kept, cotangents, gradients)
}
