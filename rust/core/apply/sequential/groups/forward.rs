//! The forward pass through a group.

use pulp::Simd;

use super::{Four, GROUP, GroupColumns, load_all, tiles};
use crate::apply::sequential::vectors::Registers;
use crate::numbers::scalar::Scalar;
use crate::simd::lanes::unroll;

/// Most vectors of a tile: its sums, its columns and a vector fit into the registers.
#[inline(always)]
const fn widest_tile<S: Simd>() -> usize {
    match S::REGISTER_COUNT {
        _ if S::IS_SCALAR => 1,
        32.. => 4,
        _ => 2,
    }
}

impl<T: Scalar> GroupColumns<'_, T> {
    /// `V* x` of some vectors, `ld` apart.
    #[inline(always)]
    pub fn project<S: Simd>(self, Registers(s): Registers<S>, x: &[T], ld: usize, sums: &mut [Four<T>]) {
        let rows = sums.len();
        assert!(rows == 0 || x.len() >= (rows - 1) * ld + self.len, "vectors");
        // SAFETY: as many vectors.
        tiles!(rows, [4 2 1] up to widest_tile::<S>(), |first, VECTORS| unsafe {
            self.project_tile::<S, VECTORS>(s, x.as_ptr().add(first * ld), ld, &mut sums[first..]);
        });
    }

    /// [`GroupColumns::project`] for a tile of vectors.
    ///
    /// # Safety
    /// The caller owns as many vectors at `x`.
    #[inline(always)]
    unsafe fn project_tile<S: Simd, const VECTORS: usize>(self, s: S, x: *const T, ld: usize, to: &mut [Four<T>]) {
        let v = self.pointers();
        let mut sums = [[T::splat(s, T::ZERO); GROUP]; VECTORS];
        for i in (0..self.len).step_by(T::lanes::<S>()) {
            // SAFETY: whole registers of columns and vectors.
            unsafe {
                let columns = load_all(s, v, i);
                unroll!(for r in 0..VECTORS {
                    let x = T::load(s, x.wrapping_add(r * ld + i));
                    unroll!(for j in 0..GROUP {
                        sums[r][j] = T::fma(s, columns[j], x, sums[r][j]);
                    });
                });
            }
        }
        unroll!(for r in 0..VECTORS {
            to[r] = T::sums_of_lanes(s, sums[r]);
        });
    }

    /// `x - V a` of some vectors, `ld` apart, in place.
    #[inline(always)]
    pub fn subtract<S: Simd>(self, Registers(s): Registers<S>, a: &[Four<T>], x: &mut [T], ld: usize) {
        let rows = a.len();
        assert!(rows == 0 || x.len() >= (rows - 1) * ld + self.len, "vectors");
        // SAFETY: as many vectors.
        tiles!(rows, [4 2 1] up to widest_tile::<S>(), |first, VECTORS| unsafe {
            self.subtract_tile::<S, VECTORS>(s, &a[first..], x.as_mut_ptr().add(first * ld), ld);
        });
    }

    /// [`GroupColumns::subtract`] for a tile of vectors.
    ///
    /// # Safety
    /// The caller owns as many vectors at `x`.
    #[inline(always)]
    unsafe fn subtract_tile<S: Simd, const VECTORS: usize>(self, s: S, a: &[Four<T>], x: *mut T, ld: usize) {
        let v = self.pointers();
        let mut minus_a = [[T::splat(s, T::ZERO); GROUP]; VECTORS];
        unroll!(for r in 0..VECTORS {
            minus_a[r] = a[r].map(|a| T::splat(s, -a));
        });
        for i in (0..self.len).step_by(T::lanes::<S>()) {
            // SAFETY: whole registers of columns and vectors.
            unsafe {
                let columns = load_all(s, v, i);
                unroll!(for r in 0..VECTORS {
                    let at = x.wrapping_add(r * ld + i);
                    let mut x = T::load(s, at);
                    unroll!(for j in 0..GROUP {
                        x = T::fma(s, minus_a[r][j], columns[j], x);
                    });
                    T::store(s, at, x);
                });
            }
        }
    }
}
