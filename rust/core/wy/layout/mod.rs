//! `V`: the columns of `U`, laid out for kernels; full columns as trapezoidal ones, which have zeros above the diagonal.
//!
//! A column is used unchanged unless its squares could overflow or vanish. Then a power of two scales it, without rounding.
//! `tau = 2 / |v|^2` accounts for its norm where reflections are applied one after the other; compact WY uses unit columns.

mod strip;

use std::ops::Range;
use std::ptr::null;

use pulp::Simd;

use crate::error::Result;
use crate::memory::{Buffer, filled, padded};
use crate::numbers::number::{Number, Real};
use crate::numbers::scalar::Scalar;
use crate::operator::Reflections;
use crate::simd::lanes::{Lanes, opaque};
pub use strip::Strip;

/// Columns that are measured side by side.
pub const PIECE: usize = 8;
/// Most numbers of a register.
const REGISTER: usize = 16;
/// Squares of norms of columns that need no scaling, because products with them stay in range.
pub const ORDINARY: Range<f64> = 1e-6..1e6;

/// `2 / |v|^2`, or zero where there is no column.
#[inline(always)]
pub fn tau_of(square: f64) -> f64 {
    if square == 0.0 { 0.0 } else { 2.0 / square }
}

/// `1 / scale^2`; zero where there is no column.
#[inline(always)]
pub fn inverse_square(scale: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { 1.0 / (scale * scale) }
}

/// `V`, zero above the diagonal, for one `U` after the other.
pub struct Trapezoid<T: Scalar> {
    /// Size of the vectors.
    pub n: usize,
    /// Number of reflections.
    pub k: usize,
    /// `V`, row-major, rows [`Trapezoid::ld_k`] apart; zeros above the diagonal, unless the column is NaN, and around
    /// `n x k`. A whole register may be read from any entry on.
    pub rows: Buffer<T>,
    /// Distance between rows of `V`.
    pub ld_k: usize,
    /// `V`, column-major, once [`Strip::transpose`] was called.
    pub columns: Buffer<T>,
    /// Distance between columns of `V`.
    pub ld: usize,
    /// `|v_j|^2`, zero for the identity. Normalising the columns leaves them.
    pub squares: Vec<f64>,
    /// What each column of `U` was multiplied by: a power of two, zero or NaN, unless it was normalised.
    pub scale: Vec<f64>,
}

impl<T: Scalar> Trapezoid<T> {
    /// Memory for `k` reflections of vectors of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let (ld, ld_k) = (padded::<T>(n), padded::<T>(k));
        Ok(Self {
            n,
            k,
            rows: Buffer::scratch(Self::rows_len(n, k))?,
            ld_k,
            columns: Buffer::scratch(k * ld)?,
            ld,
            squares: filled(ld_k, 0.0)?,
            scale: filled(ld_k, 1.0)?,
        })
    }

    /// How many numbers `rows` has.
    pub fn rows_len(n: usize, k: usize) -> usize {
        n.next_multiple_of(PIECE) * padded::<T>(k) + REGISTER
    }

    /// Takes the reflections of `u`, which may have a smaller shape than the memory is for.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) {
        let (n, k) = (u.n(), u.count());
        let (ld, ld_k) = (padded::<T>(n), padded::<T>(k));
        let fits =
            Self::rows_len(n, k) <= self.rows.len() && k * ld <= self.columns.len() && ld_k <= self.squares.len();
        assert!(fits, "workspace for a smaller shape");
        (self.n, self.k, self.ld, self.ld_k) = (n, k, ld, ld_k);
        let all = self.strip(0, n);
        // SAFETY: nobody else uses any of the rows.
        unsafe {
            all.fill(s, u);
            all.squares(u.form(), &mut self.squares);
        }
        self.scale();
    }

    /// Rows `begin..end`, for a task that lays them out; `begin` is a multiple of eight, `end` as well or the last row's.
    pub fn strip(&mut self, begin: usize, end: usize) -> Strip<T> {
        let Self { n, k, ld_k, ld, .. } = *self;
        Strip { begin, end, n, k, rows: self.rows.ptr_mut(), ld_k, columns: self.columns.ptr_mut(), ld }
    }

    /// Scales the columns that need it, once `squares` holds the sums over all rows.
    #[inline(always)]
    pub fn scale(&mut self) {
        for begin in (0..self.k).step_by(PIECE) {
            let end = self.k.min(begin + PIECE);
            self.scale[begin..end].fill(1.0);
            let square = &self.squares[begin..begin + PIECE]; // padded to whole pieces
            // Counted rather than searched, so that the comparisons are vectorised.
            let ordinary = (0..PIECE).filter(|&j| begin + j >= end || ORDINARY.contains(&square[j])).count();
            if ordinary < PIECE {
                self.scale_piece(begin, end);
            }
        }
    }

    /// [`Trapezoid::scale`] for columns `begin..end`.
    #[inline(never)]
    fn scale_piece(&mut self, begin: usize, end: usize) {
        let (ld_k, squares) = (self.ld_k, &mut self.squares[begin..begin + PIECE]);
        let rows = &mut self.rows[begin..self.n.next_multiple_of(PIECE) * ld_k];
        let square = std::array::from_fn(|j| squares[j]);
        let (scale, square) = scale_columns(rows, ld_k, &square);
        self.scale[begin..end].copy_from_slice(&scale[..end - begin]);
        squares.copy_from_slice(&square);
    }

    /// What makes the columns unit vectors, one factor each; `scale` takes them into account.
    pub fn inverse_norms(&mut self) -> Result<Vec<f64>> {
        let mut inverse = filled(self.squares.len(), 0.0)?;
        for ((inverse, &square), scale) in inverse.iter_mut().zip(&self.squares).zip(&mut self.scale) {
            *inverse = if square == 0.0 { 0.0 } else { 1.0 / square.sqrt() };
            *scale *= *inverse;
        }
        Ok(inverse)
    }

    /// Writes `dL/dU` from `dL/dV` that stands where `V` was: see [`write_gradient_rows`].
    #[inline(always)]
    pub fn write_gradient<S: Simd>(&mut self, s: S, u: Reflections<'_, T>, grad_u: &mut [T]) {
        assert_eq!([u.n(), u.count()], [self.n, self.k], "workspace for another shape");
        write_gradient_rows(s, &mut self.rows[..self.n * self.ld_k], &self.scale[..self.k], 0, u, grad_u, false);
    }
}

/// Writes rows of `dL/dU`, from row `first` on, or adds them to what is there: those of `dL/dV`, [`padded`], times `scale`. They
/// are as far apart as those of `u`. A last column for `u_1` is left as it is but for its zeros.
#[inline(always)]
pub fn write_gradient_rows<S: Simd, T: Scalar>(
    s: S,
    rows: &mut [T],
    scale: &[f64],
    first: usize,
    u: Reflections<'_, T>,
    grad_u: &mut [T],
    add: bool,
) {
    let (k, m) = (scale.len(), u.m());
    let ordinary = scale.iter().all(|&scale| scale == 1.0);
    for (i, (row, grad_u)) in (first..).zip(rows.chunks_exact_mut(padded::<T>(k).max(1)).zip(grad_u.chunks_mut(u.ld())))
    {
        let grad_u = &mut grad_u[..m];
        if !ordinary {
            multiply_columns(row, scale);
        }
        for j in (0..k).step_by(T::lanes::<S>()) {
            let kept = Lanes::<S, T, 1>::first(s, u.form().stored(i, k).saturating_sub(j));
            let inside = Lanes::<S, T, 1>::first(s, k - j);
            // SAFETY: a whole register of a padded row, and the lanes of a row of dL/dU.
            unsafe {
                let to = grad_u.as_mut_ptr().add(j);
                let before = if add { to.cast_const() } else { null() };
                inside.store(to, inside.plus(kept.load(row.as_ptr().add(j)), before));
            }
        }
        if k < m && i + 1 < m {
            grad_u[k] = T::ZERO;
        }
    }
}

/// Multiplies a row, or its beginning, by a factor for each column, in double precision.
#[inline(always)]
pub fn multiply_columns<T: Scalar>(row: &mut [T], factors: &[f64]) {
    let len = row.len().min(factors.len());
    let (row, factors) = (&mut row[..len], &factors[..len]);
    let (pieces, rest) = row.as_chunks_mut::<PIECE>();
    let (factors, rest_factors) = factors.as_chunks::<PIECE>();
    for (piece, factors) in pieces.iter_mut().zip(factors) {
        // If the compiler knew the address, it would gather one number from each of many pieces.
        let piece = opaque(std::ptr::from_mut(piece)).cast_mut();
        // SAFETY: the same piece.
        unsafe { *piece = multiplied(*piece, factors) };
    }
    for (x, &factor) in rest.iter_mut().zip(rest_factors) {
        *x = T::narrow(x.widen().scale(factor));
    }
}

#[inline(always)]
fn multiplied<T: Number>(mut piece: [T; PIECE], factors: &[f64; PIECE]) -> [T; PIECE] {
    for j in 0..PIECE {
        let times = |x: T::Real| T::Real::of(x.to_f64() * factors[j]);
        piece[j] = T::from_parts(times(piece[j].re()), times(piece[j].im()));
    }
    piece
}

/// Multiplies the columns of a piece that need it by powers of two that bring them near norm one, or by zero if their norm
/// is zero or subnormal. Returns these factors and the new sums of squares.
pub fn scale_columns<T: Number>(rows: &mut [T], ld: usize, square: &[f64; PIECE]) -> ([f64; PIECE], [f64; PIECE]) {
    let mut largest = [0.0; PIECE];
    for row in pieces(rows, ld) {
        for j in 0..PIECE {
            let x = row[j].max_abs().to_f64();
            largest[j] = if x > largest[j] { x } else { largest[j] };
        }
    }
    let mut scale = largest.map(|x| if x > 0.0 && x.is_finite() { power_of_two_below_inverse(x) } else { 1.0 });
    let scaled = squares(rows, ld, &scale);
    for (scale, (scaled, square)) in scale.iter_mut().zip(scaled.iter().zip(square)) {
        let norm = scaled.sqrt();
        if ORDINARY.contains(square) {
            *scale = 1.0;
        } else if norm < T::Real::MIN_POSITIVE.to_f64() * *scale {
            *scale = 0.0;
        } else if !norm.is_finite() {
            *scale = f64::NAN; // an infinite column has no direction
        }
    }
    for row in rows.chunks_mut(ld).filter_map(|row| row.first_chunk_mut::<PIECE>()) {
        *row = multiplied(*row, &scale);
    }
    (scale, squares(rows, ld, &[1.0; PIECE]))
}

/// Sums of the squares of a piece's scaled columns; those of every fourth row side by side, to hide the latency of an
/// addition.
#[inline(always)]
fn squares<T: Number>(rows: &[T], ld: usize, scale: &[f64; PIECE]) -> [f64; PIECE] {
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
                let square = |x: T::Real| (x.to_f64() * scale[j]) * (x.to_f64() * scale[j]);
                sums[j] += if T::COMPLEX { square(row[j].re()) + square(row[j].im()) } else { square(row[j].re()) };
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

/// The power of two in `[1 / (2 x), 1 / x)`, kept normal.
fn power_of_two_below_inverse(x: f64) -> f64 {
    let exponent = (x.to_bits() >> 52) as i64 & 0x7ff;
    f64::from_bits(((2045 - exponent).clamp(1, 2046) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::isa::{InstructionSet, simd};

    simd! {
        fn set<T: Scalar>(s, v: &mut Trapezoid<T>, u: Reflections<'_, T>) -> () {
            v.set(s, u);
            // SAFETY: nobody else uses any of the rows or columns.
            unsafe { v.strip(0, v.n).transpose(s) };
        }
    }

    /// The columns of `u`, and the sums of their squares.
    fn columns<T: Scalar>(n: usize, m: usize, u: &[T]) -> (Vec<Vec<T>>, Vec<f64>) {
        let u = Reflections::new(n, m, u);
        let mut v = Trapezoid::new(n, u.count()).unwrap();
        set(InstructionSet::current(), &mut v, u);
        let columns = v.columns.chunks(v.ld).take(v.k).map(|column| column[..n].to_vec());
        (columns.collect(), v.squares[..v.k].to_vec())
    }

    #[test]
    fn powers_of_two_invert_magnitudes() {
        for x in [1.0, 1.5, 3.0e10, 1e-300, 1e300, f64::MAX, f64::MIN_POSITIVE] {
            let p = power_of_two_below_inverse(x);
            assert!(p.is_normal() && p * x <= 4.0 && p * x > 0.24, "{x}: {p}");
        }
    }

    #[test]
    fn ordinary_columns_are_not_scaled() {
        let (columns, squares) = columns(3, 2, &[3.0, f64::NAN, 0.0, 0.0, 4.0, 0.0]);
        assert_eq!((columns, squares), (vec![vec![3.0, 0.0, 4.0], vec![0.0; 3]], vec![25.0, 0.0]));
    }

    #[test]
    fn others_come_near_norm_one_without_rounding() {
        for scale in [1e-300, 1e300, 1e-160, 1e160] {
            let u = [3.0 * scale, 0.0, 4.0 * scale, 2.0 * scale];
            let (columns, squares) = columns(4, 1, &u);
            assert!((0.0625..16.0).contains(&squares[0]), "{scale}: {}", squares[0]);
            let factor = columns[0][0] / u[0];
            assert!(columns[0].iter().zip(u).all(|(v, u)| *v == u * factor), "{scale}");
        }
    }

    #[test]
    fn infinite_columns_are_nan() {
        assert!(columns(2, 1, &[1.0, f64::INFINITY]).0[0][0].is_nan());
    }

    #[test]
    fn vanishing_columns_are_identities() {
        assert_eq!(columns(2, 1, &[0.0, f64::MIN_POSITIVE / 4.0]), (vec![vec![0.0; 2]], vec![0.0]));
    }
}
