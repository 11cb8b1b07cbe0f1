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

/// Consumes the sums of one column of a tile: rows `row..`, column `col`. Column by column, so that what depends on the
/// operands and the activation is decided once for several registers.
pub trait Epilogue<T: Element>: Copy {
    /// Finishes and stores. Every address that the epilogue holds must be good for `row` and `col`.
    unsafe fn finish<S: Simd, const MRV: usize>(
        &self,
        s: S,
        sums: [T::V<S>; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    );

    /// What is fetched from memory meanwhile.
    fn fetch(&self) -> Fetch<T>;

    /// The product that ends with this epilogue, see [`super::gemm::gemm2`].
    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>);
}

/// A column-wise operand or result: entry `(row, col)` at `ptr[col * ld + row]`; absent if null.
pub struct Columns<T> {
    /// First entry, or null.
    pub ptr: *mut T,
    /// Distance between columns.
    pub ld: usize,
}

impl<T> Clone for Columns<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Columns<T> {}

impl<T> Columns<T> {
    /// An operand or a result.
    pub fn new(ptr: *const T, ld: usize) -> Self {
        Self { ptr: ptr.cast_mut(), ld }
    }
    /// No operand.
    pub fn none() -> Self {
        Self { ptr: std::ptr::null_mut(), ld: 0 }
    }
    /// Null if absent.
    #[inline(always)]
    unsafe fn at(self, row: usize, col: usize) -> *mut T {
        if self.ptr.is_null() { self.ptr } else { self.ptr.add(col * self.ld + row) }
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
    unsafe fn finish<S: Simd, const MRV: usize>(
        &self,
        _: S,
        sums: [T::V<S>; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    ) {
        lanes.store(self.out.at(row, col), lanes.plus(sums, self.add.at(row, col)));
    }
}

/// One step of a recurrence, `h_t = phi(sum + h_{t-1} + x_t + b)`.
#[derive(Clone, Copy)]
pub struct Step<'a, T: Scalar> {
    /// `h_t`.
    pub out: Columns<T>,
    /// `h_{t-1}`, the identity part of `W = I - A U*`; absent for a dense `W`.
    pub previous: Columns<T>,
    /// `x_t` where it is already projected.
    pub input: Columns<T>,
    /// `b`, one column for all (`ld` 0), or absent.
    pub bias: Columns<T>,
    /// `phi`.
    pub activation: Activation<'a, T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
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
    unsafe fn finish<S: Simd, const MRV: usize>(
        &self,
        s: S,
        sums: [T::V<S>; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    ) {
        let out = self.out.at(row, col);
        let v = lanes.plus(sums, self.previous.at(row, col));
        let v = lanes.plus(v, self.input.at(row, col));
        let v = lanes.plus(v, self.bias.at(row, col));
        lanes.store(out, self.activation.fused(s, v));
    }
}

/// One step back, `delta_{t-1} = phi'(h_{t-1}) (sum + delta_t + dL/dh_{t-1})`; keeps a copy of `h_{t-1}`.
#[derive(Clone, Copy)]
pub struct StepBack<'a, T: Scalar> {
    /// `delta_{t-1}`.
    pub out: Columns<T>,
    /// `delta_t`, the identity part of `W*`; absent for a dense `W`.
    pub next: Columns<T>,
    /// The loss's own gradient of `h_{t-1}`.
    pub grad: Columns<T>,
    /// `h_{t-1}`.
    pub h: Columns<T>,
    /// The copy of `h_{t-1}` for the parameter gradients, laid out as `out`.
    pub h_copy: *mut T,
    /// `phi`.
    pub activation: Activation<'a, T>,
    /// What a later product needs.
    pub fetch: Fetch<T>,
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
    unsafe fn finish<S: Simd, const MRV: usize>(
        &self,
        s: S,
        sums: [T::V<S>; MRV],
        row: usize,
        col: usize,
        lanes: Lanes<S, T, MRV>,
    ) {
        let (h_at, grad) = (self.h.at(row, col), self.grad.at(row, col));
        let h = lanes.load(h_at);
        lanes.store(self.h_copy.add(col * self.out.ld + row), h);
        let v = lanes.plus(sums, self.next.at(row, col));
        let v = lanes.plus(v, grad);
        lanes.store(self.out.at(row, col), self.activation.fused_gradient(s, v, h));
    }
}
