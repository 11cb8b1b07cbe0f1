//! Unit columns for one reflection after the other.

use pulp::Simd;

use super::Steps;
use crate::error::Result;
use crate::kernel::epilogue::Lanes;
use crate::memory::{Buffer, filled, padded};
use crate::reflections::{Reflections, factors_of, scale_of};
use crate::scalar::{Real, Scalar};

/// Columns that are normalised side by side, and the side of the squares that are transposed.
const PIECE: usize = 8;
/// Rows of `V` are as long as a multiple of this, the most numbers of a register.
const REGISTER: usize = 16;

/// Unit columns and what their [`Steps`] need, for one matrix after the other of the same shape.
pub struct Chain<T: Scalar> {
    /// Size of the vectors.
    pub n: usize,
    /// Number of reflections.
    pub k: usize,
    /// `V`, row-major, rows [`Chain::ld_k`] apart; zeros above the diagonal and around `n x k`.
    pub rows: Buffer<T>,
    /// Distance between rows of `V`.
    pub ld_k: usize,
    /// Distance between columns of `V`, and between the vectors that they are applied to.
    pub ld: usize,
    /// `V`, column-major, for whoever asks.
    columns: Buffer<T>,
    /// What made each column a unit vector: a power of two and the inverse of a norm.
    scale: Vec<f64>,
    inverse: Vec<f64>,
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
            rows: Buffer::zeroed(padded_n * ld_k)?,
            ld_k,
            ld,
            columns: Buffer::zeroed(ld_k * ld)?,
            scale: filled(ld_k, 1.0)?,
            inverse: filled(ld_k, 0.0)?,
            tau: filled(ld_k, T::ZERO)?,
            pivots: filled(k, (0, T::ZERO))?,
        })
    }

    /// Takes the reflections of `u`.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) {
        let (n, k, ld_k, rows) = (self.n, self.k, self.ld_k, self.rows.ptr_mut());
        for j in (0..k).step_by(T::lanes::<S>()) {
            // SAFETY: these lanes of a row of U; a whole register of a padded row.
            unsafe {
                for i in 0..k {
                    let inside = Lanes::<S, T, 1>::first(s, k.min(i + 1).saturating_sub(j));
                    T::store(s, rows.add(i * ld_k + j), inside.load(u.row(i).as_ptr().add(j))[0]);
                }
                let inside = Lanes::<S, T, 1>::first(s, k - j);
                for i in k..n {
                    T::store(s, rows.add(i * ld_k + j), inside.load(u.row(i).as_ptr().add(j))[0]);
                }
            }
        }
        self.rows[self.n * self.ld_k..].fill(T::ZERO); // a gradient stood there
        for begin in (0..self.k).step_by(PIECE) {
            self.normalize(begin);
        }
    }

    /// Normalises the columns from `begin` on that are side by side.
    #[inline(always)]
    fn normalize(&mut self, begin: usize) {
        let ld_k = self.ld_k;
        let rows = &mut self.rows[begin * ld_k + begin..];
        let mut scale = [1.0; PIECE];
        // Squares of f32 numbers neither overflow nor vanish in f64: no scaling needed.
        if size_of::<T::Real>() == 8 {
            let mut largest = [0.0; PIECE];
            for row in pieces(rows, ld_k) {
                for j in 0..PIECE {
                    let x = row[j].max_abs().to_f64();
                    largest[j] = if x > largest[j] { x } else { largest[j] };
                }
            }
            scale = largest.map(scale_of);
        }
        let mut square = squares(rows, ld_k, &scale);
        let mut inverse = [0.0; PIECE];
        for j in 0..PIECE {
            (scale[j], inverse[j]) = factors_of::<T>(scale[j], square[j]);
        }
        for row in rows.chunks_mut(ld_k).filter_map(|row| row.first_chunk_mut::<PIECE>()) {
            for j in 0..PIECE {
                row[j] = T::narrow(row[j].widen().scale(scale[j]).scale(inverse[j]));
            }
        }
        square = squares(rows, ld_k, &[1.0; PIECE]);
        for (tau, square) in self.tau[begin..].iter_mut().zip(square) {
            *tau = T::from_real(T::Real::of(if square == 0.0 { 0.0 } else { 2.0 / square }));
        }
        self.scale[begin..begin + PIECE].copy_from_slice(&scale);
        self.inverse[begin..begin + PIECE].copy_from_slice(&inverse);
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
        for (i, (row, grad_u)) in self.rows.chunks_mut(self.ld_k.max(1)).zip(grad_u.chunks_exact_mut(m)).enumerate() {
            for (x, (&scale, &inverse)) in row.iter_mut().zip(self.scale.iter().zip(&self.inverse)) {
                *x = T::narrow(x.widen().scale(scale).scale(inverse));
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

/// Sums of the squares of a piece's scaled columns; those of even and of odd rows side by side, to hide the latency of an
/// addition.
#[inline(always)]
fn squares<T: Scalar>(rows: &[T], ld: usize, scale: &[f64; PIECE]) -> [f64; PIECE] {
    let (mut even, mut odd) = ([0.0; PIECE], [0.0; PIECE]);
    for row in (0..rows.len().div_ceil(ld)).step_by(2) {
        let [x, y] = [&rows[row * ld..][..PIECE], &rows[(row + 1) * ld..][..PIECE]]; // an even number of rows
        for j in 0..PIECE {
            even[j] += x[j].widen().scale(scale[j]).abs2();
            odd[j] += y[j].widen().scale(scale[j]).abs2();
        }
    }
    std::array::from_fn(|j| even[j] + odd[j])
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
