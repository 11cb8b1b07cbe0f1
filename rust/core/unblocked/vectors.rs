//! The arithmetic of Algorithm 1 in registers.

use pulp::Simd;

use super::Vectors;
use crate::kernel::vector::{plain_dot, sum_of_lanes};
use crate::number::Real;
use crate::scalar::Scalar;

/// Vectors of whole registers.
#[derive(Clone, Copy)]
pub struct Registers<S>(pub S);

impl<T: Scalar, S: Simd> Vectors<T> for Registers<S> {
    #[inline(always)]
    fn grain(self) -> usize {
        T::lanes::<S>()
    }

    #[inline(always)]
    fn project(self, tau: T, v: &[T], x: &[T]) -> T {
        if T::COMPLEX {
            return tau * plain_dot(v, x);
        }
        let (s, lanes) = (self.0, T::lanes::<S>());
        let mut sums = [T::splat(s, T::ZERO); 2];
        for (i, (v, x)) in v.chunks_exact(lanes).zip(x.chunks_exact(lanes)).enumerate() {
            // SAFETY: whole registers.
            unsafe { sums[i % 2] = T::fma(s, T::load(s, v.as_ptr()), T::load(s, x.as_ptr()), sums[i % 2]) };
        }
        tau * sum_of_lanes(s, T::plus(s, sums[0], sums[1]))
    }

    #[inline(always)]
    fn subtract(self, a: T, v: &[T], x: &mut [T]) {
        for (x, &v) in x.iter_mut().zip(v) {
            *x -= a * v;
        }
    }

    #[inline(always)]
    fn quotient(self, y: T, x: T, inverse: T) -> T {
        (y - x) * inverse
    }

    #[inline(always)]
    fn gradient(self, (a, x): (T, &[T]), (b, g): (T, &[T]), (v, given): (&[T], bool), grad: &mut [T], first: bool) {
        let (a, b) = (-a.conj(), -b.conj());
        for ((grad, &x), &g) in grad.iter_mut().zip(x).zip(g) {
            let term = a * g + b * x;
            *grad = if first { term } else { *grad + term };
        }
        if T::COMPLEX || given {
            let ab = a * b.conj();
            let turned = if given { ab } else { (ab - ab.conj()).scale(T::Real::of(0.5)) };
            for (grad, &v) in grad.iter_mut().zip(v) {
                *grad -= turned * v;
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
