//! What becomes of a finished sum, one register at a time.

use pulp::Simd;

use super::activation::Activation;
use super::dispatch::InstructionSet;
use super::element::Element;
use super::fetch::Fetch;
use super::gemm::{Both, Operand, Shape, Weights};
use super::tile::unroll;
use crate::scalar::Scalar;

/// `MRV` registers of one column; of the last, all lanes lie inside the matrix or only the first few.
#[derive(Clone, Copy)]
pub struct Lanes<S: Simd, T: Element, const MRV: usize> {
    s: S,
    partial: Option<T::Mask<S>>,
}

impl<S: Simd, T: Element, const MRV: usize> Lanes<S, T, MRV> {
    /// `count` lanes of the last register; full if that is all of them.
    #[inline(always)]
    pub fn first(s: S, count: usize) -> Self {
        Self { s, partial: (count < T::lanes::<S>()).then(|| T::mask(s, count)) }
    }
    /// Reads these lanes. The caller owns them at `p`.
    #[inline(always)]
    pub unsafe fn load(self, p: *const T) -> [T::V<S>; MRV] {
        let mut v = [T::splat(self.s, T::default()); MRV];
        unroll::<MRV>(
            #[inline(always)]
            |i| {
                let p = p.add(i * T::lanes::<S>());
                v[i] = match self.partial {
                    Some(mask) if i == MRV - 1 => T::masked_load(self.s, mask, p),
                    _ => T::load(self.s, p),
                };
            },
        );
        v
    }
    /// Writes these lanes. The caller owns them at `p`.
    #[inline(always)]
    pub unsafe fn store(self, p: *mut T, v: [T::V<S>; MRV]) {
        unroll::<MRV>(
            #[inline(always)]
            |i| {
                let p = p.add(i * T::lanes::<S>());
                match self.partial {
                    Some(mask) if i == MRV - 1 => T::masked_store(self.s, mask, p, v[i]),
                    _ => T::store(self.s, p, v[i]),
                }
            },
        );
    }
    /// Adds an optional operand. The caller owns its lanes.
    #[inline(always)]
    unsafe fn plus(self, v: [T::V<S>; MRV], operand: *const T) -> [T::V<S>; MRV] {
        if operand.is_null() {
            return v;
        }
        let (mut v, x) = (v, self.load(operand));
        unroll::<MRV>(
            #[inline(always)]
            |i| v[i] = T::plus(self.s, v[i], x[i]),
        );
        v
    }
}

/// Consumes the sums of a tile: rows `row..`, columns `col..`. All at once, so that what depends on the operands and the
/// activation is decided once for many registers.
pub trait Epilogue<T: Element>: Copy {
    /// Finishes and stores. Every address that the epilogue holds must be good for all rows and columns of the tile.
    unsafe fn finish<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    );

    /// What is fetched from memory meanwhile.
    fn fetch(&self) -> Fetch<T>;

    /// The product that ends with this epilogue, see [`super::gemm::gemm2`].
    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>);
}

/// Calls `f(j, column j of the sums)`.
#[inline(always)]
fn columns<V: Copy, const MRV: usize, const NR: usize>(sums: [[V; NR]; MRV], mut f: impl FnMut(usize, [V; MRV])) {
    unroll::<NR>(
        #[inline(always)]
        |j| {
            let mut v = [sums[0][j]; MRV];
            unroll::<MRV>(
                #[inline(always)]
                |i| v[i] = sums[i][j],
            );
            f(j, v);
        },
    );
}

/// A column-wise operand or result: entry `(row, col)` at `ptr[col * ld + row]`; absent if null.
#[derive(Clone, Copy)]
pub struct Columns<T> {
    /// First entry, or null.
    pub ptr: *mut T,
    /// Distance between columns.
    pub ld: usize,
}

impl<T> Columns<T> {
    /// An operand or a result.
    pub fn new(ptr: *const T, ld: usize) -> Self {
        Self { ptr: ptr.cast_mut(), ld }
    }
    /// No operand.
    pub fn none() -> Self {
        Self { ptr: std::ptr::null_mut(), ld: 0 }
    }
    /// The part that begins at `row` and `col`.
    #[inline(always)]
    pub unsafe fn from(self, row: usize, col: usize) -> Self {
        let ptr = if self.ptr.is_null() { self.ptr } else { self.ptr.add(col * self.ld + row) };
        Self { ptr, ..self }
    }
    /// Where column `j` begins; null if absent.
    #[inline(always)]
    pub fn column(self, j: usize) -> *mut T {
        self.ptr.wrapping_add(j * self.ld)
    }
}

/// `out = sum (+ add)`.
#[derive(Clone, Copy)]
pub struct Store<T> {
    /// Where the result goes.
    pub out: Columns<T>,
    /// Added; may be `out` itself.
    pub add: Columns<T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
}

impl<T> Store<T> {
    /// `out = sum`.
    pub fn new(out: Columns<T>) -> Self {
        Self { out, add: Columns::none(), fetch: Fetch::none() }
    }
    /// `out = sum + add`.
    pub fn plus(out: Columns<T>, add: Columns<T>) -> Self {
        Self { add, ..Self::new(out) }
    }
}

impl<T: Scalar> Epilogue<T> for Store<T> {
    #[inline(always)]
    fn fetch(&self) -> Fetch<T> {
        self.fetch
    }

    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>) {
        T::product(isa, shape, w, b, self);
    }

    #[inline(always)]
    unsafe fn finish<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        _: S,
        sums: [[T::V<S>; NR]; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    ) {
        let (out, add) = (self.out.from(row, col), self.add.from(row, col));
        columns(
            sums,
            #[inline(always)]
            |j, v| lanes.store(out.column(j), lanes.plus(v, add.column(j))),
        );
    }
}

/// One step of a recurrence, `h_t = phi(sum + h_{t-1} + x_t)`.
#[derive(Clone, Copy)]
pub struct Step<'a, T: Scalar> {
    /// `h_t`.
    pub out: Columns<T>,
    /// `h_{t-1}`, the identity part of `W = I + Q P*`; absent for a dense `W`.
    pub previous: Columns<T>,
    /// `x_t` where it is already projected.
    pub input: Columns<T>,
    /// `phi`.
    pub activation: Activation<'a, T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
}

impl<T: Scalar> Step<'_, T> {
    /// With an activation known where this is called.
    #[inline(always)]
    unsafe fn store<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        phi: Activation<'_, T>,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        (row, col): (usize, usize),
        lanes: Lanes<S, T, MRV>,
    ) {
        let [out, previous, input] = [self.out, self.previous, self.input].map(
            #[inline(always)]
            |operand| operand.from(row, col),
        );
        columns(
            sums,
            #[inline(always)]
            |j, v| {
                let v = lanes.plus(lanes.plus(v, previous.column(j)), input.column(j));
                lanes.store(out.column(j), phi.fused(s, v));
            },
        );
    }
}

impl<T: Scalar> Epilogue<T> for Step<'_, T> {
    #[inline(always)]
    fn fetch(&self) -> Fetch<T> {
        self.fetch
    }

    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>) {
        T::step(isa, shape, w, b, self);
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
        match self.activation {
            Activation::Relu => self.store(Activation::Relu, s, sums, at, lanes),
            Activation::LeakyRelu(slope) => self.store(Activation::LeakyRelu(slope), s, sums, at, lanes),
            _ => self.store(Activation::Identity, s, sums, at, lanes),
        }
    }
}

/// One step back, `delta_{t-1} = phi'(h_{t-1}) (sum + delta_t + dL/dh_{t-1})`; keeps a copy of `h_{t-1}`.
#[derive(Clone, Copy)]
pub struct StepBack<'a, T: Scalar> {
    /// `delta_{t-1}`.
    pub out: Columns<T>,
    /// `delta_t`, the identity part of `W* = I + P Q*`; absent for a dense `W`.
    pub next: Columns<T>,
    /// The loss's own gradient of `h_{t-1}`.
    pub grad: Columns<T>,
    /// `h_{t-1}`.
    pub h: Columns<T>,
    /// The copy of `h_{t-1}` for the parameter gradients.
    pub h_copy: Columns<T>,
    /// `phi`.
    pub activation: Activation<'a, T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
}

impl<T: Scalar> StepBack<'_, T> {
    /// With an activation known where this is called.
    #[inline(always)]
    unsafe fn store<S: Simd, const MRV: usize, const NR: usize>(
        &self,
        phi: Activation<'_, T>,
        s: S,
        sums: [[T::V<S>; NR]; MRV],
        (row, col): (usize, usize),
        lanes: Lanes<S, T, MRV>,
    ) {
        let [out, next, grad, h, h_copy] = [self.out, self.next, self.grad, self.h, self.h_copy].map(
            #[inline(always)]
            |operand| operand.from(row, col),
        );
        columns(
            sums,
            #[inline(always)]
            |j, v| {
                let state = lanes.load(h.column(j));
                lanes.store(h_copy.column(j), state);
                let v = lanes.plus(lanes.plus(v, next.column(j)), grad.column(j));
                lanes.store(out.column(j), phi.fused_gradient(s, v, state));
            },
        );
    }
}

impl<T: Scalar> Epilogue<T> for StepBack<'_, T> {
    #[inline(always)]
    fn fetch(&self) -> Fetch<T> {
        self.fetch
    }

    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>) {
        T::step_back(isa, shape, w, b, self);
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
        match self.activation {
            Activation::Relu => self.store(Activation::Relu, s, sums, at, lanes),
            Activation::LeakyRelu(slope) => self.store(Activation::LeakyRelu(slope), s, sums, at, lanes),
            Activation::Tanh => self.store(Activation::Tanh, s, sums, at, lanes),
            _ => self.store(Activation::Identity, s, sums, at, lanes),
        }
    }
}
