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
use crate::kernel::vector::{axpy, combine, dot};
use crate::memory::{Buffer, filled};
use crate::parallel::Context;
use crate::reflections::Reflections;
use crate::scalar::{Real, Scalar};
use crate::wy::CompactWy;

/// The arithmetic on vectors that Algorithm 1 consists of: SIMD kernels here, counted operations in a test of its flops.
pub trait Vectors<T>: Copy {
    /// `tau v* x`.
    fn project(self, tau: T, v: &[T], x: &[T]) -> T;
    /// `x - a v`, in place.
    fn subtract(self, a: T, v: &[T], x: &mut [T]);
    /// `(y - x) v_p^-1` at one entry.
    fn quotient(self, y: T, x: T, inverse: T) -> T;
    /// `-(conj(a) g + conj(b) x + i Im(conj(a) b) v)`, added to `grad` unless it is the `first` vector's.
    fn gradient(self, ax: (T, &[T]), bg: (T, &[T]), v: &[T], grad: &mut [T], first: bool);
}

impl<T: Scalar> Vectors<T> for InstructionSet {
    fn project(self, tau: T, v: &[T], x: &[T]) -> T {
        tau * dot(self, v, x)
    }

    fn subtract(self, a: T, v: &[T], x: &mut [T]) {
        axpy(self, -a, v, x);
    }

    fn quotient(self, y: T, x: T, inverse: T) -> T {
        (y - x) * inverse
    }

    fn gradient(self, (a, x): (T, &[T]), (b, g): (T, &[T]), v: &[T], grad: &mut [T], first: bool) {
        combine(self, (-a.conj(), g), (-b.conj(), x), grad, !first);
        if T::COMPLEX {
            let ab = a.conj() * b;
            axpy(self, -(ab - ab.conj()).scale(T::Real::of(0.5)), v, grad);
        }
    }
}

/// Reflections in order of application: column `v_j`, from its diagonal entry on, with `tau_j`. What is the same for all
/// vectors is computed before (the paper's `N`).
#[derive(Clone, Copy)]
pub struct Steps<'a, T> {
    /// Size of the vectors.
    pub n: usize,
    /// Columns, `ld` apart.
    pub v: &'a [T],
    /// Distance between columns.
    pub ld: usize,
    /// `2 / |v_j|^2`, zero for a zero column.
    pub tau: &'a [T],
    /// `(p, 1 / v_pj)` for the largest entry of each column.
    pub pivots: &'a [(usize, T)],
    /// `W*`: the first column is applied first.
    pub adjoint: bool,
}

impl<T: Copy> Steps<'_, T> {
    /// Column of the `i`-th reflection in order of application.
    fn column(&self, i: usize) -> usize {
        if self.adjoint { i } else { self.tau.len() - 1 - i }
    }

    /// `v_j` from its diagonal entry on.
    fn vector(&self, j: usize) -> &[T] {
        &self.v[j * self.ld + j..j * self.ld + self.n]
    }

    /// `a = tau v_i* x` and `x <- x - a v_i`.
    fn reflect(&self, ops: impl Vectors<T>, i: usize, x: &mut [T]) -> T {
        let j = self.column(i);
        let (v, x) = (self.vector(j), &mut x[j..]);
        let a = ops.project(self.tau[j], v, x);
        ops.subtract(a, v, x);
        a
    }

    /// All reflections of one vector.
    pub fn apply(&self, ops: impl Vectors<T>, x: &mut [T]) {
        for i in 0..self.tau.len() {
            self.reflect(ops, i, x);
        }
    }

    /// `states[0]` is given; makes `states[i]`, each `n` long, and the factors `a_i`.
    pub fn forward_states(&self, ops: impl Vectors<T>, states: &mut [T], factors: &mut [T]) {
        let n = self.n;
        for (i, factor) in factors.iter_mut().enumerate() {
            let (done, next) = states.split_at_mut((i + 1) * n);
            next[..n].copy_from_slice(&done[i * n..]);
            *factor = self.reflect(ops, i, &mut next[..n]);
        }
    }

    /// The factors from all states: `x_i - x_{i+1} = a_i v_i` at the largest entry of `v_i`.
    pub fn recall_factors(&self, ops: impl Vectors<T>, states: &[T], factors: &mut [T]) {
        for (i, factor) in factors.iter_mut().enumerate() {
            let (p, inverse) = self.pivots[self.column(i)];
            *factor = ops.quotient(states[i * self.n + p], states[(i + 1) * self.n + p], inverse);
        }
    }

    /// Takes `g` back to the first state and adds to `dL/dV` (overwrites it with the `first` vector's). `states` hold
    /// `x_0 .. x_{k-1}`.
    pub fn backward(
        &self,
        ops: impl Vectors<T>,
        states: &[T],
        factors: &[T],
        g: &mut [T],
        grad_v: &mut [T],
        first: bool,
    ) {
        let n = self.n;
        for i in (0..factors.len()).rev() {
            let j = self.column(i);
            let b = self.reflect(ops, i, g);
            let (x, grad) = (&states[i * n + j..(i + 1) * n], &mut grad_v[j * self.ld + j..j * self.ld + n]);
            ops.gradient((factors[i], x), (b, &g[j..]), self.vector(j), grad, first);
        }
    }
}

/// Unit columns and what their [`Steps`] need.
struct Chain<T: Scalar> {
    wy: CompactWy<T>,
    tau: Vec<T>,
    pivots: Vec<(usize, T)>,
    adjoint: bool,
}

impl<T: Scalar> Chain<T> {
    fn new(u: Reflections<'_, T>, adjoint: bool) -> Result<Self> {
        let wy = CompactWy::unit_columns(u)?;
        let mut tau = filled(wy.k, T::ZERO)?;
        for (j, tau) in tau.iter_mut().enumerate() {
            let square: f64 = column(&wy, j).iter().map(|x| x.widen().abs2()).sum();
            *tau = T::from_real(T::Real::of(if square == 0.0 { 0.0 } else { 2.0 / square }));
        }
        Ok(Self { wy, tau, pivots: Vec::new(), adjoint })
    }

    /// Also finds the pivots, for states from a tape.
    fn with_pivots(mut self) -> Result<Self> {
        self.pivots = filled(self.wy.k, (0, T::ZERO))?;
        for (j, pivot) in self.pivots.iter_mut().enumerate() {
            let mut largest = T::Real::ZERO;
            for (p, x) in column(&self.wy, j).iter().enumerate() {
                if !(x.abs2() <= largest) {
                    largest = x.abs2();
                    *pivot = (p, x.conj().scale(T::Real::ONE / largest));
                }
            }
        }
        Ok(self)
    }

    fn steps(&self) -> Steps<'_, T> {
        let Self { wy, tau, pivots, adjoint } = self;
        Steps { n: wy.n, v: &wy.v, ld: wy.ld_n(), tau, pivots, adjoint: *adjoint }
    }
}

/// Column `j` of `V`.
fn column<T: Scalar>(wy: &CompactWy<T>, j: usize) -> &[T] {
    &wy.v[j * wy.ld_n()..j * wy.ld_n() + wy.n]
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
        chain.steps().apply(isa, x);
        if adjoint {
            diagonal.apply(x, true);
        }
    }
    Ok(())
}

/// Writes `W`, row-major: `W <- H_j W` from the last reflection to the first, on the rows and columns that it changes.
pub fn matrix<T: Scalar>(
    isa: InstructionSet,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    w: &mut [T],
) -> Result<()> {
    let (n, k) = (u.n(), u.count());
    let factors = u.normalizers()?;
    let mut v = filled(n, T::ZERO)?;
    let mut product = filled(n, T::ZERO)?;
    isa.dispatch(
        #[inline(always)]
        || {
            w.fill(T::ZERO);
            for i in 0..n {
                w[i * n + i] = T::ONE;
            }
            for j in (0..k).rev() {
                let mut square = 0.0;
                for (i, v) in v.iter_mut().enumerate().skip(j) {
                    *v = T::narrow(u.row(i)[j].widen().scale(factors.scale[j]).scale(factors.inverse[j]));
                    square += v.widen().abs2();
                }
                let tau = T::Real::of(if square == 0.0 { 0.0 } else { 2.0 / square });
                // product = tau v* W, and W -= v product; from a whole register on, where columns before j hold zeros
                let begin = j / 16 * 16;
                let product = &mut product[begin..n];
                product.fill(T::ZERO);
                for i in j..n {
                    let (v, row) = (v[i].conj().scale(tau), &w[i * n + begin..(i + 1) * n]);
                    for (sum, &x) in product.iter_mut().zip(row) {
                        *sum += v * x;
                    }
                }
                for i in j..n {
                    let (v, row) = (v[i], &mut w[i * n + begin..(i + 1) * n]);
                    for (x, &sum) in row.iter_mut().zip(product.iter()) {
                        *x -= v * sum;
                    }
                }
            }
        },
    );
    // Column j times d_j: the rows of W have it at entry j.
    w.chunks_exact_mut(n).for_each(|row| diagonal.apply(row, false));
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
    let mut chain = Chain::new(u, adjoint)?;
    if matches!(source, Source::Tape(_)) {
        chain = chain.with_pivots()?;
    }
    let (n, m, k) = (u.n(), u.m(), chain.wy.k);
    let steps = chain.steps();
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
            Source::Vectors(_) => steps.forward_states(isa, &mut states, &mut factors),
            Source::Tape(tape) => {
                // Entries count down; u_1, one of the m factors, acts before the first reflection of W, after the last of W*.
                let after = if adjoint { m } else { k };
                for i in 1..=k {
                    let entry = &tape[(row * (m + 1) + after - i) * n..][..n];
                    states[i * n..(i + 1) * n].copy_from_slice(entry);
                }
                if let (true, Diagonal::Phases(_)) = (adjoint, diagonal) {
                    diagonal.apply(&mut states[k * n..], false); // entry 0 is D* x_k
                }
                steps.recall_factors(isa, &states, &mut factors);
            }
        }
        start.copy_from_slice(if adjoint { &back } else { &states[..n] });
        steps.backward(isa, &states, &factors, &mut back, &mut grad_v, row == 0);
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
    let steps = chain.steps();
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
            steps.reflect(isa, i, &mut tape[to..to + n]);
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
