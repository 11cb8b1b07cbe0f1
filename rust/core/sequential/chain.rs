//! Columns for one reflection after the other.
//!
//! `tau = 2 / |v|^2` makes up for the norm of `v`, so that a column of `U` serves as it is unless squares could overflow or
//! vanish: then a power of two scales it, without rounding.

use std::ops::Range;

use pulp::Simd;

use super::Steps;
use crate::error::Result;
use crate::kernel::epilogue::Lanes;
use crate::memory::{Buffer, filled, padded};
use crate::reflections::{Reflections, factors_of, scale_of};
use crate::scalar::{Real, Scalar};

/// Columns that are measured side by side, and the side of the squares that are transposed.
const PIECE: usize = 8;
/// Rows of `V` are as long as a multiple of this, the most numbers of a register.
const REGISTER: usize = 16;
/// Squares of norms of columns that need no scaling: products of what they are multiplied with stay in range.
const ORDINARY: Range<f64> = 1e-6..1e6;

/// Columns and what their [`Steps`] need, for one matrix after the other of the same shape.
pub struct Chain<T: Scalar> {
    /// Size of the vectors.
    pub n: usize,
    /// Number of reflections.
    pub k: usize,
    /// `V`, row-major, rows [`Chain::ld_k`] apart; zeros above the diagonal, unless the column is NaN, and around `n x k`. A whole register may be read from
    /// any entry on.
    pub rows: Buffer<T>,
    /// Distance between rows of `V`.
    pub ld_k: usize,
    /// Distance between columns of `V`, and between the vectors that they are applied to.
    pub ld: usize,
    /// `V`, column-major, for whoever asks.
    columns: Buffer<T>,
    /// The power of two that each column of `U` is multiplied by, zero or NaN where there is none.
    scale: Vec<f64>,
    /// `2 / |v_j|^2`, zero for a zero column.
    pub tau: Vec<T>,
    pivots: Vec<(usize, T)>,
}

impl<T: Scalar> Chain<T> {
    /// Room for `k` reflections of vectors of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let (padded_n, ld_k) = (n.next_multiple_of(PIECE), k.next_multiple_of(REGISTER));
        let ld = padded::<T>(padded_n);
        Ok(Self {
            n,
            k,
            rows: Buffer::zeroed(padded_n * ld_k + REGISTER)?,
            ld_k,
            ld,
            columns: Buffer::zeroed(ld_k * ld)?,
            scale: filled(ld_k, 1.0)?,
            tau: filled(ld_k, T::ZERO)?,
            pivots: filled(k, (0, T::ZERO))?,
        })
    }

    /// Takes the reflections of `u`.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) {
        let (n, k, ld, ld_k) = (self.n, self.k, u.ld(), self.ld_k);
        let (from, to) = (u.from(0, 0).as_ptr(), self.rows.ptr_mut());
        for j in (0..k).step_by(T::lanes::<S>()) {
            let rest = Lanes::<S, T, 1>::first(s, k - j);
            for i in 0..n {
                let inside = if i < k { Lanes::first(s, (i + 1).saturating_sub(j)) } else { rest };
                // SAFETY: these lanes of a row of U; a whole register of a padded row.
                unsafe { T::store(s, to.add(i * ld_k + j), inside.load(from.add(i * ld + j))[0]) };
            }
        }
        self.rows[self.n * self.ld_k..].fill(T::ZERO); // a gradient or a NaN stood there
        for begin in (0..k).step_by(PIECE) {
            self.measure(begin);
        }
    }

    /// Finds `tau` of the columns from `begin` on that are side by side, and scales them if they need it.
    #[inline(always)]
    fn measure(&mut self, begin: usize) {
        let (ld_k, end) = (self.ld_k, self.k.min(begin + PIECE));
        let rows = &mut self.rows[begin * ld_k + begin..self.n.next_multiple_of(PIECE) * ld_k];
        self.scale[begin..end].fill(1.0);
        let mut square = squares(rows, ld_k, &[1.0; PIECE]);
        // Counted, not searched: side by side.
        let ordinary = (0..PIECE).filter(|&j| begin + j >= end || ORDINARY.contains(&square[j])).count();
        if ordinary < PIECE {
            let scale;
            (scale, square) = scale_columns(rows, ld_k);
            self.scale[begin..end].copy_from_slice(&scale[..end - begin]);
        }
        // As many numbers as there is room for.
        let twice_inverse = square.map(|square| if square == 0.0 { 0.0 } else { 2.0 / square });
        for (tau, x) in self.tau[begin..begin + PIECE].iter_mut().zip(twice_inverse) {
            *tau = T::from_real(T::Real::of(x));
        }
    }

    /// [`Chain::set`], and the columns.
    #[inline(always)]
    pub fn set_columns<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) {
        self.set(s, u);
        transpose(self.n, self.k, &self.rows, self.ld_k, &mut self.columns, self.ld);
    }

    /// Finds the pivots, for states from a tape.
    pub fn find_pivots(&mut self) {
        for (pivot, column) in self.pivots.iter_mut().zip(self.columns.chunks(self.ld)) {
            let mut largest = T::Real::ZERO;
            for (p, x) in column[..self.n].iter().enumerate() {
                let square = x.abs2();
                if !(square <= largest) {
                    largest = square;
                    *pivot = (p, x.conj().scale(T::Real::ONE / square));
                }
            }
        }
    }

    /// The reflections in order of application, after [`Chain::set_columns`].
    #[inline(always)]
    pub fn steps(&self, adjoint: bool) -> Steps<'_, T> {
        let Self { n, k, columns, ld, tau, pivots, .. } = self;
        Steps { n: *n, v: columns, ld: *ld, tau: &tau[..*k], pivots, adjoint }
    }

    /// Writes `dL/dU` from `dL/dV`, column-major like `V` itself.
    #[inline(always)]
    pub fn write_gradient<S: Simd>(&mut self, s: S, grad_v: &[T], u: Reflections<'_, T>, grad_u: &mut [T]) {
        transpose(self.k, self.n, grad_v, self.ld, &mut self.rows, self.ld_k);
        self.write_gradient_of_rows(s, u, grad_u);
    }

    /// Writes `dL/dU` from `dL/dV`, which stands where `V` was; a last column for `u_1` is left as it is but for its zeros.
    #[inline(always)]
    pub fn write_gradient_of_rows<S: Simd>(&mut self, s: S, u: Reflections<'_, T>, grad_u: &mut [T]) {
        let (k, m) = (self.k, u.m());
        let ordinary = self.scale[..k].iter().all(|&scale| scale == 1.0);
        for (i, (row, grad_u)) in self.rows.chunks_mut(self.ld_k.max(1)).zip(grad_u.chunks_exact_mut(m)).enumerate() {
            if !ordinary {
                for (x, &scale) in row.iter_mut().zip(&self.scale) {
                    *x = T::narrow(x.widen().scale(scale));
                }
            }
            for j in (0..k).step_by(T::lanes::<S>()) {
                let kept = Lanes::<S, T, 1>::first(s, (i + 1).saturating_sub(j));
                let inside = Lanes::<S, T, 1>::first(s, k - j);
                // SAFETY: a whole register of a padded row, and the lanes of a row of dL/dU.
                unsafe { inside.store(grad_u.as_mut_ptr().add(j), kept.load(row.as_ptr().add(j))) };
            }
            if k < m && i + 1 < m {
                grad_u[k] = T::ZERO;
            }
        }
    }
}

/// Multiplies the columns of a piece by powers of two that bring them near norm one, or by zero if their norm is zero or
/// subnormal. Returns these factors and the sums of the squares then.
#[inline(never)]
fn scale_columns<T: Scalar>(rows: &mut [T], ld: usize) -> ([f64; PIECE], [f64; PIECE]) {
    let mut largest = [0.0; PIECE];
    for row in pieces(rows, ld) {
        for j in 0..PIECE {
            let x = row[j].max_abs().to_f64();
            largest[j] = if x > largest[j] { x } else { largest[j] };
        }
    }
    let mut scale = largest.map(scale_of);
    let square = squares(rows, ld, &scale);
    for j in 0..PIECE {
        let (kept, inverse) = factors_of::<T>(scale[j], square[j]);
        scale[j] = if inverse.is_nan() { inverse } else { kept };
    }
    for row in rows.chunks_mut(ld).filter_map(|row| row.first_chunk_mut::<PIECE>()) {
        for j in 0..PIECE {
            row[j] = T::narrow(row[j].widen().scale(scale[j]));
        }
    }
    (scale, squares(rows, ld, &[1.0; PIECE]))
}

/// Sums of the squares of a piece's scaled columns; those of every fourth row side by side, to hide the latency of an
/// addition.
#[inline(always)]
fn squares<T: Scalar>(rows: &[T], ld: usize, scale: &[f64; PIECE]) -> [f64; PIECE] {
    let mut sums = [[0.0; PIECE]; 4];
    let row = |i: usize| {
        debug_assert!(i * ld + PIECE <= rows.len());
        // SAFETY: whole pieces of rows, whose number is a multiple of four.
        unsafe { *rows.as_ptr().add(i * ld).cast::<[T; PIECE]>() }
    };
    for i in (0..rows.len().div_ceil(ld)).step_by(4) {
        for (a, sums) in sums.iter_mut().enumerate() {
            let row = row(i + a);
            for j in 0..PIECE {
                sums[j] += row[j].widen().scale(scale[j]).abs2();
            }
        }
    }
    let [a, b, c, d] = sums;
    std::array::from_fn(|j| (a[j] + b[j]) + (c[j] + d[j]))
}

/// The first numbers of each row.
#[inline(always)]
fn pieces<T>(rows: &[T], ld: usize) -> impl Iterator<Item = &[T; PIECE]> {
    rows.chunks(ld).filter_map(|row| row.first_chunk())
}

/// `to[j * ld_to + i] = from[i * ld_from + j]` by whole squares, of `rows x cols` in padded arrays.
#[inline(always)]
fn transpose<T: Scalar>(rows: usize, cols: usize, from: &[T], ld_from: usize, to: &mut [T], ld_to: usize) {
    for i in (0..rows).step_by(PIECE) {
        for j in (0..cols).step_by(PIECE) {
            let mut square = [[T::ZERO; PIECE]; PIECE];
            for (square, from) in square.iter_mut().zip(pieces(&from[i * ld_from + j..], ld_from)) {
                *square = *from;
            }
            for (b, to) in to[j * ld_to + i..].chunks_mut(ld_to).take(PIECE).enumerate() {
                for a in 0..PIECE {
                    to[a] = square[a][b];
                }
            }
        }
    }
}
