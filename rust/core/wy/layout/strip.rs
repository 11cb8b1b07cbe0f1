//! Some rows of `V`, which one task lays out while others do the same with theirs.

use pulp::Simd;

use super::{PIECE, REGISTER, multiply_columns, squares};
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::{Form, Reflections};
use crate::simd::fetch::prefetch;
use crate::simd::lanes::Lanes;
use crate::simd::transpose::transpose_at;

/// How many rows ahead `U` is fetched: the processor does not foresee rows that lie a page apart.
const AHEAD: usize = 16;

/// Rows `begin..end` of a [`super::Trapezoid`]. A task that calls its methods owns these rows and their part of the
/// columns. The strip with the last row also owns the padding around `n x k`.
#[derive(Clone, Copy)]
pub struct Strip<T> {
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) rows: *mut T,
    pub(super) ld_k: usize,
    pub(super) columns: *mut T,
    pub(super) ld: usize,
}

// SAFETY: whoever makes strips for several tasks sees to it that they are disjoint.
unsafe impl<T> Send for Strip<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Strip<T> {}

impl<T: Scalar> Strip<T> {
    /// # Safety
    /// As of all methods: nothing else uses these rows.
    unsafe fn rows_mut<'a>(self) -> &'a mut [T] {
        let len = (self.end - self.begin) * self.ld_k;
        std::slice::from_raw_parts_mut(self.rows.add(self.begin * self.ld_k), len)
    }

    /// Takes the rows of `u`.
    ///
    /// # Safety
    /// Nothing else uses these rows.
    #[inline(always)]
    pub unsafe fn fill<S: Simd>(self, s: S, u: Reflections<'_, T>) {
        assert_eq!([u.n(), u.count()], [self.n, self.k], "workspace for another shape");
        let (from, ld) = (u.entries().as_ptr(), u.ld());
        for i in self.begin..self.end {
            for j in (0..self.ld_k).step_by(T::lanes::<S>()) {
                // Only lanes inside a row of U are read; a whole register of a padded row is written.
                let inside = Lanes::<S, T, 1>::first(s, u.form().stored(i, self.k).saturating_sub(j));
                T::store(s, self.rows.add(i * self.ld_k + j), inside.load(from.wrapping_add(i * ld + j))[0]);
                prefetch(from.wrapping_add((i + AHEAD) * ld + j));
            }
            if u.form().has_ones() && i < self.k {
                *self.rows.add(i * self.ld_k + i) = T::ONE;
            }
        }
        if self.end == self.n {
            let around = (self.n.next_multiple_of(PIECE) - self.n) * self.ld_k + REGISTER;
            // The padding may hold a gradient or a NaN.
            std::slice::from_raw_parts_mut(self.rows.add(self.n * self.ld_k), around).fill(T::ZERO);
        }
    }

    /// Sums of the squares of each column's entries in these rows.
    ///
    /// # Safety
    /// Nothing writes these rows.
    #[inline(always)]
    pub unsafe fn squares(self, form: Form, sums: &mut [f64]) {
        let end = if self.end == self.n { self.n.next_multiple_of(PIECE) } else { self.end };
        for (j, sums) in (0..self.k).step_by(PIECE).zip(sums.chunks_exact_mut(PIECE)) {
            let (begin, ld) = (self.begin.max(form.first(j)).min(end), self.ld_k);
            let rows =
                std::slice::from_raw_parts(self.rows.add(begin * ld + j), ((end - begin) * ld).saturating_sub(j));
            sums.copy_from_slice(&squares(rows, ld, &[1.0; PIECE]));
        }
    }

    /// Multiplies each column by a factor of its own.
    ///
    /// # Safety
    /// Nothing else uses these rows.
    #[inline(always)]
    pub unsafe fn multiply(self, factors: &[f64]) {
        for row in self.rows_mut().chunks_mut(self.ld_k.max(1)) {
            multiply_columns(row, factors);
        }
    }

    /// Lays out these rows' part of the columns.
    ///
    /// # Safety
    /// Nothing else uses these rows or their part of the columns.
    #[inline(always)]
    pub unsafe fn transpose<S: Simd>(self, s: S) {
        let Self { begin, end, n, k, ld_k, ld, .. } = self;
        transpose_at(s, (k, end - begin), self.rows.add(begin * ld_k), ld_k, self.columns.add(begin), ld);
        if end == n {
            for j in 0..k {
                std::slice::from_raw_parts_mut(self.columns.add(j * ld + n), ld - n).fill(T::ZERO);
            }
        }
    }

    /// Multiplies each column, as [`Strip::transpose`] laid it out, by a factor of its own.
    ///
    /// # Safety
    /// Nothing else uses this part of the columns.
    #[inline(always)]
    pub unsafe fn multiply_columns(self, factors: &[f64]) {
        for (j, &factor) in factors.iter().enumerate() {
            let len = self.end - self.begin;
            let part = std::slice::from_raw_parts_mut(self.columns.add(j * self.ld + self.begin), len);
            for x in part {
                *x = T::narrow(x.widen().scale(factor));
            }
        }
    }

    /// Conjugates the rows.
    ///
    /// # Safety
    /// Nothing else uses these rows.
    #[inline(always)]
    pub unsafe fn conjugate(self) {
        for x in self.rows_mut() {
            *x = x.conj();
        }
    }
}
