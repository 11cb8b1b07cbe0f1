//! The compact WY form of a product of reflections (Proposition 1), with unit columns `V` for `U`:
//!
//! ```text
//! T = striu(V* V) + I / 2,    S = T^-1,    W = I - V S V*      (times D = diag(1, .., 1, u_1) when m == n)
//! ```
//!
//! With unit columns `|S_ij| <= 4`, so `S` is formed once and no application solves a triangular system. `V* V` and `S`
//! are computed in double precision: nearly collinear reflections cost no accuracy.
//!
//! The sign of `S` is folded into what is stored, `N = -S`: every use then adds, `W = I + V N V*`.

use crate::dense::transpose;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm};
use crate::memory::{Buffer, padded};
use crate::reflections::{Normalizers, Reflections};
use crate::scalar::Scalar;

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
    normalizers: Normalizers,
}

/// Blocks in which `S` is formed: within a block column by column, across blocks by products.
const BLOCK: usize = 32;

impl<T: Scalar> CompactWy<T> {
    /// Distance between columns of length `n`.
    pub fn ld_n(&self) -> usize {
        padded::<T>(self.n)
    }

    /// Distance between columns of length `k`.
    pub fn ld_k(&self) -> usize {
        padded::<T>(self.k)
    }

    /// Forms `V` alone (`N` stays empty): all that single reflections need.
    pub fn unit_columns(u: Reflections<'_, T>) -> Result<Self> {
        let (n, k) = (u.n(), u.count());
        let (ld_n, ld_k) = (padded::<T>(n), padded::<T>(k));
        let normalizers = u.normalizers()?;
        let mut v = Buffer::zeroed(k * ld_n)?;
        let mut v_adjoint = Buffer::zeroed(n * ld_k)?;
        InstructionSet::current().dispatch(
            #[inline(always)]
            || {
                for (i, row) in v_adjoint.chunks_mut(ld_k.max(1)).enumerate().take(n) {
                    let filled = k.min(i + 1);
                    let from = u.row(i)[..filled].iter().zip(&normalizers.scale).zip(&normalizers.inverse);
                    for (x, ((&from, &scale), &inverse)) in row.iter_mut().zip(from) {
                        *x = normalized(from, scale, inverse).conj();
                    }
                }
            },
        );
        transpose(k, n, &v_adjoint, ld_k, &mut v, ld_n);
        if T::COMPLEX {
            v.iter_mut().for_each(|x| *x = x.conj());
        }
        Ok(Self { n, k, v, v_adjoint, minus_s: Buffer::zeroed(0)?, minus_s_adjoint: Buffer::zeroed(0)?, normalizers })
    }

    /// Forms `V` and `N`.
    pub fn new(isa: InstructionSet, u: Reflections<'_, T>) -> Result<Self> {
        let mut wy = Self::unit_columns(u)?;
        let (k, ld_k) = (wy.k, wy.ld_k());
        let ld = padded::<T::Wide>(k);
        let t = wy.t(isa)?;
        let minus_s = minus_inverse(isa, k, &t, ld)?;
        wy.minus_s = Buffer::zeroed(k * ld_k)?;
        wy.minus_s_adjoint = Buffer::zeroed(k * ld_k)?;
        for j in 0..k {
            let column = wy.minus_s[j * ld_k..=j * ld_k + j].iter_mut();
            column.zip(&minus_s[j * ld..]).for_each(|(to, &x)| *to = T::narrow(x));
        }
        transpose(k, k, &wy.minus_s, ld_k, &mut wy.minus_s_adjoint, ld_k);
        if T::COMPLEX {
            wy.minus_s_adjoint.iter_mut().for_each(|x| *x = x.conj());
        }
        Ok(wy)
    }

    /// `T = striu(V* V) + diag(V* V) / 2`, column-major, in wide precision; its strict lower triangle is unspecified.
    ///
    /// `V` is taken as it was rounded, norms included: then `T + T* = V* V` holds for the very `V` that is applied, and
    /// `I - V T^-1 V*` is orthogonal far beyond the narrow precision. A zero column gets 1/2: it reflects nothing.
    pub fn t(&self, isa: InstructionSet) -> Result<Buffer<T::Wide>> {
        let (n, k) = (self.n, self.k);
        let ld_k = padded::<T::Wide>(k);
        let mut v_adjoint = Buffer::<T::Wide>::scratch(n * ld_k)?;
        // Row i of V, the operand; for real numbers it is the same as column i of V*.
        let mut v = Buffer::<T::Wide>::scratch(if T::COMPLEX { n * ld_k } else { 0 })?;
        isa.dispatch(
            #[inline(always)]
            || {
                for i in 0..n {
                    let narrow = &self.v_adjoint[i * self.ld_k()..][..k];
                    let (row, behind) = v_adjoint[i * ld_k..][..ld_k].split_at_mut(k);
                    for (to, x) in row.iter_mut().zip(narrow) {
                        *to = x.widen();
                    }
                    behind.fill(T::Wide::ZERO); // registers read it, and denormal numbers would take them long
                    if T::COMPLEX {
                        for (to, x) in v[i * ld_k..][..k].iter_mut().zip(narrow) {
                            *to = x.widen().conj();
                        }
                    }
                }
            },
        );
        let v = if T::COMPLEX { v.ptr() } else { v_adjoint.ptr() };
        let mut t = Buffer::<T::Wide>::zeroed(k * ld_k)?;
        // Row block by row block, columns from the diagonal on; V is zero above its diagonal, so sums begin there.
        for i0 in (0..k).step_by(BLOCK / 2) {
            let rows = (BLOCK / 2).min(k - i0);
            let weights = Weights::strided(v_adjoint.ptr().wrapping_add(i0 * ld_k + i0), ld_k, n - i0);
            let operand = Operand::rows(v.wrapping_add(i0 * ld_k + i0), ld_k);
            let out = Columns::new(t.ptr_mut().wrapping_add(i0 * ld_k + i0), ld_k);
            // SAFETY: all three start at (i0, i0) of padded buffers and stay inside them.
            unsafe { gemm(isa, rows, k - i0, weights, operand, &Store::new(out)) };
        }
        for j in 0..k {
            let square = t[j * ld_k + j].re();
            t[j * ld_k + j] = T::Wide::from_real(if square == 0.0 { 0.5 } else { 0.5 * square });
        }
        Ok(t)
    }

    /// Writes `dL/dU` (row-major, `n x m`, zero above the diagonal) from `dL/dV` (column-major); a last column for `u_1`
    /// is left as it is but for its zeros.
    pub fn write_gradient(&self, grad_v: &[T], u: Reflections<'_, T>, grad_u: &mut [T]) {
        let (m, ld_n) = (u.m(), self.ld_n());
        u.clear_above_diagonal(grad_u);
        transpose(self.n, self.k, grad_v, ld_n, grad_u, m);
        self.finish_gradient(0, grad_u, m);
    }

    /// Turns rows `begin..` of `dL/dV`, `ld` apart, into those of `dL/dU` in place.
    pub fn finish_gradient(&self, begin: usize, grad: &mut [T], ld: usize) {
        InstructionSet::current().dispatch(
            #[inline(always)]
            || {
                for (i, row) in grad.chunks_mut(ld).enumerate() {
                    let filled = self.k.min(begin + i + 1);
                    let factors = self.normalizers.scale.iter().zip(&self.normalizers.inverse);
                    for (x, (&scale, &inverse)) in row[..filled].iter_mut().zip(factors) {
                        *x = normalized(*x, scale, inverse);
                    }
                    row[filled..self.k].fill(T::ZERO);
                }
            },
        );
    }
}

/// An entry times its column's factors, in double precision.
#[inline(always)]
fn normalized<T: Scalar>(x: T, scale: f64, inverse: f64) -> T {
    T::narrow(x.widen().scale(scale).scale(inverse))
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
        isa.dispatch(
            #[inline(always)]
            || {
                for j in j0..j0 + width {
                    // N T = -I: N e_j = -(e_j + sum_{i<j} N e_i t_ij) / t_jj
                    let inverse = 1.0 / t[j * ld + j].re();
                    let (left, right) = n.split_at_mut(j * ld);
                    for i in j0..j {
                        let factor = t[j * ld + i].scale(inverse);
                        let column = left[i * ld + j0..=i * ld + i].iter();
                        for (x, &y) in right[j0..=i].iter_mut().zip(column) {
                            *x -= factor * y;
                        }
                    }
                    right[j] = W::from_real(-inverse);
                }
            },
        );
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
