//! One reflection after the other.

use super::chain::Chain;
use super::vectors::{Registers, pad};
use super::{PANEL, panels, side_by_side};
use crate::apply::CHUNK;
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::operator::Transform;
use crate::simd::isa::simd;
use crate::threads::Cancel;

/// Workspace for applications of products of `k` reflections.
pub struct Forward<T: Scalar> {
    chain: Chain<T>,
    /// Vectors that go through all reflections together.
    x: Buffer<T>,
}

impl<T: Scalar> Forward<T> {
    /// For `rows` vectors of size `n`.
    pub fn new(n: usize, k: usize, rows: usize) -> Result<Self> {
        Ok(Self { chain: Chain::new(n, k.min(PANEL))?, x: Buffer::zeroed(rows.min(CHUNK) * padded::<T>(n))? })
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
        let (Transform { u, diagonal, adjoint }, Forward { chain, x }) = (w, workspace);
        let (n, k, ld) = (u.n(), u.count(), padded::<T>(u.n()));
        let mut looks = 0;
        for (h, out) in h.chunks(CHUNK * n).zip(out.chunks_mut(CHUNK * n)) {
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
                chain.set_columns(s, u.columns(panel.start, panel.end));
                let steps = chain.steps(adjoint);
                for x in x.chunks_mut(side * ld) {
                    steps.apply(Registers(s), &mut x[first..], ld, #[inline(always)] |_, _, _, _| {});
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
