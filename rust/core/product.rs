//! One large product on all threads.

use crate::error::Result;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm};
use crate::memory::Shared;
use crate::parallel::{Context, slices};
use crate::scalar::Scalar;

/// Columns that make a task.
pub const TASK: usize = 32;

/// `out (+)= w b`, split over the columns; see [`gemm`] for the layout and who owns what.
pub fn product<T: Scalar>(
    context: &mut Context<'_>,
    (rows, cols): (usize, usize),
    weights: Weights<T>,
    operand: Operand<T>,
    out: Columns<T>,
    accumulate: bool,
) -> Result<()> {
    let isa = context.isa;
    let bounds = slices(cols, TASK, 64);
    let flops = 2 * rows * cols * weights.k;
    let views = (weights, operand, out);
    let views = Shared(std::ptr::from_ref(&views).cast_mut());
    context.run(bounds.len() - 1, flops, &|i, cancel| {
        cancel.check()?;
        // SAFETY: the views outlive the call; tasks write disjoint columns.
        unsafe {
            let (weights, operand, out) = *views.get();
            let operand = Operand { ptr: operand.ptr.wrapping_add(bounds[i] * operand.col), ..operand };
            let out = Columns::new(out.ptr.wrapping_add(bounds[i] * out.ld), out.ld);
            let add = if accumulate { out } else { Columns::none() };
            gemm(isa, rows, bounds[i + 1] - bounds[i], weights, operand, &Store::plus(out, add));
        }
        Ok(())
    })
}
