//! The triangular systems of a chunk.

use super::number::Exponential;
use crate::kernel::dispatch::simd;
use crate::kernel::lanes::Lanes;
use crate::view::View;

/// `e_t = rhs_t - other_t + sign sum_j m_tj x_j` over the rows before `t`, and `x_t = -sign beta_t e_t`.
#[derive(Clone, Copy)]
pub struct Sweep<'a, T> {
    /// The matrix, of which the entries below the diagonal count.
    pub m: View<T>,
    /// Factors of the rows.
    pub beta: &'a [T],
    /// The right-hand side.
    pub rhs: View<T>,
    /// Subtracted from it; may be absent.
    pub other: View<T>,
    /// May be `rhs`.
    pub e: View<T>,
    /// The solution.
    pub x: View<T>,
}

simd! {
    /// Forward substitution of `width` columns, with `sign` -1: `E = V - K' S - M D`, `D = diag(b) E`.
    ///
    /// # Safety
    /// The views have `len` rows of `width` numbers, `m` of `len`, which the caller owns; there are `len` betas.
    pub unsafe fn sweep<T: Exponential>(s, width: usize, len: usize, system: Sweep<'_, T>) -> () {
        // SAFETY: rows of the caller's, `width` numbers each.
        unsafe { columns::<S, T, false>(s, width, len, system) }
    }

    /// Backward substitution with `M'`, and `sign` 1: `dE = dD - M' (diag(b) dE)`, `x = -diag(b) dE`.
    ///
    /// # Safety
    /// As of [`sweep`].
    pub unsafe fn sweep_back<T: Exponential>(s, width: usize, len: usize, system: Sweep<'_, T>) -> () {
        // SAFETY: as above.
        unsafe { columns::<S, T, true>(s, width, len, system) }
    }
}

#[inline(always)]
unsafe fn columns<S: pulp::Simd, T: Exponential, const BACK: bool>(
    s: S,
    width: usize,
    len: usize,
    system: Sweep<'_, T>,
) {
    const TALL: usize = 4;
    let lanes = T::lanes::<S>();
    let mut begin = 0;
    while begin + TALL * lanes <= width {
        stripe::<S, T, TALL, BACK>(s, begin, Lanes::first(s, lanes), len, system);
        begin += TALL * lanes;
    }
    while begin < width {
        stripe::<S, T, 1, BACK>(s, begin, Lanes::first(s, width - begin), len, system);
        begin += lanes;
    }
}

/// Two rows at a time, which share what they read of the rows before.
#[inline(always)]
unsafe fn stripe<S: pulp::Simd, T: Exponential, const N: usize, const BACK: bool>(
    s: S,
    begin: usize,
    lanes: Lanes<S, T, N>,
    len: usize,
    Sweep { m, beta, rhs, other, e, x }: Sweep<'_, T>,
) {
    let sign = if BACK { T::ONE } else { -T::ONE };
    let at = |i: usize| if BACK { len - 1 - i } else { i };
    let coefficient = |t: usize, j: usize| sign * if BACK { *m.at(t, j) } else { *m.at(j, t) };
    macro_rules! begun {
        ($t:expr) => {{
            let mut sum = lanes.load(rhs.at(begin, $t));
            if !other.ptr.is_null() {
                let other = lanes.load(other.at(begin, $t));
                for i in 0..N {
                    sum[i] = T::fma(s, other[i], T::splat(s, -T::ONE), sum[i]);
                }
            }
            sum
        }};
    }
    macro_rules! finished {
        ($t:expr, $sum:expr) => {{
            lanes.store(e.at(begin, $t), $sum);
            let factor = T::splat(s, -sign * beta[$t]);
            let mut solution = $sum;
            for i in 0..N {
                solution[i] = T::fma(s, $sum[i], factor, T::splat(s, T::ZERO));
            }
            lanes.store(x.at(begin, $t), solution);
            solution
        }};
    }
    for i in (0..len).step_by(2) {
        let (t, u, both) = (at(i), at((i + 1).min(len - 1)), i + 1 < len);
        let (mut first, mut second) = (begun!(t), begun!(u));
        for j in (0..i).map(at) {
            let before = lanes.load(x.at(begin, j));
            let (a, b) = (T::splat(s, coefficient(t, j)), T::splat(s, coefficient(u, j)));
            for i in 0..N {
                first[i] = T::fma(s, before[i], a, first[i]);
                second[i] = T::fma(s, before[i], b, second[i]);
            }
        }
        let solution = finished!(t, first);
        if both {
            let b = T::splat(s, coefficient(u, t));
            for i in 0..N {
                second[i] = T::fma(s, solution[i], b, second[i]);
            }
            finished!(u, second);
        }
    }
}
