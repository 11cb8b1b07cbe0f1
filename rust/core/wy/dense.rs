//! The matrix `W` itself, for shapes where forming it pays.

use super::blocks::{Blocks, Coefficients};
use super::compact::narrow;

use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::method;
use crate::operator::Diagonal;
use crate::operator::{Reflections, Transform};
use crate::product::product;
use crate::scalar::Scalar;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::Part;
use crate::simd::transpose::transpose;
use crate::threads::Context;
use crate::view::View;

/// `W`, and what is needed to turn its gradient into that of `U`.
pub struct Dense<T: Scalar> {
    /// The reflections.
    pub(crate) blocks: Blocks<T>,
    /// `W`, column-major, columns `padded(n)` apart.
    pub(crate) w: Buffer<T>,
    /// `y` of the columns of `W_1`.
    y: Buffer<T>,
}

impl<T: Scalar> Dense<T> {
    /// `W = W_1 D`, formed in wide precision and rounded once, so that repeated products with it keep norms as well as
    /// rounding allows.
    pub fn rounded(context: &mut Context<'_>, w: Transform<'_, T>) -> Result<Self> {
        if T::IS_WIDE {
            return Self::new(context, w);
        }
        Dense::new(context, w.widen(context.isa)?.transform())?.narrow(context.isa)
    }

    /// `W = W_1 D`, formed in its own precision.
    pub fn new(context: &mut Context<'_>, w: Transform<'_, T>) -> Result<Self> {
        let blocks = blocks(context, w.u)?;
        let mut y = Buffer::zeroed(Coefficients::len(&blocks, blocks.n))?; // sums read whole registers
        let w = form(context, &blocks, w.diagonal, Some(&mut y))?;
        Ok(Self { blocks, w, y })
    }

    /// Rounds the matrix and its blocks to the narrow precision.
    fn narrow<N: Scalar<Wide = T>>(&self, isa: InstructionSet) -> Result<Dense<N>> {
        let n = self.blocks.n;
        let widest = self.blocks.list.first().map_or(0, |block| block.wy.k);
        Ok(Dense {
            blocks: self.blocks.narrow(isa)?,
            w: narrow(isa, &self.w, n, 0)?,
            y: narrow(isa, &self.y, widest, 0)?,
        })
    }

    /// `y` of the columns of `W_1`.
    pub(crate) fn coefficients(&self) -> Coefficients<T> {
        Coefficients::new(&self.blocks, self.y.ptr(), self.blocks.n)
    }
}

fn blocks<T: Scalar>(context: &mut Context<'_>, u: Reflections<'_, T>) -> Result<Blocks<T>> {
    Blocks::new(context, u, method::block_width_of_matrix(u.count(), u.n()))
}

fn form<T: Scalar>(
    context: &mut Context<'_>,
    blocks: &Blocks<T>,
    diagonal: Diagonal<'_, T>,
    keep: Option<&mut [T]>,
) -> Result<Buffer<T>> {
    let mut w = blocks.matrix(context, keep)?;
    for (j, column) in w.chunks_mut(padded::<T>(blocks.n)).enumerate() {
        diagonal.scale(j, &mut column[..blocks.n], false);
    }
    Ok(w)
}

/// `W` alone, column-major, columns `padded(n)` apart, formed in its own precision.
pub fn matrix<T: Scalar>(context: &mut Context<'_>, w: Transform<'_, T>) -> Result<Buffer<T>> {
    let blocks = blocks(context, w.u)?;
    form(context, &blocks, w.diagonal, None)
}

/// `out = W h` for each row of `h`, or `W* h`; `W` as [`matrix`] gives it.
pub fn multiply<T: Scalar>(
    context: &mut Context<'_>,
    n: usize,
    w: &[T],
    h: &[T],
    out: &mut [T],
    adjoint: bool,
) -> Result<()> {
    let rows = h.len() / n;
    assert_eq!([w.len(), out.len()], [n * padded::<T>(n), rows * n], "W and its products");
    let part = if adjoint { Part::adjoint } else { Part::columns };
    let (columns, out) = (View::new(h.as_ptr(), n, rows), View::new(out.as_mut_ptr(), n, rows));
    // SAFETY: W has n padded columns, and the arrays so many rows of n numbers.
    unsafe { product(context, (n, rows), part(w.as_ptr(), padded::<T>(n), n), columns, out, false) }
}

/// Writes `W` row-major, formed in wide precision and rounded once.
pub fn write_matrix<T: Scalar>(context: &mut Context<'_>, w: Transform<'_, T>, out: &mut [T]) -> Result<()> {
    /// Columns that are rounded before they are written, so that they stay in the cache.
    const COLUMNS: usize = 32;
    let (n, isa) = (w.u.n(), context.isa);
    let w = matrix(context, w.widen(isa)?.transform())?;
    if let Some(out) = T::as_wide_mut(out) {
        write(isa, n, &w, out);
        return Ok(());
    }
    let (ld, ld_wide) = (padded::<T>(n), padded::<T::Wide>(n));
    for (first, columns) in (0..n).step_by(COLUMNS).zip(w.chunks(COLUMNS * ld_wide)) {
        let count = columns.len() / ld_wide;
        transpose(isa, (n, count), &narrow(isa, columns, n, 0)?, ld, &mut out[first..], n);
    }
    Ok(())
}

/// Writes `W` row-major; `w` as [`matrix`] gives it.
pub fn write<T: Scalar>(isa: InstructionSet, n: usize, w: &[T], out: &mut [T]) {
    transpose(isa, (n, n), w, padded::<T>(n), out, n);
}

/// The adjoint of an `n x n` matrix, both column-major with columns `padded(n)` apart.
pub fn adjoint<T: Scalar>(isa: InstructionSet, n: usize, matrix: &[T]) -> Result<Buffer<T>> {
    let ld = padded::<T>(n);
    let mut adjoint = Buffer::zeroed(n * ld)?;
    transpose(isa, (n, n), matrix, ld, &mut adjoint, ld);
    if T::COMPLEX {
        adjoint.iter_mut().for_each(|x| *x = x.conj());
    }
    Ok(adjoint)
}
