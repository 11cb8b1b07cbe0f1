//! Gradients, one reflection after the other.

use super::chain::Chain;
use super::rows_between_looks;
use super::vectors::{Registers, pad};
use crate::diagonal::{Diagonal, DiagonalSum};
use crate::error::Result;
use crate::gradients::Gradients;
use crate::kernel::dispatch::{InstructionSet, simd};
use crate::memory::{Buffer, filled};
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::Cancel;

/// The vectors `h`, alone or with every state of the forward pass.
#[derive(Clone, Copy)]
pub enum Source<'a, T> {
    /// `(rows, n)`.
    Vectors(&'a [T]),
    /// `(rows, m + 1, n)`: entry `m` is `h`, entry 0 is `c`, see [`super::forward_tape`].
    Tape(&'a [T]),
}

impl<'a, T: Scalar> Source<'a, T> {
    /// `h` of one row.
    #[inline(always)]
    fn vector(self, row: usize, n: usize, m: usize) -> &'a [T] {
        match self {
            Self::Vectors(h) => &h[row * n..(row + 1) * n],
            Self::Tape(tape) => &tape[(row * (m + 1) + m) * n..][..n],
        }
    }
}

/// Workspace for the gradients of applications of products of `k` reflections.
pub struct Backward<T: Scalar> {
    chain: Chain<T>,
    states: Buffer<T>,
    factors: Vec<T>,
    grad_v: Buffer<T>,
    back: Buffer<T>,
    start: Buffer<T>,
}

impl<T: Scalar> Backward<T> {
    /// For vectors of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let chain = Chain::new(n, k)?;
        let ld = chain.ld;
        Ok(Self {
            states: Buffer::zeroed((k + 1) * ld)?,
            factors: filled(k, T::ZERO)?,
            grad_v: Buffer::zeroed(chain.ld_k * ld)?,
            back: Buffer::zeroed(ld)?,
            start: Buffer::zeroed(ld)?,
            chain,
        })
    }

    /// Gradients of `sum <g, W h>` over the rows of `h` and `g`, or of `W* h`.
    pub fn run(
        &mut self,
        isa: InstructionSet,
        cancel: &Cancel<'_>,
        u: Reflections<'_, T>,
        diagonal: &Diagonal<T>,
        source: Source<'_, T>,
        g: &[T],
        gradients: Gradients<'_, T>,
        adjoint: bool,
    ) -> Result<()> {
        let Gradients { u: mut grad_u, h, tau, phases } = gradients;
        let mut sum = DiagonalSum::new(u.n(), diagonal)?;
        let gradients = [grad_u.as_deref_mut(), h, tau];
        run(isa, self, cancel, u, diagonal, source, g, gradients, &mut sum, adjoint)?;
        sum.write(u, grad_u, phases);
        Ok(())
    }
}

simd! {
    fn run<T: Scalar>(
        s,
        room: &mut Backward<T>,
        cancel: &Cancel<'_>,
        u: Reflections<'_, T>,
        diagonal: &Diagonal<T>,
        source: Source<'_, T>,
        g: &[T],
        gradients: [Option<&mut [T]>; 3],
        sum: &mut DiagonalSum<T>,
        adjoint: bool,
    ) -> Result<()> {
        let [grad_u, mut grad_h, grad_tau] = gradients;
        let grad_tau = grad_tau.unwrap_or_default();
        grad_tau.fill(T::ZERO);
        let Backward { chain, states, factors, grad_v, back, start } = room;
        let (n, m, k, ld, ops) = (u.n(), u.m(), chain.k, chain.ld, Registers(s));
        chain.set_columns(s, u);
        if matches!(source, Source::Tape(_)) {
            chain.find_pivots();
        }
        let steps = chain.steps(adjoint);
        let often = rows_between_looks(n, k);
        for (row, g) in g.chunks_exact(n).enumerate() {
            if row % often == often - 1 {
                cancel.check()?;
            }
            let h = source.vector(row, n, m);
            pad(&mut states[..ld], h);
            pad(back, g);
            diagonal.apply(if adjoint { &mut back[..n] } else { &mut states[..n] }, false);
            match source {
                Source::Vectors(_) => steps.forward_states(ops, states, factors),
                Source::Tape(tape) => {
                    // Entries count down; u_1, one of the m factors, acts before the first reflection of W, after the last of W*.
                    let after = if adjoint { m } else { k };
                    for i in 1..=k {
                        pad(&mut states[i * ld..(i + 1) * ld], &tape[(row * (m + 1) + after - i) * n..][..n]);
                    }
                    if let (true, Diagonal::Phases(_)) = (adjoint, diagonal) {
                        diagonal.apply(&mut states[k * ld..][..n], false); // entry 0 is D* x_k
                    }
                    steps.recall_factors(ops, states, factors);
                }
            }
            start.copy_from_slice(if adjoint { back } else { &states[..ld] });
            steps.backward(ops, states, factors, back, grad_v, grad_tau, row == 0);
            if adjoint {
                sum.add(&states[k * ld..][..n], &start[..n], g);
            } else {
                sum.add(&back[..n], &start[..n], h);
                diagonal.apply(&mut back[..n], true);
            }
            if let Some(grad_h) = grad_h.as_deref_mut() {
                grad_h[row * n..(row + 1) * n].copy_from_slice(&back[..n]);
            }
        }
        chain.finish_grad_tau(grad_tau);
        if let Some(grad_u) = grad_u {
            chain.v.write_gradient(s, grad_v, u, grad_u);
        }
        Ok(())
    }
}
