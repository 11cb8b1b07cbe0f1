//! `c = W h` and `c = W* h`.

use super::{CHUNK, TASK, TASKS};
use super::{lanes, sequential};
use crate::arrays::lengths::flops;
use crate::arrays::rows::{Rows, RowsMut};
use crate::arrays::stack::{Stack, StackMut};
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, padded};
use crate::method::{self, Method};
use crate::numbers::scalar::Scalar;
use crate::operator::{Operator, Reflections, Transform};
use crate::threads::{Context, slices};
use crate::wy::blocks::{Blocks, Coefficients, CoefficientsMut, Scratch};
use crate::wy::dense::{self, Dense};
use crate::wy::{CompactWy, Overlap};
use std::fmt;

/// What a forward pass leaves to the backward pass of the same problems.
pub struct Saved<T: Scalar>(pub(super) Vec<Formed<T>>);

/// What was formed of one problem.
pub(super) enum Formed<T: Scalar> {
    /// Factors of the compact WY form.
    Factors(Prepared<T>),
    /// The matrix.
    Matrix(Dense<T>),
    /// What its vectors left on their way through the reflections.
    Swept(sequential::Swept<T>),
}

impl<T: Scalar> fmt::Debug for Saved<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Saved").finish_non_exhaustive()
    }
}

impl<T: Scalar> Saved<T> {
    /// The method that left it, which the backward pass takes as well.
    pub fn method(&self) -> Option<Method> {
        self.0.first().map(|formed| match formed {
            Formed::Swept(_) => Method::Reflections,
            Formed::Factors(_) => Method::Wy,
            Formed::Matrix(_) => Method::Dense,
        })
    }

    /// Whether it has the factors of the compact WY form.
    pub fn has_factors(&self) -> bool {
        self.method() == Some(Method::Wy)
    }

    /// Refuses what was formed of other problems than `w`, or for another number of vectors each.
    pub fn check(&self, w: &Operator<'_, T>, rows: usize) -> Result<()> {
        if self.0.len() != w.count() {
            return Err(Error::value("saved", format!("that of {} problems", w.count()), self.0.len()));
        }
        self.0.iter().enumerate().try_for_each(|(i, formed)| match formed {
            Formed::Factors(prepared) => prepared.check(w.at(i).u, rows),
            Formed::Matrix(matrix) => matrix.blocks.check(w.at(i).u),
            Formed::Swept(swept) => swept.check(w.at(i), rows),
        })
    }
}

/// `out = W h` of each problem, for each row of `h (count, rows, n)`, or `W* h`.
#[inline]
pub fn forward<'h, 'o, T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: impl Into<Rows<'h, T>>,
    out: impl Into<RowsMut<'o, T>>,
) -> Result<()> {
    let h = h.into().read("h", w.n())?;
    out.into().write("out", w.n(), |out| T::apply(context, w, &h, out))
}

/// [`forward`], to be compiled for each type.
pub(crate) fn contiguous<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: &[T],
    out: &mut [T],
) -> Result<()> {
    let rows = w.vectors(&[("h", h.len()), ("out", out.len())])?;
    if rows == 0 {
        return Ok(());
    }
    let (count, isa, method, flops) = (w.count(), context.isa, w.method_for(context.isa, rows, false), w.flops(rows));
    let (h, out) = (Stack::new(h, count), StackMut::new(out, count));
    if lanes::suit(w, rows, isa) {
        let group = lanes::group::<T>(isa);
        let workspace = || lanes::LanesForward::new(w, group, rows);
        return context.for_each_with(count.div_ceil(group), flops, &workspace, &|i, workspace, _| {
            let problems = lanes::problems(group, i, count);
            // SAFETY: each group writes its own part.
            let out = unsafe { out.part(problems.clone()) };
            lanes::forward(isa, workspace, &w.problems(problems.clone()), h.part(problems), out);
            Ok(())
        });
    }
    // SAFETY: each problem writes its own part.
    let out = |i: usize| unsafe { out.at(i) };
    // One vector goes through all reflections alone.
    let is_shared = rows > 1 && context.shares(count, flops);
    if method == Method::Reflections && !is_shared {
        let workspace = || sequential::Forward::new(w.n(), w.reflections(), rows);
        return context.for_each_with(count, flops, &workspace, &|i, workspace, cancel| {
            sequential::forward(isa, workspace, cancel, w.at(i), h.at(i), out(i), None)
        });
    }
    context.for_each(count, flops, &|i, context| {
        let (w, h, out) = (w.at(i), h.at(i), out(i));
        if method == Method::Reflections {
            return sequential::forward_on_threads(context, w, h, out, None);
        }
        if method == Method::Dense {
            let matrix = dense::matrix(context, w)?;
            return dense::multiply(context, w.u.n(), &matrix, h, out, w.adjoint);
        }
        by_factors(context, w, h, out, false).map(drop)
    })
}

/// [`forward`], and what the backward pass of a single problem can use, if the method leaves anything.
#[inline]
pub fn forward_and_save<'h, 'o, T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: impl Into<Rows<'h, T>>,
    out: impl Into<RowsMut<'o, T>>,
) -> Result<Option<Saved<T>>> {
    let h = h.into().read("h", w.n())?;
    out.into().write("out", w.n(), |out| T::apply_and_save(context, w, &h, out))
}

/// [`forward_and_save`], to be compiled for each type.
pub(crate) fn contiguous_and_save<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: &[T],
    out: &mut [T],
) -> Result<Option<Saved<T>>> {
    let rows = w.vectors(&[("h", h.len()), ("out", out.len())])?;
    let method = w.method_for(context.isa, rows, true);
    if w.count() != 1 {
        return contiguous(context, w, h, out).map(|()| None);
    }
    let w = w.at(0);
    let formed = match method {
        Method::Reflections => {
            let mut swept = sequential::Swept::new(w, rows)?;
            sequential::forward_on_threads(context, w, h, out, Some(swept.write()))?;
            Formed::Swept(swept)
        }
        Method::Wy => Formed::Factors(by_factors(context, w, h, out, true)?),
        Method::Dense => {
            let matrix = Dense::new(context, w)?;
            dense::multiply(context, w.u.n(), &matrix.w, h, out, w.adjoint)?;
            Formed::Matrix(matrix)
        }
    };
    Ok(Some(Saved(vec![formed])))
}

/// The factors of one problem, and what its vectors left.
pub(super) struct Prepared<T: Scalar> {
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

    /// Refuses what was prepared for another shape.
    fn check(&self, u: Reflections<'_, T>, rows: usize) -> Result<()> {
        if self.rows != rows {
            return Err(Error::InvalidArgument(format!("prepared for {} vectors, got {rows}", self.rows)));
        }
        self.blocks.check(u)
    }

    /// `y` of the vectors `begin..end`, if kept.
    pub fn y(&self, begin: usize, end: usize) -> Option<Coefficients<'_, T>> {
        let kept = (!self.y.is_empty()).then(|| Coefficients::new(&self.blocks, &self.y, self.rows));
        kept.map(|y| y.part(begin, end))
    }
}

/// An application by compact WY, and what the backward pass can use of it; of several blocks `y` too, if it is to be kept.
fn by_factors<T: Scalar>(
    context: &mut Context<'_>,
    w: Transform<'_, T>,
    h: &[T],
    out: &mut [T],
    keep: bool,
) -> Result<Prepared<T>> {
    let (k, rows) = (w.u.count(), h.len() / w.u.n());
    // A single block suffices, and its intermediate results fit into the cache.
    if (1..=method::block_width(k, rows)).contains(&k) && rows <= TASKS * CHUNK && w.diagonal.is_one() {
        return in_one_block(context, w.u, h, out, w.adjoint);
    }
    let mut prepared = Prepared::new(context, w.u, rows)?;
    if keep && !w.adjoint {
        prepared.y = Buffer::zeroed(Coefficients::len(&prepared.blocks, rows))?; // sums read whole registers
    }
    in_blocks(context, &mut prepared, w, h, out)?;
    Ok(prepared)
}

/// An application where one block has all reflections: the same threads form and apply it.
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
    let (of_h, of_out) = (View::of(h, n, rows), ViewMut::of(out, n, rows));
    let (of_z, of_y) = (ViewMut::of(&mut z, ld, rows), ViewMut::of(&mut y, ld, rows));
    let bounds = slices(rows, TASK, TASKS);
    let along = Overlap {
        tasks: bounds.len() - 1,
        flops: flops(&[4, n, k, rows]),
        with_v: &|i, factors| {
            let (begin, end) = (bounds[i], bounds[i + 1]);
            // SAFETY: tasks own disjoint rows.
            unsafe { factors.gather(isa, 0, of_h.part(begin, end), of_z.part(begin, end)) }
        },
        with_both: &|i, factors| {
            let (begin, end) = (bounds[i], bounds[i + 1]);
            let (h, z, y) = (of_h.part(begin, end), of_z.part(begin, end), of_y.part(begin, end));
            // SAFETY: as above.
            unsafe {
                factors.turn(isa, z.read(), y, adjoint);
                factors.scatter(isa, y.read(), h, of_out.part(begin, end));
            }
        },
    };
    let blocks = Blocks::of_one(CompactWy::with(context, u, &along)?);
    Ok(Prepared { blocks, rows, y: if adjoint { Buffer::zeroed(0)? } else { y } })
}

/// An application of the factors that are prepared, which leaves `y` where there is room for it.
fn in_blocks<T: Scalar>(
    context: &mut Context<'_>,
    Prepared { blocks, rows, y }: &mut Prepared<T>,
    Transform { diagonal, adjoint, .. }: Transform<'_, T>,
    h: &[T],
    out: &mut [T],
) -> Result<()> {
    let (blocks, rows) = (&*blocks, *rows);
    let keep = (!y.is_empty()).then(|| CoefficientsMut::new(blocks, y, rows));
    let (n, isa) = (blocks.n, context.isa);
    let bounds = slices(rows, TASK, TASKS);
    let out = Shared(out.as_mut_ptr());
    context.run(bounds.len() - 1, flops(&[4, n, blocks.k, rows]), &|i, cancel| {
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
            let to = ViewMut::of(out, n, count);
            let from = if turned { to.read() } else { View::of(h, n, count) };
            let keep = keep.map(|keep| keep.part(begin, begin + count));
            // SAFETY: as many rows of n numbers each, the same or disjoint.
            unsafe { blocks.apply(isa, from, to, &mut scratch, keep, adjoint) };
            if adjoint && !diagonal.is_one() {
                out.chunks_mut(n).for_each(|c| diagonal.apply(c, true));
            }
        }
        Ok(())
    })
}
