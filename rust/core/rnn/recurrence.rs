//! A recurrence whose weights are packed once, for steps whose inputs arrive one at a time:
//! `h_t = phi(W h_{t-1} + V x_t + b)`.

use std::ptr::null_mut;

use super::sequence::Sequence;
use super::transition::{Factors, Transition};
use crate::error::{Error, Result};
use crate::lengths;
use crate::memory::{Buffer, padded};
use crate::method::{Costs, Method};
use crate::scalar::Scalar;
use crate::simd::activation::Activation;
use crate::simd::epilogue::Step;
use crate::simd::fetch::Fetch;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::{Packed, pack};
use crate::threads::Context;
use crate::view::View;

/// `W`, `V`, `b` and `phi`, owned and ready for a step.
pub struct Recurrence<T: Scalar> {
    /// For which weights are packed.
    isa: InstructionSet,
    n: usize,
    d: usize,
    transition: Transition<T>,
    /// `[V b]`, and how many columns each of the two has.
    inputs: Packed<T>,
    widths: [usize; 2],
    /// Its bias stands beside it.
    activation: Activation<'static, T>,
    activation_bias: Vec<T::Real>,
}

impl<T: Scalar> Recurrence<T> {
    /// That of a sequence of one problem. Its steps, `x` and `h_0` play no part.
    pub fn new(context: &mut Context<'_>, sequence: &Sequence<'_, T>) -> Result<Self> {
        let w = &sequence.operator;
        if w.count() != 1 {
            return Err(Error::InvalidArgument(format!("expected one operator, got {}", w.count())));
        }
        sequence.check()?;
        let mut layout = sequence.layout()?;
        if w.wanted_method().is_none() && w.angles() == 0 {
            // Over many steps only their cost counts: numbers of P and Q, or of W.
            let costs = Costs::of_sequence(w.n(), w.m(), STEPS).accurate(!w.are_involutions());
            layout.rank = if costs.best() == Method::Dense { 0 } else { w.m() };
        }
        let (plan, isa) = (sequence.plan(layout, 0), context.isa);
        let transition = Factors::new(context, &plan)?.transition(isa, w.n(), w.is_adjoint())?;
        Ok(Self {
            isa,
            n: w.n(),
            d: sequence.d,
            transition,
            // SAFETY: V and b are the sequence's.
            inputs: unsafe { pack(isa, w.n(), &plan.input_parts()) }?,
            widths: plan.input_widths(),
            activation: plan.activation.with_bias(&[]),
            activation_bias: plan.activation.bias().map_or(Vec::new(), <[_]>::to_vec),
        })
    }

    /// `out = phi(W h + V x + b)` for each row of `h (batch, n)` and `x (batch, d)`, on the calling thread.
    pub fn step(&self, x: &[T], h: &[T], out: &mut [T]) -> Result<()> {
        let (n, d, isa) = (self.n, self.d, self.isa);
        let batch = h.len() / n;
        lengths::require(1, &[("x", Some(x.len()), &[batch, d]), ("h", Some(h.len()), &[batch, n])])?;
        lengths::require(1, &[("out", Some(out.len()), &[batch, n])])?;
        let [inputs, ones] = self.widths;
        let mut raw = Buffer::scratch(batch * (inputs + ones))?;
        for (raw, x) in raw.chunks_exact_mut((inputs + ones).max(1)).zip(x.chunks_exact(d)) {
            raw[..inputs].copy_from_slice(&x[..inputs]);
            raw[inputs..].fill(T::ONE);
        }
        let ld = padded::<T>(self.transition.rank());
        let mut z = Buffer::zeroed(batch * ld)?;
        let view = |p: *const T, ld: usize| View::new(p, ld, batch);
        let step = Step {
            out: view(out.as_mut_ptr(), n),
            previous: View::none(),
            input: if inputs == 0 { view(x.as_ptr(), d) } else { View::none() },
            activation: self.activation.with_bias(&self.activation_bias),
            fetch: Fetch::none(),
        };
        // SAFETY: rows of n numbers each, of `raw` as many as `[V b]` has columns, and of `z` as many as P has.
        unsafe {
            let inputs = [self.inputs.weights(), view(raw.ptr_mut(), inputs + ones)];
            self.transition.advance(isa, 0..n, view(h.as_ptr(), n), view(z.ptr_mut(), ld), inputs, step);
            (0..batch).for_each(|b| step.activation.finish(isa, out.as_mut_ptr().add(b * n), n, null_mut()));
        }
        Ok(())
    }
}

/// So many states that what they share costs nothing.
const STEPS: usize = 1 << 20;
