//! Algorithm 1: one reflection after the other, with `tau = 2 / |v|^2` for unit columns `v` as they were rounded.
//!
//! ```text
//! forward:   x_0 = h,   a_i = tau v_i* x_i,   x_{i+1} = x_i - a_i v_i           i in the order of application
//! backward:  b_i = tau v_i* g,   g <- g - b_i v_i,   dL/dv_i -= conj(a_i) g + conj(b_i) x_i + i Im(conj(a_i) b_i) v_i
//! ```
//!
//! in reverse order; the last term, zero for real numbers, keeps the gradient orthogonal to `v_i`.
//!
//! The states `x_i` are either made again or read from the tape that the forward pass stored.

use crate::apply::{Diagonal, DiagonalSum, Gradients};
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::vector::{axpy, dot};
use crate::memory::{Buffer, filled};
use crate::parallel::Context;
use crate::reflections::Reflections;
use crate::scalar::{Real, Scalar};
use crate::wy::CompactWy;

/// Unit columns and their `tau`.
struct Chain<T: Scalar> {
    wy: CompactWy<T>,
    tau: Vec<T::Real>,
    /// `W*`: the first column is applied first.
    adjoint: bool,
}

impl<T: Scalar> Chain<T> {
    fn new(u: Reflections<'_, T>, adjoint: bool) -> Result<Self> {
        let wy = CompactWy::unit_columns(u)?;
        let mut tau = filled(wy.k, T::Real::ZERO)?;
        for (j, tau) in tau.iter_mut().enumerate() {
            let column = &wy.v[j * wy.ld_n() + j..j * wy.ld_n() + wy.n];
            let square: f64 = column.iter().map(|x| x.widen().abs2()).sum();
            *tau = T::Real::of(if square == 0.0 { 0.0 } else { 2.0 / square });
        }
        Ok(Self { wy, tau, adjoint })
    }

    /// Column of the `i`-th reflection in order of application.
    fn column(&self, i: usize) -> usize {
        if self.adjoint { i } else { self.wy.k - 1 - i }
    }

    /// `a = tau v_j* x` and `x <- x - a v_j`.
    fn reflect(&self, isa: InstructionSet, j: usize, x: &mut [T]) -> T {
        let v = self.vector(j);
        let x = &mut x[j..];
        let a = dot(isa, v, x).scale(self.tau[j]);
        axpy(isa, -a, v, x);
        a
    }

    /// `v_j` from its diagonal entry on.
    fn vector(&self, j: usize) -> &[T] {
        &self.wy.v[j * self.wy.ld_n() + j..][..self.wy.n - j]
    }

    /// `states[0]` is given; makes `states[i]`, each `n` long, and the factors `a_i`.
    fn forward_states(&self, isa: InstructionSet, states: &mut [T], factors: &mut [T]) {
        let n = self.wy.n;
        for (i, factor) in factors.iter_mut().enumerate() {
            let (done, next) = states.split_at_mut((i + 1) * n);
            next[..n].copy_from_slice(&done[i * n..]);
            *factor = self.reflect(isa, self.column(i), &mut next[..n]);
        }
    }

    /// `states[1..]` and the factors from the tape of row `row`; `states[0]` is given.
    fn recall_states(
        &self,
        isa: InstructionSet,
        row: usize,
        m: usize,
        tape: &[T],
        states: &mut [T],
        factors: &mut [T],
    ) {
        let (n, k) = (self.wy.n, self.wy.k);
        let tape = &tape[row * (m + 1) * n..(row + 1) * (m + 1) * n];
        // u_1, one of the m factors, acts before the first reflection of W and after the last one of W*.
        let before = if self.adjoint { 0 } else { m - k };
        for i in 1..k {
            let entry = m - before - i;
            states[i * n..(i + 1) * n].copy_from_slice(&tape[entry * n..(entry + 1) * n]);
        }
        for i in 0..k {
            let j = self.column(i);
            factors[i] = dot(isa, self.vector(j), &states[i * n + j..(i + 1) * n]).scale(self.tau[j]);
        }
        if let Some(last) = k.checked_sub(1) {
            states.copy_within(last * n..k * n, k * n);
            let j = self.column(last);
            axpy(isa, -factors[last], self.vector(j), &mut states[k * n + j..]);
        }
    }

    /// Takes `g` back to the first state and subtracts from `dL/dV`. `states` hold `x_0 .. x_{k-1}`.
    fn backward_states(&self, isa: InstructionSet, states: &[T], factors: &[T], g: &mut [T], grad_v: &mut [T]) {
        let (n, ld) = (self.wy.n, self.wy.ld_n());
        for i in (0..self.wy.k).rev() {
            let j = self.column(i);
            let b = self.reflect(isa, j, g);
            let grad = &mut grad_v[j * ld + j..];
            axpy(isa, -factors[i].conj(), &g[j..], grad);
            axpy(isa, -b.conj(), &states[i * n + j..(i + 1) * n], grad);
            if T::COMPLEX {
                let ab = factors[i].conj() * b;
                axpy(isa, -(ab - ab.conj()).scale(T::Real::of(0.5)), self.vector(j), grad);
            }
        }
    }
}

/// `out = W h` for each row, or `W* h`.
pub fn forward<T: Scalar>(
    isa: InstructionSet,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    out: &mut [T],
    adjoint: bool,
) -> Result<()> {
    let chain = Chain::new(u, adjoint)?;
    out.copy_from_slice(h);
    for x in out.chunks_mut(u.n()) {
        if !adjoint {
            diagonal.apply(x, false);
        }
        for i in 0..chain.wy.k {
            chain.reflect(isa, chain.column(i), x);
        }
        if adjoint {
            diagonal.apply(x, true);
        }
    }
    Ok(())
}

/// The vectors `h`, alone or with every state of the forward pass.
#[derive(Clone, Copy)]
enum Source<'a, T> {
    /// `(rows, n)`.
    Vectors(&'a [T]),
    /// `(rows, m + 1, n)`: entry `m` is `h`, entry 0 is `c`, see [`forward_tape`].
    Tape(&'a [T]),
}

impl<'a, T: Scalar> Source<'a, T> {
    /// `h` of one row.
    fn vector(self, row: usize, n: usize, m: usize) -> &'a [T] {
        match self {
            Self::Vectors(h) => &h[row * n..(row + 1) * n],
            Self::Tape(tape) => &tape[(row * (m + 1) + m) * n..][..n],
        }
    }
}

/// Gradients, the states made again.
pub fn backward<T: Scalar>(
    isa: InstructionSet,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    backward_from(isa, u, diagonal, Source::Vectors(h), g, gradients, adjoint)
}

fn backward_from<T: Scalar>(
    isa: InstructionSet,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    source: Source<'_, T>,
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    let chain = Chain::new(u, adjoint)?;
    let (n, m, k) = (u.n(), u.m(), chain.wy.k);
    let mut states = Buffer::zeroed((k + 1) * n)?;
    let mut factors = filled(k, T::ZERO)?;
    let mut grad_v = Buffer::zeroed(k * chain.wy.ld_n())?;
    let mut sum = DiagonalSum::new(n, diagonal)?;
    let (mut back, mut start) = (filled(n, T::ZERO)?, filled(n, T::ZERO)?);
    let Gradients { u: mut grad_u, h: mut grad_h, phases: grad_phases } = gradients;
    for (row, g) in g.chunks(n).enumerate() {
        let h = source.vector(row, n, m);
        states[..n].copy_from_slice(h);
        back.copy_from_slice(g);
        diagonal.apply(if adjoint { &mut back } else { &mut states[..n] }, false);
        match source {
            Source::Vectors(_) => chain.forward_states(isa, &mut states, &mut factors),
            Source::Tape(tape) => chain.recall_states(isa, row, m, tape, &mut states, &mut factors),
        }
        start.copy_from_slice(if adjoint { &back } else { &states[..n] });
        chain.backward_states(isa, &states, &factors, &mut back, &mut grad_v);
        if adjoint {
            sum.add(&states[k * n..], &start, g);
        } else {
            sum.add(&back, &start, h);
            diagonal.apply(&mut back, true);
        }
        if let Some(grad_h) = grad_h.as_deref_mut() {
            grad_h[row * n..(row + 1) * n].copy_from_slice(&back);
        }
    }
    if let Some(grad_u) = grad_u.as_deref_mut() {
        chain.wy.write_gradient(&grad_v, u, grad_u);
    }
    sum.write(u, grad_u, grad_phases);
    Ok(())
}

/// Algorithm 1 in its stored mode: `tape (rows, m + 1, n)` receives, for each row, `h` in entry `m`, the state after `i`
/// factors of `W` (or `W*`) in entry `m - i`, and the result in entry 0. Phases, which are not among the `m` factors,
/// act between entry `m` and the first reflection, or between the last and entry 0.
pub fn forward_tape<T: Scalar>(
    context: &Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    tape: &mut [T],
    adjoint: bool,
) -> Result<()> {
    let isa = context.isa;
    let chain = Chain::new(u, adjoint)?;
    let (n, m) = (u.n(), u.m());
    let counts_diagonal = matches!(diagonal, Diagonal::Last(_));
    for (h, tape) in h.chunks(n).zip(tape.chunks_mut((m + 1) * n)) {
        let mut at = m;
        tape[m * n..].copy_from_slice(h);
        let mut advance = |tape: &mut [T]| {
            tape.copy_within(at * n..(at + 1) * n, (at - 1) * n);
            at -= 1;
            at * n
        };
        if counts_diagonal && !adjoint {
            let to = advance(tape);
            diagonal.apply(&mut tape[to..to + n], false);
        }
        for i in 0..chain.wy.k {
            let to = advance(tape);
            if i == 0 && !adjoint && !counts_diagonal {
                diagonal.apply(&mut tape[to..to + n], false);
            }
            chain.reflect(isa, chain.column(i), &mut tape[to..to + n]);
        }
        if counts_diagonal && adjoint {
            advance(tape);
        }
        if adjoint {
            diagonal.apply(&mut tape[..n], true);
        }
    }
    Ok(())
}

/// Gradients from the tape of [`forward_tape`].
pub fn backward_tape<T: Scalar>(
    context: &Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    tape: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    backward_from(context.isa, u, diagonal, Source::Tape(tape), g, gradients, adjoint)
}
