//! What a tile does with its finished sums, register by register.

use pulp::Simd;

use super::activation::{Activation, Phi, each};
use super::element::Element;
use super::fetch::Fetch;
use super::isa::InstructionSet;
use super::lanes::{Lanes, unroll};
use crate::arrays::view::{Shape, View, ViewMut};

/// Weights and operand of both parts of a sum.
pub type Terms<'a, T> = [[View<'a, T>; 2]; 2];

/// The products of a number type, one function for each epilogue. They are not generic, so that crates that use this one
/// need not compile all tiles again.
pub trait Tiles: Element {
    /// # Safety
    /// As of [`super::gemm::gemm2`].
    unsafe fn product(isa: InstructionSet, shape: Shape, terms: &Terms<'_, Self>, e: &Store<'_, Self>);
    /// # Safety
    /// As of [`super::gemm::gemm2`].
    unsafe fn step(isa: InstructionSet, shape: Shape, terms: &Terms<'_, Self>, e: &Step<'_, Self>);
    /// # Safety
    /// As of [`super::gemm::gemm2`].
    unsafe fn step_back(isa: InstructionSet, shape: Shape, terms: &Terms<'_, Self>, e: &StepBack<'_, Self>);
}

/// Consumes all sums of a tile at once: rows `row..`, columns `col..`. Choices that depend on the operands and the
/// activation are then made once for many registers.
pub trait Epilogue<T: Element>: Copy {
    /// Finishes and stores.
    ///
    /// # Safety
    /// Every address that the epilogue holds is good for all rows and columns of the tile.
    unsafe fn finish<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    );

    /// What to prefetch while the sums are computed.
    fn fetch(&self) -> Fetch<T>;

    /// The product that ends with this epilogue, see [`super::gemm::gemm2`].
    unsafe fn product(&self, isa: InstructionSet, shape: Shape, terms: &Terms<'_, T>);
}

/// Calls `f(j, column j of the sums)`.
#[inline(always)]
fn columns<V: Copy, const MRV: usize, const NR: usize>(sums: [[V; NR]; MRV], mut f: impl FnMut(usize, [V; MRV])) {
    unroll!(for j in 0..NR {
        let mut v = [sums[0][j]; MRV];
        unroll!(for i in 0..MRV {
            v[i] = sums[i][j];
        });
        f(j, v);
    });
}

/// `out = sum (+ factor add)`.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a, T> {
    /// Where the result goes.
    pub out: ViewMut<'a, T>,
    /// Added; may be `out` itself.
    pub add: View<'a, T>,
    /// A real number for each vector that is added; absent: one.
    pub factor: View<'a, T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
}

impl<'a, T> Store<'a, T> {
    /// `out = sum`.
    pub fn new(out: ViewMut<'a, T>) -> Self {
        Self { out, add: View::none(), factor: View::none(), fetch: Fetch::none() }
    }
    /// `out = sum + add`.
    pub fn plus(out: ViewMut<'a, T>, add: View<'a, T>) -> Self {
        Self { add, ..Self::new(out) }
    }
    /// `out_j = sum_j + factor_j add_j`.
    pub fn plus_scaled(out: ViewMut<'a, T>, add: View<'a, T>, factor: View<'a, T>) -> Self {
        Self { factor, ..Self::plus(out, add) }
    }
}

impl<T: Tiles> Epilogue<T> for Store<'_, T> {
    #[inline(always)]
    fn fetch(&self) -> Fetch<T> {
        self.fetch
    }

    unsafe fn product(&self, isa: InstructionSet, shape: Shape, terms: &Terms<'_, T>) {
        T::product(isa, shape, terms, self);
    }

    #[inline(always)]
    unsafe fn finish<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    ) {
        let (out, add) = (self.out.from(row, col), self.add.from(row, col));
        if self.factor.ptr.is_null() {
            columns(
                sums,
                #[inline(always)]
                |j, v| lanes.store(out.at(0, j), lanes.plus(v, add.at(0, j))),
            );
            return;
        }
        let factor = self.factor.from(0, col);
        columns(
            sums,
            #[inline(always)]
            |j, mut v| {
                let (add, factor) = (lanes.load(add.at(0, j)), T::splat(s, *factor.at(0, j)));
                unroll!(for i in 0..MRV {
                    v[i] = T::fma(s, add[i], factor, v[i]);
                });
                lanes.store(out.at(0, j), v);
            },
        );
    }
}

/// One step of a recurrence, `h_t = phi(sum + h_{t-1} + x_t)`.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a, T: Element> {
    /// `h_t`.
    pub out: ViewMut<'a, T>,
    /// `h_{t-1}`, the identity part of `W = I + Q P*`; absent for a dense `W`.
    pub previous: View<'a, T>,
    /// `x_t` where it is already projected.
    pub input: View<'a, T>,
    /// `phi`.
    pub activation: Activation<'a, T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
}

impl<T: Tiles> Step<'_, T> {
    /// Stores a tile with the nonlinearity `phi`.
    ///
    /// # Safety
    /// As of [`Epilogue::finish`].
    #[inline(always)]
    unsafe fn store<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        phi: impl Phi<T>,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        (row, col): (usize, usize),
        lanes: Lanes<S, T, MRV>,
    ) {
        let out = self.out.from(row, col);
        let [previous, input] = [self.previous, self.input].map(
            #[inline(always)]
            |operand| operand.from(row, col),
        );
        columns(
            sums,
            #[inline(always)]
            |j, v| {
                let mut v = lanes.plus(lanes.plus(v, previous.at(0, j)), input.at(0, j));
                unroll!(for i in 0..MRV {
                    v[i] = phi.value(s, v[i]);
                });
                lanes.store(out.at(0, j), v);
            },
        );
    }
}

impl<T: Tiles> Epilogue<T> for Step<'_, T> {
    #[inline(always)]
    fn fetch(&self) -> Fetch<T> {
        self.fetch
    }

    unsafe fn product(&self, isa: InstructionSet, shape: Shape, terms: &Terms<'_, T>) {
        T::step(isa, shape, terms, self);
    }

    #[inline(always)]
    unsafe fn finish<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    ) {
        let at = (row, col);
        each!(T where IN_TILES, self.activation, phi => self.store(phi, s, sums, at, lanes));
    }
}

/// One step back, `delta_{t-1} = phi'(h_{t-1}) (sum + delta_t + dL/dh_{t-1})`; keeps a copy of `h_{t-1}`.
#[derive(Clone, Copy, Debug)]
pub struct StepBack<'a, T: Element> {
    /// `delta_{t-1}`.
    pub out: ViewMut<'a, T>,
    /// `delta_t`, the identity part of `W* = I + P Q*`; absent for a dense `W`.
    pub next: View<'a, T>,
    /// The loss's own gradient of `h_{t-1}`.
    pub grad: View<'a, T>,
    /// `h_{t-1}`.
    pub h: View<'a, T>,
    /// The copy of `h_{t-1}` for the parameter gradients.
    pub h_copy: ViewMut<'a, T>,
    /// `phi`.
    pub activation: Activation<'a, T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
}

impl<T: Tiles> StepBack<'_, T> {
    /// Stores a tile with the nonlinearity `phi`.
    ///
    /// # Safety
    /// As of [`Epilogue::finish`].
    #[inline(always)]
    unsafe fn store<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        phi: impl Phi<T>,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        (row, col): (usize, usize),
        lanes: Lanes<S, T, MRV>,
    ) {
        let (out, h_copy) = (self.out.from(row, col), self.h_copy.from(row, col));
        let [next, grad, h] = [self.next, self.grad, self.h].map(
            #[inline(always)]
            |operand| operand.from(row, col),
        );
        columns(
            sums,
            #[inline(always)]
            |j, v| {
                let state = lanes.load(h.at(0, j));
                lanes.store(h_copy.at(0, j), state);
                let mut v = lanes.plus(lanes.plus(v, next.at(0, j)), grad.at(0, j));
                unroll!(for i in 0..MRV {
                    v[i] = phi.gradient(s, v[i], state[i]);
                });
                lanes.store(out.at(0, j), v);
            },
        );
    }
}

impl<T: Tiles> Epilogue<T> for StepBack<'_, T> {
    #[inline(always)]
    fn fetch(&self) -> Fetch<T> {
        self.fetch
    }

    unsafe fn product(&self, isa: InstructionSet, shape: Shape, terms: &Terms<'_, T>) {
        T::step_back(isa, shape, terms, self);
    }

    #[inline(always)]
    unsafe fn finish<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    ) {
        let at = (row, col);
        each!(T where GRADIENT_IN_TILES, self.activation, phi => self.store(phi, s, sums, at, lanes));
    }
}
