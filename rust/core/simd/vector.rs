//! Operations on one or two contiguous vectors.

use super::element::{Element, sum_of_lanes};
use super::fetch::prefetch;
use super::isa::simd;
use super::lanes::Lanes;
use crate::arrays::view::{Shape, View, ViewMut};
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;

simd! {
    /// `sum conj(a_i) b_i`.
    pub fn dot<T: Element>(s, a: &[T], b: &[T]) -> T {
        const CHAINS: usize = 4;
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

/// `sum conj(a_i) b_i` in several chains, which the compiler maps to lanes.
#[inline(always)]
pub fn plain_dot<T: Element>(a: &[T], b: &[T]) -> T {
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

/// `|v|^2` in double precision, in sums side by side.
#[inline(always)]
pub fn sum_of_squares<T: Scalar>(v: &[T]) -> f64 {
    const CHAINS: usize = 16;
    let mut sums = [0.0; CHAINS];
    let (pieces, rest) = v.as_chunks::<CHAINS>();
    for piece in pieces {
        for (sum, x) in sums.iter_mut().zip(piece) {
            *sum += x.widen().abs2();
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += x.widen().abs2();
    }
    sums.iter().sum()
}

simd! {
    /// `y += alpha x`.
    pub fn axpy<T: Element>(_s, alpha: T, x: &[T], y: &mut [T]) -> () {
        for (y, &x) in y.iter_mut().zip(x) {
            *y += alpha * x;
        }
    }

    /// Copies `count` columns of `len` numbers, and fetches as many from `next`, which a later call copies.
    ///
    /// # Safety
    /// The caller owns these columns of `from` and `to`.
    pub unsafe fn copy_columns<T: Element>(
        s, shape: Shape, from: View<'_, T>, to: ViewMut<'_, T>, next: View<'_, T>,
    ) -> () {
        let (len, count) = shape;
        for begin in (0..len).step_by(T::lanes::<S>()) {
            let part = Lanes::<S, T, 1>::first(s, len - begin);
            for j in 0..count {
                // SAFETY: lanes of a column that the caller owns.
                unsafe { part.store(to.at(begin, j), part.load(from.at(begin, j))) };
                prefetch(next.at(begin, j));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::number::{Real, c32, c64};
    use crate::simd::isa::InstructionSet;

    simd! {
        fn sums<T: Scalar>(s, numbers: &[T]) -> [T; 4] {
            let lanes = T::lanes::<S>();
            // SAFETY: four registers hold at most 64 numbers.
            T::sums_of_lanes(s, std::array::from_fn(#[inline(always)] |i| unsafe { T::load(s, numbers[i * lanes..].as_ptr()) }))
        }
    }

    fn lanes_of_four_registers_are_added<T: Scalar>() {
        let numbers: [T; 64] = std::array::from_fn(|i| T::from_real(T::Real::of((i * i) as f64)));
        for isa in InstructionSet::available() {
            let lanes = isa.tile_height::<T>().0;
            let expected = [0, 1, 2, 3].map(|i| numbers[i * lanes..][..lanes].iter().fold(T::ZERO, |sum, x| sum + *x));
            assert_eq!(sums(isa, &numbers), expected, "{}", isa.name());
        }
    }

    #[test]
    fn lanes_of_four_registers_of_every_type_are_added() {
        lanes_of_four_registers_are_added::<f32>();
        lanes_of_four_registers_are_added::<f64>();
        lanes_of_four_registers_are_added::<c32>();
        lanes_of_four_registers_are_added::<c64>();
    }
}
