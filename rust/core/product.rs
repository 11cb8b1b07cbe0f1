//! One large product on all threads.
//!
//! A task takes a block of rows and a chunk of columns. Pieces of its weights are packed: they stay in the first-level cache
//! while all columns pass, which they would not where they lie, a power of two apart.

use crate::error::Result;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, PIECE, Weights, gemm};
use crate::kernel::pack::{Part, ROWS, pack_into};
use crate::memory::{Buffer, Shared};
use crate::parallel::{Context, slices};
use crate::scalar::Scalar;

/// Columns of a task: enough to make up for packing, and few enough for the second-level cache.
const FEWEST_COLUMNS: usize = 128;
const MOST_COLUMNS: usize = 256;
/// Tasks that suffice for many threads.
const TASKS: usize = 8;

/// `out (+)= w b`, of so many rows and columns; see [`crate::kernel::gemm::gemm2`] for the layout and who owns what.
pub fn product<T: Scalar>(
    context: &mut Context<'_>,
    (rows, cols): (usize, usize),
    weights: Part<T>,
    operand: Operand<T>,
    out: Columns<T>,
    accumulate: bool,
) -> Result<()> {
    let isa = context.isa;
    let blocks = rows.div_ceil(ROWS);
    let most = cols.div_ceil(MOST_COLUMNS).max(TASKS / blocks.max(1));
    let bounds = slices(cols, FEWEST_COLUMNS, most.next_power_of_two());
    let views = (weights, operand, out);
    let views = Shared(std::ptr::from_ref(&views).cast_mut());
    context.run(blocks * (bounds.len() - 1), 2 * rows * cols * weights.k, &|i, cancel| {
        let row = i % blocks * ROWS;
        let (rows, col, end) = (ROWS.min(rows - row), bounds[i / blocks], bounds[i / blocks + 1]);
        // SAFETY: the views outlive the call; tasks write disjoint rows and columns.
        let (weights, operand, out) = unsafe { *views.get() };
        let mut packed = Buffer::scratch(ROWS * PIECE.min(weights.k))?;
        if rows < ROWS {
            packed.fill(T::ZERO); // registers read beyond the last row
        }
        for k in (0..weights.k.max(1)).step_by(PIECE) {
            cancel.check()?;
            // SAFETY: as above.
            unsafe {
                let part = weights.from(row, k, PIECE);
                pack_into(isa, rows, &[part], packed.ptr_mut());
                let operand =
                    Operand { ptr: operand.ptr.wrapping_add(col * operand.col + k * operand.step), ..operand };
                let out = out.from(row, col);
                let add = if accumulate || k > 0 { out } else { Columns::none() };
                let weights = Weights { ptr: packed.ptr(), k: part.k, ld: 0 };
                gemm(isa, rows, end - col, weights, operand, &Store::plus(out, add));
            }
        }
        Ok(())
    })
}
