//! From sums over a batch or a sequence to `dL/dU` (Theorem 2): never per step.
//!
//! With `C1 = sum b z*` (`z = V* a`) and `C2 = sum a w*` (`w = N* V* b`),
//!
//! ```text
//! M = N V* C2,    dL/dV = V E + C1 N* + C2,    E_ij = M_ij (i > j), Re M_ii, conj(M_ji) (i < j)
//! ```
//!
//! and from `G = sum b a*` alone, `C1 = G V` and `C2 = G* V N`.

use crate::apply::Diagonal;
use crate::dense::adjoint;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm, line};
use crate::memory::{Buffer, padded};
use crate::parallel::Context;
use crate::product::product;
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::wy::CompactWy;

/// Turns `sum b y* + a w*` into `dL/dV` by adding `V E`, `E` made from `M = sum y w*` in place.
pub fn finish<T: Scalar>(isa: InstructionSet, wy: &CompactWy<T>, m: &mut Buffer<T>, grad_v: &mut Buffer<T>) {
    let (k, ld_n, ld_k) = (wy.k, wy.ld_n(), wy.ld_k());
    for j in 0..k {
        m[j * ld_k + j] = T::from_real(m[j * ld_k + j].re());
        for i in j + 1..k {
            m[i * ld_k + j] = m[j * ld_k + i].conj();
        }
    }
    let out = Columns::new(grad_v.ptr_mut(), ld_n);
    let v = Weights::strided(wy.v.ptr(), ld_n, k);
    // SAFETY: padded buffers of k columns.
    unsafe { gemm(isa, wy.n, k, v, Operand::columns(m.ptr(), ld_k), &Store { out, add: out }) };
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
    let v_adjoint = Weights::strided(wy.v_adjoint.ptr(), ld_k, n);
    let out = Columns::new(v_c2.ptr_mut(), ld_k);
    product(context, (k, k), v_adjoint, Operand::columns(c2.ptr(), ld_n), out, false)?;
    let minus_s = Weights::strided(wy.minus_s.ptr(), ld_k, k);
    let out = Columns::new(m.ptr_mut(), ld_k);
    product(context, (k, k), minus_s, Operand::columns(v_c2.ptr(), ld_k), out, false)?;
    let out = Columns::new(c2.ptr_mut(), ld_n);
    let c1 = Weights::strided(c1.ptr(), ld_n, k);
    product(context, (n, k), c1, Operand::columns(wy.minus_s_adjoint.ptr(), ld_k), out, true)?;
    finish(context.isa, wy, &mut m, c2);
    Ok(())
}

/// `X = V N`, column-major: `W = I + X V*`.
pub fn v_n<T: Scalar>(context: &mut Context<'_>, wy: &CompactWy<T>) -> Result<Buffer<T>> {
    let (n, k, ld_n, ld_k) = (wy.n, wy.k, wy.ld_n(), wy.ld_k());
    let mut x = Buffer::<T>::zeroed(k * ld_n)?;
    let out = Columns::new(x.ptr_mut(), ld_n);
    let v = Weights::strided(wy.v.ptr(), ld_n, k);
    product(context, (n, k), v, Operand::columns(wy.minus_s.ptr(), ld_k), out, false)?;
    Ok(x)
}

/// `sum_r b_r a_r*`, column-major, columns `padded(n)` apart, over the rows of two row-major arrays.
pub fn outer<T: Scalar>(context: &mut Context<'_>, n: usize, b: &[T], a: &[T]) -> Result<Buffer<T>> {
    let (rows, ld) = (b.len() / n, padded::<T>(n));
    let mut g = Buffer::zeroed(n * ld)?;
    let copy;
    let weights = if n.is_multiple_of(line::<T>()) {
        Weights::strided(b.as_ptr(), n, rows)
    } else {
        let mut padded_rows = Buffer::<T>::zeroed(rows * ld)?;
        padded_rows.chunks_mut(ld).zip(b.chunks(n)).for_each(|(to, from)| to[..n].copy_from_slice(from));
        copy = padded_rows;
        Weights::strided(copy.ptr(), ld, rows)
    };
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
    product(context, (n, n), weights, Operand::rows(a, n), out, false)?;
    Ok(g)
}

/// All gradients of `U` and the diagonal from `outer = sum b p*`, `p` before the diagonal (`a = D p`).
pub fn from_outer<T: Scalar>(
    context: &mut Context<'_>,
    wy: &CompactWy<T>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    mut outer: Buffer<T>,
    grad_u: Option<&mut [T]>,
    grad_phases: Option<&mut [T::Real]>,
) -> Result<()> {
    let (n, k, ld_n) = (wy.n, wy.k, wy.ld_n());
    let mut last_column = Buffer::<T>::zeroed(n)?;
    last_column.copy_from_slice(&outer[(n - 1) * ld_n..(n - 1) * ld_n + n]);
    // G = sum b a* = outer D*: column j times conj(d_j).
    for (j, column) in outer.chunks_mut(ld_n).enumerate() {
        diagonal.scale(j, &mut column[..n], true);
    }
    let x = v_n(context, wy)?;
    let adjoint = adjoint(n, &outer)?;
    let (mut c1, mut c2) = (Buffer::<T>::zeroed(k * ld_n)?, Buffer::<T>::zeroed(k * ld_n)?);
    let out = Columns::new(c1.ptr_mut(), ld_n);
    let weights = Weights::strided(outer.ptr(), ld_n, n);
    product(context, (n, k), weights, Operand::columns(wy.v.ptr(), ld_n), out, false)?;
    let out = Columns::new(c2.ptr_mut(), ld_n);
    let weights = Weights::strided(adjoint.ptr(), ld_n, n);
    product(context, (n, k), weights, Operand::columns(x.ptr(), ld_n), out, false)?;
    if let Some(grad_phases) = grad_phases {
        // -Im sum conj(q_j) a_j with q = b + V w: the diagonals of conj(G) and of conj(V) C2^T.
        for (i, grad) in grad_phases.iter_mut().enumerate() {
            let terms = (0..k).map(|j| wy.v[j * ld_n + i].conj() * c2[j * ld_n + i]);
            *grad = -terms.fold(outer[i * ld_n + i].conj(), |sum, x| sum + x).im();
        }
    }
    let Some(grad_u) = grad_u else { return Ok(()) };
    from_sums(context, wy, &c1, &mut c2)?;
    wy.write_gradient(&c2, u, grad_u);
    if matches!(diagonal, Diagonal::Last(_)) {
        // sum q_n p_n with q = b + V w, w = X* b.
        let mut sum = last_column[n - 1];
        for j in 0..k {
            let column = x[j * ld_n..j * ld_n + n].iter().zip(last_column.iter());
            sum += wy.v[j * ld_n + n - 1] * column.fold(T::ZERO, |sum, (x, b)| sum + *x * *b);
        }
        grad_u[n * u.m() - 1] = sum;
    }
    Ok(())
}
