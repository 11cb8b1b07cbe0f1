//! From sums over a batch or a sequence to `dL/dU` (Theorem 2): never per step.
//!
//! With `C1 = sum b z*` (`z = V* a`) and `C2 = sum a w*` (`w = N* V* b`),
//!
//! ```text
//! M = N V* C2,    dL/dV = V E + C1 N* + C2,    E_ij = M_ij (i > j), Re M_ii, conj(M_ji) (i < j)
//! ```
//!
//! From `G = sum b a*` alone it is the gradient of an application to unit vectors.

use crate::apply::{Diagonal, Pass};
use crate::blocks::{Rows, Scratch};
use crate::dense::Dense;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm};
use crate::kernel::pack::Part;
use crate::kernel::vector::dot;
use crate::memory::{Buffer, Shared, padded};
use crate::parallel::Context;
use crate::product::product;
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::wy::CompactWy;

/// Makes `E` from `M` in place (column-major, columns `ld` apart): what stands below the diagonal is kept, what stands above
/// becomes its conjugate, the diagonal becomes real.
pub fn hermitian<T: Scalar>(k: usize, m: &mut [T], ld: usize) {
    for j in 0..k {
        m[j * ld + j] = T::from_real(m[j * ld + j].re());
        for i in j + 1..k {
            m[i * ld + j] = m[j * ld + i].conj();
        }
    }
}

/// Turns `sum b y* + a w*` into `dL/dV` by adding `V E`, `E` made from `M = sum y w*` in place.
pub fn finish<T: Scalar>(isa: InstructionSet, wy: &CompactWy<T>, m: &mut Buffer<T>, grad_v: &mut Buffer<T>) {
    let (k, ld_n, ld_k) = (wy.k, wy.ld_n(), wy.ld_k());
    hermitian(k, m, ld_k);
    let out = Columns::new(grad_v.ptr_mut(), ld_n);
    let v = Weights::strided(wy.v.ptr(), ld_n, k);
    // SAFETY: padded buffers of k columns.
    unsafe { gemm(isa, wy.n, k, v, Operand::columns(m.ptr(), ld_k), &Store::plus(out, out)) };
}

/// `dL/dV` from `C1` and `C2` (column-major, `n x k`, columns `ld_n` apart); the result replaces `C2`.
pub fn from_sums<T: Scalar>(
    context: &mut Context<'_>,
    wy: &CompactWy<T>,
    c1: &Buffer<T>,
    c2: &mut Buffer<T>,
) -> Result<()> {
    let (n, k, ld_n, ld_k) = (wy.n, wy.k, wy.ld_n(), wy.ld_k());
    let mut v_c2 = Buffer::<T>::zeroed(k * ld_k)?;
    let mut m = Buffer::<T>::zeroed(k * ld_k)?;
    let v_adjoint = Part::columns(wy.v_adjoint.ptr(), ld_k, n);
    let out = Columns::new(v_c2.ptr_mut(), ld_k);
    product(context, (k, k), v_adjoint, Operand::columns(c2.ptr(), ld_n), out, false)?;
    let minus_s = Part::columns(wy.minus_s.ptr(), ld_k, k);
    let out = Columns::new(m.ptr_mut(), ld_k);
    product(context, (k, k), minus_s, Operand::columns(v_c2.ptr(), ld_k), out, false)?;
    let out = Columns::new(c2.ptr_mut(), ld_n);
    let c1 = Part::columns(c1.ptr(), ld_n, k);
    product(context, (n, k), c1, Operand::columns(wy.minus_s_adjoint.ptr(), ld_k), out, true)?;
    finish(context.isa, wy, &mut m, c2);
    Ok(())
}

/// `X = V N`, column-major: `W = I + X V*`.
pub fn v_n<T: Scalar>(context: &mut Context<'_>, wy: &CompactWy<T>) -> Result<Buffer<T>> {
    let (n, k, ld_n, ld_k) = (wy.n, wy.k, wy.ld_n(), wy.ld_k());
    let mut x = Buffer::<T>::zeroed(k * ld_n)?;
    let out = Columns::new(x.ptr_mut(), ld_n);
    let v = Part::columns(wy.v.ptr(), ld_n, k);
    product(context, (n, k), v, Operand::columns(wy.minus_s.ptr(), ld_k), out, false)?;
    Ok(x)
}

/// `sum_r b_r a_r*`, column-major, columns `padded(n)` apart, over the rows of two row-major arrays.
pub fn outer<T: Scalar>(context: &mut Context<'_>, n: usize, b: &[T], a: &[T]) -> Result<Buffer<T>> {
    assert_eq!(a.len(), b.len(), "vectors of two sums");
    let (rows, ld) = (b.len() / n, padded::<T>(n));
    let mut g = Buffer::zeroed(n * ld)?;
    let conjugate;
    let a = if T::COMPLEX {
        let mut conjugated = Buffer::<T>::zeroed(a.len())?;
        conjugated.iter_mut().zip(a).for_each(|(to, x)| *to = x.conj());
        conjugate = conjugated;
        conjugate.ptr()
    } else {
        a.as_ptr()
    };
    let out = Columns::new(g.ptr_mut(), ld);
    product(context, (n, n), Part::columns(b.as_ptr(), n, rows), Operand::rows(a, n), out, false)?;
    Ok(g)
}

/// All gradients of `U` and the diagonal from `G = sum b p*` (column-major), `p` before the diagonal: the loss is
/// `Re tr(G* W_1 D)`, whose gradient is that of `W_1` applied to unit vectors, `D*` behind `G`.
pub fn from_outer<T: Scalar>(
    context: &mut Context<'_>,
    dense: &Dense<T>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    mut outer: Buffer<T>,
    mut grad_u: Option<&mut [T]>,
    grad_phases: Option<&mut [T::Real]>,
) -> Result<()> {
    let (n, blocks) = (u.n(), &dense.blocks);
    assert_eq!([blocks.n, blocks.k], [n, u.count()], "the matrix of another problem");
    let ld = padded::<T>(n);
    let column = |j: usize| j * ld..j * ld + n;
    let mut state = Buffer::<T>::scratch(n * ld)?;
    state.copy_from_slice(&dense.w);
    // From W to W_1, and dL/dd_j = sum_i conj(w_ij) g_ij, W_1's column j times G's.
    match diagonal {
        Diagonal::One => {}
        Diagonal::Last(_) => {
            let last = &mut state[column(n - 1)];
            last.fill(T::ZERO);
            last[n - 1] = T::ONE;
            let rows = Rows::new(last.as_mut_ptr(), n, 1);
            // SAFETY: one row of n numbers.
            unsafe { blocks.apply(context.isa, rows, rows, &mut Scratch::new(blocks, 1)?, None, false) };
            if let Some(grad_u) = grad_u.as_deref_mut() {
                grad_u[n * u.m() - 1] = dot(context.isa, last, &outer[column(n - 1)]);
            }
        }
        Diagonal::Phases(units) => {
            let mut grads = grad_phases.into_iter().flatten();
            for (j, unit) in units.iter().enumerate() {
                diagonal.scale(j, &mut state[column(j)], true);
                if let Some(grad) = grads.next() {
                    let sum = dot(context.isa, &state[column(j)], &outer[column(j)]);
                    *grad = -(sum.conj() * *unit).im();
                }
            }
        }
    }
    let Some(grad_u) = grad_u else { return Ok(()) };
    for (j, column) in outer.chunks_mut(ld).take(n).enumerate() {
        diagonal.scale(j, &mut column[..n], true);
    }
    let (state, outer) = (Rows::new(state.ptr_mut(), ld, n), Rows::new(outer.ptr_mut(), ld, n));
    u.clear_above_diagonal(grad_u);
    Pass {
        blocks,
        u,
        a: state,
        state,
        y: Some(dense.coefficients()),
        b: outer,
        q: Some(outer),
        c: None,
        grad_u: Some(Shared(grad_u.as_mut_ptr())),
        part: (true, true),
        identity: true,
    }
    .run(context)
}
