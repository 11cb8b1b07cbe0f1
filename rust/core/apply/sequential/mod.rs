//! Algorithm 1: one reflection after the other, with `tau = 2 / |v|^2` or as given.
//!
//! ```text
//! forward:   x_0 = h,   a_i = tau v_i* x_i,   x_{i+1} = x_i - a_i v_i           i in the order of application
//! backward:  b_i = tau v_i* g,   g <- g - b_i v_i,   dL/dv_i -= conj(a_i) g + conj(b_i) x_i + i Im(conj(a_i) b_i) v_i
//! ```
//!
//! in reverse order; the last term, zero for real numbers, keeps the gradient orthogonal to `v_i`. Where `tau` is given, it is
//! `conj(a_i) b_i v_i`, back goes `conj(tau)`, and `dL/dtau_i = -(v_i* g) conj(v_i* x_i)`, with `g` in front of the update.
//!
//! The states `x_i` are read from the tape that a forward pass stored. Without a tape the `a_i` are kept, and the states are
//! recovered from the last one, `x_i = x_{i+1} + a_i v_i`: two flops more for each entry of `U`, and `m` times less memory.
//!
//! Problems that are solved like this are small and often many. Each is computed within one dispatch to the instruction set,
//! on vectors padded to whole registers. All problems of a thread share a workspace.
//!
//! A reflection of a short vector mostly waits for its sum `v* x`. Each is therefore applied to several vectors before the
//! next one: the processor works on one vector while the sum of another is under way.
//!
//! Without a tape, real vectors go through four reflections at a time (`groups`): at least four vectors, and 512 numbers in
//! all. Many reflections are laid out panel by panel, so that nothing of the size of `U` is written.

mod backward;
pub(super) mod columns;
mod forward;
mod groups;
mod sweep;
pub(crate) mod tape;
pub(super) mod vectors;

use std::ops::Range;

pub use backward::{Backward, SLICE, Source, backward, backward_on_threads};
pub use forward::{Forward, forward, forward_on_threads};
use pulp::Simd;
pub use sweep::Swept;
pub use tape::{backward_tape, forward_tape};
use vectors::Registers;

use crate::arrays::view::Shape;
use crate::numbers::scalar::Scalar;
use crate::operator::Form;

/// Some reflections in order of application: columns `v_j`, zero before their first entry, with `tau_j`. What is the same
/// for all vectors is computed before (the paper's `N`). Vectors begin with the first coordinate of column 0.
#[derive(Clone, Copy)]
pub struct ReflectionSteps<'a, T> {
    /// Size of the vectors.
    pub n: usize,
    /// Columns, `ld` apart.
    pub v: &'a [T],
    /// Distance between columns.
    pub ld: usize,
    /// `2 / |v_j|^2`, zero for a zero column; or as given.
    pub tau: &'a [T],
    /// Whether it is given.
    pub given: bool,
    /// Where columns begin.
    pub form: Form,
    /// `(p, 1 / v_pj)` for the largest entry of each column.
    pub pivots: &'a [(usize, T)],
    /// `W*`: the first column is applied first.
    pub adjoint: bool,
}

impl<T: Scalar> ReflectionSteps<'_, T> {
    /// Column of the `i`-th reflection in order of application.
    #[inline(always)]
    fn column(&self, i: usize) -> usize {
        if self.adjoint { i } else { self.tau.len() - 1 - i }
    }

    /// Entries that reflection `j` reads: from the first one of its column on, in whole registers.
    #[inline(always)]
    fn range<S: Simd>(&self, _: Registers<S>, j: usize) -> Range<usize> {
        let lanes = T::lanes::<S>();
        self.form.first(j) / lanes * lanes..self.n.next_multiple_of(lanes)
    }

    /// These entries of `v_j`.
    #[inline(always)]
    fn vector(&self, ops: Registers<impl Simd>, j: usize) -> &[T] {
        &self.v[j * self.ld..][self.range(ops, j)]
    }

    /// `tau_j`, or `conj(tau_j)` for the adjoint.
    #[inline(always)]
    fn tau(&self, j: usize, adjoint: bool) -> T {
        if adjoint { self.tau[j].conj() } else { self.tau[j] }
    }

    /// `a_i` from a factor that [`ReflectionSteps::apply`] kept.
    #[inline(always)]
    fn a(&self, j: usize, factor: T) -> T {
        if self.given { self.tau(j, self.adjoint) * factor } else { factor }
    }

    /// `v_j* x`, `a = tau v_j* x` and `x <- x - a v_j`; with `conj(tau)` for the adjoint.
    #[inline(always)]
    pub fn reflect(&self, ops: Registers<impl Simd>, j: usize, x: &mut [T], adjoint: bool) -> (T, T) {
        let (v, x) = (self.vector(ops, j), &mut x[self.range(ops, j)]);
        let sum = ops.project(v, x);
        let a = self.tau(j, adjoint) * sum;
        ops.subtract(a, v, x);
        (sum, a)
    }

    /// Applies all reflections to some vectors, `ld` apart. Calls `keep` with the number of the reflection, that of the vector,
    /// `x_{i+1}` and a factor: `a_i`, or `v_i* x_i` where `tau` is given, whose gradient needs it.
    #[inline(always)]
    pub fn apply(
        &self,
        ops: Registers<impl Simd>,
        x: &mut [T],
        ld: usize,
        mut keep: impl FnMut(usize, usize, &mut [T], T),
    ) {
        for i in 0..self.tau.len() {
            for (row, x) in x.chunks_mut(ld).enumerate() {
                let (sum, a) = self.reflect(ops, self.column(i), x, self.adjoint);
                keep(i, row, x, if self.given { sum } else { a });
            }
        }
    }

    /// Puts `x_i = x_{i+1} + a_i v_i` in place of `x_{i+1}`.
    #[inline(always)]
    pub fn recover(&self, ops: Registers<impl Simd>, i: usize, factor: T, x: &mut [T]) {
        let j = self.column(i);
        ops.subtract(-self.a(j, factor), self.vector(ops, j), &mut x[self.range(ops, j)]);
    }

    /// Puts `x_i` from a tape in place of `x_{i+1}`. Returns the factor: `x_i - x_{i+1} = a_i v_i` at the largest entry of `v_i`,
    /// or `v_i* x_i` where `tau` is given.
    #[inline(always)]
    pub fn recall(&self, ops: Registers<impl Simd>, i: usize, state: &[T], x: &mut [T]) -> T {
        let j = self.column(i);
        let (p, inverse) = self.pivots[j];
        let after = x[p];
        x[..self.n].copy_from_slice(state);
        if self.given { ops.project(self.vector(ops, j), &x[self.range(ops, j)]) } else { (x[p] - after) * inverse }
    }

    /// Takes some `g` and the last states `x`, both `ld` apart, back to the first ones. Adds to `dL/dV` (overwrites it with the
    /// `first` vectors') and to `dL/dtau`, which is empty unless wanted. In front of a column's first entry `dL/dV` is
    /// unspecified. `back` takes a state from `x_{i+1}` to `x_i` and returns its factor, given the numbers of the reflection
    /// and of the vector.
    #[inline(always)]
    pub fn backward(
        &self,
        ops: Registers<impl Simd>,
        x: &mut [T],
        g: &mut [T],
        ld: usize,
        grad_v: &mut [T],
        grad_tau: &mut [T],
        first: bool,
        mut back: impl FnMut(usize, usize, &mut [T]) -> T,
    ) {
        for i in (0..self.tau.len()).rev() {
            let j = self.column(i);
            let (v, range) = (self.vector(ops, j), self.range(ops, j));
            let grad = &mut grad_v[j * self.ld..][range.clone()];
            for (row, (x, g)) in x.chunks_mut(ld).zip(g.chunks_mut(ld)).enumerate() {
                let factor = back(i, row, x);
                let (of_g, b) = self.reflect(ops, j, g, !self.adjoint);
                if let Some(grad) = grad_tau.get_mut(j) {
                    *grad += if self.adjoint { factor * -of_g.conj() } else { -of_g * factor.conj() };
                }
                let a = self.a(j, factor);
                ops.gradient((a, &x[range.clone()]), (b, &g[range.clone()]), (v, self.given), grad, first && row == 0);
            }
        }
    }
}

/// Reflections that are laid out at a time, so that they stay in the second-level cache for all vectors; whole registers.
const PANEL: usize = 32;

/// The panels of `k` reflections in order of application.
fn panels(k: usize, adjoint: bool) -> impl DoubleEndedIterator<Item = Range<usize>> {
    let count = k.div_ceil(PANEL);
    (0..count).map(move |i| {
        let begin = PANEL * if adjoint { i } else { count - 1 - i };
        begin..k.min(begin + PANEL)
    })
}

/// Whether `rows` vectors of size `n` are worth the factors of groups.
fn are_grouped<T: Scalar>((n, k): Shape, rows: usize) -> bool {
    !T::COMPLEX && k > 1 && rows >= 4.max(512_usize.div_ceil(n))
}

/// How many of `rows` vectors are reflected side by side, if each has so many numbers in memory: as many as hide the latency
/// of a sum and stay in the first-level cache, at least one.
fn side_by_side<T>(rows: usize, numbers: usize) -> usize {
    rows.min((1 << 15) / (numbers * size_of::<T>())).clamp(1, 8)
}

#[cfg(test)]
mod flops;
