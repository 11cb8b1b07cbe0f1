//! Gradients, one reflection after the other.

use super::chain::Chain;
use super::vectors::{Registers, pad};
use super::{rows_between_looks, side_by_side};
use crate::diagonal::DiagonalSum;
use crate::error::Result;
use crate::gradients::Gradients;
use crate::memory::{Buffer, filled};
use crate::operator::Diagonal;
use crate::operator::Transform;
use crate::scalar::Scalar;
use crate::simd::isa::{InstructionSet, simd};
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
    /// Every state of the vectors that are reflected side by side: `x_i` of all of them, then `x_{i+1}`.
    states: Buffer<T>,
    factors: Vec<T>,
    grad_v: Buffer<T>,
    back: Buffer<T>,
    start: Buffer<T>,
}

impl<T: Scalar> Backward<T> {
    /// For `rows` vectors of size `n`.
    pub fn new(n: usize, k: usize, rows: usize) -> Result<Self> {
        let chain = Chain::new(n, k)?;
        let ld = chain.ld;
        let side = side_by_side::<T>(rows, (k + 1) * ld);
        Ok(Self {
            states: Buffer::zeroed(side * (k + 1) * ld)?,
            factors: filled(side * k, T::ZERO)?,
            grad_v: Buffer::zeroed(chain.ld_k * ld)?,
            back: Buffer::zeroed(side * ld)?,
            start: Buffer::zeroed(side * ld)?,
            chain,
        })
    }

    /// Gradients of `sum <g, W h>` over the rows of `h` and `g`, or of `W* h`. The caller has checked all sizes.
    pub fn run(
        &mut self,
        isa: InstructionSet,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        source: Source<'_, T>,
        g: &[T],
        gradients: Gradients<'_, T>,
    ) -> Result<()> {
        let Gradients { u: mut grad_u, h, tau, phases } = gradients;
        let mut sum = DiagonalSum::new(w.u.n(), w.diagonal)?;
        run(isa, self, cancel, w, source, g, [grad_u.as_deref_mut(), h, tau], &mut sum)?;
        sum.write(w.u, grad_u, phases);
        Ok(())
    }
}

simd! {
    fn run<T: Scalar>(
        s,
        workspace: &mut Backward<T>,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        source: Source<'_, T>,
        g: &[T],
        gradients: [Option<&mut [T]>; 3],
        sum: &mut DiagonalSum<T>,
    ) -> Result<()> {
        let (Transform { u, diagonal, adjoint }, [grad_u, mut grad_h, grad_tau]) = (w, gradients);
        let grad_tau = grad_tau.unwrap_or_default();
        grad_tau.fill(T::ZERO);
        let Backward { chain, states, factors, grad_v, back, start } = workspace;
        let (n, m, k, ld, ops) = (u.n(), u.m(), chain.k, chain.ld, Registers(s));
        chain.set_columns(s, u);
        if matches!(source, Source::Tape(_)) {
            chain.find_pivots();
        }
        let (steps, side) = (chain.steps(adjoint), back.len() / ld);
        let often = rows_between_looks(n, k).div_ceil(side);
        for (group, g) in g.chunks(side * n).enumerate() {
            if group % often == often - 1 {
                cancel.check()?;
            }
            let (first, rows) = (group * side, g.len() / n);
            let (back, start) = (&mut back[..rows * ld], &mut start[..rows * ld]);
            let (states, factors) = (&mut states[..rows * (k + 1) * ld], &mut factors[..rows * k]);
            for (r, g) in g.chunks_exact(n).enumerate() {
                let of = r * ld..(r + 1) * ld;
                let (x, back) = (&mut states[of.clone()], &mut back[of]);
                pad(x, source.vector(first + r, n, m));
                pad(back, g);
                diagonal.apply(if adjoint { &mut back[..n] } else { &mut x[..n] }, false);
            }
            start.copy_from_slice(if adjoint { back } else { &states[..rows * ld] });
            match source {
                Source::Vectors(_) => steps.forward_states(ops, states, factors),
                Source::Tape(tape) => {
                    // The tape's entries count down. `u_1` acts first in `W` and last in `W*`.
                    let after = if adjoint { m } else { k };
                    for (at, x) in states.chunks_exact_mut(ld).enumerate().skip(rows) {
                        let (i, row) = (at / rows, first + at % rows);
                        pad(x, &tape[(row * (m + 1) + after - i) * n..][..n]);
                        if let (true, Diagonal::Phases(_)) = (adjoint && i == k, diagonal) {
                            diagonal.apply(&mut x[..n], false); // entry 0 is D* x_k
                        }
                    }
                    steps.recall_factors(ops, states, factors);
                }
            }
            steps.backward(ops, states, factors, back, grad_v, grad_tau, group == 0);
            let last = states[rows * k * ld..].chunks_exact(ld);
            for (r, ((back, start), (last, g))) in
                back.chunks_exact_mut(ld).zip(start.chunks_exact(ld)).zip(last.zip(g.chunks_exact(n))).enumerate()
            {
                let row = first + r;
                if adjoint {
                    sum.add(&last[..n], &start[..n], g);
                } else {
                    sum.add(&back[..n], &start[..n], source.vector(row, n, m));
                    diagonal.apply(&mut back[..n], true);
                }
                if let Some(grad_h) = grad_h.as_deref_mut() {
                    grad_h[row * n..(row + 1) * n].copy_from_slice(&back[..n]);
                }
            }
        }
        chain.finish_grad_tau(grad_tau);
        if let Some(grad_u) = grad_u {
            chain.v.write_gradient(s, grad_v, u, grad_u);
        }
        Ok(())
    }
}
