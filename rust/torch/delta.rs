//! The delta rule, and linear attention, which is the same without `beta`.

use std::ops::Range;

use householder::delta::{self as core, Sizes};
use householder_binding::array::AnyArray;
use householder_binding::delta::{self, DeltaCall, GRADIENTS, slots, steps};
use householder_binding::dtype::DType;
use householder_binding::operands::{Arrays, each, named};
use householder_binding::refusal::{Reading, Refusal};

use crate::arguments::Arguments;
use crate::kernel::{Tensors, results};
use crate::tensor::{Laid, Tensor, gradients, optional};

/// `q`, `k`, `v`, `beta`, `g`, the initial states, `skip` and `cu_seqlens`.
type DeltaInputs = [Option<Laid>; 8];

fn laid_out([q, k, v]: [Tensor; 3], [beta, g, initial, skip, offsets]: [Option<Tensor>; 5]) -> Reading<DeltaInputs> {
    let [q, k, v] = [q.laid_out()?, k.laid_out()?, v.laid_out()?].map(Some);
    Ok([q, k, v, optional(beta)?, optional(g)?, optional(initial)?, optional(skip)?, optional(offsets)?])
}

fn call(
    [q, _, v, _, g, _, _, offsets]: &DeltaInputs,
    scale: f64,
    reflections: i64,
    normalize: bool,
) -> Reading<(DeltaCall, DType)> {
    let (Some(q), Some(v)) = (q, v) else { unreachable!("a call has both") };
    let (&[batch, tokens, heads, key_width], &[_, _, value_heads, value_width]) = (&q.shape()[..], &v.shape()[..])
    else {
        return Err(Refusal::invalid(format!(
            "expected q (B, T, H, K) and v (B, T r, HV, V), got q {} and v {}",
            q.describe()?,
            v.describe()?
        )));
    };
    let reflections = usize::try_from(reflections).unwrap_or(0);
    let steps = steps(batch.saturating_mul(tokens), reflections)?;
    let call = DeltaCall {
        sizes: Sizes { heads, value_heads, key_width, value_width, reflections },
        sequences: sequences(offsets.as_ref(), batch, tokens)?,
        tokens: [batch, tokens],
        steps: [batch, tokens.saturating_mul(reflections)],
        saved: [1, steps / core::interval(key_width, value_width)?],
        by_channel: g.as_ref().is_some_and(|g| g.dims == 4),
        scale,
        normalize,
    };
    Ok((call, q.dtype))
}

/// Where the sequences begin and end, counted in tokens of all rows.
fn sequences(offsets: Option<&Laid>, batch: usize, tokens: usize) -> Reading<Vec<Range<usize>>> {
    let Some(offsets) = offsets else { return Ok((0..batch).map(|i| i * tokens..(i + 1) * tokens).collect()) };
    let offsets = (offsets as &dyn AnyArray).integers("cu_seqlens")?;
    if batch != 1 {
        let text = "q: with cu_seqlens sequences are packed in one row: expected B = 1";
        return Err(Refusal::invalid(format!("{text}, got B = {batch}")));
    }
    let is_sorted = offsets.is_sorted() && offsets.first() == Some(&0) && offsets.last() == Some(&(tokens as i64));
    if !is_sorted {
        let text = format!(
            "cu_seqlens is {offsets:?}, expected numbers that begin with 0, never decrease and end with T = {tokens}"
        );
        return Err(Refusal::invalid(text));
    }
    Ok(offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize).collect())
}

/// Outputs, final states, and the states that the backward pass begins its segments with.
pub fn forward(arguments: &mut Arguments) -> Reading<Tensors> {
    let given = [arguments.tensor(), arguments.tensor(), arguments.tensor()];
    let (others, save) = (arguments.optionals(), arguments.flag());
    let (scale, reflections, normalize) = (arguments.real(), arguments.integer(), arguments.flag());
    let inputs = laid_out(given, others)?;
    let (call, dtype) = call(&inputs, scale, reflections, normalize)?;
    let states = |count: usize| Laid::empty(&[&[count], &call.shape(5)[1..]].concat(), dtype.computed());
    let (out, last) = (Laid::empty(&call.out(), dtype)?, states(call.sequences.len())?);
    let saved = states(if save { call.saved[1] } else { 0 })?;
    let results = named(["out", "last", "saved"], [Some(&out), Some(&last), Some(&saved).filter(|_| save)]);
    let operands = slots(&inputs[..GRADIENTS.len()], [None; 3]);
    delta::forward(&Arrays::with_new_results(&operands, &results), call, false)?;
    Ok(self::results([out, last, saved].map(Some)))
}

/// The gradients of the operands but the offsets, those that are needed.
pub fn backward(arguments: &mut Arguments) -> Reading<Tensors> {
    let given = [arguments.tensor(), arguments.tensor(), arguments.tensor()];
    let (others, states, wants) = (arguments.optionals(), arguments.optionals::<3>(), arguments.flags::<7>());
    let (scale, reflections, normalize) = (arguments.real(), arguments.integer(), arguments.flag());
    let (inputs, [saved, grad_out, grad_last]) = (laid_out(given, others)?, states);
    let states = [optional(saved)?, optional(grad_out)?, optional(grad_last)?];
    let (call, dtype) = call(&inputs, scale, reflections, normalize)?;
    let [wants_q, wants_k, others @ ..] = wants?;
    let [v, beta, g, initial, skip] = others;
    let mut gradients = gradients(inputs.iter().map(Option::as_ref), [false, false, v, beta, g, initial, skip])?;
    for ((gradient, tensor), is_wanted) in gradients.iter_mut().zip(&inputs).zip([wants_q, wants_k]) {
        let like = tensor.as_ref().filter(|_| is_wanted);
        *gradient = like.map(|like| Laid::empty(&like.shape(), dtype.computed())).transpose()?;
    }
    let operands = slots(&inputs[..GRADIENTS.len()], states.each_ref().map(Option::as_ref));
    delta::backward(&Arrays::with_new_results(&operands, &each(GRADIENTS, &gradients)), call)?;
    for (gradient, like) in gradients.iter_mut().zip(inputs.iter().flatten()).take(2) {
        *gradient = gradient.take().map(|gradient| gradient.converted(like.dtype)).transpose()?;
    }
    Ok(results(gradients))
}
