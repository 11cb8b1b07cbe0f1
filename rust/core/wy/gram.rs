//! `T = striu(V* V) + diag(V* V) / 2`, in double precision, rows of `V` in strips.
//!
//! Each strip has a sum of its own, and these are added in order. A task is a strip, with a matrix for its sum. Where the
//! matrices would take more than twice the memory of `U`, a task is some rows of `T`, for one strip after the other. The
//! result has the same bits.

use std::ops::Range;

use super::CompactWy;
use crate::arrays::lengths::flops;
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::Form;
use crate::simd::epilogue::Store;
use crate::simd::gemm::gemm;
use crate::simd::isa::InstructionSet;
use crate::threads::{Context, slices};

/// Rows of `T` in a product, whose sums begin where the columns do.
const STRIP: usize = 16;
/// Rows of `T` in a task, and the distance between the columns of its sum.
const TASK: usize = 4 * STRIP;
const LD_TASK: usize = TASK + 8;
/// Memory that matrices may take in any case, in bytes.
const FEW_BYTES: usize = 1 << 23;

/// Where the rows of `V` are split for tasks, by shape alone: whole eights.
pub fn strip_bounds(n: usize) -> Vec<usize> {
    let mut bounds: Vec<usize> = slices(n / 8, 16, 8).into_iter().map(|eights| 8 * eights).collect();
    bounds.last_mut().into_iter().for_each(|last| *last = n);
    bounds
}

/// How `V* V` is summed. `T` and the sums of strips are column-major, columns `padded(k)` apart.
pub struct Gram {
    isa: InstructionSet,
    form: Form,
    k: usize,
    /// Where strips begin and end.
    bounds: Vec<usize>,
    /// Whether a task is a strip.
    pub by_strips: bool,
}

impl Gram {
    /// For `k` columns of `n` numbers.
    pub fn new<T: Scalar>(isa: InstructionSet, form: Form, n: usize, k: usize) -> Self {
        let bounds = strip_bounds(n);
        let matrices = (bounds.len() - 1).saturating_mul(k * padded::<T>(k)).saturating_mul(size_of::<T::Wide>());
        let by_strips = matrices <= FEW_BYTES.max(2 * n * k * size_of::<T>());
        Self { isa, form, k, bounds, by_strips }
    }

    /// Where strips begin and end.
    pub fn bounds(&self) -> &[usize] {
        &self.bounds
    }

    /// How many matrices the sums take.
    pub fn matrices(&self) -> usize {
        if self.by_strips { self.bounds.len() - 1 } else { 1 }
    }

    /// How many tasks there are.
    pub fn tasks(&self) -> usize {
        if self.by_strips { self.bounds.len() - 1 } else { self.k.div_ceil(TASK) }
    }

    /// Does task `i`, from the rows of `conj(V)` at `v`, `padded(k)` apart.
    ///
    /// # Safety
    /// The rows of strip `i`, or of all of them if tasks are no strips, can be read, and nothing else uses the task's own
    /// part of the matrices at `t`.
    pub unsafe fn run<T: Scalar>(&self, i: usize, v: *const T, t: Shared<T::Wide>) -> Result<()> {
        let (k, ld) = (self.k, padded::<T>(self.k));
        let add = |strip: usize, columns: Range<usize>, out: ViewMut<'_, T::Wide>| {
            let (begin, end) = (self.bounds[strip], self.bounds[strip + 1]);
            let rows = std::slice::from_raw_parts(v.add(begin * ld), (end - begin) * ld);
            add_gram(self.isa, self.form, k, columns, begin, rows, out)
        };
        if self.by_strips {
            let t = std::slice::from_raw_parts_mut(t.get().add(i * k * ld), k * ld);
            t.fill(T::Wide::ZERO);
            return add(i, 0..k, ViewMut::of(t, ld, k));
        }
        let columns = i * TASK..k.min((i + 1) * TASK);
        let mut sum = Buffer::<T::Wide>::scratch((k - columns.start) * LD_TASK)?;
        for strip in 0..self.bounds.len() - 1 {
            sum.fill(T::Wide::ZERO);
            add(strip, columns.clone(), ViewMut::of(&mut sum, LD_TASK, k - columns.start))?;
            for j in 0..k {
                let t = std::slice::from_raw_parts_mut(t.get().add(j * ld + columns.start), columns.len());
                match j.checked_sub(columns.start).map(|j| &sum[j * LD_TASK..]) {
                    None => t.fill(T::Wide::ZERO),
                    Some(sum) if strip == 0 => t.copy_from_slice(&sum[..columns.len()]),
                    Some(sum) => t.iter_mut().zip(sum).for_each(|(t, &x)| *t += x),
                }
            }
        }
        Ok(())
    }

    /// `T` from all matrices, in the first of them.
    pub fn finish<W: Scalar<Real = f64>>(&self, ld: usize, t: &mut [W]) {
        let k = self.k;
        let (sum, others) = t.split_at_mut(k * ld);
        self.isa.dispatch(
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
}

impl<T: Scalar> CompactWy<T> {
    /// `T = striu(V* V) + diag(V* V) / 2` in wide precision, column-major, columns `ld_k` apart; its strict lower triangle is
    /// unspecified. Not for a given `tau`.
    ///
    /// `V` is the rounded one, with its rounded norms. Then `T + T* = V* V` holds for the same `V` that is applied, and
    /// `I - V T^-1 V*` is orthogonal far beyond the narrow precision. A zero column, which is the identity, gets 1/2.
    pub fn t(&self, context: &mut Context<'_>) -> Result<Buffer<T::Wide>> {
        let (k, ld) = (self.k, self.ld_k());
        let gram = Gram::new::<T>(context.isa, self.form, self.n, k);
        let mut t = Buffer::<T::Wide>::zeroed(gram.matrices() * k * ld)?;
        let shared = Shared(t.ptr_mut());
        context.run(gram.tasks(), flops(&[4, self.n, k, k]), &|i, cancel| {
            cancel.check()?;
            // SAFETY: `v_adjoint` holds n padded rows of conj(V); tasks own their parts of T.
            unsafe { gram.run(i, self.v_adjoint.ptr(), shared) }
        })?;
        gram.finish(ld, &mut t);
        Ok(t)
    }
}

/// Adds what some rows of `conj(V)`, the first of which is row `first`, contribute to rows `range` of the upper triangle of
/// `V* V`. `out` begins at row and column `range.start`.
///
/// # Safety
/// The caller owns `out`: these rows of the columns from `range.start` on.
unsafe fn add_gram<T: Scalar>(
    isa: InstructionSet,
    form: Form,
    k: usize,
    range: Range<usize>,
    first: usize,
    rows: &[T],
    out: ViewMut<'_, T::Wide>,
) -> Result<()> {
    /// Rows that are widened at a time, for the first-level cache.
    const ROWS: usize = 128;
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
        let v = if T::COMPLEX { &conjugate } else { &wide };
        for i0 in range.clone().step_by(STRIP).take_while(|&i0| form.first(i0) < begin + count) {
            let above = form.first(i0).saturating_sub(begin);
            let weights = View::of(&wide, ld, count).from(i0, above);
            let operand = View::of(v, ld, count).from(i0, above).transposed(k - i0);
            let out = out.from(i0 - range.start, i0 - range.start);
            // SAFETY: all three are inside padded buffers from column i0 on.
            unsafe { gemm(isa, (STRIP.min(k - i0), k - i0), weights, operand, &Store::plus(out, out.read())) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::number::{c32, c64};

    #[test]
    fn matrices_take_little_memory_or_no_more_than_twice_that_of_u() {
        fn check<T: Scalar>() {
            for n in [1, 64, 512, 1024, 4096, 1 << 16] {
                for k in [1, 16, 64, 500, 1000, 4000].into_iter().filter(|&k| k <= n) {
                    let gram = Gram::new::<T>(InstructionSet::current(), Form::Trapezoidal, n, k);
                    let bytes = gram.matrices() * k * k * size_of::<T::Wide>();
                    assert!(bytes <= (2 * n * k * size_of::<T>()).max(FEW_BYTES), "{n} {k}: {bytes} bytes");
                }
            }
        }
        check::<f32>();
        check::<f64>();
        check::<c32>();
        check::<c64>();
    }

    #[test]
    fn rows_of_t_have_the_bits_of_strips() {
        fn check<T: Scalar>(form: Form, n: usize, k: usize) {
            let v: Vec<T> = (0..n * padded::<T>(k))
                .map(|i| T::from_real(T::narrow(<T::Wide as Number>::from_real((i as f64).sin())).re()))
                .collect();
            for isa in InstructionSet::available() {
                let [strips, rows] = [true, false].map(|by_strips| {
                    let gram = Gram { by_strips, ..Gram::new::<T>(isa, form, n, k) };
                    let ld = padded::<T>(k);
                    let mut t = Buffer::<T::Wide>::zeroed(gram.matrices() * k * ld).unwrap();
                    // SAFETY: n rows of V, and one task after the other.
                    (0..gram.tasks()).for_each(|i| unsafe { gram.run(i, v.as_ptr(), Shared(t.ptr_mut())).unwrap() });
                    gram.finish(ld, &mut t);
                    let entries = (0..k).flat_map(|j| (0..=j).map(move |i| j * ld + i));
                    entries.map(|at| t[at]).collect::<Vec<_>>()
                });
                assert_eq!(strips, rows, "{n} {k} {form:?}");
            }
        }
        let shapes =
            if cfg!(miri) { &[(140, 9)][..] } else { &[(40, 7), (300, 63), (300, 64), (517, 200), (1100, 130)] };
        for &(n, k) in shapes {
            for form in [Form::Trapezoidal, Form::Full] {
                check::<f32>(form, n, k);
                check::<c64>(form, n, k);
            }
        }
    }
}
