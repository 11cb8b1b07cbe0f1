//! One reflection after the other.

use super::columns::ReflectionColumns;
use super::groups::GROUP;
use super::sweep::{SweptRowsMut, sweep};
use super::vectors::{distance, pad};
use super::{PANEL, are_grouped};
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
            x: Buffer::scratch(rows.min(TOGETHER) * distance::<T>(n))?,
            grouped: are_grouped::<T>((n, k), rows),
        })
    }
}

simd! {
    /// `out = W h` for each row, or `W* h`, and what is `kept` of them. The caller has checked all sizes.
    pub fn forward<T: Scalar>(
        s,
        workspace: &mut Forward<T>,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        h: &[T],
        out: &mut [T],
        kept: Option<SweptRowsMut<'_, T>>,
    ) -> Result<()> {
        let (Transform { u, diagonal, adjoint }, Forward { columns, x, grouped }) = (w, workspace);
        let (n, ld, mut all_kept) = (u.n(), distance::<T>(u.n()), kept);
        for (chunk, (h, out)) in h.chunks(TOGETHER * n).zip(out.chunks_mut(TOGETHER * n)).enumerate() {
            if chunk > 0 {
                cancel.check()?;
            }
            let (first, rows) = (chunk * TOGETHER, h.len() / n);
            let x = &mut x[..rows * ld];
            for (x, h) in x.chunks_exact_mut(ld).zip(h.chunks_exact(n)) {
                pad(x, h);
                if !adjoint {
                    diagonal.apply(&mut x[..n], false);
                }
            }
            let mut kept = all_kept.as_mut().map(|kept| kept.part(first..first + rows, n, u.count().div_ceil(GROUP)));
            let factors = kept.as_mut().map(|kept| &mut *kept.factors);
            sweep(s, columns, cancel, (u, adjoint, *grouped), x, ld, factors)?;
            if let Some(kept) = kept {
                for (x, state) in x.chunks_exact(ld).zip(kept.x.chunks_exact_mut(n)) {
                    state.copy_from_slice(&x[..n]);
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
    kept: Option<SweptRowsMut<'_, T>>,
) -> Result<()> {
    let (n, k, rows, isa) = (w.u.n(), w.u.count(), h.len() / w.u.n(), context.isa);
    let bounds = if context.shares(1, flops(&[4, n, k, rows])) {
        groups(rows, 2, num_threads().max(rows / TOGETHER))
    } else {
        vec![0, rows]
    };
    let out = Shared(out.as_mut_ptr());
    let kept = kept.map(|kept| (Shared(kept.x.as_mut_ptr()), Shared(kept.factors.as_mut_ptr())));
    context.run(bounds.len() - 1, flops(&[4, n, k, rows]), &|i, cancel| {
        let (begin, count) = (bounds[i], bounds[i + 1] - bounds[i]);
        let mut workspace = Forward { grouped: are_grouped::<T>((n, k), rows), ..Forward::new(n, k, count)? };
        // SAFETY: tasks own disjoint rows of n numbers, and what is kept of them.
        let (out, kept) = unsafe {
            let rows = |x: &Shared<T>| std::slice::from_raw_parts_mut(x.get().add(begin * n), count * n);
            let groups = k.div_ceil(GROUP);
            let kept = kept.as_ref().map(|(x, factors)| SweptRowsMut {
                x: rows(x),
                factors: std::slice::from_raw_parts_mut(factors.get().add(begin * groups), count * groups),
            });
            (rows(&out), kept)
        };
        forward(isa, &mut workspace, cancel, w, &h[begin * n..][..count * n], out, kept)
    })
}
