//! One reflection after the other.

use std::ops::Range;

use super::columns::ReflectionColumns;
use super::vectors::{Registers, pad};
use super::{PANEL, panels, side_by_side};
use crate::apply::{CHUNK, TASKS};
use crate::arrays::lengths::flops;
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::operator::{Diagonal, Reflections, Transform};
use crate::simd::isa::simd;
use crate::threads::{Cancel, Context};

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
            x: Buffer::zeroed(rows.min(CHUNK) * padded::<T>(n))?,
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
        let (n, k, ld) = (u.n(), u.count(), padded::<T>(u.n()));
        let mut looks = 0;
        for (h, out) in h.chunks(CHUNK * n).zip(out.chunks_mut(CHUNK * n)) {
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
                let steps = columns.steps(adjoint);
                for x in x.chunks_mut(side * ld) {
                    steps.apply(Registers(s), &mut x[first..], ld, #[inline(always)] |_, _, _, _| {});
                }
            }
            leave(x, out, n, diagonal, adjoint);
        }
        Ok(())
    }
}

/// Takes vectors of `n` numbers to [`padded`] ones, times the diagonal where that acts first.
#[inline(always)]
fn enter<T: Scalar>(x: &mut [T], h: &[T], n: usize, diagonal: Diagonal<'_, T>, adjoint: bool) {
    for (x, h) in x.chunks_exact_mut(padded::<T>(n)).zip(h.chunks_exact(n)) {
        pad(x, h);
        if !adjoint {
            diagonal.apply(&mut x[..n], false);
        }
    }
}

/// Writes what became of them, times the diagonal where that acts last.
#[inline(always)]
fn leave<T: Scalar>(x: &mut [T], out: &mut [T], n: usize, diagonal: Diagonal<'_, T>, adjoint: bool) {
    for (x, out) in x.chunks_exact_mut(padded::<T>(n)).zip(out.chunks_exact_mut(n)) {
        if adjoint {
            diagonal.apply(&mut x[..n], true);
        }
        out.copy_from_slice(&x[..n]);
    }
}

/// [`forward`] of one problem on several threads, with the same bits: while one thread lays out a panel, the others apply the
/// panel before it, each to vectors of its own.
pub fn forward_on_threads<T: Scalar>(
    context: &mut Context<'_>,
    w: Transform<'_, T>,
    h: &[T],
    out: &mut [T],
) -> Result<()> {
    let (n, k, isa) = (w.u.n(), w.u.count(), context.isa);
    let (ld, most) = (padded::<T>(n), TASKS * CHUNK);
    let panels: Vec<Range<usize>> = panels(k, w.adjoint).collect();
    let mut columns = [ReflectionColumns::new(n, k.min(PANEL))?, ReflectionColumns::new(n, k.min(PANEL))?];
    let mut x = Buffer::zeroed(most.min(h.len() / n) * ld)?;
    for (h, out) in h.chunks(most * n).zip(out.chunks_mut(most * n)) {
        let rows = h.len() / n;
        let side = side_by_side::<T>(rows, ld);
        let groups = rows.div_ceil(side);
        // Stage i lays out panel i, in its last task, and applies panel i - 1.
        let counts: Vec<usize> = (0..=panels.len()).map(|i| groups + usize::from(i < panels.len())).collect();
        let (h, out) = (View::of(h, n, rows), ViewMut::of(out, n, rows));
        let (x, columns) = (ViewMut::of(&mut x, ld, rows), Shared(columns.as_mut_ptr()));
        context.run_stages(&counts, flops(&[4, n, k, rows]), &|stage, task, cancel| {
            cancel.check()?;
            // SAFETY: tasks own their vectors. The task that lays out a panel owns the columns that no other task of the
            // stage reads.
            unsafe {
                if task == groups {
                    let panel = panels[stage].clone();
                    return lay_out(isa, &mut *columns.get().add(stage % 2), w.u.columns(panel.start, panel.end));
                }
                let (begin, end) = (task * side, rows.min((task + 1) * side));
                let x = std::slice::from_raw_parts_mut(x.at(0, begin), (end - begin) * ld);
                let Some(applied) = stage.checked_sub(1) else {
                    let h = std::slice::from_raw_parts(h.at(0, begin), (end - begin) * n);
                    enter(x, h, n, w.diagonal, w.adjoint);
                    return Ok(());
                };
                let first = w.u.form().first(panels[applied].start);
                apply(isa, &*columns.get().add(applied % 2), w.adjoint, &mut x[first..], ld);
                if stage == panels.len() {
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
    fn lay_out<T: Scalar>(s, columns: &mut ReflectionColumns<T>, u: Reflections<'_, T>) -> Result<()> {
        columns.set(s, u)
    }

    /// Applies a panel to vectors `ld` apart.
    fn apply<T: Scalar>(s, columns: &ReflectionColumns<T>, adjoint: bool, x: &mut [T], ld: usize) -> () {
        columns.steps(adjoint).apply(Registers(s), x, ld, #[inline(always)] |_, _, _, _| {});
    }
}
