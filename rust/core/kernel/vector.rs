//! Operations on one or two contiguous vectors, for single reflections.

use pulp::Simd;

use crate::scalar::Scalar;

/// `sum conj(a_i) b_i` over `n` entries. The caller owns both.
#[inline(always)]
pub unsafe fn dot<S: Simd, T: Scalar>(s: S, n: usize, a: *const T, b: *const T) -> T {
    if T::COMPLEX {
        return dot_plainly(n, a, b);
    }
    const CHAINS: usize = 4;
    let lanes = T::lanes::<S>();
    let mut sums = [T::splat(s, T::ZERO); CHAINS];
    let mut i = 0;
    while i + CHAINS * lanes <= n {
        for (c, sum) in sums.iter_mut().enumerate() {
            let at = i + c * lanes;
            *sum = T::fma(s, T::load(s, a.add(at)), T::load(s, b.add(at)), *sum);
        }
        i += CHAINS * lanes;
    }
    while i + lanes <= n {
        sums[0] = T::fma(s, T::load(s, a.add(i)), T::load(s, b.add(i)), sums[0]);
        i += lanes;
    }
    let sum = T::plus(s, T::plus(s, sums[0], sums[1]), T::plus(s, sums[2], sums[3]));
    // Registers hold at most 64 bytes.
    let mut parts = [T::ZERO; 16];
    T::store(s, parts.as_mut_ptr(), sum);
    let mut total = dot_plainly(n - i, a.add(i), b.add(i));
    for &part in &parts[..lanes] {
        total += part;
    }
    total
}

#[inline(always)]
unsafe fn dot_plainly<T: Scalar>(n: usize, a: *const T, b: *const T) -> T {
    let mut total = T::ZERO;
    for i in 0..n {
        total += (*a.add(i)).conj() * *b.add(i);
    }
    total
}

/// `y += alpha x` over `n` entries. The caller owns both; they do not overlap.
#[inline(always)]
pub unsafe fn axpy<S: Simd, T: Scalar>(s: S, n: usize, alpha: T, x: *const T, y: *mut T) {
    let mut i = 0;
    if !T::COMPLEX {
        let factor = T::splat(s, alpha);
        let lanes = T::lanes::<S>();
        while i + lanes <= n {
            T::store(s, y.add(i), T::fma(s, T::load(s, x.add(i)), factor, T::load(s, y.add(i))));
            i += lanes;
        }
    }
    while i < n {
        *y.add(i) += alpha * *x.add(i);
        i += 1;
    }
}
