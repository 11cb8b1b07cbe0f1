//! What becomes of a finished sum, one register at a time.

use pulp::Simd;

use super::activation::Activation;
use super::dispatch::InstructionSet;
use super::element::Element;
use super::gemm::{Both, Operand, Shape, Weights};
use crate::scalar::Scalar;

/// The lanes of one register that lie inside the matrix: all, or the first few in the last register of a column.
#[derive(Clone, Copy)]
pub struct Lanes<S: Simd, T: Element> {
    s: S,
    partial: Option<T::Mask<S>>,
}

impl<S: Simd, T: Element> Lanes<S, T> {
    /// Full registers.
    #[inline(always)]
    pub fn full(s: S) -> Self {
        Self { s, partial: None }
    }
    /// The first `count` lanes; full if that is all of them.
    #[inline(always)]
    pub fn first(s: S, count: usize) -> Self {
        Self { s, partial: (count < T::lanes::<S>()).then(|| T::mask(s, count)) }
    }
    /// Reads these lanes. The caller owns them at `p`.
    #[inline(always)]
    pub unsafe fn load(self, p: *const T) -> T::V<S> {
        match self.partial {
            None => T::load(self.s, p),
            Some(mask) => T::masked_load(self.s, mask, p),
        }
    }
    /// Writes these lanes. The caller owns them at `p`.
    #[inline(always)]
    pub unsafe fn store(self, p: *mut T, v: T::V<S>) {
        match self.partial {
            None => T::store(self.s, p, v),
            Some(mask) => T::masked_store(self.s, mask, p, v),
        }
    }
}

/// Consumes the sums of one register: rows `row..`, column `col`.
pub trait Epilogue<T: Element>: Copy {
    /// Finishes and stores. Every address that the epilogue holds must be good for `row` and `col`.
    unsafe fn finish<S: Simd>(&self, s: S, sum: T::V<S>, row: usize, col: usize, lanes: Lanes<S, T>);

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
    #[inline(always)]
    unsafe fn at(self, row: usize, col: usize) -> *mut T {
        self.ptr.add(col * self.ld + row)
    }
}

/// Adds an optional operand to a register.
#[inline(always)]
unsafe fn plus<S: Simd, T: Element>(
    s: S,
    sum: T::V<S>,
    operand: Columns<T>,
    row: usize,
    col: usize,
    lanes: Lanes<S, T>,
) -> T::V<S> {
    if operand.ptr.is_null() { sum } else { T::plus(s, sum, lanes.load(operand.at(row, col))) }
}

/// `out = sum (+ add)`.
#[derive(Clone, Copy)]
pub struct Store<T> {
    /// Where the result goes.
    pub out: Columns<T>,
    /// Added; may be `out` itself.
    pub add: Columns<T>,
}

impl<T: Scalar> Epilogue<T> for Store<T> {
    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>) {
        T::product(isa, shape, w, b, self);
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, sum: T::V<S>, row: usize, col: usize, lanes: Lanes<S, T>) {
        let v = plus(s, sum, self.add, row, col, lanes);
        lanes.store(self.out.at(row, col), v);
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
    /// Distance from a column to what will be written a step later, to be fetched ahead; 0 for nothing.
    pub ahead: isize,
}

impl<T: Scalar> Epilogue<T> for Step<'_, T> {
    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>) {
        T::step(isa, shape, w, b, self);
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, sum: T::V<S>, row: usize, col: usize, lanes: Lanes<S, T>) {
        let out = self.out.at(row, col);
        prefetch(out.wrapping_offset(self.ahead));
        let v = plus(s, sum, self.previous, row, col, lanes);
        let v = plus(s, v, self.input, row, col, lanes);
        let v = plus(s, v, self.bias, row, col, lanes);
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
    /// Distance from `h` and `grad` to what the next step back reads; 0 for nothing.
    pub ahead: isize,
}

impl<T: Scalar> Epilogue<T> for StepBack<'_, T> {
    unsafe fn product(&self, isa: InstructionSet, shape: Shape, w: &Both<Weights<T>>, b: &Both<Operand<T>>) {
        T::step_back(isa, shape, w, b, self);
    }

    #[inline(always)]
    unsafe fn finish<S: Simd>(&self, s: S, sum: T::V<S>, row: usize, col: usize, lanes: Lanes<S, T>) {
        let h_at = self.h.at(row, col);
        prefetch(h_at.wrapping_offset(self.ahead));
        let h = lanes.load(h_at);
        lanes.store(self.h_copy.add(col * self.out.ld + row), h);
        let v = plus(s, sum, self.next, row, col, lanes);
        let v = if self.grad.ptr.is_null() {
            v
        } else {
            let grad = self.grad.at(row, col);
            prefetch(grad.wrapping_offset(self.ahead));
            T::plus(s, v, lanes.load(grad))
        };
        lanes.store(self.out.at(row, col), self.activation.fused_gradient(s, v, h));
    }
}

#[inline(always)]
fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address has no effect but on the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
