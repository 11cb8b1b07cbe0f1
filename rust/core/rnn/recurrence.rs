//! A recurrence whose weights are packed once, for steps whose inputs arrive one at a time and for sequences with the same
//! parameters: `h_t = phi(W h_{t-1} + V x_t + b)`.

use std::ptr::null_mut;

use super::forward::States;
use super::sequence::Sequence;
use super::transition::TransitionFactors;
use super::weights::StepWeights;
use crate::arrays::lengths;
use crate::arrays::view::{View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::simd::activation::Activation;
use crate::simd::epilogue::Step;
use crate::simd::fetch::Fetch;
use crate::simd::vector::copy_columns;
use crate::threads::Context;

/// So many steps that what they share costs nothing.
const STEPS: usize = 1 << 20;

/// `W`, `V`, `b` and `phi`, owned and ready for a step.
#[derive(Debug)]
pub struct Recurrence<T: Scalar> {
    weights: StepWeights<T>,
    /// Its bias stands beside it.
    activation: Activation<'static, T>,
    activation_bias: Vec<T::Real>,
}

impl<T: Scalar> Recurrence<T> {
    /// That of a sequence of one problem, for single steps. The values of `x` and `h_0` play no part, but their lengths must fit
    /// the sequence's steps.
    pub fn new(context: &mut Context<'_>, sequence: &Sequence<'_, T>) -> Result<Self> {
        T::recurrence(context, sequence, STEPS)
    }

    /// That of a sequence of one problem, for [`Recurrence::run`] with as many states, by the method that these ask for.
    pub fn for_sequences(context: &mut Context<'_>, sequence: &Sequence<'_, T>) -> Result<Self> {
        T::recurrence(context, sequence, sequence.steps.rows())
    }

    /// `out = phi(W h + V x + b)` for each row of `h (batch, n)` and `x (batch, d)`, on the calling thread.
    pub fn step(&self, x: &[T], h: &[T], out: &mut [T]) -> Result<()> {
        T::recurrent_step(self, x, h, out)
    }

    /// [`forward`](super::forward()) for a sequence whose operator, `V` and `b` are those that this was made of. Refuses one of
    /// other sizes or another method.
    pub fn run(&self, context: &mut Context<'_>, sequence: &Sequence<'_, T>, states: States<'_, T>) -> Result<()> {
        T::rnn(context, sequence, states, false, Some(&self.weights)).map(drop)
    }

    /// [`Recurrence::new`], to be compiled for each type.
    pub(crate) fn prepare(context: &mut Context<'_>, sequence: &Sequence<'_, T>, rows: usize) -> Result<Self> {
        let w = &sequence.operator;
        if w.count() != 1 {
            return Err(Error::value("", "one operator", w.count()));
        }
        sequence.check_activation()?;
        sequence.check()?;
        let plan = sequence.plan(sequence.layout_for(rows)?, 0);
        let factors = TransitionFactors::new(context, &plan)?;
        Ok(Self {
            weights: StepWeights::new(context.isa, &plan, Some(&factors))?,
            activation: plan.activation.with_bias(&[]),
            activation_bias: plan.activation.bias().map_or(Vec::new(), <[_]>::to_vec),
        })
    }

    /// [`Recurrence::step`], to be compiled for each type.
    pub(crate) fn advance(&self, x: &[T], h: &[T], out: &mut [T]) -> Result<()> {
        let weights = &self.weights;
        let (n, d, isa) = (weights.n, weights.d, weights.isa);
        let batch = h.len() / n;
        lengths::require(1, &[("x", Some(x.len()), &[batch, d]), ("h", Some(h.len()), &[batch, n])])?;
        lengths::require(1, &[("out", Some(out.len()), &[batch, n])])?;
        let [inputs, ones] = weights.widths;
        let mut raw = Buffer::scratch(batch * (inputs + ones))?;
        raw.fill(T::ONE);
        let ld = padded::<T>(weights.rank());
        let mut z = Buffer::zeroed(batch * ld)?;
        let (x, h, out) = (View::of(x, d, batch), View::of(h, n, batch), ViewMut::of(out, n, batch));
        let step = Step {
            out,
            previous: View::none(),
            input: if weights.is_projected { View::none() } else { x },
            activation: self.activation.with_bias(&self.activation_bias),
            fetch: Fetch::none(),
        };
        let raw = ViewMut::of(&mut raw, inputs + ones, batch);
        // SAFETY: rows of n numbers each, of `raw` as many as `[V b]` has columns, and of `z` as many as P has.
        unsafe {
            copy_columns(isa, (inputs, batch), x, raw, x);
            let inputs = [weights.inputs.weights(), raw.read()];
            if let Some(transition) = &weights.transition {
                transition.advance(isa, 0..n, h, ViewMut::of(&mut z, ld, batch), inputs, step);
            }
            (0..batch).for_each(|b| step.activation.rest(isa, out.at(0, b), n, null_mut()));
        }
        Ok(())
    }
}
