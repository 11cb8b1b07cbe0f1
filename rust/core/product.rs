//! One large product on all threads.
//!
//! A task takes a block of rows and a chunk of columns. Pieces of its weights are packed, so they stay in the first-level
//! cache while all columns pass. Unpacked, they may lie a power of two apart and evict each other.

use crate::arrays::lengths::flops;
use crate::arrays::view::{Shape, View, ViewMut};
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::simd::epilogue::Store;
use crate::simd::gemm::{PIECE, gemm};
use crate::simd::pack::{Part, ROWS, pack_into};
use crate::threads::{Context, slices};

/// Columns of a task: enough to make up for packing, and few enough for the second-level cache.
const FEWEST_COLUMNS: usize = 128;
const MOST_COLUMNS: usize = 256;
/// Tasks that suffice for many threads.
const TASKS: usize = 8;

/// `out (+)= w b`, of so many rows and columns.
///
/// # Safety
/// As of [`crate::simd::gemm::gemm2`], except that weights need not be readable beyond the last row.
pub unsafe fn product<T: Scalar>(
    context: &mut Context<'_>,
    (rows, cols): Shape,
    weights: Part<'_, T>,
    operand: View<'_, T>,
    out: ViewMut<'_, T>,
    accumulate: bool,
) -> Result<()> {
    let (isa, k) = (context.isa, weights.view.count);
    let blocks = rows.div_ceil(ROWS);
    let most = cols.div_ceil(MOST_COLUMNS).max(TASKS / blocks.max(1));
    let bounds = slices(cols, FEWEST_COLUMNS, most.next_power_of_two());
    context.run(blocks * (bounds.len() - 1), flops(&[2, rows, cols, k]), &|i, cancel| {
        let row = i % blocks * ROWS;
        let (rows, col, end) = (ROWS.min(rows - row), bounds[i / blocks], bounds[i / blocks + 1]);
        let mut packed = Buffer::scratch(ROWS * PIECE.min(k))?;
        if rows < ROWS {
            packed.fill(T::ZERO); // registers read beyond the last row
        }
        for first in (0..k.max(1)).step_by(PIECE) {
            cancel.check()?;
            // SAFETY: tasks write disjoint rows and columns.
            unsafe {
                let part = weights.from(row, first, PIECE);
                pack_into(isa, rows, &[part], &mut packed);
                let out = out.from(row, col);
                let add = if accumulate || first > 0 { out.read() } else { View::none() };
                let weights = View::of(&packed, 0, part.view.count);
                gemm(isa, (rows, end - col), weights, operand.from(first, col), &Store::plus(out, add));
            }
        }
        Ok(())
    })
}

/// `sum_r b_r a_r*`, column-major, columns `padded(n)` apart, over the rows of two row-major arrays.
pub fn outer<T: Scalar>(context: &mut Context<'_>, n: usize, b: &[T], a: &[T]) -> Result<Buffer<T>> {
    assert_eq!(a.len(), b.len(), "vectors of two sums");
    let (rows, ld) = (b.len() / n, padded::<T>(n));
    let mut g = Buffer::zeroed(n * ld)?;
    let mut conjugate = Buffer::<T>::scratch(if T::COMPLEX { a.len() } else { 0 })?;
    conjugate.iter_mut().zip(a).for_each(|(to, x)| *to = x.conj());
    let a = if T::COMPLEX { &conjugate[..] } else { a };
    let (weights, operand) = (Part::columns(b, n, rows), View::of(a, n, rows).transposed(n));
    // SAFETY: rows of n numbers each, as many in `b` as in `a`, and n padded columns.
    unsafe { product(context, (n, n), weights, operand, ViewMut::of(&mut g, ld, n), false)? };
    Ok(g)
}
