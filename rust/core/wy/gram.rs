//! `T = striu(V* V) + diag(V* V) / 2`, in double precision, rows of `V` in strips.

use super::CompactWy;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::Store;
use crate::kernel::gemm::gemm;
use crate::memory::{Buffer, padded};
use crate::number::Number;
use crate::reflections::Form;
use crate::scalar::Scalar;
use crate::threads::{Context, slices};
use crate::view::{Shared, View};

/// Where the rows of `V` are split for tasks, by shape alone: whole eights.
pub fn strip_bounds(n: usize) -> Vec<usize> {
    let mut bounds: Vec<usize> = slices(n / 8, 16, 8).into_iter().map(|eights| 8 * eights).collect();
    bounds.last_mut().into_iter().for_each(|last| *last = n);
    bounds
}

impl<T: Scalar> CompactWy<T> {
    /// `T = striu(V* V) + diag(V* V) / 2` in wide precision, column-major, columns `ld_k` apart; its strict lower triangle is
    /// unspecified. Not for a given `tau`.
    ///
    /// `V` is the rounded one, with its rounded norms. Then `T + T* = V* V` holds for the same `V` that is applied, and
    /// `I - V T^-1 V*` is orthogonal far beyond the narrow precision. A zero column, which is the identity, gets 1/2.
    pub fn t(&self, context: &mut Context<'_>) -> Result<Buffer<T::Wide>> {
        let (isa, k, ld, bounds) = (context.isa, self.k, self.ld_k(), strip_bounds(self.n));
        let (parts, len) = (bounds.len() - 1, k * ld);
        let mut t = Buffer::<T::Wide>::zeroed(parts * len)?;
        let shared = Shared(t.ptr_mut());
        context.run(parts, 4 * self.n * k * k, &|i, cancel| {
            cancel.check()?;
            // SAFETY: tasks own disjoint parts.
            let t = unsafe { std::slice::from_raw_parts_mut(shared.get().add(i * len), len) };
            add_gram(isa, self.form, k, bounds[i], &self.v_adjoint[bounds[i] * ld..bounds[i + 1] * ld], t)
        })?;
        sum_of_parts(isa, k, ld, &mut t);
        Ok(t)
    }
}

/// Adds the contributions of all strips to that of the first, and halves the diagonal.
pub fn sum_of_parts<W: Scalar<Real = f64>>(isa: InstructionSet, k: usize, ld: usize, t: &mut [W]) {
    let (sum, others) = t.split_at_mut(k * ld);
    isa.dispatch(
        #[inline(always)]
        || {
            for other in others.chunks((k * ld).max(1)) {
                for (j, (sum, other)) in sum.chunks_exact_mut(ld).zip(other.chunks_exact(ld)).enumerate() {
                    let above = (j + 1).next_multiple_of(8); // at most ld
                    for (sum, x) in sum[..above].iter_mut().zip(&other[..above]) {
                        *sum += *x;
                    }
                }
            }
        },
    );
    for j in 0..k {
        let square = sum[j * ld + j].re();
        sum[j * ld + j] = W::from_real(if square == 0.0 { 0.5 } else { 0.5 * square });
    }
}

/// Adds what some rows, the first of which is row `first`, contribute to the upper triangle of `V* V`.
pub fn add_gram<T: Scalar>(
    isa: InstructionSet,
    form: Form,
    k: usize,
    first: usize,
    rows: &[T],
    t: &mut [T::Wide],
) -> Result<()> {
    /// Rows that are widened at a time, for the first-level cache.
    const ROWS: usize = 128;
    /// Rows of `T`, whose sums begin where the columns do.
    const STRIP: usize = 16;
    let ld = padded::<T>(k);
    let mut wide = Buffer::<T::Wide>::scratch(rows.len().min(ROWS * ld))?;
    // Row i of V, the operand; for real numbers it is the same as column i of V*.
    let mut conjugate = Buffer::<T::Wide>::scratch(if T::COMPLEX { wide.len() } else { 0 })?;
    for (begin, rows) in (first..).step_by(ROWS).zip(rows.chunks(ROWS * ld.max(1))) {
        let count = rows.len() / ld;
        isa.dispatch(
            #[inline(always)]
            || {
                for (to, x) in wide.iter_mut().zip(rows) {
                    *to = x.widen();
                }
                for (to, x) in conjugate.iter_mut().zip(wide.iter()) {
                    *to = x.conj();
                }
            },
        );
        let v = if T::COMPLEX { conjugate.ptr() } else { wide.ptr() };
        for i0 in (0..k).step_by(STRIP).take_while(|&i0| form.first(i0) < begin + count) {
            let above = form.first(i0).saturating_sub(begin);
            let weights = View::new(wide.ptr().wrapping_add(above * ld + i0), ld, count - above);
            let operand = View::new(v.wrapping_add(above * ld + i0), ld, count - above).transposed(k - i0);
            let out = View::new(t.as_mut_ptr().wrapping_add(i0 * ld + i0), ld, k - i0);
            // SAFETY: all three are inside padded buffers from column i0 on.
            unsafe { gemm(isa, (STRIP.min(k - i0), k - i0), weights, operand, &Store::plus(out, out)) };
        }
    }
    Ok(())
}
