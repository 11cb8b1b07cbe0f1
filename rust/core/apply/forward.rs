//! `c = W h` and `c = W* h`, and the matrix `W` itself.

use pulp::{Simd, WithSimd};

use super::products::{Products, Rows};
use super::{CHUNK, Diagonal};
use crate::dense::{Dense, transpose};
use crate::error::Result;
use crate::memory::{Buffer, Shared, padded};
use crate::parallel::{Context, slices};
use crate::plan::{self, Method};
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::sequential;
use crate::wy::CompactWy;

/// `out = W h` for each row of `h` (`rows x n`, row-major), or `W* h`.
pub fn forward<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    out: &mut [T],
    adjoint: bool,
    method: Option<Method>,
) -> Result<()> {
    struct Op<'a, 'c, T: Scalar>(
        &'a mut Context<'c>,
        Reflections<'a, T>,
        &'a Diagonal<T>,
        &'a [T],
        &'a mut [T],
        bool,
        Option<Method>,
    );
    impl<T: Scalar> WithSimd for Op<'_, '_, T> {
        type Output = Result<()>;
        #[inline(always)]
        fn with_simd<S: Simd>(self, s: S) -> Result<()> {
            let Op(context, u, diagonal, h, out, adjoint, method) = self;
            let rows = h.len() / u.n();
            match method.unwrap_or_else(|| plan::for_application(u.n(), u.count(), rows)) {
                Method::Reflections => sequential::forward(s, u, diagonal, h, out, adjoint),
                Method::Wy => compact(s, context, &CompactWy::new(s, u)?, diagonal, h, out, adjoint),
                Method::Dense => {
                    let w = Dense::new(s, context, &CompactWy::new(s, u)?, diagonal)?;
                    w.multiply(s, context, h, out, adjoint)
                }
            }
        }
    }
    if h.is_empty() {
        return Ok(());
    }
    context.isa.dispatch(Op(context, u, diagonal, h, out, adjoint, method))
}

/// Compact WY, slice by slice of the batch.
#[inline(always)]
fn compact<S: Simd, T: Scalar>(
    s: S,
    context: &mut Context<'_>,
    wy: &CompactWy<T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    out: &mut [T],
    adjoint: bool,
) -> Result<()> {
    let n = wy.n;
    let rows = h.len() / n;
    let bounds = slices(rows, CHUNK / 2, 64);
    let out = Shared(out.as_mut_ptr());
    context.run(bounds.len() - 1, 4 * n * wy.k * rows, &|i, cancel| {
        let (begin, end) = (bounds[i], bounds[i + 1]);
        // SAFETY: slices are disjoint.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(begin * n), (end - begin) * n) };
        let h = &h[begin * n..end * n];
        s.vectorize(
            #[inline(always)]
            || {
                let mut products = Products::new(wy, CHUNK.min(end - begin))?;
                for (h, out) in h.chunks(CHUNK * n).zip(out.chunks_mut(CHUNK * n)) {
                    cancel.check()?;
                    let mut a = Rows { ptr: h.as_ptr(), ld: n, count: h.len() / n };
                    if !adjoint && !diagonal.is_one() {
                        out.copy_from_slice(h);
                        out.chunks_mut(n).for_each(|a| diagonal.apply(a, false));
                        a.ptr = out.as_ptr();
                    }
                    // SAFETY: `a` and `out` are as many rows of n numbers, and either the same or disjoint.
                    unsafe {
                        products.project(s, wy, a, adjoint);
                        products.expand(s, wy, a, out.as_mut_ptr());
                    }
                    if adjoint && !diagonal.is_one() {
                        out.chunks_mut(n).for_each(|c| diagonal.apply(c, true));
                    }
                }
                Ok(())
            },
        )
    })
}

/// Writes `W`, row-major.
pub fn matrix<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    out: &mut [T],
) -> Result<()> {
    struct Op<'a, 'c, T: Scalar>(&'a mut Context<'c>, Reflections<'a, T>, &'a Diagonal<T>);
    impl<T: Scalar> WithSimd for Op<'_, '_, T> {
        type Output = Result<Buffer<T>>;
        #[inline(always)]
        fn with_simd<S: Simd>(self, s: S) -> Result<Buffer<T>> {
            let Op(context, u, diagonal) = self;
            Ok(Dense::new(s, context, &CompactWy::new(s, u)?, diagonal)?.w)
        }
    }
    let n = u.n();
    let w = context.isa.dispatch(Op(context, u, diagonal))?;
    transpose(n, n, &w, padded::<T>(n), out, n);
    Ok(())
}
