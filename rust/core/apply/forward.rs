//! `c = W h` and `c = W* h`, and the matrix `W` itself.

use super::{CHUNK, TASK, TASKS};
use crate::diagonal::Diagonal;
use crate::error::{Error, Result};
use crate::lengths::require;
use crate::memory::{Buffer, padded};
use crate::method::{self, Method};
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::{Context, slices};
use crate::unblocked;
use crate::view::{Shared, View};
use crate::wy::blocks::{Blocks, Coefficients, Scratch};
use crate::wy::{Along, CompactWy, dense};

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
    let (n, k, rows) = (u.n(), u.count(), u.vectors("h", h.len(), &[("out", out.len())])?);
    diagonal.check(u)?;
    if rows == 0 {
        return Ok(());
    }
    match method.unwrap_or_else(|| method::for_application::<T>(u.form(), (n, k), rows, u.tau().is_some())) {
        Method::Reflections => {
            let (isa, mut workspace) = (context.isa, unblocked::Forward::new(n, k, rows)?);
            context.here(|cancel| workspace.run(isa, cancel, u, diagonal, h, out, adjoint))
        }
        Method::Wy if is_one_block(k, rows, diagonal) => in_one_block(context, u, h, out, adjoint).map(drop),
        Method::Wy => {
            let prepared = Prepared::new(context, u, rows)?;
            in_blocks(context, &prepared.blocks, diagonal, h, out, None, adjoint)
        }
        Method::Dense => {
            let w = dense::matrix(context, u, diagonal)?;
            dense::multiply(context, n, &w, h, out, adjoint)
        }
    }
}

/// What the backward pass takes from the forward pass.
pub struct Prepared<T: Scalar> {
    pub(super) blocks: Blocks<T>,
    rows: usize,
    /// `y` of every block, empty after an application of `W*`.
    y: Buffer<T>,
}

impl<T: Scalar> Prepared<T> {
    /// The blocks alone, without the `y` of any vectors.
    pub fn new(context: &mut Context<'_>, u: Reflections<'_, T>, rows: usize) -> Result<Self> {
        let blocks = Blocks::new(context, u, method::block_width(u.count(), rows))?;
        Ok(Self { blocks, rows, y: Buffer::zeroed(0)? })
    }

    /// `n`, the number of reflections and that of vectors.
    pub fn shape(&self) -> [usize; 3] {
        [self.blocks.n, self.blocks.k, self.rows]
    }

    /// Refuses what was prepared for another shape.
    pub(crate) fn check(&self, u: Reflections<'_, T>, rows: usize) -> Result<()> {
        if self.rows != rows {
            return Err(Error::InvalidArgument(format!("prepared for {} vectors, got {rows}", self.rows)));
        }
        self.blocks.check(u)
    }

    /// `y` of the vectors `begin..end`, if kept.
    pub(super) fn y(&self, begin: usize, end: usize) -> Option<Coefficients<T>> {
        let kept = (!self.y.is_empty()).then(|| Coefficients::new(&self.blocks, self.y.ptr(), self.rows));
        kept.map(|y| y.part(begin, end))
    }
}

/// [`forward`] by compact WY, and what the backward pass can use.
pub fn forward_and_keep<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    out: &mut [T],
    adjoint: bool,
) -> Result<Prepared<T>> {
    let rows = u.vectors("h", h.len(), &[("out", out.len())])?;
    diagonal.check(u)?;
    if is_one_block(u.count(), rows, diagonal) {
        return in_one_block(context, u, h, out, adjoint);
    }
    let mut prepared = Prepared::new(context, u, rows)?;
    let Prepared { blocks, rows, y } = &mut prepared;
    if !adjoint {
        *y = Buffer::zeroed(Coefficients::len(blocks, *rows))?; // sums read whole registers
    }
    let keep = (!adjoint).then_some(&mut y[..]);
    in_blocks(context, blocks, diagonal, h, out, keep, adjoint)?;
    Ok(prepared)
}

/// Whether a single block suffices and its intermediate results fit into the cache.
fn is_one_block<T: Scalar>(k: usize, rows: usize, diagonal: &Diagonal<T>) -> bool {
    (1..=method::block_width(k, rows)).contains(&k) && rows <= TASKS * CHUNK && diagonal.is_one()
}

/// [`forward_and_keep`] where one block has all reflections: the same threads form and apply it.
fn in_one_block<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    h: &[T],
    out: &mut [T],
    adjoint: bool,
) -> Result<Prepared<T>> {
    let (n, k, isa) = (u.n(), u.count(), context.isa);
    let (rows, ld) = (h.len() / n, padded::<T>(k));
    let (mut z, mut y) = (Buffer::scratch(rows * ld)?, Buffer::zeroed(rows * ld)?); // sums read whole registers of y
    let of_h = View::new(h.as_ptr(), n, rows);
    let of_out = View::new(out.as_mut_ptr(), n, rows);
    let (of_z, of_y) = (View::new(z.ptr_mut(), ld, rows), View::new(y.ptr_mut(), ld, rows));
    let bounds = slices(rows, TASK, TASKS);
    let part = |x: View<T>, i: usize| x.part(bounds[i], bounds[i + 1]);
    let along = Along {
        tasks: bounds.len() - 1,
        flops: 4 * n * k * rows,
        // SAFETY: tasks own disjoint rows.
        with_v: &|i, factors| unsafe { factors.gather(isa, part(of_h, i), part(of_z, i)) },
        // SAFETY: as above.
        with_both: &|i, factors| unsafe {
            factors.turn(isa, part(of_z, i), part(of_y, i), adjoint);
            factors.scatter(isa, part(of_y, i), part(of_h, i), part(of_out, i));
        },
    };
    let blocks = Blocks::of_one(CompactWy::with(context, u, &along)?);
    Ok(Prepared { blocks, rows, y: if adjoint { Buffer::zeroed(0)? } else { y } })
}

fn in_blocks<T: Scalar>(
    context: &mut Context<'_>,
    blocks: &Blocks<T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    out: &mut [T],
    keep: Option<&mut [T]>,
    adjoint: bool,
) -> Result<()> {
    let (n, isa) = (blocks.n, context.isa);
    let rows = h.len() / n;
    let keep = keep.map(|keep| Coefficients::of_slice(blocks, keep, rows));
    let bounds = slices(rows, TASK, TASKS);
    let out = Shared(out.as_mut_ptr());
    context.run(bounds.len() - 1, 4 * n * blocks.k * rows, &|i, cancel| {
        let mut scratch = Scratch::new(blocks, CHUNK.min(bounds[i + 1] - bounds[i]))?;
        for begin in (bounds[i]..bounds[i + 1]).step_by(CHUNK) {
            cancel.check()?;
            let count = CHUNK.min(bounds[i + 1] - begin);
            // SAFETY: tasks own disjoint rows of n numbers.
            let (h, out) = unsafe {
                (&h[begin * n..][..count * n], std::slice::from_raw_parts_mut(out.get().add(begin * n), count * n))
            };
            let turned = !adjoint && !diagonal.is_one();
            if turned {
                out.copy_from_slice(h);
                out.chunks_mut(n).for_each(|a| diagonal.apply(a, false));
            }
            let to = View::new(out.as_mut_ptr(), n, count);
            let from = if turned { to } else { View::new(h.as_ptr(), n, count) };
            let keep = keep.map(|y| y.part(begin, begin + count));
            // SAFETY: as many rows of n numbers each, the same or disjoint.
            unsafe { blocks.apply(isa, from, to, &mut scratch, keep, adjoint) };
            if adjoint && !diagonal.is_one() {
                out.chunks_mut(n).for_each(|c| diagonal.apply(c, true));
            }
        }
        Ok(())
    })
}

/// Writes `W`, row-major.
pub fn matrix<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    out: &mut [T],
) -> Result<()> {
    let n = u.n();
    require(&[("W", Some(out.len()), &[n, n])])?;
    diagonal.check(u)?;
    if n <= unblocked::SMALL {
        return unblocked::Rounded::new(n, u.count())?.run(context.isa, u, diagonal, out);
    }
    dense::write_matrix(context, u, diagonal, out)
}
