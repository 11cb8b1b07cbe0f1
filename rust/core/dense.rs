//! The matrix `W` itself, for shapes where forming it pays.

use pulp::Simd;

use crate::apply::Diagonal;
use crate::error::Result;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm};
use crate::memory::{Buffer, Shared, padded};
use crate::parallel::{Context, slices};
use crate::scalar::Scalar;
use crate::wy::CompactWy;

/// Columns (of `W`, of a batch) that make a task.
const TASK: usize = 32;

/// `W`.
pub struct Dense<T: Scalar> {
    n: usize,
    /// `W`, column-major, columns `padded(n)` apart.
    pub w: Buffer<T>,
}

impl<T: Scalar> Dense<T> {
    /// `W = (I + V (N V*)) D`.
    #[inline(always)]
    pub fn new<S: Simd>(s: S, context: &mut Context<'_>, wy: &CompactWy<T>, diagonal: &Diagonal<T>) -> Result<Self> {
        let (n, k, ld_n, ld_k) = (wy.n, wy.k, wy.ld_n(), wy.ld_k());
        let mut w = Buffer::<T>::zeroed(n * ld_n)?;
        let mut right = Buffer::<T>::scratch(n * ld_k)?;
        let columns = slices(n, TASK, 64);
        let (w_shared, right_shared) = (Shared(w.ptr_mut()), Shared(right.ptr_mut()));
        context.run(columns.len() - 1, 2 * n * n * k, &|i, cancel| {
            cancel.check()?;
            let (begin, end) = (columns[i], columns[i + 1]);
            s.vectorize(
                #[inline(always)]
                || {
                    let w = w_shared.get().wrapping_add(begin * ld_n);
                    let right = right_shared.get().wrapping_add(begin * ld_k);
                    let cols = end - begin;
                    // SAFETY: tasks own disjoint columns of W and of N V*; column i of V* has no entries below i.
                    unsafe {
                        for j in 0..cols {
                            *w.add(j * ld_n + begin + j) = T::ONE;
                        }
                        let reach = k.min(end);
                        let minus_s = Weights::strided(wy.minus_s.ptr(), ld_k, reach);
                        let v_adjoint = Operand::columns(wy.v_adjoint.ptr().add(begin * ld_k), ld_k);
                        let out = Columns::new(right, ld_k);
                        gemm(s, reach, cols, minus_s, v_adjoint, &Store { out, add: Columns::none() });
                        let v = Weights::strided(wy.v.ptr(), ld_n, reach);
                        let out = Columns::new(w, ld_n);
                        gemm(s, n, cols, v, Operand::columns(right, ld_k), &Store { out, add: out });
                        for j in 0..cols {
                            let factor = match diagonal {
                                Diagonal::One => continue,
                                Diagonal::Last(u1) if begin + j + 1 == n => *u1,
                                Diagonal::Last(_) => continue,
                                Diagonal::Phases(units) => units[begin + j],
                            };
                            let column = std::slice::from_raw_parts_mut(w.add(j * ld_n), n);
                            column.iter_mut().for_each(|x| *x = *x * factor);
                        }
                    }
                    Ok(())
                },
            )
        })?;
        Ok(Self { n, w })
    }

    /// `out = W h` for each row of `h`, or `W* h`.
    #[inline(always)]
    pub fn multiply<S: Simd>(
        &self,
        s: S,
        context: &mut Context<'_>,
        h: &[T],
        out: &mut [T],
        adjoint: bool,
    ) -> Result<()> {
        let n = self.n;
        let rows = h.len() / n;
        let ld = padded::<T>(n);
        let transposed;
        let weights = if adjoint {
            transposed = self.adjoint()?;
            Weights::strided(transposed.ptr(), ld, n)
        } else {
            Weights::strided(self.w.ptr(), ld, n)
        };
        let weights = Shared(std::ptr::from_ref(&weights).cast_mut());
        let bounds = slices(rows, TASK, 64);
        let out = Shared(out.as_mut_ptr());
        context.run(bounds.len() - 1, 2 * n * n * rows, &|i, cancel| {
            cancel.check()?;
            let (begin, end) = (bounds[i], bounds[i + 1]);
            s.vectorize(
                #[inline(always)]
                || {
                    // SAFETY: `weights` outlives the call; slices of the batch are disjoint.
                    unsafe {
                        let out = Columns::new(out.get().add(begin * n), n);
                        let operand = Operand::columns(h.as_ptr().add(begin * n), n);
                        gemm(s, n, end - begin, *weights.get(), operand, &Store { out, add: Columns::none() });
                    }
                    Ok(())
                },
            )
        })
    }

    /// `W*`, column-major.
    fn adjoint(&self) -> Result<Buffer<T>> {
        let (n, ld) = (self.n, padded::<T>(self.n));
        let mut adjoint = Buffer::zeroed(n * ld)?;
        transpose(n, n, &self.w, ld, &mut adjoint, ld);
        if T::COMPLEX {
            adjoint.iter_mut().for_each(|x| *x = x.conj());
        }
        Ok(adjoint)
    }
}

/// `to[i * ld_to + j] = from[j * ld_from + i]` for `i < rows`, `j < cols`, by squares that fit the cache.
pub fn transpose<T: Copy>(rows: usize, cols: usize, from: &[T], ld_from: usize, to: &mut [T], ld_to: usize) {
    const SQUARE: usize = 16;
    for i0 in (0..rows).step_by(SQUARE) {
        for j0 in (0..cols).step_by(SQUARE) {
            for i in i0..rows.min(i0 + SQUARE) {
                for j in j0..cols.min(j0 + SQUARE) {
                    to[i * ld_to + j] = from[j * ld_from + i];
                }
            }
        }
    }
}
