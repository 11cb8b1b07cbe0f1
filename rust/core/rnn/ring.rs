//! The rows of some steps, which stay in the cache until they are added to the sums.

use std::ops::Range;

use super::plan::Plan;
use super::sums::Sums;
use crate::arrays::view::View;
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::simd::epilogue::Store;
use crate::simd::fetch::Fetch;
use crate::simd::gemm::gemm;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::Packed;

/// Rows, more or less: enough for the sums to run at full speed, few enough for the cache.
const ROWS: usize = 96;

/// The rows of a slice of the batch, the latest step first, and the sums that take them. Views: tasks on one ring own
/// coordinates of it.
pub struct Ring<T: Scalar> {
    /// Steps, each of at most as many rows as the slice has sequences.
    pub steps: usize,
    /// `delta`, for one step more.
    pub delta: View<T>,
    /// `q`.
    pub q: View<T>,
    /// Copies of `h_{t-1}`.
    pub h: View<T>,
    /// `[z x 1]`, without `z` where `W` is formed: what `delta` is multiplied by.
    pub operand: View<T>,
    /// `V* delta`, of the width wanted: 0 where it is made step by step or not at all.
    pub grad_x: View<T>,
    /// Width of `z` in it.
    pub rank: usize,
    /// See [`Sums`].
    pub c1: View<T>,
    /// See [`Sums`].
    pub c2: View<T>,
    /// See [`Sums`].
    pub widths: [usize; 3],
    _memory: [Buffer<T>; 5],
}

impl<T: Scalar> Ring<T> {
    /// For sequences `slice.0..slice.1`, whose sums must live as long.
    pub fn new(
        sequence: &Plan<'_, T>,
        slice: (usize, usize),
        width_of_grad_x: usize,
        sums: &mut Sums<T>,
    ) -> Result<Self> {
        let (n, rank, batch) = (sequence.n(), sequence.layout.rank, slice.1 - slice.0);
        let steps = (ROWS / batch).max(1);
        let rows = steps * batch;
        let (ld, ld_q) = (padded::<T>(n), padded::<T>(rank));
        let [_, inputs, ones] = sums.widths;
        let rank = if sums.c2.is_empty() { 0 } else { rank };
        let ld_operand = padded::<T>(rank + inputs + ones);
        let mut memory = [
            Buffer::zeroed((rows + batch) * ld)?,
            Buffer::zeroed(rows * ld_q)?,
            Buffer::zeroed(rows * ld)?,
            Buffer::zeroed(rows * ld_operand)?,
            Buffer::scratch(rows * width_of_grad_x)?,
        ];
        if ones > 0 {
            memory[3].chunks_mut(ld_operand).for_each(|row| row[rank + inputs] = T::ONE);
        }
        let [delta, q, h, operand, grad_x] = &mut memory;
        Ok(Self {
            steps,
            delta: View::new(delta.ptr_mut(), ld, rows + batch),
            q: View::new(q.ptr_mut(), ld_q, rows),
            h: View::new(h.ptr_mut(), ld, rows),
            operand: View::new(operand.ptr_mut(), ld_operand, rows),
            grad_x: View::new(grad_x.ptr_mut(), width_of_grad_x, rows),
            rank,
            c1: View::new(sums.c1.ptr_mut(), ld, sums.c1.len() / ld),
            c2: View::new(sums.c2.ptr_mut(), ld, sums.c2.len() / ld),
            widths: sums.widths,
            _memory: memory,
        })
    }

    /// Makes `z` of `rows` rows where no tape has it. Conjugates the operands of the sums in place, because nothing
    /// else needs them any more.
    ///
    /// # Safety
    /// The caller owns coordinates `range` of the rows, and all coordinates where `z` is made.
    pub unsafe fn make_operands(
        &self,
        isa: InstructionSet,
        rows: usize,
        range: Range<usize>,
        project: Option<&Packed<T>>,
    ) {
        if let Some(project) = project {
            gemm(isa, (self.rank, rows), project.weights(), self.h, &Store::new(self.operand));
        }
        if T::COMPLEX {
            let width = if range.start == 0 { self.rank + self.widths[1] } else { 0 };
            let other = if self.rank > 0 { (self.q, 0..self.rank) } else { (self.h, range) };
            for (columns, range) in [other, (self.operand, 0..width)] {
                for b in 0..rows {
                    let column = std::slice::from_raw_parts_mut(columns.at(range.start, b), range.len());
                    column.iter_mut().for_each(|x| *x = x.conj());
                }
            }
        }
    }

    /// Adds `rows` rows to coordinates `range` of the sums, which the caller owns.
    ///
    /// # Safety
    /// The caller owns coordinates `range` of the sums.
    pub unsafe fn add_to_sums(&self, isa: InstructionSet, rows: usize, range: Range<usize>, ahead: [Fetch<T>; 2]) {
        let (rank, begin, len) = (self.rank, range.start, range.len());
        let [delta, h] = [self.delta, self.h].map(|x| x.from(begin, 0).part(0, rows));
        let add = |sum: View<T>, fetch: Fetch<T>| {
            let out = sum.from(begin, 0);
            Store { fetch, ..Store::plus(out, out) }
        };
        let [lead, inputs, ones] = self.widths;
        let mut c1 = self.c1;
        if rank > 0 {
            gemm(isa, (len, rank), h, self.q.transposed(rank), &add(self.c2, ahead[1]));
        } else if lead > 0 {
            gemm(isa, (len, lead), delta, self.h.transposed(lead), &add(c1, Fetch::none()));
            c1 = c1.from(0, lead);
        }
        let width = rank + inputs + ones;
        gemm(isa, (len, width), delta, self.operand.transposed(width), &add(c1, ahead[0]));
    }
}
