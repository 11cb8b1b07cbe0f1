//! The matrix `W` itself, for shapes where forming it pays.

use super::blocks::{Blocks, Coefficients};
use super::compact::{narrow, round_columns};
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::method;
use crate::numbers::scalar::Scalar;
use crate::operator::{Diagonal, Reflections, Transform};
use crate::product::product;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::Part;
use crate::simd::transpose::{transpose, turned};
use crate::threads::Context;

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
        let wide = w.widen(context.isa)?;
        let blocks = blocks(context, wide.transform().u)?;
        let (w, y) = form(context, &blocks, wide.transform().diagonal, round_columns, true)?;
        Ok(Self { blocks: blocks.narrow(context.isa)?, w, y })
    }

    /// `W = W_1 D`, formed in its own precision.
    pub fn new(context: &mut Context<'_>, w: Transform<'_, T>) -> Result<Self> {
        let blocks = blocks(context, w.u)?;
        let (w, y) = form(context, &blocks, w.diagonal, move_columns, true)?;
        Ok(Self { blocks, w, y })
    }

    /// `y` of the columns of `W_1`.
    pub(crate) fn coefficients(&self) -> Coefficients<'_, T> {
        Coefficients::new(&self.blocks, &self.y, self.blocks.n)
    }
}

fn blocks<T: Scalar>(context: &mut Context<'_>, u: Reflections<'_, T>) -> Result<Blocks<T>> {
    Blocks::new(context, u, method::block_width_of_matrix(u.count(), u.n()))
}

/// Moves columns of so many numbers, `padded` apart, to columns of another precision, and clears what is behind them.
type Move<T, N> = fn(InstructionSet, &[T], usize, &mut [N]);

/// [`Move`] within one precision.
fn move_columns<T: Scalar>(_: InstructionSet, from: &[T], len: usize, to: &mut [T]) {
    let ld = padded::<T>(len).max(1);
    for (to, from) in to.chunks_mut(ld).zip(from.chunks(ld)) {
        to[..len].copy_from_slice(&from[..len]);
        to[len..].fill(T::ZERO);
    }
}

/// `W`, and `y` of the columns of `W_1` if they are kept, both moved to the precision wanted.
fn form<T: Scalar, N: Scalar>(
    context: &mut Context<'_>,
    blocks: &Blocks<T>,
    diagonal: Diagonal<'_, T>,
    to: Move<T, N>,
    keeps: bool,
) -> Result<(Buffer<N>, Buffer<N>)> {
    let (n, isa, ld) = (blocks.n, context.isa, padded::<N>(blocks.n));
    let width = blocks.list.first().map_or(0, |block| block.wy.k);
    let ld_y = padded::<N>(width);
    let mut w = Buffer::<N>::scratch(n * ld)?;
    let mut y = Buffer::<N>::zeroed(if keeps { blocks.list.len() * n * ld_y } else { 0 })?; // sums read whole registers
    let (of_w, of_y) = (Shared(w.ptr_mut()), Shared(y.ptr_mut()));
    let keep = |block: usize, first: usize, columns: &[T]| {
        let count = columns.len() / blocks.widest();
        // SAFETY: tasks own the coefficients of disjoint columns.
        let kept = unsafe { std::slice::from_raw_parts_mut(of_y.get().add((block * n + first) * ld_y), count * ld_y) };
        to(isa, columns, width, kept);
    };
    let finish = |first: usize, columns: &mut [T]| {
        scale(diagonal, n, first, columns);
        let count = columns.len() / padded::<T>(n);
        // SAFETY: tasks own disjoint columns.
        let formed = unsafe { std::slice::from_raw_parts_mut(of_w.get().add(first * ld), count * ld) };
        to(isa, columns, n, formed);
        Ok(())
    };
    blocks.matrix(context, keeps.then_some(&keep), &finish)?;
    Ok((w, y))
}

/// Turns columns of `W_1`, from number `first` on, into those of `W_1 D`.
fn scale<T: Scalar>(diagonal: Diagonal<'_, T>, n: usize, first: usize, columns: &mut [T]) {
    for (j, column) in (first..).zip(columns.chunks_mut(padded::<T>(n))) {
        diagonal.scale(j, &mut column[..n], false);
    }
}

/// `W` alone, column-major, columns `padded(n)` apart, formed in its own precision.
pub fn matrix<T: Scalar>(context: &mut Context<'_>, w: Transform<'_, T>) -> Result<Buffer<T>> {
    let blocks = blocks(context, w.u)?;
    Ok(form(context, &blocks, w.diagonal, move_columns, false)?.0)
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
    let (columns, out) = (View::of(h, n, rows), ViewMut::of(out, n, rows));
    // SAFETY: W has n padded columns, and the arrays so many rows of n numbers.
    unsafe { product(context, (n, rows), part(w, padded::<T>(n), n), columns, out, false) }
}

/// Writes `W` row-major, formed in wide precision and rounded once.
pub fn write_matrix<T: Scalar>(context: &mut Context<'_>, w: Transform<'_, T>, out: &mut [T]) -> Result<()> {
    /// Columns that are rounded before they are written, so that they stay in the cache.
    const COLUMNS: usize = 32;
    let (n, isa) = (w.u.n(), context.isa);
    let wide = w.widen(isa)?;
    let wide = wide.transform();
    let blocks = blocks(context, wide.u)?;
    let (ld, ld_wide, out) = (padded::<T>(n), padded::<T::Wide>(n), ViewMut::of(out, n, n));
    blocks.matrix(context, None, &|first, columns| {
        scale(wide.diagonal, n, first, columns);
        for (first, columns) in (first..).step_by(COLUMNS).zip(columns.chunks(COLUMNS * ld_wide)) {
            let count = columns.len() / ld_wide;
            let rounded;
            let columns = if T::IS_WIDE {
                // SAFETY: the same columns, because `T` is its own wide type.
                unsafe { View::from_raw(columns.as_ptr().cast(), ld, count) }
            } else {
                rounded = narrow::<T>(isa, columns, n, 0)?;
                View::of(&rounded, ld, count)
            };
            // SAFETY: n rows of as many numbers as W has columns, of which this task owns these.
            unsafe { turned(isa, (n, count), columns, out.from(first, 0)) };
        }
        Ok(())
    })
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
