//! `c = W h` and `c = W* h`, and the matrix `W` itself.

use super::products::{Products, Rows};
use super::{CHUNK, Diagonal};
use crate::dense::{Dense, transpose};
use crate::error::Result;
use crate::memory::{Shared, padded};
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
    if h.is_empty() {
        return Ok(());
    }
    match method.unwrap_or_else(|| plan::for_application(u.n(), u.count(), h.len() / u.n())) {
        Method::Reflections => sequential::forward(context.isa, u, diagonal, h, out, adjoint),
        Method::Wy => compact(context, &CompactWy::new(context.isa, u)?, diagonal, h, out, adjoint),
        Method::Dense => {
            let wy = CompactWy::new(context.isa, u)?;
            Dense::new(context, &wy, diagonal)?.multiply(context, h, out, adjoint)
        }
    }
}

/// Compact WY, slice by slice of the batch.
fn compact<T: Scalar>(
    context: &mut Context<'_>,
    wy: &CompactWy<T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    out: &mut [T],
    adjoint: bool,
) -> Result<()> {
    let (n, isa) = (wy.n, context.isa);
    let rows = h.len() / n;
    let bounds = slices(rows, CHUNK / 2, 64);
    let out = Shared(out.as_mut_ptr());
    context.run(bounds.len() - 1, 4 * n * wy.k * rows, &|i, cancel| {
        let (begin, end) = (bounds[i], bounds[i + 1]);
        // SAFETY: slices are disjoint.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(begin * n), (end - begin) * n) };
        let h = &h[begin * n..end * n];
        {
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
                    products.project(isa, wy, a, adjoint);
                    products.expand(isa, wy, a, out.as_mut_ptr());
                }
                if adjoint && !diagonal.is_one() {
                    out.chunks_mut(n).for_each(|c| diagonal.apply(c, true));
                }
            }
            Ok(())
        }
    })
}

/// Writes `W`, row-major.
pub fn matrix<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    out: &mut [T],
) -> Result<()> {
    let (n, wy) = (u.n(), CompactWy::new(context.isa, u)?);
    transpose(n, n, &Dense::new(context, &wy, diagonal)?.w, padded::<T>(n), out, n);
    Ok(())
}
