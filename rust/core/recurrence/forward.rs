//! The states of a sequence.

use std::ops::Range;
use std::ptr::null_mut;

use super::Sequence;
use super::transition::{Prepared, Transition};
use crate::error::Result;
use crate::kernel::activation::Activation;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Step, Store};
use crate::kernel::fetch::Fetch;
use crate::kernel::gemm::{gemm, gemm2};
use crate::kernel::pack::{Packed, pack};
use crate::kernel::vector::copy_columns;
use crate::lengths::{product, require};
use crate::memory::{Buffer, filled, padded};
use crate::scalar::Scalar;
use crate::threads::Context;
use crate::view::{Shared, View};

/// Writes all states `h (rows, n)`; `tape (rows, tape_width)` receives `z = P* h_{t-1}` for the backward pass, which also
/// takes what is returned.
pub fn forward<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    h: &mut [T],
    tape: Option<&mut [T]>,
) -> Result<Prepared<T>> {
    let (n, isa, rows, width) = (sequence.u.n(), context.isa, sequence.steps.rows(), sequence.tape_width()?);
    if rows == 0 {
        return Prepared::new(context, sequence);
    }
    sequence.check()?;
    let of_tape = tape.as_ref().map(|x| x.len());
    require(&[("h", Some(h.len()), &[rows, n]), ("the tape", of_tape, &[rows, width])])?;
    let prepared = Prepared::new(context, sequence)?;
    let tape = tape.map(|tape| Shared(tape.as_mut_ptr()));
    let (slices, parts, steps) = (sequence.slices(), sequence.parts()?, sequence.steps.count());
    let run = Run {
        isa,
        sequence,
        transition: prepared.factors.transition(isa, n, sequence.adjoint)?,
        // SAFETY: V and b are the sequence's.
        inputs: unsafe { pack(isa, n, &sequence.input_parts()) }?,
        zeros: Buffer::zeroed(n)?,
        rank: sequence.rank()?,
        width,
        at_once: sequence.projected_at_once(),
        h: Shared(h.as_mut_ptr()),
        tape,
    };
    // Tasks are slices of the batch, which go through all steps in one phase, or parts of the coordinates, a phase a step.
    let phases = if parts.len() > 2 { steps } else { 1 };
    let tasks: Vec<_> = slices.windows(2).flat_map(|b| parts.windows(2).map(|r| ((b[0], b[1]), r[0]..r[1]))).collect();
    let mut workspaces =
        tasks.iter().map(|(slice, range)| run.workspace(*slice, range.len())).collect::<Result<Vec<_>>>()?;
    let workspaces = Shared(workspaces.as_mut_ptr());
    // A check for cancellation takes as long as thousands of flops.
    let often = 1 + 1_000_000 * steps * tasks.len() / sequence.flops().max(1);
    context.run_phases(&filled(phases, tasks.len())?, sequence.flops(), &|phase, i, cancel| {
        let (slice, range) = &tasks[i];
        for t in phase * steps / phases..(phase + 1) * steps / phases {
            if t.is_multiple_of(often) {
                cancel.check()?;
            }
            // SAFETY: tasks own disjoint sequences or coordinates and a workspace each; earlier states are computed.
            unsafe { run.step(*slice, t, range.clone(), &mut *workspaces.get().add(i)) };
        }
        Ok(())
    })?;
    Ok(prepared)
}

/// [`forward`], and the tape in what is returned: that belongs to these states.
pub fn forward_and_keep<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    h: &mut [T],
) -> Result<Prepared<T>> {
    let len = product(&[sequence.steps.rows(), sequence.tape_width()?]).unwrap_or(usize::MAX);
    let mut tape = Buffer::scratch(len)?;
    let prepared = forward(context, sequence, h, (len > 0).then_some(&mut tape))?;
    Ok(Prepared { tape, ..prepared })
}

struct Run<'a, T: Scalar> {
    isa: InstructionSet,
    sequence: &'a Sequence<'a, T>,
    transition: Transition<T>,
    /// `[V b]`.
    inputs: Packed<T>,
    zeros: Buffer<T>,
    rank: usize,
    /// Numbers a row of the tape: `z`, then OPLU's flags.
    width: usize,
    /// Steps whose input is projected in one product, before the first of them. If 1, a step projects its own input.
    at_once: usize,
    h: Shared<T>,
    tape: Option<Shared<T>>,
}

/// What a task keeps from step to step.
struct Workspace<T: Scalar> {
    /// `[x 1]` of each sequence, at one step or at several.
    raw: Buffer<T>,
    /// The task's coordinates of `V x + b` of several steps, and of how many rows they are used up.
    projected: Buffer<T>,
    used: usize,
    /// `z`, where no tape takes it.
    z: Buffer<T>,
}

impl<T: Scalar> Run<'_, T> {
    /// For `width` coordinates of a slice of the batch.
    fn workspace(&self, slice: (usize, usize), width: usize) -> Result<Workspace<T>> {
        let (batch, [inputs, ones]) = (slice.1 - slice.0, self.sequence.input_widths());
        let rows = batch * self.at_once.min(self.sequence.steps.count());
        let mut raw = Buffer::scratch(rows * (inputs + ones))?;
        raw.fill(T::ONE);
        Ok(Workspace {
            raw,
            projected: Buffer::scratch(if self.at_once > 1 { rows * width } else { 0 })?,
            used: 0,
            z: Buffer::zeroed(if self.tape.is_none() { batch * padded::<T>(self.rank) } else { 0 })?,
        })
    }

    /// Coordinates `range` of `V x + b` for the steps from `t` on, as many as are done at once.
    ///
    /// # Safety
    /// As of [`Run::step`].
    unsafe fn project(&self, slice: (usize, usize), t: usize, range: Range<usize>, workspace: &mut Workspace<T>) {
        let Sequence { steps, d, x, .. } = self.sequence;
        let [inputs, ones] = self.sequence.input_widths();
        let most = workspace.raw.len() / (inputs + ones);
        let raw = View::new(workspace.raw.ptr_mut(), inputs + ones, most);
        let mut rows = 0;
        for coming in t..steps.count().min(t + self.at_once) {
            let next = x.at(steps, (coming + 1).min(steps.count() - 1), slice, *d).ptr;
            let count = steps.rows_of(coming, slice).1;
            copy_columns(self.isa, (inputs, count), x.at(steps, coming, slice, *d), raw.from(0, rows), next);
            rows += count;
        }
        let out = View::new(workspace.projected.ptr_mut(), range.len(), rows);
        gemm(self.isa, (range.len(), rows), self.inputs.weights_from(range.start), raw, &Store::new(out));
        workspace.used = 0;
    }

    /// Coordinates `range` of step `t` of the sequences `slice.0..slice.1`: all of them, unless `W` is formed and phi
    /// is pointwise.
    ///
    /// # Safety
    /// The caller owns these coordinates of the states, and all states before are there.
    unsafe fn step(&self, slice: (usize, usize), t: usize, range: Range<usize>, workspace: &mut Workspace<T>) {
        let Sequence { steps, activation, d, x, h0, .. } = self.sequence;
        let (n, d, rank, begin) = (self.sequence.u.n(), *d, self.rank, range.start);
        let (row, count) = steps.rows_of(t, slice);
        if count == 0 {
            return;
        }
        let (previous, previous_ld) = match h0 {
            _ if t > 0 => (self.h.get().cast_const().add(steps.rows_of(t - 1, slice).0 * n), n),
            Some(h0) => (h0[slice.0 * n..].as_ptr(), n),
            None => (self.zeros.ptr(), 0),
        };
        let following = (t + 1).min(steps.count() - 1);
        let next = steps.rows_of(following, slice).0;
        let out = self.h.get().add(row * n);
        let now = x.at(steps, t, slice, d);
        let mut input = if self.sequence.input_weight.is_none() { now.from(begin, 0) } else { View::none() };
        let mut inputs = [View::none(); 2];
        if self.at_once > 1 {
            if t.is_multiple_of(self.at_once) {
                self.project(slice, t, range.clone(), workspace);
            }
            input =
                View::new(workspace.projected.ptr_mut(), range.len(), workspace.used + count).from(0, workspace.used);
            workspace.used += count;
        } else {
            let [width, ones] = self.sequence.input_widths();
            let raw = View::new(workspace.raw.ptr_mut(), width + ones, count);
            copy_columns(self.isa, (width, count), now, raw, x.at(steps, following, slice, d).ptr);
            inputs = [self.inputs.weights_from(begin), raw];
        }
        let step = Step {
            out: View::new(out, n, count).from(begin, 0),
            previous: View::none(),
            input,
            activation: *activation,
            fetch: Fetch::new(self.h.get().wrapping_add(next * n + begin), [0; 2], [1; 2], count * range.len()),
        };
        let state = View::new(previous, previous_ld, count);
        match &self.transition {
            Transition::LowRank { project, expand } => {
                let z = match self.tape {
                    Some(tape) => View::new(tape.get().add(row * self.width), self.width, count),
                    None => View::new(workspace.z.ptr_mut(), padded::<T>(rank), count),
                };
                gemm(self.isa, (rank, count), project.weights(), state, &Store::new(z));
                let step = Step { previous: state, ..step };
                gemm2(self.isa, (n, count), &[[expand.weights(), z], inputs], &step);
            }
            Transition::Dense(w) => {
                gemm2(self.isa, (range.len(), count), &[[w.weights_from(begin), state], inputs], &step);
            }
        }
        if matches!(activation, Activation::Tanh) {
            (0..count).for_each(|b| activation.finish(self.isa, out.add(b * n + begin), range.len(), null_mut()));
        } else if activation.waits_for_whole_vectors() {
            for b in 0..count {
                let flags = self.tape.map(|tape| tape.get().add((row + b) * self.width + rank));
                activation.finish(self.isa, out.add(b * n), n, flags.map_or(null_mut(), <*mut T>::cast));
            }
        }
    }
}
