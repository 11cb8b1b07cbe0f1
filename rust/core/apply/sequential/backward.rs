//! Gradients, one reflection after the other.

use super::columns::ReflectionColumns;
use super::vectors::{Registers, pad};
use super::{PANEL, panels, side_by_side};
use crate::apply::CHUNK;
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::operator::diagonal::DiagonalSum;
use crate::operator::gradients::Gradients;
use crate::operator::{Diagonal, Transform};
use crate::simd::isa::simd;
use crate::threads::Cancel;

/// The vectors `h`, alone or with every state of the forward pass.
#[derive(Clone, Copy)]
pub enum Source<'a, T> {
    /// `(rows, n)`.
    Vectors(&'a [T]),
    /// `(rows, m + 1, n)`: entry `m` is `h`, entry 0 is `c`, see [`super::forward_tape`].
    Tape(&'a [T]),
}

/// Vector `i` of `n` numbers.
#[inline(always)]
fn vector<T>(vectors: &[T], n: usize, i: usize) -> &[T] {
    &vectors[i * n..][..n]
}

impl<'a, T: Scalar> Source<'a, T> {
    /// `h` of one row.
    #[inline(always)]
    fn vector(self, row: usize, n: usize, m: usize) -> &'a [T] {
        match self {
            Self::Vectors(h) => vector(h, n, row),
            Self::Tape(tape) => vector(tape, n, row * (m + 1) + m),
        }
    }
}

/// Workspace for the gradients of applications of products of `k` reflections.
pub struct Backward<T: Scalar> {
    columns: ReflectionColumns<T>,
    /// The current states `x_i` of some vectors, and their gradients.
    x: Buffer<T>,
    g: Buffer<T>,
    /// A factor for each reflection and vector.
    factors: Buffer<T>,
    /// `dL/dV` of a panel.
    grad_v: Buffer<T>,
    /// `D h` of one vector.
    turned: Buffer<T>,
}

impl<T: Scalar> Backward<T> {
    /// For `rows` vectors of size `n`.
    pub fn new(n: usize, k: usize, rows: usize) -> Result<Self> {
        let (width, ld, rows) = (k.min(PANEL), padded::<T>(n), rows.min(CHUNK));
        Ok(Self {
            columns: ReflectionColumns::new(n, width)?,
            x: Buffer::zeroed(rows * ld)?,
            g: Buffer::zeroed(rows * ld)?,
            factors: Buffer::zeroed(rows * k)?,
            grad_v: Buffer::zeroed(ReflectionColumns::<T>::len(n, width))?,
            turned: Buffer::zeroed(n)?,
        })
    }
}

simd! {
    /// Gradients of `sum <g, W h>` over the rows of `h` and `g`, or of `W* h`. The caller has checked all sizes.
    pub fn backward<T: Scalar>(
        s,
        workspace: &mut Backward<T>,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        source: Source<'_, T>,
        of_all: &[T],
        gradients: Gradients<'_, T>,
    ) -> Result<()> {
        let Transform { u, diagonal, adjoint } = w;
        let Gradients { u: mut grad_u, h: mut grad_h, tau: grad_tau, phases: grad_phases } = gradients;
        let mut sum = DiagonalSum::new(u.n(), diagonal)?;
        let grad_tau = grad_tau.unwrap_or_default();
        grad_tau.fill(T::ZERO);
        let Backward { columns, x, g: back, factors, grad_v, turned } = workspace;
        let (n, m, k, ld, ops) = (u.n(), u.m(), u.count(), padded::<T>(u.n()), Registers(s));
        // A tape's entries count down. `u_1` acts first in `W` and last in `W*`.
        let after = if adjoint { m } else { k };
        let entry = |row: usize, i: usize| row * (m + 1) + after - i;
        let mut looks = 0; // none in small problems, where it would take as long as the work
        for (chunk, g) in of_all.chunks(CHUNK * n).enumerate() {
            let (first_row, rows) = (chunk * CHUNK, g.len() / n);
            let (x, back) = (&mut x[..rows * ld], &mut back[..rows * ld]);
            let (factors, side) = (&mut factors[..rows * k], side_by_side::<T>(rows, 2 * ld));
            for (r, (x, (back, g))) in
                x.chunks_exact_mut(ld).zip(back.chunks_exact_mut(ld).zip(g.chunks_exact(n))).enumerate()
            {
                match source {
                    Source::Vectors(h) => {
                        pad(x, vector(h, n, first_row + r));
                        if !adjoint {
                            diagonal.apply(&mut x[..n], false);
                        }
                    }
                    Source::Tape(tape) => {
                        pad(x, vector(tape, n, entry(first_row + r, k)));
                        if let (true, Diagonal::Phases(_)) = (adjoint, diagonal) {
                            diagonal.apply(&mut x[..n], false); // entry 0 is D* x_k
                        }
                    }
                }
                pad(back, g);
                if adjoint {
                    diagonal.apply(&mut back[..n], false);
                }
            }
            if let Source::Vectors(_) = source {
                for panel in panels(k, adjoint) {
                    if looks > 0 {
                        cancel.check()?;
                    }
                    looks += 1;
                    let first = u.form().first(panel.start);
                    let before = if adjoint { panel.start } else { k - panel.end };
                    columns.set(s, u.columns(panel.start, panel.end))?;
                    let steps = columns.steps(adjoint);
                    for (group, x) in x.chunks_mut(side * ld).enumerate() {
                        steps.apply(
                            ops,
                            &mut x[first..],
                            ld,
                            #[inline(always)]
                            |i, r, _, factor| factors[(before + i) * rows + group * side + r] = factor,
                        );
                    }
                }
            }
            if adjoint && !diagonal.is_one() {
                for (x, (back, g)) in x.chunks_exact(ld).zip(back.chunks_exact(ld).zip(g.chunks_exact(n))) {
                    sum.add(&x[..n], &back[..n], g);
                }
            }
            for (number, panel) in panels(k, adjoint).rev().enumerate() {
                if looks > 1 {
                    cancel.check()?;
                }
                looks += 1;
                let part = u.columns(panel.start, panel.end);
                let first = u.form().first(panel.start);
                let before = if adjoint { panel.start } else { k - panel.end };
                match source {
                    Source::Vectors(_) if number == 0 => {} // still laid out
                    Source::Vectors(_) => columns.set(s, part)?,
                    Source::Tape(_) => {
                        columns.set(s, part)?;
                        columns.find_pivots();
                    }
                }
                let steps = columns.steps(adjoint);
                let grad_tau = grad_tau.get_mut(panel.clone()).unwrap_or_default();
                for (group, (x, back)) in x.chunks_mut(side * ld).zip(back.chunks_mut(side * ld)).enumerate() {
                    let (x, back) = (&mut x[first..], &mut back[first..]);
                    steps.backward(
                        ops,
                        x,
                        back,
                        ld,
                        grad_v,
                        grad_tau,
                        group == 0,
                        #[inline(always)]
                        |i, r, x| match source {
                            Source::Vectors(_) => {
                                let factor = factors[(before + i) * rows + group * side + r];
                                steps.recover(ops, i, factor, x);
                                factor
                            }
                            Source::Tape(tape) => {
                                let row = first_row + group * side + r;
                                let mut state = vector(tape, n, entry(row, before + i));
                                if before + i == 0 && !adjoint {
                                    turned.copy_from_slice(source.vector(row, n, m));
                                    diagonal.apply(turned, false);
                                    state = turned;
                                }
                                steps.recall(ops, i, &state[first..], x)
                            }
                        },
                    );
                }
                if (first_row + rows) * n == of_all.len() {
                    columns.finish_grad_tau(grad_tau);
                }
                if let Some(grad_u) = grad_u.as_deref_mut() {
                    grad_u.chunks_exact_mut(m).take(first).for_each(|row| row[panel.clone()].fill(T::ZERO));
                    columns.write_gradient(s, grad_v, part, &mut grad_u[first * m + panel.start..], chunk > 0);
                }
            }
            for (r, back) in back.chunks_exact_mut(ld).enumerate() {
                let row = first_row + r;
                if !adjoint && !diagonal.is_one() {
                    let h = source.vector(row, n, m);
                    turned.copy_from_slice(h);
                    diagonal.apply(turned, false);
                    sum.add(&back[..n], turned, h);
                    diagonal.apply(&mut back[..n], true);
                }
                if let Some(grad_h) = grad_h.as_deref_mut() {
                    grad_h[row * n..(row + 1) * n].copy_from_slice(&back[..n]);
                }
            }
        }
        if let (Some(_), Some(grad_u)) = (u.u1(), grad_u.as_deref_mut()) {
            grad_u.chunks_exact_mut(m).take(n - 1).for_each(|row| row[k] = T::ZERO);
        }
        sum.write(u, grad_u, grad_phases);
        Ok(())
    }
}
