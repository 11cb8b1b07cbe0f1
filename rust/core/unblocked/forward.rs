//! One reflection after the other.

use super::chain::Chain;
use super::rows_between_looks;
use super::vectors::{Registers, pad};
use crate::diagonal::Diagonal;
use crate::error::Result;
use crate::kernel::dispatch::{InstructionSet, simd};
use crate::memory::Buffer;
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::Cancel;

/// Workspace for applications of products of `k` reflections.
pub struct Forward<T: Scalar> {
    chain: Chain<T>,
    x: Buffer<T>,
}

impl<T: Scalar> Forward<T> {
    /// For vectors of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let chain = Chain::new(n, k)?;
        Ok(Self { x: Buffer::zeroed(chain.ld)?, chain })
    }

    /// `out = W h` for each row, or `W* h`.
    pub fn run(
        &mut self,
        isa: InstructionSet,
        cancel: &Cancel<'_>,
        u: Reflections<'_, T>,
        diagonal: &Diagonal<T>,
        h: &[T],
        out: &mut [T],
        adjoint: bool,
    ) -> Result<()> {
        run(isa, self, cancel, u, diagonal, h, out, adjoint)
    }
}

simd! {
    fn run<T: Scalar>(
        s,
        room: &mut Forward<T>,
        cancel: &Cancel<'_>,
        u: Reflections<'_, T>,
        diagonal: &Diagonal<T>,
        h: &[T],
        out: &mut [T],
        adjoint: bool,
    ) -> Result<()> {
        let Forward { chain, x } = room;
        let n = u.n();
        chain.set_columns(s, u);
        let often = rows_between_looks(n, chain.k);
        for (row, (h, out)) in h.chunks_exact(n).zip(out.chunks_exact_mut(n)).enumerate() {
            if row % often == often - 1 {
                cancel.check()?;
            }
            pad(x, h);
            if !adjoint {
                diagonal.apply(&mut x[..n], false);
            }
            chain.steps(adjoint).apply(Registers(s), x);
            if adjoint {
                diagonal.apply(&mut x[..n], true);
            }
            out.copy_from_slice(&x[..n]);
        }
        Ok(())
    }
}
