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

mod form;
mod gram;
mod inverse;

use pulp::{Simd, WithSimd};

use crate::blocks::Rows;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm, long_gemm};
use crate::kernel::transpose::transpose;
use crate::memory::{Buffer, padded};
use crate::parallel::Context;
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::trapezoid::multiply_columns;
pub use form::Along;
use gram::gram;

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

/// Where the factors are, to apply them to vectors. Whoever does so owns the vectors, and the factors are there still.
#[derive(Clone, Copy)]
pub struct Factors<T> {
    n: usize,
    k: usize,
    v: *const T,
    ld_n: usize,
    v_adjoint: *const T,
    ld_k: usize,
    minus_s: *const T,
    minus_s_adjoint: *const T,
}

// SAFETY: their owner sees to it that nobody changes what others read.
unsafe impl<T> Send for Factors<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Factors<T> {}

impl<T: Scalar> Factors<T> {
    /// Distance between rows of coefficients.
    pub fn ld_k(self) -> usize {
        self.ld_k
    }

    /// `z = V* a` for each vector.
    pub unsafe fn gather(self, isa: InstructionSet, a: Rows<T>, z: Rows<T>) {
        let v_adjoint = Weights::strided(self.v_adjoint, self.ld_k, self.n);
        long_gemm(
            isa,
            self.k,
            a.count,
            v_adjoint,
            Operand::columns(a.ptr, a.ld),
            &Store::new(Columns::new(z.ptr, z.ld)),
        );
    }

    /// `y = N z` for each vector, or `N* z`.
    pub unsafe fn turn(self, isa: InstructionSet, z: Rows<T>, y: Rows<T>, adjoint: bool) {
        let middle = Weights::strided(if adjoint { self.minus_s_adjoint } else { self.minus_s }, self.ld_k, self.k);
        gemm(isa, self.k, z.count, middle, Operand::columns(z.ptr, z.ld), &Store::new(Columns::new(y.ptr, y.ld)));
    }

    /// `out = a + V y` for each vector; `out` may be `a`.
    pub unsafe fn scatter(self, isa: InstructionSet, y: Rows<T>, a: Rows<T>, out: Rows<T>) {
        let v = Weights::strided(self.v, self.ld_n, self.k);
        let epilogue = Store::plus(Columns::new(out.ptr, out.ld), Columns::new(a.ptr, a.ld));
        gemm(isa, self.n, a.count, v, Operand::columns(y.ptr, y.ld), &epilogue);
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

    /// Where all of it is.
    pub fn factors(&self) -> Factors<T> {
        Factors {
            n: self.n,
            k: self.k,
            v: self.v.ptr(),
            ld_n: self.ld_n(),
            v_adjoint: self.v_adjoint.ptr(),
            ld_k: self.ld_k(),
            minus_s: self.minus_s.ptr(),
            minus_s_adjoint: self.minus_s_adjoint.ptr(),
        }
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
