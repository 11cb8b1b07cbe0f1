//! The arithmetic of Algorithm 1 in registers.

use pulp::Simd;

use crate::memory::padded;
use crate::numbers::number::Real;
use crate::numbers::scalar::Scalar;
use crate::simd::element::sum_of_lanes;
use crate::simd::vector::plain_dot;

/// Operations on vectors of whole registers.
#[derive(Clone, Copy)]
pub struct Registers<S>(pub S);

impl<S: Simd> Registers<S> {
    /// `v* x`.
    #[inline(always)]
    pub fn project<T: Scalar>(self, v: &[T], x: &[T]) -> T {
        const CHAINS: usize = 4;
        if T::COMPLEX {
            return plain_dot(v, x);
        }
        let (s, lanes) = (self.0, T::lanes::<S>());
        let mut sums = [T::splat(s, T::ZERO); CHAINS];
        let (v, x) = (v.chunks_exact(CHAINS * lanes), x.chunks_exact(CHAINS * lanes));
        let rest = v.remainder().chunks_exact(lanes).zip(x.remainder().chunks_exact(lanes));
        // SAFETY: whole registers.
        unsafe {
            for (v, x) in v.map(<[T]>::as_ptr).zip(x.map(<[T]>::as_ptr)) {
                for (c, sum) in sums.iter_mut().enumerate() {
                    *sum = T::fma(s, T::load(s, v.add(c * lanes)), T::load(s, x.add(c * lanes)), *sum);
                }
            }
            for (sum, (v, x)) in sums.iter_mut().zip(rest) {
                *sum = T::fma(s, T::load(s, v.as_ptr()), T::load(s, x.as_ptr()), *sum);
            }
        }
        sum_of_lanes(s, T::plus(s, T::plus(s, sums[0], sums[1]), T::plus(s, sums[2], sums[3])))
    }

    /// `x - a v`, in place.
    #[inline(always)]
    pub fn subtract<T: Scalar>(self, a: T, v: &[T], x: &mut [T]) {
        if T::COMPLEX {
            for (x, &v) in x.iter_mut().zip(v) {
                *x -= a * v;
            }
            return;
        }
        // Vectors of one or two registers: a loop that the compiler vectorises would be unrolled for longer ones.
        let (s, lanes) = (self.0, T::lanes::<S>());
        let minus_a = T::splat(s, -a);
        for (x, v) in x.chunks_exact_mut(lanes).zip(v.chunks_exact(lanes)) {
            // SAFETY: whole registers.
            unsafe { T::store(s, x.as_mut_ptr(), T::fma(s, minus_a, T::load(s, v.as_ptr()), T::load(s, x.as_ptr()))) };
        }
    }

    /// `-(conj(a) g + conj(b) x + i Im(conj(a) b) v)`, added to `grad` unless it is the `first` vector's; `conj(a) b v` where
    /// `tau` is `given`.
    #[inline(always)]
    pub fn gradient<T: Scalar>(
        self,
        (a, x): (T, &[T]),
        (b, g): (T, &[T]),
        (v, given): (&[T], bool),
        grad: &mut [T],
        first: bool,
    ) {
        let (minus_conj_a, minus_conj_b, ab) = (-a.conj(), -b.conj(), a.conj() * b);
        if T::COMPLEX {
            let turned = if given { ab } else { (ab - ab.conj()).scale(T::Real::of(0.5)) };
            for (((grad, &x), &g), &v) in grad.iter_mut().zip(x).zip(g).zip(v) {
                let term = minus_conj_a * g + minus_conj_b * x;
                *grad = if first { term } else { *grad + term } - turned * v;
            }
            return;
        }
        let (s, lanes) = (self.0, T::lanes::<S>());
        let [minus_a, minus_b, minus_ab] = [minus_conj_a, minus_conj_b, -ab].map(|x| T::splat(s, x));
        let vectors = x.chunks_exact(lanes).zip(g.chunks_exact(lanes)).zip(v.chunks_exact(lanes));
        for (grad, ((x, g), v)) in grad.chunks_exact_mut(lanes).zip(vectors) {
            // SAFETY: whole registers.
            unsafe {
                let sum = if first { T::splat(s, T::ZERO) } else { T::load(s, grad.as_ptr()) };
                let sum = T::fma(s, minus_a, T::load(s, g.as_ptr()), T::fma(s, minus_b, T::load(s, x.as_ptr()), sum));
                let sum = if given { T::fma(s, minus_ab, T::load(s, v.as_ptr()), sum) } else { sum };
                T::store(s, grad.as_mut_ptr(), sum);
            }
        }
    }
}

/// Puts `from` at the beginning of `to` and zeros behind it.
#[inline(always)]
pub fn pad<T: Scalar>(to: &mut [T], from: &[T]) {
    let (head, tail) = to.split_at_mut(from.len());
    head.copy_from_slice(from);
    tail.fill(T::ZERO);
}

/// Distance between vectors that go through a tile together: [`padded`], and for long ones an odd multiple of 1 KiB. Numbers
/// 4 KiB apart look alike to a processor, so that a load would wait for a store to another vector shortly before.
pub fn distance<T>(n: usize) -> usize {
    let unit = 1024 / size_of::<T>();
    if n < unit { padded::<T>(n) } else { (n.div_ceil(unit) | 1) * unit }
}
