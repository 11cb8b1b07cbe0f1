//! Decays within a chunk: running products of `exp g`.

use super::number::Exponential;
use super::problem::{CHUNK, Gate, Problem};
use super::rows::{Rows, row, row_mut};
use crate::error::Result;
use crate::kernel::dispatch::{InstructionSet, simd};
use crate::view::View;

/// Rows of a block of a chunk: pairs within it are decayed one by one where each channel has a gate.
pub const BLOCK: usize = 16;

/// What a value head's gates do to a chunk. Rows are one number wide, or a channel each; none without gates.
pub struct Decay<T: Exponential> {
    /// `exp g_i`.
    pub step: Rows<T>,
    /// `exp c_i`, from before the chunk's first step to after step `i`.
    pub from_start: Rows<T>,
    /// `exp(c_end - c_i)`, from after step `i` to after the last.
    pub to_end: Rows<T>,
    /// `exp(c_i - c_m)` for `i >= m`, `exp(c_m - c_i)` for `i < m`, with `m` the first row of the second block.
    pub middle: Rows<T>,
    /// Width of the rows.
    pub width: usize,
}

impl<T: Exponential> Decay<T> {
    pub fn new(problem: &Problem<'_, T>) -> Result<Self> {
        let width = problem.channels();
        let rows = || Rows::new(CHUNK, width);
        Ok(Self { step: rows()?, from_start: rows()?, to_end: rows()?, middle: rows()?, width })
    }

    /// Computes the decays of `len` steps of a value head from step `first` on. `token` is the sequence's first token. A
    /// positive gate is an error.
    pub fn form(
        &mut self,
        isa: InstructionSet,
        problem: &Problem<'_, T>,
        token: usize,
        (first, len): (usize, usize),
        head: usize,
    ) -> Result<()> {
        let (Gate::Head(gate) | Gate::Channel(gate)) = problem.gate else { return Ok(()) };
        let (width, reflections) = (self.width, problem.sizes.reflections);
        for i in 0..len {
            let row = self.step.row_mut(i);
            if (first + i).is_multiple_of(reflections) {
                let at = (token + (first + i) / reflections) * problem.sizes.value_heads + head;
                exponentials(isa, problem, &gate[at * width..][..width], row)?;
            } else {
                row.fill(T::ONE);
            }
        }
        self.from_start.row_mut(0).copy_from_slice(self.step.row(0));
        self.to_end.row_mut(len - 1).fill(T::ONE);
        let step = self.step.view(0, len);
        // SAFETY: workspace of these rows.
        unsafe {
            forwards(isa, width, step, self.from_start.view(0, len));
            backwards(isa, width, step, self.to_end.view(0, len));
        }
        if width > 1 && len > BLOCK {
            self.middle.row_mut(BLOCK).fill(T::ONE);
            // SAFETY: as above.
            unsafe {
                forwards(isa, width, step.part(BLOCK, len), self.middle.view(BLOCK, len - BLOCK));
                backwards(isa, width, step.part(0, BLOCK + 1), self.middle.view(0, BLOCK + 1));
            }
        }
        Ok(())
    }
}

/// `out = exp g`, at most one.
pub fn exponentials<T: Exponential>(
    isa: InstructionSet,
    problem: &Problem<'_, T>,
    g: &[T],
    out: &mut [T],
) -> Result<()> {
    if decays(isa, g, out) { Ok(()) } else { Err(problem.positive_gate()) }
}

simd! {
    /// `out = exp g`; whether no gate is positive.
    fn decays<T: Exponential>(_s, g: &[T], out: &mut [T]) -> bool {
        let mut positive = false;
        for (out, &g) in out.iter_mut().zip(g) {
            *out = g.exp();
            positive |= g > T::ZERO;
        }
        !positive
    }

    /// Row `i` of `out` becomes row `i - 1` of it times step `i`; the first row is there.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn forwards<T: Exponential>(_s, width: usize, step: View<T>, out: View<T>) -> () {
        for i in 1..out.count {
            // SAFETY: rows of workspace, the written one is none of those that are read.
            let (by, from, to) = unsafe { (row(step, i, width), row(out, i - 1, width), row_mut(out, i, width)) };
            for x in 0..width {
                to[x] = from[x] * by[x];
            }
        }
    }

    /// Row `i` of `out` becomes row `i + 1` of it times step `i + 1`; the last row is there.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn backwards<T: Exponential>(_s, width: usize, step: View<T>, out: View<T>) -> () {
        for i in (1..out.count).rev() {
            // SAFETY: as above.
            let (by, from, to) = unsafe { (row(step, i, width), row(out, i, width), row_mut(out, i - 1, width)) };
            for x in 0..width {
                to[x] = from[x] * by[x];
            }
        }
    }
}
