//! The delta rule, and linear attention, which is the same without `beta`: `q (B, T, H, K)`, `k (B, T r, H, K)`,
//! `v (B, T r, HV, V)`, `beta (B, T r, HV)`, `g (B, T, HV)` or `(B, T, HV, K)`, states `(N, HV, K, V)`, and `skip (HV)`, with which
//! nothing is erased, either. `q`, `k`, `v` and the outputs may have half types; all else has the type of the computation.

use std::ops::Range;

use householder::delta::{self, Cotangents, Gate, Gradients, Operands, Problem, Results as Written, Sizes};
use householder::exponential::Exponential;

use crate::arguments::Arguments;
use crate::call::{Reading, Refusal};
use crate::dtype::{Number, by_dtype};
use crate::kernel::{Results, run};
use crate::tensor::{Tensor, gradient, optional, optional_numbers, wanted};

/// The operands of both passes, laid out: `q`, `k` and `v`, then `beta`, `g`, the initial states and `skip`.
struct Inputs {
    given: [Tensor; 3],
    others: [Option<Tensor>; 4],
    offsets: Option<Tensor>,
}

impl Inputs {
    fn laid_out([q, k, v]: [Tensor; 3], others: [Option<Tensor>; 5]) -> Reading<Self> {
        let [beta, g, initial, skip, offsets] = others;
        Ok(Self {
            given: [q.laid_out()?, k.laid_out()?, v.laid_out()?],
            others: [optional(beta)?, optional(g)?, optional(initial)?, optional(skip)?],
            offsets: optional(offsets)?,
        })
    }
}

/// A call, and its sizes.
struct Call<'a> {
    inputs: &'a Inputs,
    sizes: Sizes,
    sequences: Vec<Range<usize>>,
    /// Those of a batch, and in it.
    tokens: [usize; 2],
    steps: usize,
    by_channel: bool,
    scale: f64,
    normalize: bool,
}

impl<'a> Call<'a> {
    fn of(inputs: &'a Inputs, scale: f64, reflections: i64, normalize: bool) -> Reading<Self> {
        let [q, _, v] = &inputs.given;
        let (&[batch, tokens, heads, key_width], &[_, _, value_heads, value_width]) =
            (&q.shape()?[..], &v.shape()?[..])
        else {
            return Err(Refusal::invalid(format!(
                "expected q (B, T, H, K) and v (B, T r, HV, V), got q {} and v {}",
                q.describe()?,
                v.describe()?
            )));
        };
        let reflections = usize::try_from(reflections).unwrap_or(0);
        let all = batch.saturating_mul(tokens);
        let steps = all
            .checked_mul(reflections)
            .ok_or_else(|| Refusal::invalid(format!("sizes: {all} tokens of {reflections} steps each are too many")))?;
        let gates = inputs.others[1].as_ref().map(Tensor::shape).transpose()?;
        Ok(Self {
            inputs,
            sizes: Sizes { heads, value_heads, key_width, value_width, reflections },
            sequences: sequences(inputs.offsets.as_ref(), batch, tokens)?,
            tokens: [batch, tokens],
            steps,
            by_channel: gates.is_some_and(|gates| gates.len() == 4),
            scale,
            normalize,
        })
    }

    /// The shape of the outputs.
    fn out(&self) -> [usize; 4] {
        [self.tokens[0], self.tokens[1], self.sizes.value_heads, self.sizes.value_width]
    }

    /// The shape of final states, and of initial ones.
    fn states(&self, count: usize) -> [usize; 4] {
        let Sizes { value_heads, key_width, value_width, .. } = self.sizes;
        [count, value_heads, key_width, value_width]
    }

    /// How many states the backward pass begins its segments with.
    fn kept(&self) -> Reading<usize> {
        Ok(self.steps / delta::interval(self.sizes.key_width, self.sizes.value_width)?)
    }

    fn problem<T: Number + Exponential>(&self) -> Reading<Problem<'a, T>> {
        let Sizes { heads, value_heads, key_width, value_width, .. } = self.sizes;
        let ([q, k, v], [beta, g, initial, skip]) = (&self.inputs.given, &self.inputs.others);
        let tokens = self.tokens[0] * self.tokens[1];
        let width = if self.by_channel { key_width } else { 1 };
        let gate = match optional_numbers(g.as_ref(), "g", tokens * value_heads * width)? {
            None => Gate::None,
            Some(g) if self.by_channel => Gate::Channel(g),
            Some(g) => Gate::Head(g),
        };
        let states = self.states(self.sequences.len()).iter().product();
        Ok(Problem::new(Operands {
            sizes: self.sizes,
            sequences: self.sequences.clone(),
            q: q.tokens("q", tokens * heads * key_width)?,
            k: k.tokens("k", self.steps * heads * key_width)?,
            v: v.tokens("v", self.steps * value_heads * value_width)?,
            beta: optional_numbers(beta.as_ref(), "beta", self.steps * value_heads)?,
            skip: optional_numbers(skip.as_ref(), "skip", value_heads)?,
            gate,
            initial: optional_numbers(initial.as_ref(), "initial_state", states)?,
            scale: T::of(self.scale),
            normalize: self.normalize,
        })?)
    }
}

/// Where the sequences begin and end, counted in tokens of all rows.
fn sequences(offsets: Option<&Tensor>, batch: usize, tokens: usize) -> Reading<Vec<Range<usize>>> {
    let Some(offsets) = offsets else { return Ok((0..batch).map(|i| i * tokens..(i + 1) * tokens).collect()) };
    let offsets = offsets.integers("cu_seqlens")?;
    if batch != 1 {
        let text = "q: with cu_seqlens sequences are packed in one row: expected B = 1";
        return Err(Refusal::invalid(format!("{text}, got B = {batch}")));
    }
    let is_sorted = offsets.is_sorted() && offsets.first() == Some(&0) && offsets.last() == Some(&(tokens as i64));
    if !is_sorted {
        let text = format!("cu_seqlens is {offsets:?}, expected numbers from 0 to T = {tokens} that never decrease");
        return Err(Refusal::invalid(text));
    }
    Ok(offsets.windows(2).map(|pair| pair[0] as usize..pair[1] as usize).collect())
}

/// Outputs, final states, and the states that the backward pass begins its segments with.
pub fn forward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number + Exponential>(call: &Call<'_>, results: &mut [Tensor; 3], keep: bool) -> Reading<()> {
        let (problem, [out, last, kept]) = (call.problem::<T>()?, results);
        let kept = if keep { Some(kept) } else { None };
        let (out, last) = (Some(out.stored_mut()?), wanted(Some(last))?);
        let results = Written { out, last, in_place: false, kept: wanted(kept)? };
        run(|context| delta::forward(context, &problem, results))
    }
    let given = [arguments.tensor(), arguments.tensor(), arguments.tensor()];
    let (others, keep) = (arguments.optionals(), arguments.flag());
    let (scale, reflections, normalize) = (arguments.real(), arguments.integer(), arguments.flag());
    let inputs = Inputs::laid_out(given, others)?;
    let call = Call::of(&inputs, scale, reflections, normalize)?;
    let (q, kept) = (&inputs.given[0], if keep { call.kept()? } else { 0 });
    let computed = q.dtype()?.computed();
    let mut results = [
        Tensor::empty(&call.out(), q)?,
        Tensor::of_type(&call.states(call.sequences.len()), computed)?,
        Tensor::of_type(&call.states(kept), computed)?,
    ];
    by_dtype!(real computed, go(&call, &mut results, keep))?;
    Ok(results.map(Some).into())
}

/// The gradients of the operands but the offsets, those that are wanted.
pub fn backward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number + Exponential>(
        call: &Call<'_>,
        [kept, grad_out, grad_last]: [Option<&Tensor>; 3],
        gradients: &mut [Option<Tensor>; 7],
    ) -> Reading<()> {
        let len = |shape: [usize; 4]| shape.iter().product();
        let cotangents = Cotangents {
            out: grad_out.map(|grad| grad.tokens("grad_out", len(call.out()))).transpose()?,
            last: optional_numbers(grad_last, "grad_last", len(call.states(call.sequences.len())))?,
        };
        let kept = optional_numbers(kept, "kept", len(call.states(call.kept()?)))?;
        let [q, k, v, beta, gate, initial, skip] = gradients.each_mut().map(Option::as_mut);
        let gradients = Gradients {
            q: wanted(q)?,
            k: wanted(k)?,
            v: v.map(Tensor::stored_mut).transpose()?,
            beta: wanted(beta)?,
            gate: wanted(gate)?,
            initial: wanted(initial)?,
            skip: wanted(skip)?,
        };
        let problem = call.problem::<T>()?;
        run(|context| delta::backward(context, &problem, kept, cotangents, gradients))
    }
    let given = [arguments.tensor(), arguments.tensor(), arguments.tensor()];
    let (others, states, wants) = (arguments.optionals(), arguments.optionals::<3>(), arguments.flags::<7>());
    let (scale, reflections, normalize) = (arguments.real(), arguments.integer(), arguments.flag());
    let inputs = Inputs::laid_out(given, others)?;
    let [kept, grad_out, grad_last] = states;
    let states = [optional(kept)?, optional(grad_out)?, optional(grad_last)?];
    let call = Call::of(&inputs, scale, reflections, normalize)?;
    let computed = inputs.given[0].dtype()?.computed();
    let [q, k, v] = &inputs.given;
    let of_keys = |tensor: &Tensor| Tensor::of_type(&tensor.shape()?, computed);
    let [wants_q, wants_k, wants_v, wants_others @ ..] = wants?;
    let mut gradients = [
        wants_q.then(|| of_keys(q)).transpose()?,
        wants_k.then(|| of_keys(k)).transpose()?,
        gradient(Some(v), wants_v)?,
        None,
        None,
        None,
        None,
    ];
    for (i, (tensor, is_wanted)) in inputs.others.iter().zip(wants_others).enumerate() {
        gradients[3 + i] = gradient(tensor.as_ref(), is_wanted)?;
    }
    by_dtype!(real computed, go(&call, states.each_ref().map(Option::as_ref), &mut gradients))?;
    let [grad_q, grad_k, others @ ..] = gradients;
    let converted = |grad: Option<Tensor>, like: &Tensor| grad.map(|grad| grad.converted(like.dtype()?)).transpose();
    Ok([converted(grad_q, q)?, converted(grad_k, k)?].into_iter().chain(others).collect())
}
