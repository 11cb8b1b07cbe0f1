//! Operations on one or two contiguous vectors.

use pulp::{Simd, WithSimd};

use super::activation::Activation;
use super::dispatch::InstructionSet;
use super::epilogue::{Columns, Lanes};
use super::fetch::prefetch;
use super::gemm::Shape;
use crate::scalar::Scalar;

/// `sum conj(a_i) b_i`.
pub fn dot<T: Scalar>(isa: InstructionSet, a: &[T], b: &[T]) -> T {
    isa.dispatch(Dot(a, b))
}

struct Dot<'a, T>(&'a [T], &'a [T]);

impl<T: Scalar> WithSimd for Dot<'_, T> {
    type Output = T;

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> T {
        const CHAINS: usize = 4;
        let Self(a, b) = self;
        if T::COMPLEX {
            return plain_dot(a, b);
        }
        let lanes = T::lanes::<S>();
        let n = a.len().min(b.len());
        let mut sums = [T::splat(s, T::ZERO); CHAINS];
        let mut i = 0;
        // SAFETY: whole registers inside both slices.
        unsafe {
            let (p, q) = (a.as_ptr(), b.as_ptr());
            while i + CHAINS * lanes <= n {
                for (c, sum) in sums.iter_mut().enumerate() {
                    let at = i + c * lanes;
                    *sum = T::fma(s, T::load(s, p.add(at)), T::load(s, q.add(at)), *sum);
                }
                i += CHAINS * lanes;
            }
            while i + lanes <= n {
                sums[0] = T::fma(s, T::load(s, p.add(i)), T::load(s, q.add(i)), sums[0]);
                i += lanes;
            }
        }
        let sum = T::plus(s, T::plus(s, sums[0], sums[1]), T::plus(s, sums[2], sums[3]));
        sum_of_lanes::<T, S>(s, sum) + plain_dot(&a[i..], &b[i..])
    }
}

/// `sum conj(a_i) b_i` in several chains, which the compiler makes lanes of.
#[inline(always)]
pub fn plain_dot<T: Scalar>(a: &[T], b: &[T]) -> T {
    const CHAINS: usize = 8;
    let mut sums = [T::ZERO; CHAINS];
    let (a, b) = (a.chunks_exact(CHAINS), b.chunks_exact(CHAINS));
    let rest = a.remainder().iter().zip(b.remainder());
    for (sum, (a, b)) in sums.iter_mut().zip(rest) {
        *sum = a.conj() * *b;
    }
    for (a, b) in a.zip(b) {
        for c in 0..CHAINS {
            sums[c] += a[c].conj() * b[c];
        }
    }
    sums.into_iter().fold(T::ZERO, |sum, x| sum + x)
}

/// Sum of the lanes of real numbers.
#[inline(always)]
pub fn sum_of_lanes<T: Scalar, S: Simd>(s: S, v: T::V<S>) -> T {
    // A register holds at most 64 bytes.
    let mut parts = [T::ZERO; 16];
    // SAFETY: as said.
    unsafe { T::store(s, parts.as_mut_ptr(), v) };
    let mut width = T::lanes::<S>();
    while width > 1 {
        width /= 2;
        for i in 0..width {
            parts[i] += parts[i + width];
        }
    }
    parts[0]
}

/// `y += alpha x`.
pub fn axpy<T: Scalar>(isa: InstructionSet, alpha: T, x: &[T], y: &mut [T]) {
    isa.dispatch(
        #[inline(always)]
        || {
            // A loop: a closure handed to an iterator would be compiled without the instruction set.
            for (y, &x) in y.iter_mut().zip(x) {
                *y += alpha * x;
            }
        },
    );
}

/// Copies `count` columns of `len` numbers, and fetches as many from `next`, which a later call copies. The caller owns
/// all but the last.
pub unsafe fn copy_columns<T: Scalar>(
    isa: InstructionSet,
    (len, count): Shape,
    from: Columns<T>,
    to: Columns<T>,
    next: *const T,
) {
    if len > 0 {
        isa.dispatch(Copy { len, count, from, to, next: Columns::new(next, from.ld) });
    }
}

struct Copy<T> {
    len: usize,
    count: usize,
    from: Columns<T>,
    to: Columns<T>,
    next: Columns<T>,
}

impl<T: Scalar> WithSimd for Copy<T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let lanes = T::lanes::<S>();
        for begin in (0..self.len).step_by(lanes) {
            let part = Lanes::<S, T, 1>::first(s, self.len - begin);
            for j in 0..self.count {
                // SAFETY: lanes of a column.
                unsafe { part.store(self.to.from(begin, j).ptr, part.load(self.from.from(begin, j).ptr)) };
                prefetch(self.next.column(j).wrapping_add(begin));
            }
        }
    }
}

/// `a <- tanh a`.
pub fn tanh<T: Scalar>(isa: InstructionSet, a: &mut [T]) {
    isa.dispatch(Tanh(a));
}

struct Tanh<'a, T>(&'a mut [T]);

impl<T: Scalar> WithSimd for Tanh<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        for a in self.0.chunks_mut(T::lanes::<S>()) {
            let lanes = Lanes::<S, T, 1>::first(s, a.len());
            // SAFETY: the lanes of one chunk.
            unsafe { lanes.store(a.as_mut_ptr(), [T::tanh(s, lanes.load(a.as_ptr())[0])]) };
        }
    }
}

/// `g <- g phi'`, given `h = phi(a)`, for pointwise `phi`.
pub fn activation_gradient<T: Scalar>(isa: InstructionSet, activation: Activation<'_, T>, g: &mut [T], h: &[T]) {
    isa.dispatch(ActivationGradient(activation, g, h));
}

struct ActivationGradient<'a, T: Scalar>(Activation<'a, T>, &'a mut [T], &'a [T]);

impl<T: Scalar> WithSimd for ActivationGradient<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let lanes = T::lanes::<S>();
        for (g, h) in self.1.chunks_mut(lanes).zip(self.2.chunks(lanes)) {
            let lanes = Lanes::<S, T, 1>::first(s, g.len());
            // SAFETY: the lanes of one chunk of both.
            unsafe {
                lanes.store(g.as_mut_ptr(), self.0.fused_gradient(s, lanes.load(g.as_ptr()), lanes.load(h.as_ptr())));
            };
        }
    }
}
