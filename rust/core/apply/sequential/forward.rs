//! One reflection after the other.

use super::chain::Chain;
use super::vectors::{Registers, pad};
use super::{rows_between_looks, side_by_side};
use crate::error::Result;
use crate::memory::Buffer;
use crate::operator::Transform;
use crate::scalar::Scalar;
use crate::simd::isa::{InstructionSet, simd};
use crate::threads::Cancel;

/// Workspace for applications of products of `k` reflections.
pub struct Forward<T: Scalar> {
    chain: Chain<T>,
    /// Vectors that are reflected side by side.
    x: Buffer<T>,
}

impl<T: Scalar> Forward<T> {
    /// For `rows` vectors of size `n`.
    pub fn new(n: usize, k: usize, rows: usize) -> Result<Self> {
        let chain = Chain::new(n, k)?;
        Ok(Self { x: Buffer::zeroed(side_by_side::<T>(rows, chain.ld) * chain.ld)?, chain })
    }

    /// `out = W h` for each row, or `W* h`. The caller has checked all sizes.
    pub fn run(
        &mut self,
        isa: InstructionSet,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        h: &[T],
        out: &mut [T],
    ) -> Result<()> {
        run(isa, self, cancel, w, h, out)
    }
}

simd! {
    fn run<T: Scalar>(
        s,
        workspace: &mut Forward<T>,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        h: &[T],
        out: &mut [T],
    ) -> Result<()> {
        let (Transform { u, diagonal, adjoint }, Forward { chain, x }) = (w, workspace);
        let (n, ld) = (u.n(), chain.ld);
        chain.set_columns(s, u);
        let (steps, side) = (chain.steps(adjoint), x.len() / ld);
        let often = rows_between_looks(n, chain.k).div_ceil(side);
        for (group, (h, out)) in h.chunks(side * n).zip(out.chunks_mut(side * n)).enumerate() {
            if group % often == often - 1 {
                cancel.check()?;
            }
            let x = &mut x[..h.len() / n * ld];
            for (x, h) in x.chunks_exact_mut(ld).zip(h.chunks_exact(n)) {
                pad(x, h);
                if !adjoint {
                    diagonal.apply(&mut x[..n], false);
                }
            }
            steps.apply(Registers(s), x);
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
