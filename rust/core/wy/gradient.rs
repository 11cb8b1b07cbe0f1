//! From sums over a batch or a sequence to `dL/dU` (Theorem 2): never per step.
//!
//! With `C1 = sum b z*` (`z = V* a`) and `C2 = sum a w*` (`w = N* V* b`),
//!
//! ```text
//! M = N V* C2,    dL/dV = V E + C1 N* + C2,    E_ij = M_ij (i > j), Re M_ii, conj(M_ji) (i < j)
//! ```
//!
//! Where `tau` is given ([`super::tau`]), sequences have `C1 = sum b z*` with `z = X* a`, and `dL/dV = (X E + C2) Delta + C1 N'`.

use super::CompactWy;
use super::dense::adjoint;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::product::product;
use crate::simd::epilogue::Store;
use crate::simd::gemm::gemm;
use crate::simd::pack::Part;
use crate::threads::Context;

/// `dL/dV` from `C1` and `C2` (column-major, `n x k`, columns `ld_n` apart); the result replaces `C2`. Adds `dL/dtau`.
pub fn from_sums<T: Scalar>(
    context: &mut Context<'_>,
    wy: &CompactWy<T>,
    c1: &Buffer<T>,
    c2: &mut Buffer<T>,
    grad_tau: Option<&mut [T]>,
) -> Result<()> {
    let (n, k, ld_n, ld_k) = (wy.n, wy.k, wy.ld_n(), wy.ld_k());
    let mut v_c2 = Buffer::<T>::zeroed(k * ld_k)?;
    let mut m = Buffer::<T>::zeroed(k * ld_k)?;
    assert!(c1.len() >= k * ld_n && c2.len() >= k * ld_n, "sums of {k} columns");
    let v_adjoint = Part::columns(&wy.v_adjoint, ld_k, n);
    let minus_s = Part::columns(&wy.minus_s, ld_k, k);
    let (of_v_c2, of_m) = (ViewMut::of(&mut v_c2, ld_k, k), ViewMut::of(&mut m, ld_k, k));
    // SAFETY: buffers of k columns, or of n rows of V*.
    unsafe {
        product(context, (k, k), v_adjoint, View::of(c2, ld_n, k), of_v_c2, false)?;
        product(context, (k, k), minus_s, of_v_c2.read(), of_m, false)?;
    }
    wy.hermitian(&mut m, ld_k, false, grad_tau);
    if let Some(given) = &wy.given {
        for (columns, ld) in [(&mut *c2, ld_n), (&mut m, ld_k)] {
            for (column, &delta) in columns.chunks_mut(ld).zip(&given.delta) {
                column.iter_mut().for_each(|x| *x = T::narrow(x.widen().scale(delta)));
            }
        }
    }
    let out = ViewMut::of(c2, ld_n, k);
    let c1 = Part::columns(c1, ld_n, k);
    let v = View::of(&wy.v, ld_n, k);
    // SAFETY: padded buffers of k columns.
    unsafe {
        product(context, (n, k), c1, View::of(&wy.minus_s_adjoint, ld_k, k), out, true)?;
        gemm(context.isa, (n, k), v, View::of(&m, ld_k, k), &Store::plus(out, out.read()));
    }
    Ok(())
}

/// `Q = V N`, or `V N'*` where `tau` is given, column-major: `W = I + Q X*`.
pub fn expansion<T: Scalar>(context: &mut Context<'_>, wy: &CompactWy<T>) -> Result<Buffer<T>> {
    let (n, k, ld_n, ld_k) = (wy.n, wy.k, wy.ld_n(), wy.ld_k());
    let mut q = Buffer::<T>::zeroed(k * ld_n)?;
    let out = ViewMut::of(&mut q, ld_n, k);
    let turned;
    let (v, middle) = if wy.given.is_some() {
        turned = adjoint(context.isa, k, &wy.minus_s_adjoint)?;
        (Part::adjoint(&wy.v_adjoint, ld_k, k), &turned)
    } else {
        (Part::columns(&wy.v, ld_n, k), &wy.minus_s)
    };
    // SAFETY: padded buffers of k columns, or of n rows of V*.
    unsafe { product(context, (n, k), v, View::of(middle, ld_k, k), out, false)? };
    Ok(q)
}
