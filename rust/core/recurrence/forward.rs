//! The states of a sequence.

use super::Sequence;
use super::transition::{Prepared, Transition};
use crate::error::Result;
use crate::kernel::activation::Activation;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Step, Store};
use crate::kernel::fetch::Fetch;
use crate::kernel::gemm::{Operand, gemm, gemm2};
use crate::kernel::pack::{Packed, pack};
use crate::kernel::vector::copy_columns;
use crate::memory::{Buffer, Shared, advise_huge_pages, padded};
use crate::parallel::{Cancel, Context};
use crate::scalar::Scalar;

/// Steps between two looks at the cancel flag.
const POLL_STEPS: usize = 64;

/// Writes all states `h (rows, n)`; `tape (rows, tape_width)` receives `z = P* h_{t-1}` for the backward pass, which also
/// takes what is returned.
pub fn forward<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    h: &mut [T],
    tape: Option<&mut [T]>,
) -> Result<Prepared<T>> {
    let prepared = Prepared::new(context, sequence)?;
    if sequence.steps.rows() == 0 {
        return Ok(prepared);
    }
    let (n, isa) = (sequence.u.n(), context.isa);
    advise_huge_pages(h);
    let tape = tape.map(|tape| {
        advise_huge_pages(tape);
        Shared(tape.as_mut_ptr())
    });
    let run = Run {
        isa,
        sequence,
        transition: prepared.matrices.transition(isa, n, sequence.adjoint)?,
        // SAFETY: V and b are the sequence's.
        inputs: unsafe { pack(isa, n, &sequence.input_parts()) }?,
        zeros: Buffer::zeroed(n)?,
        rank: sequence.rank()?,
        width: sequence.tape_width()?,
        h: Shared(h.as_mut_ptr()),
        tape,
    };
    let bounds = sequence.slices();
    context.run(bounds.len() - 1, sequence.flops(), &|i, cancel| run.slice((bounds[i], bounds[i + 1]), cancel))?;
    Ok(prepared)
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
    h: Shared<T>,
    tape: Option<Shared<T>>,
}

impl<T: Scalar> Run<'_, T> {
    /// All steps of the sequences `slice.0..slice.1`.
    fn slice(&self, slice: (usize, usize), cancel: &Cancel<'_>) -> Result<()> {
        let Sequence { steps, activation, d, x, .. } = self.sequence;
        let (n, d, rank) = (self.sequence.u.n(), *d, self.rank);
        let [inputs, ones] = self.sequence.input_widths();
        // [x 1] of each sequence.
        let ld = inputs + ones;
        let mut raw = Buffer::<T>::scratch((slice.1 - slice.0) * ld)?;
        raw.fill(T::ONE);
        let raw = Columns::new(raw.ptr_mut(), ld);
        let scratch_ld = padded::<T>(rank);
        let mut scratch = Buffer::<T>::zeroed(if self.tape.is_none() { (slice.1 - slice.0) * scratch_ld } else { 0 })?;
        let (mut previous, mut previous_ld) = match self.sequence.h0 {
            Some(h0) => (h0[slice.0 * n..].as_ptr(), n),
            None => (self.zeros.ptr(), 0),
        };
        for t in 0..steps.count() {
            if t.is_multiple_of(POLL_STEPS) {
                cancel.check()?;
            }
            let (row, count) = steps.rows_of(t, slice);
            if count == 0 {
                break;
            }
            let next = if t + 1 < steps.count() { steps.rows_of(t + 1, slice).0 } else { row };
            let next_x = x.as_ptr().wrapping_add(next * d);
            let x = Columns::new(x.as_ptr().wrapping_add(row * d), d);
            let out = self.h.get().wrapping_add(row * n);
            let step = Step {
                out: Columns::new(out, n),
                previous: Columns::none(),
                input: if self.sequence.input_weight.is_none() { x } else { Columns::none() },
                activation: *activation,
                fetch: Fetch::new(self.h.get().wrapping_add(next * n), 0, 1, count * n),
            };
            let state = Operand::columns(previous, previous_ld);
            // SAFETY: rows row..row + count of x, h and the tape belong to this slice and step; `previous` points to as
            // many states at least, since sequences only ever end.
            unsafe {
                copy_columns(self.isa, (inputs, count), x, raw, next_x);
                let raw = Operand::columns(raw.ptr, raw.ld);
                match &self.transition {
                    Transition::LowRank { project, expand } => {
                        let z = match self.tape {
                            Some(tape) => Columns::new(tape.get().add(row * self.width), self.width),
                            None => Columns::new(scratch.ptr_mut(), scratch_ld),
                        };
                        gemm(self.isa, rank, count, project.weights(), state, &Store::new(z));
                        let step = Step { previous: Columns::new(previous, previous_ld), ..step };
                        let operands = [Operand::columns(z.ptr, z.ld), raw];
                        gemm2(self.isa, n, count, [expand.weights(), self.inputs.weights()], operands, &step);
                    }
                    Transition::Dense(w) => {
                        gemm2(self.isa, n, count, [w.weights(), self.inputs.weights()], [state, raw], &step);
                    }
                }
                if matches!(activation, Activation::Tanh) {
                    activation.finish(self.isa, out, count * n, std::ptr::null_mut());
                } else if activation.pairs() {
                    for b in 0..count {
                        let flags = self.tape.map(|tape| tape.get().add((row + b) * self.width + rank));
                        activation.finish(
                            self.isa,
                            out.add(b * n),
                            n,
                            flags.map_or(std::ptr::null_mut(), <*mut T>::cast),
                        );
                    }
                }
            }
            (previous, previous_ld) = (out, n);
        }
        Ok(())
    }
}
