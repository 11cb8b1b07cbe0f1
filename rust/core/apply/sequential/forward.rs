//! One reflection after the other.

use std::ops::Range;

use super::columns::ReflectionColumns;
use super::vectors::{Registers, distance, pad};
use super::{PANEL, panels, side_by_side};
use crate::apply::{CHUNK, TASKS};
use crate::arrays::lengths::flops;
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::{Diagonal, Reflections, Transform};
use crate::simd::isa::simd;
use crate::threads::{Cancel, Context};

/// Most vectors that pass all panels together: each time, the panels are laid out anew.
const TOGETHER: usize = 4 * CHUNK;

/// Whether vectors of `n` numbers, `numbers` in all, are worth the factors of groups.
fn are_grouped(n: usize, numbers: usize) -> bool {
    numbers >= 1024.max(8 * n)
}

/// Workspace for applications of products of `k` reflections.
pub struct Forward<T: Scalar> {
    columns: ReflectionColumns<T>,
    /// Vectors that go through all reflections together.
    x: Buffer<T>,
}

impl<T: Scalar> Forward<T> {
    /// For `rows` vectors of size `n`.
    pub fn new(n: usize, k: usize, rows: usize) -> Result<Self> {
        Ok(Self {
            columns: ReflectionColumns::new(n, k.min(PANEL))?,
            x: Buffer::zeroed(rows.min(TOGETHER) * distance::<T>(n))?,
        })
    }
}

simd! {
    /// `out = W h` for each row, or `W* h`. The caller has checked all sizes.
    pub fn forward<T: Scalar>(
        s,
        workspace: &mut Forward<T>,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        h: &[T],
        out: &mut [T],
    ) -> Result<()> {
        let (Transform { u, diagonal, adjoint }, Forward { columns, x }) = (w, workspace);
        let (n, k, ld) = (u.n(), u.count(), distance::<T>(u.n()));
        let (grouped, mut looks) = (are_grouped(n, h.len()), 0);
        for (h, out) in h.chunks(TOGETHER * n).zip(out.chunks_mut(TOGETHER * n)) {
            let rows = h.len() / n;
            let (x, side) = (&mut x[..rows * ld], side_by_side::<T>(rows, ld));
            enter(x, h, n, diagonal, adjoint);
            for panel in panels(k, adjoint) {
                if looks > 0 {
                    cancel.check()?;
                }
                looks += 1;
                let first = u.form().first(panel.start);
                columns.set(s, u.columns(panel.start, panel.end))?;
                if grouped {
                    columns.find_factors(Registers(s), adjoint);
                }
                for x in x.chunks_mut(side * ld) {
                    columns.apply(Registers(s), adjoint, &mut x[first..], ld);
                }
            }
            leave(x, out, n, diagonal, adjoint);
        }
        Ok(())
    }
}

/// Copies vectors of `n` numbers to places [`distance`] apart, times the diagonal where that acts first.
#[inline(always)]
fn enter<T: Scalar>(x: &mut [T], h: &[T], n: usize, diagonal: Diagonal<'_, T>, adjoint: bool) {
    for (x, h) in x.chunks_exact_mut(distance::<T>(n)).zip(h.chunks_exact(n)) {
        pad(x, h);
        if !adjoint {
            diagonal.apply(&mut x[..n], false);
        }
    }
}

/// Writes what became of them, times the diagonal where that acts last.
#[inline(always)]
fn leave<T: Scalar>(x: &mut [T], out: &mut [T], n: usize, diagonal: Diagonal<'_, T>, adjoint: bool) {
    for (x, out) in x.chunks_exact_mut(distance::<T>(n)).zip(out.chunks_exact_mut(n)) {
        if adjoint {
            diagonal.apply(&mut x[..n], true);
        }
        out.copy_from_slice(&x[..n]);
    }
}

/// How many panels of so many numbers are laid out, or applied, between two barriers: they stay in the second-level cache.
fn panels_of_stage<T>(numbers: usize) -> usize {
    ((1 << 19) / (numbers * size_of::<T>()).max(1)).clamp(1, 4)
}

/// [`forward`] of one problem on several threads, with the same bits: while some threads lay out panels, the others apply the
/// panels before them, each to vectors of its own.
pub fn forward_on_threads<T: Scalar>(
    context: &mut Context<'_>,
    w: Transform<'_, T>,
    h: &[T],
    out: &mut [T],
) -> Result<()> {
    let (n, k, isa) = (w.u.n(), w.u.count(), context.isa);
    let (ld, most) = (distance::<T>(n), TASKS * CHUNK);
    let panels: Vec<Range<usize>> = panels(k, w.adjoint).collect();
    let grouped = are_grouped(n, h.len());
    let most_of_stage = panels_of_stage::<T>(PANEL * n);
    let batches: Vec<&[Range<usize>]> = panels.chunks(most_of_stage).collect();
    let mut columns = Vec::new(); // of two batches: one is applied while the next one is laid out
    for _ in 0..panels.len().min(2 * most_of_stage) {
        columns.push(ReflectionColumns::new(n, k.min(PANEL))?);
    }
    let mut x = Buffer::zeroed(most.min(h.len() / n) * ld)?;
    for (h, out) in h.chunks(most * n).zip(out.chunks_mut(most * n)) {
        let rows = h.len() / n;
        let side = side_by_side::<T>(rows, ld);
        let groups = rows.div_ceil(side);
        // Stage i lays out batch i, in its first tasks, and applies batch i - 1.
        let layouts = |stage: usize| batches.get(stage).map_or(0, |batch| batch.len());
        let counts: Vec<usize> = (0..=batches.len()).map(|i| layouts(i) + groups).collect();
        let (h, out) = (View::of(h, n, rows), ViewMut::of(out, n, rows));
        let (x, columns) = (ViewMut::of(&mut x, ld, rows), Shared(columns.as_mut_ptr()));
        context.run_stages(&counts, flops(&[4, n, k, rows]), &|stage, task, cancel| {
            cancel.check()?;
            // SAFETY: tasks own their vectors. A task that lays out a panel owns its columns, which no other task of the
            // stage reads.
            unsafe {
                let columns = |stage: usize, i: usize| columns.get().add(stage % 2 * most_of_stage + i);
                let Some(group) = task.checked_sub(layouts(stage)) else {
                    let panel = batches[stage][task].clone();
                    let u = w.u.columns(panel.start, panel.end);
                    return lay_out(isa, &mut *columns(stage, task), u, grouped, w.adjoint);
                };
                let (begin, end) = (group * side, rows.min((group + 1) * side));
                let x = std::slice::from_raw_parts_mut(x.at(0, begin), (end - begin) * ld);
                let Some(applied) = stage.checked_sub(1) else {
                    let h = std::slice::from_raw_parts(h.at(0, begin), (end - begin) * n);
                    enter(x, h, n, w.diagonal, w.adjoint);
                    return Ok(());
                };
                for (i, panel) in batches[applied].iter().enumerate() {
                    let first = w.u.form().first(panel.start);
                    apply(isa, &*columns(applied, i), w.adjoint, &mut x[first..], ld);
                }
                if stage == batches.len() {
                    let out = std::slice::from_raw_parts_mut(out.at(0, begin), (end - begin) * n);
                    leave(x, out, n, w.diagonal, w.adjoint);
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

simd! {
    /// Lays out a panel.
    fn lay_out<T: Scalar>(
        s, columns: &mut ReflectionColumns<T>, u: Reflections<'_, T>, grouped: bool, adjoint: bool,
    ) -> Result<()> {
        columns.set(s, u)?;
        if grouped {
            columns.find_factors(Registers(s), adjoint);
        }
        Ok(())
    }

    /// Applies a panel to vectors `ld` apart.
    fn apply<T: Scalar>(s, columns: &ReflectionColumns<T>, adjoint: bool, x: &mut [T], ld: usize) -> () {
        columns.apply(Registers(s), adjoint, x, ld);
    }
}
