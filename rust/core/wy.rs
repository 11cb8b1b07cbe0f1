//! The compact WY form of a product of reflections (Proposition 1), with unit columns `V` for `U`:
//!
//! ```text
//! T = striu(V* V) + I / 2,    S = T^-1,    W = I - V S V*      (times D = diag(1, .., 1, u_1) when m == n)
//! ```
//!
//! With unit columns `|S_ij| <= 4`, so `S` is formed once and no application solves a triangular system. `V* V` and `S`
//! are computed in double precision: nearly collinear reflections cost no accuracy. (Columns of any norm would save a pass,
//! but the entries of `S` for collinear ones are then no longer close to whole numbers: its rounding cost eight units of
//! orthogonality in single precision instead of one.)
//!
//! The sign of `S` is folded into what is stored, `N = -S`: every use then adds, `W = I + V N V*`.

use pulp::{Simd, WithSimd};

use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm};
use crate::kernel::transpose::transpose;
use crate::memory::{Buffer, Shared, filled, padded};
use crate::parallel::{Context, slices};
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::trapezoid::{Strip, Trapezoid, multiply_columns};

/// `V`, `N = -T^-1` and what leads back from gradients of `V` to gradients of `U`.
pub struct CompactWy<T: Scalar> {
    /// Size of the vectors.
    pub n: usize,
    /// Number of reflections.
    pub k: usize,
    /// `V`, column-major, columns [`CompactWy::ld_n`] apart.
    pub v: Buffer<T>,
    /// `conj(V)`, row-major, rows [`CompactWy::ld_k`] apart: row `i` is column `i` of `V*`.
    pub v_adjoint: Buffer<T>,
    /// `N = -S`, column-major, columns `ld_k` apart, upper triangular.
    pub minus_s: Buffer<T>,
    /// `N*`, column-major, columns `ld_k` apart.
    pub minus_s_adjoint: Buffer<T>,
    /// What the columns of `U` were multiplied by.
    scale: Vec<f64>,
}

/// Blocks in which `S` is formed: within a block column by column, across blocks by products.
const BLOCK: usize = 32;

/// Takes rows of `U`, and the sums of their squares.
struct Take<'a, T: Scalar>(Strip<T>, Reflections<'a, T>, &'a mut [f64]);

impl<T: Scalar> WithSimd for Take<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        // SAFETY: the task owns the strip.
        unsafe {
            self.0.fill(s, self.1);
            self.0.squares(self.2);
        }
    }
}

/// Lays out rows of unit columns, conjugated row by row.
struct LayOut<'a, T: Scalar>(Strip<T>, &'a [f64]);

impl<T: Scalar> WithSimd for LayOut<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        // SAFETY: the task owns the strip.
        unsafe {
            self.0.multiply(self.1);
            self.0.transpose(s);
            if T::COMPLEX {
                self.0.conjugate();
            }
        }
    }
}

struct MultiplyColumns<'a, T> {
    rows: &'a mut [T],
    ld: usize,
    factors: &'a [f64],
}

impl<T: Scalar> WithSimd for MultiplyColumns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.rows.chunks_mut(self.ld) {
            multiply_columns(row, self.factors);
        }
    }
}

impl<T: Scalar> CompactWy<T> {
    /// Distance between columns of length `n`.
    pub fn ld_n(&self) -> usize {
        padded::<T>(self.n)
    }

    /// Distance between columns of length `k`.
    pub fn ld_k(&self) -> usize {
        padded::<T>(self.k)
    }

    /// Forms `V` and `N`.
    pub fn new(context: &mut Context<'_>, u: Reflections<'_, T>) -> Result<Self> {
        let (n, k) = (u.n(), u.count());
        let mut columns = Trapezoid::new(n, k)?;
        let t = lay_out(context, u, &mut columns)?;
        let Trapezoid { rows: v_adjoint, ld_k, columns: v, scale, .. } = columns;
        let inverse = minus_inverse(context.isa, k, &t, ld_k)?;
        let (mut minus_s, mut minus_s_adjoint) = (Buffer::zeroed(k * ld_k)?, Buffer::zeroed(k * ld_k)?);
        for j in 0..k {
            for i in 0..=j {
                let x = T::narrow(inverse[j * ld_k + i]);
                minus_s[j * ld_k + i] = x;
                minus_s_adjoint[i * ld_k + j] = x.conj();
            }
        }
        Ok(Self { n, k, v, v_adjoint, minus_s, minus_s_adjoint, scale })
    }

    /// `T`, column-major, columns `ld_k` apart, in wide precision; its strict lower triangle is unspecified.
    pub fn t(&self, context: &mut Context<'_>) -> Result<Buffer<T::Wide>> {
        gram(context, self.n, self.k, &self.v_adjoint)
    }

    /// Writes `dL/dU` (row-major, `n x m`, zero above the diagonal) from `dL/dV` (column-major); a last column for `u_1`
    /// is left as it is but for its zeros.
    pub fn write_gradient(&self, isa: InstructionSet, grad_v: &[T], u: Reflections<'_, T>, grad_u: &mut [T]) {
        let (m, ld_n) = (u.m(), self.ld_n());
        u.clear_above_diagonal(grad_u);
        transpose(isa, (self.n, self.k), grad_v, ld_n, grad_u, m);
        self.finish_gradient(isa, 0, grad_u, m);
    }

    /// Turns rows `begin..` of `dL/dV`, `ld` apart, into those of `dL/dU` in place.
    pub fn finish_gradient(&self, isa: InstructionSet, begin: usize, grad: &mut [T], ld: usize) {
        isa.dispatch(MultiplyColumns { rows: grad, ld, factors: &self.scale[..self.k] });
        for (row, above) in grad.chunks_mut(ld).zip(begin + 1..self.k) {
            row[above..self.k].fill(T::ZERO);
        }
    }
}

/// Lays out unit columns, conjugated row by row, and forms `T` of them as [`gram`] does.
fn lay_out<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    v: &mut Trapezoid<T>,
) -> Result<Buffer<T::Wide>> {
    let (isa, n, k, ld) = (context.isa, v.n, v.k, v.ld_k);
    let strips: Vec<Strip<T>> = strips(n).windows(2).map(|bounds| v.strip(bounds[0], bounds[1])).collect();
    let (parts, len) = (strips.len(), k * ld);
    let mut squares = filled(parts * ld, 0.0)?;
    let mut inverse_norms = Vec::new();
    let mut t = Buffer::<T::Wide>::scratch(parts * len)?;
    let (shared_v, shared_norms) = (Shared(v), Shared(&raw mut inverse_norms));
    let (shared_squares, shared_t) = (Shared(squares.as_mut_ptr()), Shared(t.ptr_mut()));
    // A number takes as long to lay out as a hundred flops of a product.
    context.run_phases(&[parts, 1, parts], 4 * n * k * (k + 24), &|phase, i, cancel| {
        cancel.check()?;
        // SAFETY: tasks own their strips and what they add to sums; the one between them owns everything.
        unsafe {
            let sums = |i: usize| std::slice::from_raw_parts_mut(shared_squares.get().add(i * ld), ld);
            match phase {
                0 => isa.dispatch(Take(strips[i], u, sums(i))),
                1 => {
                    let v = &mut *shared_v.get();
                    v.squares.fill(0.0);
                    (0..parts).for_each(|i| v.squares.iter_mut().zip(sums(i)).for_each(|(sum, part)| *sum += *part));
                    v.scale();
                    *shared_norms.get() = v.inverse_norms()?;
                }
                _ => {
                    isa.dispatch(LayOut(strips[i], &*shared_norms.get()));
                    let t = std::slice::from_raw_parts_mut(shared_t.get().add(i * len), len);
                    t.fill(T::Wide::ZERO);
                    add_gram(isa, k, strips[i].begin(), strips[i].rows(), t)?;
                }
            }
        }
        Ok(())
    })?;
    sum_of_parts(k, ld, &mut t);
    Ok(t)
}

/// Where the rows of `V` are split for tasks, by shape alone: whole eights.
fn strips(n: usize) -> Vec<usize> {
    let mut bounds: Vec<usize> = slices(n / 8, 32, 8).into_iter().map(|eights| 8 * eights).collect();
    bounds.last_mut().into_iter().for_each(|last| *last = n);
    bounds
}

/// `T = striu(V* V) + diag(V* V) / 2` in wide precision, from `conj(V)` row by row, both with rows or columns
/// `padded::<T>(k)` apart; its strict lower triangle is unspecified.
///
/// `V` is taken as it was rounded, norms included: then `T + T* = V* V` holds for the very `V` that is applied, and `I - V T^-1 V*` is
/// orthogonal far beyond the narrow precision. A zero column gets 1/2: it reflects nothing.
fn gram<T: Scalar>(context: &mut Context<'_>, n: usize, k: usize, v_adjoint: &[T]) -> Result<Buffer<T::Wide>> {
    let (isa, ld, bounds) = (context.isa, padded::<T>(k), strips(n));
    let (parts, len) = (bounds.len() - 1, k * ld);
    let mut t = Buffer::<T::Wide>::zeroed(parts * len)?;
    let shared = Shared(t.ptr_mut());
    context.run(parts, 4 * n * k * k, &|i, cancel| {
        cancel.check()?;
        // SAFETY: tasks own disjoint parts.
        let t = unsafe { std::slice::from_raw_parts_mut(shared.get().add(i * len), len) };
        add_gram(isa, k, bounds[i], &v_adjoint[bounds[i] * ld..bounds[i + 1] * ld], t)
    })?;
    sum_of_parts(k, ld, &mut t);
    Ok(t)
}

/// Adds up what strips have contributed, at the first one's place, and halves the diagonal.
fn sum_of_parts<W: Scalar<Real = f64>>(k: usize, ld: usize, t: &mut [W]) {
    let (sum, others) = t.split_at_mut(k * ld);
    for other in others.chunks((k * ld).max(1)) {
        sum.iter_mut().zip(other).for_each(|(sum, x)| *sum += *x);
    }
    for j in 0..k {
        let square = sum[j * ld + j].re();
        sum[j * ld + j] = W::from_real(if square == 0.0 { 0.5 } else { 0.5 * square });
    }
}

/// Adds what some rows, the first of which is row `first`, contribute to the upper triangle of `V* V`.
fn add_gram<T: Scalar>(isa: InstructionSet, k: usize, first: usize, rows: &[T], t: &mut [T::Wide]) -> Result<()> {
    /// Rows that are widened at a time, for the first-level cache.
    const ROWS: usize = 128;
    /// Rows of `T`, whose sums begin where `V` does.
    const STRIP: usize = 16;
    let ld = padded::<T>(k);
    let mut wide = Buffer::<T::Wide>::scratch(rows.len().min(ROWS * ld))?;
    // Row i of V, the operand; for real numbers it is the same as column i of V*.
    let mut conjugate = Buffer::<T::Wide>::scratch(if T::COMPLEX { wide.len() } else { 0 })?;
    for (begin, rows) in (first..).step_by(ROWS).zip(rows.chunks(ROWS * ld.max(1))) {
        let count = rows.len() / ld;
        isa.dispatch(
            #[inline(always)]
            || {
                for (to, x) in wide.iter_mut().zip(rows) {
                    *to = x.widen();
                }
                for (to, x) in conjugate.iter_mut().zip(wide.iter()) {
                    *to = x.conj();
                }
            },
        );
        let v = if T::COMPLEX { conjugate.ptr() } else { wide.ptr() };
        for i0 in (0..k.min(begin + count)).step_by(STRIP) {
            let above = i0.saturating_sub(begin);
            let weights = Weights::strided(wide.ptr().wrapping_add(above * ld + i0), ld, count - above);
            let operand = Operand::rows(v.wrapping_add(above * ld + i0), ld);
            let out = Columns::new(t.as_mut_ptr().wrapping_add(i0 * ld + i0), ld);
            // SAFETY: all three are inside padded buffers from column i0 on.
            unsafe { gemm(isa, STRIP.min(k - i0), k - i0, weights, operand, &Store::plus(out, out)) };
        }
    }
    Ok(())
}

/// `-T^-1` for an upper-triangular `T`, column-major.
///
/// Column by column inside a diagonal block; a block column `J` above it is `N[.., J] = N[.., ..] (T[.., J] S[J, J])`
/// with `N = -S` of what stands to the left.
fn minus_inverse<W: Scalar<Real = f64, Wide = W>>(
    isa: InstructionSet,
    k: usize,
    t: &Buffer<W>,
    ld: usize,
) -> Result<Buffer<W>> {
    let mut n = Buffer::<W>::zeroed(k * ld)?;
    let mut product = Buffer::<W>::zeroed(BLOCK * ld)?;
    for j0 in (0..k).step_by(BLOCK) {
        let width = BLOCK.min(k - j0);
        isa.dispatch(DiagonalBlock { width, t: &t[j0 * ld + j0..], n: &mut n[j0 * ld + j0..], ld });
        if j0 == 0 {
            continue;
        }
        // product = T[0..j0, J] N[J, J] = -T[0..j0, J] S[J, J]
        let weights = Weights::strided(t.ptr().wrapping_add(j0 * ld), ld, width);
        let operand = Operand::columns(n.ptr().wrapping_add(j0 * ld + j0), ld);
        let out = Columns::new(product.ptr_mut(), ld);
        // SAFETY: columns of length j0 + width <= k <= ld in padded buffers; `product` is separate from both.
        unsafe { gemm(isa, j0, width, weights, operand, &Store::new(out)) };
        // S[0..j0, J] = -S[0..j0, 0..j0] T[0..j0, J] S[J, J], so N[0..j0, J] = S (T S) = N (T N); rows above i0 only meet k >= i0.
        for i0 in (0..j0).step_by(BLOCK) {
            let weights = Weights::strided(n.ptr().wrapping_add(i0 * ld + i0), ld, j0 - i0);
            let operand = Operand::columns(product.ptr().wrapping_add(i0), ld);
            let out = Columns::new(n.ptr_mut().wrapping_add(j0 * ld + i0), ld);
            // SAFETY: as above; reads columns left of j0, writes columns from j0 on.
            unsafe { gemm(isa, BLOCK.min(j0 - i0), width, weights, operand, &Store::new(out)) };
        }
    }
    Ok(n)
}

/// [`minus_inverse`] of a block. Columns of `N` are sums over those before them: each is added to all behind it once it is
/// known, on whole columns.
struct DiagonalBlock<'a, W> {
    width: usize,
    t: &'a [W],
    n: &'a mut [W],
    ld: usize,
}

impl<W: Scalar<Real = f64>> WithSimd for DiagonalBlock<'_, W> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { width, t, n, ld } = self;
        let mut columns = [[W::ZERO; BLOCK]; BLOCK];
        for i in 0..width {
            // N T = -I: N e_i = -(e_i + sum_{l<i} N e_l t_li) / t_ii
            columns[i][i] = W::ONE;
            let factor = -1.0 / t[i * ld + i].re();
            for x in &mut columns[i] {
                *x = x.scale(factor);
            }
            let known = columns[i];
            for (j, column) in columns.iter_mut().enumerate().take(width).skip(i + 1) {
                let factor = t[j * ld + i];
                for (to, known) in column.chunks_exact_mut(8).zip(known.chunks_exact(8)).take(i / 8 + 1) {
                    for r in 0..8 {
                        to[r] += factor * known[r];
                    }
                }
            }
            n[i * ld..=i * ld + i].copy_from_slice(&known[..=i]);
        }
    }
}
