//! The factors of one compact WY form, and their application to vectors.

use super::tau::UserTau;
use crate::arrays::view::{View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::operator::{Form, Operator, Reflections};
use crate::simd::epilogue::Store;
use crate::simd::gemm::{gemm, long_gemm};
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::transpose::transpose;
use crate::threads::Context;
use crate::wy::layout::{Trapezoid, multiply_columns};

/// `V`, `N = -T^-1`, and what is needed to turn gradients of `V` into gradients of `U`.
pub struct CompactWy<T: Scalar> {
    /// Size of the vectors.
    pub n: usize,
    /// Number of reflections.
    pub k: usize,
    /// `V`, or `X = V Delta` where `tau` is given, column-major, columns [`CompactWy::ld_n`] apart.
    pub v: Buffer<T>,
    /// `conj(V)`, row-major, rows [`CompactWy::ld_k`] apart: row `i` is column `i` of `V*`.
    pub v_adjoint: Buffer<T>,
    /// `N = -S`, column-major, columns `ld_k` apart, upper triangular.
    pub minus_s: Buffer<T>,
    /// `N*`, or `N'` where `tau` is given, column-major, columns `ld_k` apart.
    pub minus_s_adjoint: Buffer<T>,
    /// Which entries the columns of `U` consist of.
    pub(super) form: Form,
    /// The factors by which these columns were multiplied.
    pub(super) scale: Vec<f64>,
    /// What a given `tau` adds.
    pub(super) given: Option<UserTau>,
}

/// Views of the factors, to apply them to vectors.
#[derive(Clone, Copy)]
pub struct Factors<'a, T> {
    pub(super) v: View<'a, T>,
    pub(super) v_adjoint: View<'a, T>,
    pub(super) minus_s: View<'a, T>,
    pub(super) minus_s_adjoint: View<'a, T>,
}

impl<'a, T: Scalar> Factors<'a, T> {
    /// `z = V* a` for each vector, which is zero before coordinate `top` and given from there on.
    ///
    /// # Safety
    /// The caller owns the vectors: numbers up to coordinate `n` in `a`, `k` in `z`.
    pub unsafe fn gather(self, isa: InstructionSet, top: usize, a: View<'_, T>, z: ViewMut<'_, T>) {
        let below = self.v_adjoint.part(top, self.v_adjoint.count);
        long_gemm(isa, (self.v.count, a.count), below, a, &Store::new(z));
    }

    /// `z = V* e_j` for the unit vectors `begin..end`.
    pub fn units(self, begin: usize, end: usize) -> View<'a, T> {
        self.v_adjoint.part(begin, end)
    }

    /// `y = N z` for each vector, or `N* z`.
    ///
    /// # Safety
    /// The caller owns the vectors of `k` numbers.
    pub unsafe fn turn(self, isa: InstructionSet, z: View<'_, T>, y: ViewMut<'_, T>, adjoint: bool) {
        let middle = if adjoint { self.minus_s_adjoint } else { self.minus_s };
        gemm(isa, (middle.count, z.count), middle, z, &Store::new(y));
    }

    /// `out = a + V y` for each vector; `out` may be `a`.
    ///
    /// # Safety
    /// The caller owns the vectors: `k` numbers in `y`, `n` in `a` and `out`.
    pub unsafe fn scatter(self, isa: InstructionSet, y: View<'_, T>, a: View<'_, T>, out: ViewMut<'_, T>) {
        gemm(isa, (self.v_adjoint.count, a.count), self.v, y, &Store::plus(out, a));
    }
}

simd! {
    /// Multiplies the first numbers of rows, `ld` apart, by a factor for each column.
    fn scale_rows<T: Scalar>(_s, rows: &mut [T], ld: usize, factors: &[f64]) -> () {
        for row in rows.chunks_mut(ld) {
            multiply_columns(row, factors);
        }
    }
}

impl<T: Scalar> CompactWy<T> {
    /// Rounds the factors to the narrow precision.
    pub(super) fn narrow<N: Scalar<Wide = T>>(&self, isa: InstructionSet) -> Result<CompactWy<N>> {
        let (n, k) = (self.n, self.k);
        let (rows, behind) = (&self.v_adjoint[..n * self.ld_k()], Trapezoid::<N>::rows_len(n, k) - n * padded::<N>(k));
        Ok(CompactWy {
            n,
            k,
            v: narrow(isa, &self.v, n, 0)?,
            v_adjoint: narrow(isa, rows, k, behind)?,
            minus_s: narrow(isa, &self.minus_s, k, 0)?,
            minus_s_adjoint: narrow(isa, &self.minus_s_adjoint, k, 0)?,
            form: self.form,
            scale: self.scale.clone(),
            given: self.given.clone(),
        })
    }

    /// Whether it is of columns of this form, with a given `tau` or without.
    pub fn is_like(&self, u: Reflections<'_, T>) -> bool {
        self.form == u.form() && self.given.is_some() == u.tau().is_some()
    }

    /// Distance between columns of length `n`.
    pub fn ld_n(&self) -> usize {
        padded::<T>(self.n)
    }

    /// Distance between columns of length `k`.
    pub fn ld_k(&self) -> usize {
        padded::<T>(self.k)
    }

    /// Views of all factors.
    pub fn factors(&self) -> Factors<'_, T> {
        let ld_k = self.ld_k();
        Factors {
            v: View::of(&self.v, self.ld_n(), self.k),
            v_adjoint: View::of(&self.v_adjoint, ld_k, self.n),
            minus_s: View::of(&self.minus_s, ld_k, self.k),
            minus_s_adjoint: View::of(&self.minus_s_adjoint, ld_k, self.k),
        }
    }

    /// Writes `dL/dU` (row-major, `n x m`, zero above the diagonal) from `dL/dV` (column-major); a last column for `u_1`
    /// is left as it is but for its zeros.
    pub fn write_gradient(&self, isa: InstructionSet, grad_v: &[T], u: Reflections<'_, T>, grad_u: &mut [T]) {
        let (m, ld_n) = (u.m(), self.ld_n());
        u.clear_unused(grad_u);
        transpose(isa, (self.n, self.k), grad_v, ld_n, grad_u, m);
        self.scale_gradient(isa, &self.scale, 0, grad_u, m);
    }

    /// Turns rows `begin..` of `dL/dX`, `ld` apart, into those of `dL/dU` in place; `X` is `V` unless `tau` is given.
    pub fn finish_gradient(&self, isa: InstructionSet, begin: usize, grad: &mut [T], ld: usize) {
        let scale = self.given.as_ref().map_or(&self.scale, |given| &given.total);
        self.scale_gradient(isa, scale, begin, grad, ld);
    }

    fn scale_gradient(&self, isa: InstructionSet, scale: &[f64], begin: usize, grad: &mut [T], ld: usize) {
        scale_rows(isa, grad, ld, &scale[..self.k]);
        if self.form != Form::Full {
            for (row, i) in grad.chunks_mut(ld).zip(begin..self.k) {
                row[self.form.stored(i, self.k)..self.k].fill(T::ZERO);
            }
        }
    }

    /// Makes `E` from `M = sum y w*` in place, or from its conjugate: column-major, columns `ld` apart. What stands below the
    /// diagonal is kept, what stands above becomes its conjugate, the diagonal becomes real. Where `tau` is given, the
    /// diagonal is added to `dL/dtau`.
    pub fn hermitian(&self, m: &mut [T], ld: usize, conjugated: bool, grad_tau: Option<&mut [T]>) {
        if let Some(given) = &self.given {
            given.take_diagonal(m, ld, conjugated, grad_tau);
        }
        for j in 0..self.k {
            m[j * ld + j] = T::from_real(m[j * ld + j].re());
            for i in j + 1..self.k {
                m[i * ld + j] = m[j * ld + i].conj();
            }
        }
    }
}

/// Rounds columns of `len` numbers, `padded(len)` apart, and adds `more` zeros.
pub fn narrow<T: Scalar>(isa: InstructionSet, wide: &[T::Wide], len: usize, more: usize) -> Result<Buffer<T>> {
    let (ld, ld_wide) = (padded::<T>(len), padded::<T::Wide>(len));
    let count = wide.len() / ld_wide.max(1);
    let mut columns = Buffer::scratch(count * ld + more)?;
    columns[count * ld..].fill(T::ZERO);
    round_columns(isa, wide, len, &mut columns);
    Ok(columns)
}

simd! {
    /// Rounds columns of `len` numbers, and clears what is behind them.
    pub fn round_columns<T: Scalar>(_s, wide: &[T::Wide], len: usize, columns: &mut [T]) -> () {
        let (ld, ld_wide) = (padded::<T>(len).max(1), padded::<T::Wide>(len).max(1));
        for (to, from) in columns.chunks_mut(ld).zip(wide.chunks_exact(ld_wide)) {
            let (to, behind) = to.split_at_mut(len);
            for (to, x) in to.iter_mut().zip(from) {
                *to = T::narrow(*x);
            }
            behind.fill(T::ZERO);
        }
    }
}

/// Writes the compact WY form `W_1 = I - V S V*` of `k` reflections, row-major: unit columns `V (n, k)`, `T (k, k)` and
/// `S = T^-1 (k, k)`. For a single problem without a given `tau`.
pub fn compact_wy<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    v: &mut [T],
    t: &mut [T],
    s: &mut [T],
) -> Result<()> {
    T::compact_wy(context, w, v, t, s)
}

/// [`compact_wy`], to be compiled for each type.
pub fn write<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    v: &mut [T],
    t: &mut [T],
    s: &mut [T],
) -> Result<()> {
    let (n, k) = (w.n(), w.reflections());
    w.require(&[("v", Some(v.len()), &[n, k]), ("t", Some(t.len()), &[k, k]), ("s", Some(s.len()), &[k, k])])?;
    if w.count() != 1 || !w.are_involutions() || w.is_adjoint() {
        return Err(Error::unlike("compact WY", "a single problem without tau, and no adjoint"));
    }
    let wy = CompactWy::new(context, w.at(0).u)?;
    transpose(context.isa, (n, k), &wy.v, wy.ld_n(), v, k);
    let (wide, ld) = (wy.t(context)?, wy.ld_k());
    context.here(|cancel| {
        for i in 0..k {
            cancel.check()?;
            for j in 0..k {
                let above = i <= j;
                t[i * k + j] = if above { T::narrow(wide[j * ld + i]) } else { T::ZERO };
                s[i * k + j] = if above { -wy.minus_s[j * ld + i] } else { T::ZERO };
            }
        }
        Ok(())
    })
}
