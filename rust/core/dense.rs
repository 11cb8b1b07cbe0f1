//! The matrix `W` itself, for shapes where forming it pays.

use crate::apply::Diagonal;
use crate::error::Result;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm};
use crate::memory::{Buffer, Shared, padded};
use crate::parallel::{Context, slices};
use crate::product::{TASK, product};
use crate::scalar::Scalar;
use crate::wy::CompactWy;

/// `W`.
pub struct Dense<T: Scalar> {
    n: usize,
    /// `W`, column-major, columns `padded(n)` apart.
    pub w: Buffer<T>,
}

impl<T: Scalar> Dense<T> {
    /// `W = (I + V (N V*)) D`.
    pub fn new(context: &mut Context<'_>, wy: &CompactWy<T>, diagonal: &Diagonal<T>) -> Result<Self> {
        let isa = context.isa;
        let (n, k, ld_n, ld_k) = (wy.n, wy.k, wy.ld_n(), wy.ld_k());
        let mut w = Buffer::<T>::zeroed(n * ld_n)?;
        let mut right = Buffer::<T>::scratch(n * ld_k)?;
        let bounds = slices(n, TASK, 64);
        let (w_shared, right_shared) = (Shared(w.ptr_mut()), Shared(right.ptr_mut()));
        context.run(bounds.len() - 1, 2 * n * n * k, &|i, cancel| {
            cancel.check()?;
            let (begin, end) = (bounds[i], bounds[i + 1]);
            // Columns of V* up to `end` have no entries below it.
            let (cols, reach) = (end - begin, k.min(end));
            // SAFETY: tasks own disjoint columns of W and of N V*.
            unsafe {
                let w = Columns::new(w_shared.get().add(begin * ld_n), ld_n);
                let right = Columns::new(right_shared.get().add(begin * ld_k), ld_k);
                for j in 0..cols {
                    *w.ptr.add(j * ld_n + begin + j) = T::ONE;
                }
                let minus_s = Weights::strided(wy.minus_s.ptr(), ld_k, reach);
                let v_adjoint = Operand::columns(wy.v_adjoint.ptr().add(begin * ld_k), ld_k);
                gemm(isa, reach, cols, minus_s, v_adjoint, &Store { out: right, add: Columns::none() });
                let v = Weights::strided(wy.v.ptr(), ld_n, reach);
                gemm(isa, n, cols, v, Operand::columns(right.ptr, ld_k), &Store { out: w, add: w });
                for j in 0..cols {
                    diagonal.scale(begin + j, std::slice::from_raw_parts_mut(w.ptr.add(j * ld_n), n), false);
                }
            }
            Ok(())
        })?;
        Ok(Self { n, w })
    }

    /// `out = W h` for each row of `h`, or `W* h`.
    pub fn multiply(&self, context: &mut Context<'_>, h: &[T], out: &mut [T], transposed: bool) -> Result<()> {
        let (n, ld) = (self.n, padded::<T>(self.n));
        let shape = (n, h.len() / n);
        let (h, out) = (Operand::columns(h.as_ptr(), n), Columns::new(out.as_mut_ptr(), n));
        if transposed {
            let adjoint = adjoint(n, &self.w)?;
            return product(context, shape, Weights::strided(adjoint.ptr(), ld, n), h, out, false);
        }
        product(context, shape, Weights::strided(self.w.ptr(), ld, n), h, out, false)
    }
}

/// The adjoint of an `n x n` matrix, both column-major with columns `padded(n)` apart.
pub fn adjoint<T: Scalar>(n: usize, matrix: &[T]) -> Result<Buffer<T>> {
    let ld = padded::<T>(n);
    let mut adjoint = Buffer::zeroed(n * ld)?;
    transpose(n, n, matrix, ld, &mut adjoint, ld);
    if T::COMPLEX {
        adjoint.iter_mut().for_each(|x| *x = x.conj());
    }
    Ok(adjoint)
}

/// `to[i * ld_to + j] = from[j * ld_from + i]` for `i < rows`, `j < cols`, by squares that fit the cache.
pub fn transpose<T: Copy>(rows: usize, cols: usize, from: &[T], ld_from: usize, to: &mut [T], ld_to: usize) {
    const SQUARE: usize = 16;
    assert!(
        rows == 0 || cols == 0 || from.len() >= (cols - 1) * ld_from + rows && to.len() >= (rows - 1) * ld_to + cols
    );
    let (from, to) = (from.as_ptr(), to.as_mut_ptr());
    for i0 in (0..rows).step_by(SQUARE) {
        for j0 in (0..cols).step_by(SQUARE) {
            for i in i0..rows.min(i0 + SQUARE) {
                for j in j0..cols.min(j0 + SQUARE) {
                    // SAFETY: both lengths are checked above.
                    unsafe { *to.add(i * ld_to + j) = *from.add(j * ld_from + i) };
                }
            }
        }
    }
}
