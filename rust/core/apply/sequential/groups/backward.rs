//! The backward pass through a group.

use std::cmp::Ordering;

use pulp::Simd;

use super::{Four, GROUP, GroupColumns, load_all, tiles};
use crate::apply::sequential::vectors::Registers;
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::simd::element::Element;
use crate::simd::lanes::unroll;

/// Numbers of columns, and of their gradients, that all vectors pass before the next ones: they stay in the first-level cache.
const PIECE: usize = 256;

/// Most vectors of a tile: its `a` and `b`, its columns and their gradients fit into the registers.
#[inline(always)]
const fn widest_tile<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 && !S::IS_SCALAR { 2 } else { 1 }
}

/// Sums over vectors for the gradients of a group.
pub struct GroupSums<W> {
    /// `M = sum b a*`.
    products: [Four<W>; GROUP],
    /// `sum s t`.
    pub of_tau: Four<W>,
}

impl<W: Number> GroupSums<W> {
    /// Those of no vectors.
    pub fn new() -> Self {
        Self { products: [[W::ZERO; GROUP]; GROUP], of_tau: [W::ZERO; GROUP] }
    }

    /// Adds those of some vectors.
    #[inline(never)] // compiled for AVX2 and double precision, rustc 1.95 exchanges two numbers of `a`
    pub fn add<T: Scalar<Wide = W>>(&mut self, [a, b]: [&[Four<T>]; 2], [s, t]: [&[Four<T>]; 2]) {
        for ((a, b), (s, t)) in a.iter().zip(b).zip(s.iter().zip(t)) {
            for (sum, (s, t)) in self.of_tau.iter_mut().zip(s.iter().zip(t)) {
                *sum += s.widen() * t.widen();
            }
            for (row, b) in self.products.iter_mut().zip(b) {
                for (sum, a) in row.iter_mut().zip(a) {
                    *sum += b.widen() * a.widen();
                }
            }
        }
    }
}

impl<T: Scalar> GroupColumns<'_, T> {
    /// For some vectors `x` and `g`, both `ld` apart: `x + V a` and `g - V b` in place, and `-sum (g a* + x b*)` with those before.
    /// It is added to `grad`, laid out like the columns, unless these are the `first` vectors.
    #[inline(always)]
    pub fn back<S: Simd>(
        self,
        Registers(s): Registers<S>,
        [a, b]: [&[Four<T>]; 2],
        [x, g]: [&mut [T]; 2],
        ld: usize,
        grad: &mut [T],
        first: bool,
    ) {
        let rows = a.len();
        assert!(rows == b.len() && rows > 0 && x.len().min(g.len()) >= (rows - 1) * ld + self.len, "vectors");
        assert!(grad.len() >= (GROUP - 1) * self.ld + self.len, "four gradients");
        for begin in (0..self.len).step_by(PIECE) {
            let piece = Self { v: &self.v[begin..], len: PIECE.min(self.len - begin), ..self };
            // SAFETY: as many vectors, and four gradients.
            tiles!(rows, [2 1] up to widest_tile::<S>(), |row, VECTORS| unsafe {
                let [x, g] = [&mut *x, &mut *g].map(|x| x.as_mut_ptr().add(row * ld + begin));
                piece.back_tile::<S, VECTORS>(
                    s,
                    [&a[row..], &b[row..]],
                    [x, g],
                    ld,
                    grad.as_mut_ptr().add(begin),
                    first && row == 0,
                );
            });
        }
    }

    /// [`GroupColumns::back`] for a tile of vectors.
    ///
    /// # Safety
    /// The caller owns as many vectors at `x` and `g`, and four gradients.
    #[inline(always)]
    unsafe fn back_tile<S: Simd, const VECTORS: usize>(
        self,
        s: S,
        [a, b]: [&[Four<T>]; 2],
        [x, g]: [*mut T; 2],
        ld: usize,
        grad: *mut T,
        first: bool,
    ) {
        let v = self.pointers();
        let grad: Four<*mut T> = std::array::from_fn(|j| grad.wrapping_add(j * self.ld));
        let mut factors = [[[T::splat(s, T::ZERO); GROUP]; 2]; VECTORS];
        unroll!(for r in 0..VECTORS {
            factors[r] = [a[r].map(|a| T::splat(s, a)), b[r].map(|b| T::splat(s, -b))];
        });
        for i in (0..self.len).step_by(T::lanes::<S>()) {
            // SAFETY: whole registers of columns, gradients and vectors.
            unsafe {
                let columns = load_all(s, v, i);
                let mut gradients = [T::splat(s, T::ZERO); GROUP];
                if !first {
                    gradients = load_all(s, grad.map(<*mut T>::cast_const), i);
                }
                unroll!(for r in 0..VECTORS {
                    let [at_x, at_g] = [x, g].map(|x| x.wrapping_add(r * ld + i));
                    let [mut x, mut g] = [at_x, at_g].map(|at| T::load(s, at));
                    let (minus_g, [a, minus_b]) = (<T as Element>::neg(s, g), factors[r]);
                    unroll!(for j in 0..GROUP {
                        gradients[j] = T::fma(s, a[j], minus_g, gradients[j]);
                    });
                    unroll!(for j in 0..GROUP {
                        gradients[j] = T::fma(s, minus_b[j], x, gradients[j]);
                    });
                    unroll!(for j in 0..GROUP {
                        x = T::fma(s, a[j], columns[j], x);
                        g = T::fma(s, minus_b[j], columns[j], g);
                    });
                    T::store(s, at_x, x);
                    T::store(s, at_g, g);
                });
                unroll!(for j in 0..GROUP {
                    T::store(s, grad[j].wrapping_add(i), gradients[j]);
                });
            }
        }
    }

    /// Adds `V E` to `grad`, laid out like the columns.
    #[inline(always)]
    pub fn add_own<S: Simd>(
        self,
        Registers(s): Registers<S>,
        sums: &GroupSums<T::Wide>,
        (given, adjoint): (bool, bool),
        grad: &mut [T],
    ) {
        let m = &sums.products;
        let e = |j: usize, i: usize| match j.cmp(&i) {
            Ordering::Equal if given => -m[i][i],
            Ordering::Less if !adjoint => m[j][i] - m[i][j],
            Ordering::Greater if adjoint => m[j][i] - m[i][j],
            _ => T::Wide::ZERO,
        };
        let mut weights = [[T::splat(s, T::ZERO); GROUP]; GROUP];
        for (i, weights) in weights.iter_mut().enumerate() {
            for (j, weight) in weights.iter_mut().enumerate() {
                *weight = T::splat(s, T::narrow(e(j, i)));
            }
        }
        let v = self.pointers();
        assert!(grad.len() >= (GROUP - 1) * self.ld + self.len, "four gradients");
        for at in (0..self.len).step_by(T::lanes::<S>()) {
            // SAFETY: whole registers of columns and gradients.
            unsafe {
                let columns = load_all(s, v, at);
                unroll!(for i in 0..GROUP {
                    let to = grad.as_mut_ptr().wrapping_add(i * self.ld + at);
                    let mut sum = T::load(s, to);
                    unroll!(for j in 0..GROUP {
                        sum = T::fma(s, weights[i][j], columns[j], sum);
                    });
                    T::store(s, to, sum);
                });
            }
        }
    }
}
