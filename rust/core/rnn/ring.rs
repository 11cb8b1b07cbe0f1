//! The rows of some steps, which stay in the cache until they are added to the sums.

use std::ops::Range;

use super::plan::Plan;
use super::sums::Sums;
use crate::arrays::view::ViewMut;
use crate::error::Result;
use crate::memory::workspace::WorkRows;
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
pub struct Ring<'a, T> {
    /// Steps, each of at most as many rows as the slice has sequences.
    pub steps: usize,
    /// `delta`, for one step more.
    pub delta: ViewMut<'a, T>,
    /// `q`.
    pub q: ViewMut<'a, T>,
    /// Copies of `h_{t-1}`.
    pub h: ViewMut<'a, T>,
    /// `[z x 1]`, without `z` where `W` is formed: what `delta` is multiplied by.
    pub operand: ViewMut<'a, T>,
    /// `V* delta`, of width 0 where it is made step by step or not at all.
    pub grad_x: ViewMut<'a, T>,
    /// Width of `z` in `operand`.
    pub rank: usize,
    /// See [`Sums`].
    pub c1: ViewMut<'a, T>,
    /// See [`Sums`].
    pub c2: ViewMut<'a, T>,
    /// See [`Sums`].
    pub widths: [usize; 3],
}

/// Memory for the rows of a [`Ring`].
pub struct RingRows<T: Scalar> {
    steps: usize,
    delta: WorkRows<T>,
    q: WorkRows<T>,
    h: WorkRows<T>,
    operand: WorkRows<T>,
    grad_x: Buffer<T>,
    width_of_grad_x: usize,
    rank: usize,
    widths: [usize; 3],
}

impl<T: Scalar> RingRows<T> {
    /// For sequences `slice.0..slice.1` and sums like these.
    pub fn new(plan: &Plan<'_, T>, slice: (usize, usize), width_of_grad_x: usize, sums: &Sums<T>) -> Result<Self> {
        let (n, rank, batch) = (plan.n(), plan.layout.rank, slice.1 - slice.0);
        let steps = (ROWS / batch).max(1);
        let rows = steps * batch;
        let [_, inputs, ones] = sums.widths;
        let q = WorkRows::zeroed(rows, rank)?;
        let rank = if sums.c2.is_empty() { 0 } else { rank };
        let mut operand = WorkRows::zeroed(rows, rank + inputs + ones)?;
        if ones > 0 {
            (0..rows).for_each(|row| operand.row_mut(row)[rank + inputs] = T::ONE);
        }
        Ok(Self {
            steps,
            delta: WorkRows::zeroed(rows + batch, n)?,
            q,
            h: WorkRows::zeroed(rows, n)?,
            operand,
            grad_x: Buffer::scratch(rows * width_of_grad_x)?,
            width_of_grad_x,
            rank,
            widths: sums.widths,
        })
    }

    /// The ring that adds to `c1` and `c2` of the sums.
    pub fn ring<'a>(&'a mut self, c1: &'a mut [T], c2: &'a mut [T]) -> Ring<'a, T> {
        let (rows, ld) = (self.h.count(), padded::<T>(self.h.width()));
        let [c1, c2] = [c1, c2].map(|sum| {
            let count = sum.len() / ld;
            ViewMut::of(sum, ld, count)
        });
        Ring {
            steps: self.steps,
            delta: self.delta.all_mut(),
            q: self.q.all_mut(),
            h: self.h.all_mut(),
            operand: self.operand.all_mut(),
            grad_x: ViewMut::of(&mut self.grad_x, self.width_of_grad_x, rows),
            rank: self.rank,
            c1,
            c2,
            widths: self.widths,
        }
    }
}

impl<T: Scalar> Ring<'_, T> {
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
            gemm(isa, (self.rank, rows), project.weights(), self.h.read(), &Store::new(self.operand));
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
        let [delta, h] = [self.delta, self.h].map(|x| x.read().from(begin, 0).part(0, rows));
        let [q, all_h, operand] = [self.q, self.h, self.operand].map(ViewMut::read);
        let [mut c1, c2] = [self.c1, self.c2].map(|sum| sum.from(begin, 0));
        let [lead, inputs, ones] = self.widths;
        if rank > 0 {
            let add = Store { fetch: ahead[1], ..Store::plus(c2, c2.read()) };
            gemm(isa, (len, rank), h, q.transposed(rank), &add);
        } else if lead > 0 {
            gemm(isa, (len, lead), delta, all_h.transposed(lead), &Store::plus(c1, c1.read()));
            c1 = c1.from(0, lead);
        }
        let width = rank + inputs + ones;
        let add = Store { fetch: ahead[0], ..Store::plus(c1, c1.read()) };
        gemm(isa, (len, width), delta, operand.transposed(width), &add);
    }
}
