//! One reflection after the other.

use super::columns::ReflectionColumns;
use super::vectors::{Registers, distance, pad};
use super::{PANEL, panels, side_by_side};
use crate::apply::CHUNK;
use crate::arrays::lengths::flops;
use crate::arrays::view::Shared;
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::Transform;
use crate::simd::isa::simd;
use crate::threads::{Cancel, Context, groups, num_threads};

/// Most vectors that pass all panels together: each time, the panels are laid out anew.
const TOGETHER: usize = 4 * CHUNK;

/// Whether `rows` vectors of size `n` are worth the factors of groups.
fn are_grouped(n: usize, rows: usize) -> bool {
    rows >= 8.max(1024_usize.div_ceil(n))
}

/// Workspace for applications of products of `k` reflections.
pub struct Forward<T: Scalar> {
    columns: ReflectionColumns<T>,
    /// Vectors that go through all reflections together.
    x: Buffer<T>,
    /// Whether they go through reflections in groups.
    grouped: bool,
}

impl<T: Scalar> Forward<T> {
    /// For `rows` vectors of size `n`.
    pub fn new(n: usize, k: usize, rows: usize) -> Result<Self> {
        Ok(Self {
            columns: ReflectionColumns::new(n, k.min(PANEL))?,
            x: Buffer::zeroed(rows.min(TOGETHER) * distance::<T>(n))?,
            grouped: are_grouped(n, rows),
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
        let (Transform { u, diagonal, adjoint }, Forward { columns, x, grouped }) = (w, workspace);
        let (n, k, ld, mut looks) = (u.n(), u.count(), distance::<T>(u.n()), 0);
        for (h, out) in h.chunks(TOGETHER * n).zip(out.chunks_mut(TOGETHER * n)) {
            let rows = h.len() / n;
            let (x, side) = (&mut x[..rows * ld], side_by_side::<T>(rows, ld));
            for (x, h) in x.chunks_exact_mut(ld).zip(h.chunks_exact(n)) {
                pad(x, h);
                if !adjoint {
                    diagonal.apply(&mut x[..n], false);
                }
            }
            for panel in panels(k, adjoint) {
                if looks > 0 {
                    cancel.check()?;
                }
                looks += 1;
                let first = u.form().first(panel.start);
                columns.set(s, u.columns(panel.start, panel.end))?;
                if *grouped {
                    columns.find_factors(Registers(s), adjoint);
                }
                for x in x.chunks_mut(side * ld) {
                    columns.apply(Registers(s), adjoint, &mut x[first..], ld);
                }
            }
            for (x, out) in x.chunks_exact_mut(ld).zip(out.chunks_exact_mut(n)) {
                if adjoint {
                    diagonal.apply(&mut x[..n], true);
                }
                out.copy_from_slice(&x[..n]);
            }
        }
        Ok(())
    }
}

/// [`forward`] of one problem on several threads, with the same bits. Each lays out all panels for vectors of its own: threads
/// that shared the panels took longer.
pub fn forward_on_threads<T: Scalar>(
    context: &mut Context<'_>,
    w: Transform<'_, T>,
    h: &[T],
    out: &mut [T],
) -> Result<()> {
    let (n, k, rows, isa) = (w.u.n(), w.u.count(), h.len() / w.u.n(), context.isa);
    let bounds = groups(rows, 2, num_threads().max(rows / TOGETHER));
    let out = Shared(out.as_mut_ptr());
    context.run(bounds.len() - 1, flops(&[4, n, k, rows]), &|i, cancel| {
        let (begin, count) = (bounds[i], bounds[i + 1] - bounds[i]);
        let mut workspace = Forward { grouped: are_grouped(n, rows), ..Forward::new(n, k, count)? };
        // SAFETY: tasks own disjoint rows of n numbers.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(begin * n), count * n) };
        forward(isa, &mut workspace, cancel, w, &h[begin * n..][..count * n], out)
    })
}
