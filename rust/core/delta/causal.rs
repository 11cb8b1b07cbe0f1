//! Products over the pairs of a chunk, in which nothing of a row reaches the rows that do not depend on it.
//!
//! The matrices of pairs are triangular, and products take their zeros along: a zero times infinity or NaN would be NaN. So
//! rows that are not finite enter a product as zeros. What they contribute is added to the rows that depend on them.

use super::number::Exponential;
use super::problem::CHUNK;
use super::rows::{Rows, row, row_mut};
use crate::error::Result;
use crate::kernel::dispatch::{InstructionSet, simd};
use crate::kernel::lanes::Lanes;
use crate::kernel::vector::sum_of_lanes;
use crate::view::View;

/// Room for the finite numbers of the rows of a chunk.
pub struct Finite<T: Exponential> {
    rows: Rows<T>,
}

/// Rows of a product, and the same without what is not finite.
#[derive(Clone, Copy)]
pub struct Terms<T> {
    given: View<T>,
    /// To be multiplied with all coefficients.
    pub finite: View<T>,
}

impl<T: Exponential> Finite<T> {
    /// For rows of up to `width` numbers.
    pub fn new(width: usize) -> Result<Self> {
        Ok(Self { rows: Rows::new(2 * CHUNK, width)? })
    }

    /// At most two chunks of rows. The terms are valid until the next call.
    ///
    /// # Safety
    /// The caller owns the rows, `width` numbers each.
    pub unsafe fn terms(&mut self, isa: InstructionSet, width: usize, given: View<T>) -> Terms<T> {
        if are_finite(isa, width, given) {
            return Terms { given, finite: given };
        }
        let finite = self.rows.view(0, given.count);
        for i in 0..given.count {
            let (from, to) = (row(given, i, width), row_mut(finite, i, width));
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = if is_finite(from) { from } else { T::ZERO });
        }
        Terms { given, finite }
    }
}

impl<T: Exponential> Terms<T> {
    /// Adds what is not finite to the rows of `out`: row `j` to row `i` times entry `j` of coefficients `i`, if `depends(i, j)`.
    ///
    /// # Safety
    /// The caller owns the rows, `width` numbers each, and coefficients for all pairs.
    pub unsafe fn add_others(
        self,
        width: usize,
        coefficients: View<T>,
        out: View<T>,
        depends: impl Fn(usize, usize) -> bool,
    ) {
        if self.finite.ptr == self.given.ptr {
            return;
        }
        for i in 0..out.count {
            for j in (0..self.given.count).filter(|&j| depends(i, j)) {
                let (by, from, to) = (*coefficients.at(j, i), row(self.given, j, width), row_mut(out, i, width));
                let others = to.iter_mut().zip(from).filter(|(_, from)| !is_finite(**from));
                others.for_each(|(to, &from)| *to += by * from);
            }
        }
    }
}

fn is_finite<T: Exponential>(x: T) -> bool {
    x * T::ZERO == T::ZERO
}

simd! {
    /// Whether all numbers of the rows are finite.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn are_finite<T: Exponential>(s, width: usize, rows: View<T>) -> bool {
        let lanes = T::lanes::<S>();
        let zero = T::splat(s, T::ZERO);
        let mut sums = [zero; 4];
        for i in 0..rows.count {
            for (part, begin) in (0..width).step_by(lanes).enumerate() {
                // SAFETY: lanes of the caller's rows.
                let [x] = unsafe { Lanes::<S, T, 1>::first(s, width - begin).load(rows.at(begin, i)) };
                sums[part % 4] = T::fma(s, x, zero, sums[part % 4]);
            }
        }
        is_finite(sum_of_lanes::<T, S>(s, T::plus(s, T::plus(s, sums[0], sums[1]), T::plus(s, sums[2], sums[3]))))
    }
}
