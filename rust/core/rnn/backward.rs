//! Gradients of a sequence: one pass back in time.
//!
//! ```text
//! delta_t = phi'(h_t) o (dL/dh_t + W* delta_{t+1}),    dL/dh_0 = W* delta_1
//! low rank: q_t = Q* delta_t,   W* delta = delta + P q;    C1 = sum delta z*,  C2 = sum h_{t-1} q*
//! dense:    G = sum delta_t h_{t-1}*
//! dL/dV = sum delta x*,   dL/db = sum delta,   dL/dx = V* delta
//! ```
//!
//! `delta`, `q` and copies of `h_{t-1}`, `z` and `x` of some steps lie in a ring that stays in the cache; the sums take
//! the whole ring at a time.

use std::ops::Range;

use super::forward::{PreparedSequence, Saved};
use super::grad_x::InputGradient;
use super::gradients::SequenceGradients;
use super::plan::{Layout, Plan};
use super::ring::{Ring, RingRows};
use super::sequence::Sequence;
use super::steps::Series;
use super::sums::Sums;
use super::transition::{Transition, TransitionFactors};
use crate::arrays::stack::Stack;
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::filled;
use crate::numbers::scalar::Scalar;
use crate::operator::gradients::Gradients;
use crate::simd::activation::{Rest, activation_gradient};
use crate::simd::epilogue::{StepBack, Store};
use crate::simd::fetch::Fetch;
use crate::simd::gemm::gemm;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::Packed;
use crate::simd::vector::copy_columns;
use crate::threads::Context;

/// What the forward pass of the same sequences left. `saved` may hold the tape. Without either, `W` or its factors and `z` are
/// made again, and OPLU is refused.
#[derive(Clone, Copy, Debug)]
pub struct Trace<'a, T: Scalar> {
    /// All states, `(count, rows, n)`.
    pub h: &'a [T],
    /// What [`forward_and_save`](super::forward_and_save) returned.
    pub saved: Option<&'a Saved<T>>,
    /// The tape, if it has a place of its own.
    pub tape: Option<&'a [T]>,
}

impl<'a, T: Scalar> Trace<'a, T> {
    /// All states alone.
    pub fn new(h: &'a [T]) -> Self {
        Self { h, saved: None, tape: None }
    }
}

/// The loss's gradients of what the forward pass computed; what is `None` is zero.
#[derive(Clone, Copy, Debug)]
pub struct Cotangents<'a, T> {
    /// Of all states, `(count, rows, n)`.
    pub h: Option<Series<'a, T>>,
    /// Of those in which sequences end, `(count, batch, n)`.
    pub last: Option<&'a [T]>,
}

impl<T> Default for Cotangents<'_, T> {
    fn default() -> Self {
        Self { h: None, last: None }
    }
}

/// Gradients of the loss with respect to what the sequences consist of.
pub fn backward<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    trace: Trace<'_, T>,
    cotangents: Cotangents<'_, T>,
    gradients: SequenceGradients<'_, T>,
) -> Result<()> {
    T::rnn_backward(context, sequence, trace, cotangents, gradients)
}

/// [`backward`], to be compiled for each type.
pub(crate) fn run<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    Trace { h, saved, tape }: Trace<'_, T>,
    Cotangents { h: grad_h, last: grad_last }: Cotangents<'_, T>,
    gradients: SequenceGradients<'_, T>,
) -> Result<()> {
    let (w, steps, layout) = (&sequence.operator, &sequence.steps, sequence.layout()?);
    let (count, n, rows) = (w.count(), w.n(), steps.rows());
    sequence.check_activation()?;
    gradients.check(sequence)?;
    if rows == 0 || count == 0 {
        return gradients.of_no_steps(grad_last);
    }
    sequence.check()?;
    saved.map_or(Ok(()), |saved| saved.check(sequence))?;
    let len = |x: Option<&[T]>| x.map(<[T]>::len);
    w.require(&[
        ("h", Some(h.len()), &[rows, n]),
        ("the tape", len(tape), &[rows, layout.width]),
        ("dL/dh_T", len(grad_last), &[steps.batch(), n]),
    ])?;
    grad_h.iter().try_for_each(|grad_h| grad_h.check("dL/dh", count, steps, n))?;
    let is_saved = || saved.is_some_and(|saved| saved.0.iter().all(|prepared| prepared.tape().is_some()));
    if sequence.activation.flag_width(n) > 0 && tape.is_none() && !is_saved() {
        return Err(Error::InvalidArgument("oplu: the backward pass needs the tape of the forward pass".to_owned()));
    }
    let flops = sequence.plan(layout, 0).flops().saturating_mul(2).saturating_mul(count);
    let (h, tape, grad_last) =
        (Stack::new(h, count), tape.map(|x| Stack::new(x, count)), grad_last.map(|x| Stack::new(x, count)));
    gradients.by_problem(sequence, |of| {
        context.for_each(count, flops, &|i, context| {
            let prepared = saved.map(|saved| &saved.0[i]);
            let tape = tape.map(|tape| tape.at(i)).or_else(|| prepared?.tape());
            let grads = (grad_h.map(|grad| grad.of_problem(i, count, steps)), grad_last.map(|grad| grad.at(i)));
            one(context, &sequence.plan(layout, i), prepared, (h.at(i), tape), grads, of(i))
        })
    })
}

/// Gradients of one problem, given its states and tape, and the loss's gradients of all states and of the last ones.
fn one<T: Scalar>(
    context: &mut Context<'_>,
    plan: &Plan<'_, T>,
    prepared: Option<&PreparedSequence<T>>,
    (h, tape): (&[T], Option<&[T]>),
    (grad_h, grad_last): (Option<Series<'_, T>>, Option<&[T]>),
    mut gradients: SequenceGradients<'_, T>,
) -> Result<()> {
    let (isa, n) = (context.isa, plan.n());
    let formed;
    let factors = if let Some(prepared) = prepared {
        &prepared.factors
    } else {
        formed = TransitionFactors::new(context, plan)?;
        &formed
    };
    let back = factors.transition(isa, n, !plan.w.adjoint)?;
    let wants_u = gradients.u.is_some() || gradients.tau.is_some() || gradients.phases.is_some();
    let project = if wants_u && tape.is_none() { Some(factors.projection(isa, n, plan.w.adjoint)?) } else { None };
    let grad_x = gradients.x.as_deref_mut().map(|x| InputGradient::new(isa, plan, x)).transpose()?;
    let run = BackwardRun {
        isa,
        plan,
        back,
        project,
        h,
        tape,
        grad_h,
        grad_last,
        grad_x,
        grad_h0: gradients.h0.as_deref_mut().map(|x| ViewMut::of(x, n, plan.steps.batch())),
    };
    let width_of_grad_x = run.grad_x.as_ref().map_or(0, InputGradient::ring_width);
    let (slices, rows) = (plan.slices(), plan.parts());
    let wanted = [wants_u, gradients.input_weight.is_some(), gradients.bias.is_some()];
    let mut sums = Vec::with_capacity(slices.len());
    for _ in 1..slices.len() {
        sums.push(Sums::new(plan, wanted)?);
    }
    let (parts, flops) = (rows.len() - 1, plan.flops().saturating_mul(2));
    if parts > 1 {
        let whole = (0, plan.steps.batch());
        let sums = &mut sums[0];
        let mut rows_of_ring = RingRows::new(plan, whole, width_of_grad_x, sums)?;
        let ring = rows_of_ring.ring(&mut sums.c1, &mut sums.c2);
        let mut stages = Vec::new();
        run.each_stage(whole, &ring, |stage| {
            stages.try_reserve(1).map_err(|_| Error::OutOfMemory { bytes: size_of_val(&stages[..]) })?;
            stages.push(stage);
            Ok(())
        })?;
        context.run_stages(&filled(stages.len(), parts)?, flops, &|stage, part, cancel| {
            cancel.check()?;
            // SAFETY: tasks of a stage own disjoint coordinates; stages follow one another.
            unsafe { run.stage(stages[stage], whole, rows[part]..rows[part + 1], &ring, &mut []) };
            Ok(())
        })?;
    } else {
        let shared = Shared(sums.as_mut_ptr());
        context.run(slices.len() - 1, flops, &|i, cancel| {
            // SAFETY: task i alone uses sums i and these sequences.
            unsafe {
                let sums = &mut *shared.get().add(i);
                let slice = (slices[i], slices[i + 1]);
                let mut rows_of_ring = RingRows::new(plan, slice, width_of_grad_x, sums)?;
                let ring = rows_of_ring.ring(&mut sums.c1, &mut sums.c2);
                run.each_stage(slice, &ring, |stage| {
                    if matches!(stage, BackwardStage::Sum { .. }) {
                        cancel.check()?;
                    }
                    run.stage(stage, slice, 0..n, &ring, &mut sums.activation_bias);
                    Ok(())
                })
            }
        })?;
    }
    let mut sums = sums.into_iter();
    let mut total = sums.next().expect("a batch has at least one slice");
    sums.for_each(|part| total.merge(&part));
    total.write_inputs(context.isa, n, gradients.input_weight, gradients.bias);
    if let Some(activation_bias) = gradients.activation_bias {
        activation_bias.copy_from_slice(&total.activation_bias);
    }
    let SequenceGradients { u, tau, phases, .. } = gradients;
    total.finish(context, factors, plan, Gradients { u, h: None, tau, phases })
}

struct BackwardRun<'a, T: Scalar> {
    isa: InstructionSet,
    plan: &'a Plan<'a, T>,
    /// The step with the adjoint.
    back: Transition<T>,
    /// `P*`, to make `z` again.
    project: Option<Packed<T>>,
    h: &'a [T],
    tape: Option<&'a [T]>,
    grad_h: Option<Series<'a, T>>,
    grad_last: Option<&'a [T]>,
    grad_x: Option<InputGradient<'a, T>>,
    grad_h0: Option<ViewMut<'a, T>>,
}

/// A piece of the work on a slice of the batch. All coordinates must finish it before the next piece begins.
#[derive(Clone, Copy)]
enum BackwardStage {
    /// `delta` of the last step.
    Enter { t: usize },
    /// From `delta_t` in ring rows `base..`, all of it, to `delta_{t-1}` behind them.
    Step { t: usize, base: usize },
    /// `dL/dx` of `rows` rows, the first step of which is `t`, from all of `delta`.
    Inputs { t: usize, rows: usize },
    /// The operands of the sums over `rows` rows, other than `delta` and `h`.
    Operands { rows: usize },
    /// Adds these rows to the sums, from all of `h` and the operands, and moves `delta_{t-1}`, which is behind them, to the
    /// front: of `delta` a task reads its own coordinates alone.
    Sum { t: usize, rows: usize },
}

impl<T: Scalar> BackwardRun<'_, T> {
    /// All stages of the sequences `slice.0..slice.1`, in order.
    fn each_stage(
        &self,
        slice: (usize, usize),
        ring: &Ring<'_, T>,
        mut run: impl FnMut(BackwardStage) -> Result<()>,
    ) -> Result<()> {
        let steps = self.plan.steps;
        let count = |t: usize| steps.rows_of(t, slice).1;
        let mut high = (0..steps.count()).rfind(|&t| count(t) > 0).map_or(0, |last| last + 1);
        run(BackwardStage::Enter { t: high - 1 })?;
        while high > 0 {
            let low = high.saturating_sub(ring.steps);
            let mut rows = 0;
            for t in (low..high).rev() {
                run(BackwardStage::Step { t, base: rows })?;
                rows += count(t);
            }
            if self.grad_x.as_ref().is_some_and(|grad_x| grad_x.ring_width() > 0) {
                run(BackwardStage::Inputs { t: low, rows })?;
            }
            if T::COMPLEX || self.project.is_some() {
                run(BackwardStage::Operands { rows })?;
            }
            run(BackwardStage::Sum { t: low, rows })?;
            high = low;
        }
        Ok(())
    }

    /// One stage, for coordinates `range`: all of them, unless `W` is formed and phi is pointwise.
    ///
    /// # Safety
    /// The caller owns these coordinates of the ring, the sums and the gradients, and all stages before have ended.
    unsafe fn stage(
        &self,
        stage: BackwardStage,
        slice: (usize, usize),
        range: Range<usize>,
        ring: &Ring<'_, T>,
        grad_activation_bias: &mut [T::Real],
    ) {
        match stage {
            BackwardStage::Enter { t } => {
                self.enter(slice, t, 0, ring.delta, range);
                self.rest_of_activation(slice, t, ring.delta, grad_activation_bias);
            }
            BackwardStage::Step { t, base } => {
                let next = ring.delta.from(0, base + self.plan.steps.rows_of(t, slice).1);
                self.step(slice, t, base, range, ring);
                if t > 0 {
                    self.rest_of_activation(slice, t - 1, next, grad_activation_bias);
                }
            }
            BackwardStage::Inputs { t, rows } => {
                if let Some(grad_x) = &self.grad_x {
                    grad_x.ring(slice, t, rows, ring.delta.read(), ring.grad_x, &range);
                }
            }
            BackwardStage::Operands { rows } => ring.make_operands(self.isa, rows, range, self.project.as_ref()),
            BackwardStage::Sum { t, rows } => {
                ring.add_to_sums(self.isa, rows, range.clone(), self.ahead(slice, t, ring.steps));
                let carried = if t > 0 { self.plan.steps.rows_of(t - 1, slice).1 } else { 0 };
                for b in 0..carried {
                    let from = ring.delta.at(range.start, rows + b);
                    from.copy_to(ring.delta.at(range.start, b), range.len());
                }
            }
        }
    }

    /// `delta = phi'(h) o dL/dh` for the sequences from `first` (within the slice) on that end at step `t`.
    ///
    /// # Safety
    /// As of [`BackwardRun::stage`].
    unsafe fn enter(&self, slice: (usize, usize), t: usize, first: usize, delta: ViewMut<'_, T>, range: Range<usize>) {
        let (n, begin) = (self.plan.n(), range.start);
        let steps = self.plan.steps;
        let (row, count) = steps.rows_of(t, slice);
        for b in first..count {
            let delta = std::slice::from_raw_parts_mut(delta.at(begin, b), range.len());
            match self.grad_h.map(|g| g.at(steps, t, slice, n).from(begin, 0)) {
                Some(grad) => delta.copy_from_slice(grad.vector(b, range.len())),
                None => delta.fill(T::ZERO),
            }
            if let Some(grad_last) = self.grad_last {
                delta.iter_mut().zip(&grad_last[(slice.0 + b) * n + begin..]).for_each(|(g, &x)| *g += x);
            }
            activation_gradient(self.isa, self.plan.activation, delta, &self.h[(row + b) * n..][range.clone()]);
        }
    }

    /// The part of `phi'` that waits for whole vectors, for all `delta` of step `t`.
    ///
    /// # Safety
    /// As of [`BackwardRun::stage`], for all coordinates.
    unsafe fn rest_of_activation(
        &self,
        slice: (usize, usize),
        t: usize,
        delta: ViewMut<'_, T>,
        grad_activation_bias: &mut [T::Real],
    ) {
        if self.plan.activation.scope() != Rest::Vectors {
            return;
        }
        let n = self.plan.n();
        let (row, count) = self.plan.steps.rows_of(t, slice);
        for b in 0..count {
            let h = self.h[(row + b) * n..].as_ptr();
            let Layout { rank, width } = self.plan.layout;
            let flags = self.tape.map_or(std::ptr::null(), |tape| tape[(row + b) * width + rank..].as_ptr());
            self.plan.activation.rest_gradient(delta.at(0, b), h, n, flags.cast(), grad_activation_bias);
        }
    }

    /// From `delta_t` in ring rows `base..` to `delta_{t-1}` behind them.
    ///
    /// # Safety
    /// As of [`BackwardRun::stage`].
    unsafe fn step(&self, slice: (usize, usize), t: usize, base: usize, range: Range<usize>, ring: &Ring<'_, T>) {
        let (Plan { steps, activation, h0, x, d, .. }, Layout { rank, width }) = (self.plan, self.plan.layout);
        let (n, d, begin) = (self.plan.n(), *d, range.start);
        let count = steps.rows_of(t, slice).1;
        let earlier = t.saturating_sub(1);
        let before = steps.rows_of(earlier, slice).0;
        let [delta, q, h_copy, z_copy] = [ring.delta, ring.q, ring.h, ring.operand].map(|rows| rows.from(0, base));
        let next_delta = delta.from(begin, count);
        let h_copy = h_copy.from(begin, 0);
        if begin == 0 {
            let copy = |width: usize, len: usize, from: Series<'_, T>, to: ViewMut<'_, T>| {
                let [now, next] = [t, earlier].map(|t| from.at(steps, t, slice, width));
                copy_columns(self.isa, (len, count), now, to, next);
            };
            if let Some(tape) = self.tape {
                copy(width, ring.rank, Series::new(tape), z_copy);
            }
            copy(d, ring.widths[1], *x, z_copy.from(ring.rank, 0));
        }
        if let Some(grad_x) = &self.grad_x {
            grad_x.step(slice, t, delta.read(), &range);
        }
        let (weights, operand, next) = match &self.back {
            Transition::LowRank { project, expand } => {
                let [_, fetch] = Series::new(self.h).fetch(steps, t, slice, n, 1).halves();
                let store = Store { fetch, ..Store::new(q) };
                gemm(self.isa, (rank, count), project.weights(), delta.read(), &store);
                (expand.weights(), q.read(), delta.read())
            }
            Transition::Dense(w) => (w.weights_from(begin), delta.read(), View::none()),
        };
        if t == 0 {
            for b in 0..count {
                let copy = h_copy.vector_mut(b, range.len());
                match h0 {
                    Some(h0) => copy.copy_from_slice(&h0[(slice.0 + b) * n..][range.clone()]),
                    None => copy.fill(T::ZERO),
                }
            }
            if let Some(grad_h0) = self.grad_h0 {
                let out = grad_h0.part(slice.0, slice.0 + count).from(begin, 0);
                gemm(self.isa, (range.len(), count), weights, operand, &Store::plus(out, next));
            }
            return;
        }
        let fetch = Series::new(self.h).fetch(steps, t - 1, slice, n, 1);
        let grad = self.grad_h.map_or(View::none(), |g| g.at(steps, t - 1, slice, n).from(begin, 0));
        let epilogue = StepBack {
            out: next_delta,
            next,
            grad,
            h: View::of(self.h, n, before + count).from(begin, before),
            h_copy,
            activation: *activation,
            fetch: if next.ptr.is_null() { fetch } else { fetch.halves()[0] },
        };
        gemm(self.isa, (range.len(), count), weights, operand, &epilogue);
        self.enter(slice, t - 1, count, delta.from(0, count), range);
    }

    /// The loss's gradients that the next `block` steps read, in two halves.
    fn ahead(&self, slice: (usize, usize), t: usize, block: usize) -> [Fetch<T>; 2] {
        let (first, steps, n) = (block.div_ceil(2).min(t), self.plan.steps, self.plan.n());
        self.grad_h.map_or([Fetch::none(); 2], |g| {
            [(t, first), (t - first, block - first)].map(|(t, count)| g.fetch(steps, t, slice, n, count))
        })
    }
}
