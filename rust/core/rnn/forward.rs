//! The states of sequences.

use std::fmt;
use std::ops::Range;
use std::ptr::null_mut;

use super::plan::{Layout, Plan};
use super::sequence::Sequence;
use super::transition::TransitionFactors;
use super::weights::StepWeights;
use crate::apply;
use crate::arrays::lengths::{self, product};
use crate::arrays::stack::{Stack, StackMut};
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, collected, filled, padded};
use crate::numbers::scalar::Scalar;
use crate::simd::activation::Rest;
use crate::simd::epilogue::{Step, Store};
use crate::simd::fetch::Fetch;
use crate::simd::gemm::gemm;
use crate::simd::isa::InstructionSet;
use crate::simd::vector::copy_columns;
use crate::threads::Context;

/// What a forward pass leaves to the backward pass of the same sequences: for each problem all that both need of `U`, and
/// the tape.
pub struct Saved<T: Scalar>(pub(super) Vec<PreparedSequence<T>>);

/// What it leaves of one problem.
pub(super) struct PreparedSequence<T: Scalar> {
    pub factors: TransitionFactors<T>,
    /// Empty where the tape has a place of its own, and where there is nothing to save.
    tape: Buffer<T>,
}

impl<T: Scalar> PreparedSequence<T> {
    /// The tape, where it is saved.
    pub fn tape(&self) -> Option<&[T]> {
        (!self.tape.is_empty()).then_some(&self.tape[..])
    }
}

impl<T: Scalar> fmt::Debug for Saved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saved").finish_non_exhaustive()
    }
}

impl<T: Scalar> Saved<T> {
    /// Refuses what sequences of other sizes or another method left.
    pub fn check(&self, sequence: &Sequence<'_, T>) -> Result<()> {
        let (layout, rows) = (sequence.layout()?, sequence.steps.rows());
        let fits = |(i, prepared): (usize, &PreparedSequence<T>)| {
            let tape = prepared.tape().map(<[T]>::len);
            prepared.factors.fit(sequence.operator.at(i).u, layout)
                && (tape.is_none() || tape == product(&[rows, layout.width]))
        };
        if self.0.len() == sequence.operator.count() && self.0.iter().enumerate().all(fits) {
            return Ok(());
        }
        Err(Error::InvalidArgument("prepared for another sequence".to_owned()))
    }
}

/// What the forward pass writes.
#[derive(Debug)]
pub struct States<'a, T> {
    /// All states, `(count, rows, n)`.
    pub h: &'a mut [T],
    /// Those in which sequences end, `(count, batch, n)`.
    pub last: Option<&'a mut [T]>,
    /// `z = P* h_{t-1}` for the backward pass, `(count, rows, `[`Sequence::tape_width`]`)`.
    pub tape: Option<&'a mut [T]>,
}

impl<'a, T> States<'a, T> {
    /// All states alone.
    pub fn new(h: &'a mut [T]) -> Self {
        Self { h, last: None, tape: None }
    }
}

/// Computes the states of all sequences.
pub fn forward<T: Scalar>(context: &mut Context<'_>, sequence: &Sequence<'_, T>, states: States<'_, T>) -> Result<()> {
    T::rnn(context, sequence, states, false, None).map(drop)
}

/// [`forward`], and what the backward pass need not find again: with the tape, unless that has a place of its own.
pub fn forward_and_save<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    states: States<'_, T>,
) -> Result<Saved<T>> {
    T::rnn(context, sequence, states, true, None)
}

/// [`forward_and_save`], to be compiled for each type. Weights that are `prepared` are not packed again, nor saved.
pub(crate) fn run<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    States { h, mut last, tape }: States<'_, T>,
    save: bool,
    prepared: Option<&StepWeights<T>>,
) -> Result<Saved<T>> {
    let (w, steps, layout) = (&sequence.operator, &sequence.steps, sequence.layout()?);
    let (count, n, rows) = (w.count(), w.n(), steps.rows());
    let len = |x: &Option<&mut [T]>| x.as_ref().map(|x| x.len());
    sequence.check_activation()?;
    if rows > 0 {
        sequence.check()?;
    }
    w.require(&[("h", Some(h.len()), &[rows, n]), ("the tape", len(&tape), &[rows, layout.width])])?;
    if steps.count() > 0 {
        w.require(&[("the last states", len(&last), &[steps.batch(), n])])?;
    } else if let Some(last) = &mut last {
        // Sequences without steps end where they begin.
        match sequence.h0 {
            Some(h0) => {
                lengths::require(1, &[("the last states", Some(last.len()), &[h0.len()])])?;
                last.copy_from_slice(h0);
            }
            None => last.fill(T::ZERO),
        }
    }
    if rows == 0 || count == 0 {
        return Ok(Saved(Vec::new()));
    }
    if let Some(prepared) = prepared {
        prepared.check(&sequence.plan(layout, 0), count)?;
    }
    let is_single = steps.count() == 1 && !save && tape.is_none() && prepared.is_none();
    let applied = if is_single { applied(context, sequence)? } else { None };
    let applied = applied.as_ref().map(|applied| Stack::new(applied, count));
    let (h, flops) = (StackMut::new(h, count), sequence.plan(layout, 0).flops().saturating_mul(count));
    let [last, tape] = [last, tape].map(|x| x.map(|x| StackMut::new(x, count)));
    let mut saved = collected((0..if save { count } else { 0 }).map(|_| None))?;
    let each = StackMut::new(&mut saved, count);
    context.for_each(count, flops, &|i, context| {
        let mut plan = sequence.plan(layout, i);
        if let Some(applied) = &applied {
            plan.h0 = Some(applied.at(i));
        }
        // SAFETY: each problem writes its own parts.
        let (h, last, tape, saved) =
            unsafe { (h.at(i), last.as_ref().map(|x| x.at(i)), tape.as_ref().map(|x| x.at(i)), each.at(i)) };
        let own = if save && tape.is_none() { product(&[rows, layout.width]).unwrap_or(usize::MAX) } else { 0 };
        let mut own = Buffer::scratch(own)?;
        let tape = tape.or_else(|| (!own.is_empty()).then_some(&mut own[..]));
        let is_ready = is_single || prepared.is_some();
        let factors = if is_ready { None } else { Some(TransitionFactors::new(context, &plan)?) };
        let weights;
        let weights = if let Some(prepared) = prepared {
            prepared
        } else {
            weights = StepWeights::new(context.isa, &plan, factors.as_ref())?;
            &weights
        };
        states(context, &plan, weights, h, tape)?;
        if let Some(last) = last {
            plan.copy_last(h, last);
        }
        if let (Some(saved), Some(factors)) = (saved.first_mut(), factors) {
            *saved = Some(PreparedSequence { factors, tape: own });
        }
        Ok(())
    })?;
    Ok(Saved(saved.into_iter().flatten().collect()))
}

/// `W h_0` of all problems, for a single step: it applies W once, so factors packed for many steps do not pay.
fn applied<T: Scalar>(context: &mut Context<'_>, sequence: &Sequence<'_, T>) -> Result<Option<Buffer<T>>> {
    let Some(h0) = sequence.h0 else { return Ok(None) };
    let mut out = Buffer::scratch(h0.len())?;
    apply::forward(context, &sequence.operator, h0, &mut out[..])?;
    Ok(Some(out))
}

/// The states of one problem.
fn states<T: Scalar>(
    context: &mut Context<'_>,
    plan: &Plan<'_, T>,
    weights: &StepWeights<T>,
    h: &mut [T],
    tape: Option<&mut [T]>,
) -> Result<()> {
    let (n, rows) = (plan.n(), plan.steps.rows());
    let (slices, parts, steps) = (plan.slices(), plan.parts(), plan.steps.count());
    let run = ForwardRun {
        isa: weights.isa,
        plan,
        weights,
        zeros: Buffer::zeroed(n)?,
        at_once: plan.projected_at_once(),
        h: ViewMut::of(h, n, rows),
        tape: tape.map(|tape| ViewMut::of(tape, plan.layout.width, rows)),
    };
    // Tasks are slices of the batch, which go through all steps in one stage, or parts of the coordinates, a stage a step.
    let stages = if parts.len() > 2 { steps } else { 1 };
    let tasks: Vec<_> = slices.windows(2).flat_map(|b| parts.windows(2).map(|r| ((b[0], b[1]), r[0]..r[1]))).collect();
    let mut workspaces =
        tasks.iter().map(|(slice, range)| run.workspace(*slice, range.len())).collect::<Result<Vec<_>>>()?;
    let workspaces = Shared(workspaces.as_mut_ptr());
    // A check for cancellation takes as long as thousands of flops.
    let often = 1 + 1_000_000 * steps * tasks.len() / plan.flops().max(1);
    context.run_stages(&filled(stages, tasks.len())?, plan.flops(), &|stage, i, cancel| {
        let (slice, range) = &tasks[i];
        for t in stage * steps / stages..(stage + 1) * steps / stages {
            if t.is_multiple_of(often) {
                cancel.check()?;
            }
            // SAFETY: tasks own disjoint sequences or coordinates and a workspace each; earlier states are computed.
            unsafe { run.step(*slice, t, range.clone(), &mut *workspaces.get().add(i)) };
        }
        Ok(())
    })
}

struct ForwardRun<'a, T: Scalar> {
    isa: InstructionSet,
    plan: &'a Plan<'a, T>,
    weights: &'a StepWeights<T>,
    zeros: Buffer<T>,
    /// Steps whose input is projected in one product, before the first of them. If 1, a step projects its own input.
    at_once: usize,
    h: ViewMut<'a, T>,
    tape: Option<ViewMut<'a, T>>,
}

/// What a task keeps from step to step.
struct StepWorkspace<T: Scalar> {
    /// `[x 1]` of each sequence, at one step or at several.
    raw: Buffer<T>,
    /// The task's coordinates of `V x + b` of several steps, and of how many rows they are used up.
    projected: Buffer<T>,
    used: usize,
    /// `z`, where no tape takes it.
    z: Buffer<T>,
}

impl<T: Scalar> ForwardRun<'_, T> {
    /// For `width` coordinates of a slice of the batch.
    fn workspace(&self, slice: (usize, usize), width: usize) -> Result<StepWorkspace<T>> {
        let (batch, [inputs, ones]) = (slice.1 - slice.0, self.plan.input_widths());
        let rows = batch * self.at_once.min(self.plan.steps.count());
        let mut raw = Buffer::scratch(rows * (inputs + ones))?;
        raw.fill(T::ONE);
        Ok(StepWorkspace {
            raw,
            projected: Buffer::scratch(if self.at_once > 1 { rows * width } else { 0 })?,
            used: 0,
            z: Buffer::zeroed(if self.tape.is_none() { batch * padded::<T>(self.plan.layout.rank) } else { 0 })?,
        })
    }

    /// Coordinates `range` of `V x + b` for the steps from `t` on, as many as are done at once.
    ///
    /// # Safety
    /// As of [`ForwardRun::step`].
    unsafe fn project(&self, slice: (usize, usize), t: usize, range: Range<usize>, workspace: &mut StepWorkspace<T>) {
        let Plan { steps, d, x, .. } = self.plan;
        let [inputs, ones] = self.plan.input_widths();
        let most = workspace.raw.len() / (inputs + ones);
        let raw = ViewMut::of(&mut workspace.raw, inputs + ones, most);
        let mut rows = 0;
        for coming in t..steps.count().min(t + self.at_once) {
            let next = x.at(steps, (coming + 1).min(steps.count() - 1), slice, *d);
            let count = steps.rows_of(coming, slice).1;
            copy_columns(self.isa, (inputs, count), x.at(steps, coming, slice, *d), raw.from(0, rows), next);
            rows += count;
        }
        let out = ViewMut::of(&mut workspace.projected, range.len(), rows);
        gemm(
            self.isa,
            (range.len(), rows),
            self.weights.inputs.weights_from(range.start),
            raw.read(),
            &Store::new(out),
        );
        workspace.used = 0;
    }

    /// Coordinates `range` of step `t` of the sequences `slice.0..slice.1`: all of them, unless `W` is formed and phi
    /// is pointwise.
    ///
    /// # Safety
    /// The caller owns these coordinates of the states, and all states before are there.
    unsafe fn step(&self, slice: (usize, usize), t: usize, range: Range<usize>, workspace: &mut StepWorkspace<T>) {
        let Plan { steps, activation, d, x, h0, .. } = self.plan;
        let (n, d, begin, Layout { rank, .. }) = (self.plan.n(), *d, range.start, self.plan.layout);
        let (row, count) = steps.rows_of(t, slice);
        if count == 0 {
            return;
        }
        let state = match h0 {
            _ if t > 0 => {
                let before = steps.rows_of(t - 1, slice).0;
                self.h.read().part(before, before + count)
            }
            Some(h0) => View::of(&h0[slice.0 * n..], n, count),
            None => View::of(&self.zeros, 0, count),
        };
        let following = (t + 1).min(steps.count() - 1);
        let next = steps.rows_of(following, slice).0;
        let out = self.h.part(row, row + count);
        let now = x.at(steps, t, slice, d);
        let mut input = if self.plan.input_weight.is_none() { now.from(begin, 0) } else { View::none() };
        let mut inputs = [View::none(); 2];
        if self.at_once > 1 {
            if t.is_multiple_of(self.at_once) {
                self.project(slice, t, range.clone(), workspace);
            }
            let used = workspace.used;
            workspace.used += count;
            input = View::of(&workspace.projected, range.len(), workspace.used).part(used, workspace.used);
        } else {
            let [inputs_width, ones] = self.plan.input_widths();
            let raw = ViewMut::of(&mut workspace.raw, inputs_width + ones, count);
            copy_columns(self.isa, (inputs_width, count), now, raw, x.at(steps, following, slice, d));
            inputs = [self.weights.inputs.weights_from(begin), raw.read()];
        }
        let step = Step {
            out: out.from(begin, 0),
            previous: View::none(),
            input,
            activation: *activation,
            fetch: Fetch::new(self.h.at(begin, next), [0; 2], [1; 2], count * range.len()),
        };
        if let Some(transition) = &self.weights.transition {
            let z = match self.tape {
                Some(tape) => tape.part(row, row + count),
                None => ViewMut::of(&mut workspace.z, padded::<T>(rank), count),
            };
            transition.advance(self.isa, range.clone(), state, z, inputs, step);
        } else {
            let step = Step { previous: state.from(begin, 0), ..step };
            gemm(self.isa, (range.len(), count), inputs[0], inputs[1], &step);
        }
        match activation.scope() {
            Rest::Nothing => {}
            Rest::Entries => {
                (0..count).for_each(|b| activation.rest(self.isa, out.at(begin, b), range.len(), null_mut()));
            }
            Rest::Vectors => {
                for b in 0..count {
                    let flags = self.tape.map(|tape| tape.at(rank, row + b));
                    activation.rest(self.isa, out.at(0, b), n, flags.map_or(null_mut(), <*mut T>::cast));
                }
            }
        }
    }
}
