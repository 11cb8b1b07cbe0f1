//! The delta rule, and linear attention, which is the same without `beta`: `q (B, T, H, K)`, `k (B, T r, H, K)`,
//! `v (B, T r, HV, V)`, `beta (B, T r, HV)`, `g (B, T, HV)` or `(B, T, HV, K)`, states `(N, HV, K, V)`, and `skip (HV)`, with which
//! nothing is erased, either. `q`, `k`, `v` and the outputs may have half types; all else has the type of the computation.

use std::ops::Range;

use householder::delta::{self, Cotangents, Gate, Gradients, Operands, Problem, Results, Sizes};
use householder::exponential::Exponential;

use crate::array::AnyArray;
use crate::by_dtype;
use crate::dtype::ArrayNumber;
use crate::operands::{Arrays, Axes, Named, Operands as _, given, named};
use crate::refusal::{Reading, Refusal};

/// Slots of operands, and of their gradients. `skip`, which XLA does not have, follows what a backward pass takes.
pub const OPERANDS: [&str; 10] =
    ["q", "k", "v", "beta", "g", "initial_state", "saved", "grad_out", "grad_last", "skip"];
pub const GRADIENTS: [&str; 7] =
    ["grad_q", "grad_k", "grad_v", "grad_beta", "grad_g", "grad_initial_state", "grad_skip"];
const SKIP: [usize; 2] = [9, 6];

/// The seven operands of a forward pass, in the order of their gradients, and three of a backward pass, in their slots.
pub fn slots<'x, A: AnyArray>(inputs: &'x [Option<A>], others: [Option<&'x A>; 3]) -> [Named<'x>; 10] {
    let (skip, inputs) = inputs.split_last().expect("seven operands");
    named(OPERANDS, inputs.iter().map(Option::as_ref).chain(others).chain([skip.as_ref()]))
}

/// A call.
pub struct DeltaCall {
    pub sizes: Sizes,
    pub sequences: Vec<Range<usize>>,
    /// The axes of tokens, of steps and of saved states: those of a batch, and in it.
    pub tokens: [usize; 2],
    pub steps: [usize; 2],
    pub saved: [usize; 2],
    pub by_channel: bool,
    pub scale: f64,
    pub normalize: bool,
}

/// How many steps `tokens` take.
pub fn steps(tokens: usize, reflections: usize) -> Reading<usize> {
    let text = || format!("sizes: {tokens} tokens of {reflections} steps each are too many");
    tokens.checked_mul(reflections).ok_or_else(|| Refusal::invalid(text()))
}

impl DeltaCall {
    /// The shape of an operand, and of its gradient.
    pub fn shape(&self, slot: usize) -> Axes {
        let Sizes { heads, value_heads, key_width, value_width, .. } = self.sizes;
        let ([batch, tokens], [_, steps]) = (self.tokens, self.steps);
        match slot {
            0 => Axes::new([batch, tokens, heads, key_width]),
            1 => Axes::new([batch, steps, heads, key_width]),
            2 => Axes::new([batch, steps, value_heads, value_width]),
            3 => Axes::new([batch, steps, value_heads]),
            4 if self.by_channel => Axes::new([batch, tokens, value_heads, key_width]),
            4 => Axes::new([batch, tokens, value_heads]),
            _ => Axes::new([self.sequences.len(), value_heads, key_width, value_width]),
        }
    }

    fn of_skip(&self) -> Axes {
        Axes::new([self.sizes.value_heads])
    }

    /// The shape of the outputs.
    pub fn out(&self) -> [usize; 4] {
        [self.tokens[0], self.tokens[1], self.sizes.value_heads, self.sizes.value_width]
    }

    /// The shape of the states that are saved.
    fn saved(&self) -> [usize; 5] {
        let Sizes { value_heads, key_width, value_width, .. } = self.sizes;
        [self.saved[0], self.saved[1], value_heads, key_width, value_width]
    }

    fn problem<T: ArrayNumber + Exponential>(self, operands: &Arrays<'_>) -> Reading<Problem<'static, T>> {
        let gate = match operands.read(4, "g", &self.shape(4))? {
            None => Gate::None,
            Some(g) if self.by_channel => Gate::Channel(g),
            Some(g) => Gate::Head(g),
        };
        Ok(Problem::new(Operands {
            sizes: self.sizes,
            q: given("q", operands.tokens(0, "q", &self.shape(0))?)?,
            k: given("k", operands.tokens(1, "k", &self.shape(1))?)?,
            v: given("v", operands.tokens(2, "v", &self.shape(2))?)?,
            beta: operands.read(3, "beta", &self.shape(3))?,
            skip: operands.read(SKIP[0], "skip", &self.of_skip())?,
            gate,
            initial: operands.read(5, "initial_state", &self.shape(5))?,
            scale: T::of(self.scale),
            normalize: self.normalize,
            sequences: self.sequences,
        })?)
    }
}

/// Results are outputs, final states and the states for the backward pass. `in_place`: the final states hold the initial ones.
pub fn forward(arrays: &Arrays<'_>, call: DeltaCall, in_place: bool) -> Reading<()> {
    by_dtype!(arrays.dtype(0).computed(), real, |T| {
        let results = Results {
            out: arrays.numbers_mut(0, &call.out())?,
            last: arrays.write(1, &call.shape(5))?,
            in_place,
            saved: arrays.write(2, &call.saved())?,
        };
        let problem = call.problem::<T>(arrays)?;
        arrays.run(|context| delta::forward(context, &problem, results))
    })
}

/// Gradients of the operands, those that are needed. Further operands are the states that the forward pass saved, and the
/// gradients of outputs and of final states.
pub fn backward(arrays: &Arrays<'_>, call: DeltaCall) -> Reading<()> {
    by_dtype!(arrays.dtype(0).computed(), real, |T| {
        let cotangents = Cotangents {
            out: arrays.tokens(7, "grad_out", &call.out())?,
            last: arrays.read(8, "grad_last", &call.shape(5))?,
        };
        let place = |slot: usize| arrays.write(slot, &call.shape(slot));
        let gradients = Gradients {
            q: place(0)?,
            k: place(1)?,
            v: arrays.numbers_mut(2, &call.shape(2))?,
            beta: place(3)?,
            gate: place(4)?,
            initial: place(5)?,
            skip: arrays.write(SKIP[1], &call.of_skip())?,
        };
        let saved = arrays.read(6, "saved", &call.saved())?;
        let problem = call.problem::<T>(arrays)?;
        arrays.run(|context| delta::backward(context, &problem, saved, cotangents, gradients))
    })
}
