//! One register tile: `MRV` registers of rows by `NR` columns, all sums in registers.

use std::ptr::null;

use pulp::{Simd, WithSimd};

use super::element::Element;
use super::epilogue::{Epilogue, Terms};
use super::fetch::{Share, prefetch};
use super::lanes::{Lanes, opaque, unroll};

/// Runs `count` tiles side by side. `CHAINS` independent accumulators of a sum hide the latency of an FMA where the tile alone
/// is too small to. For complex numbers, half of them take the real parts.
pub struct Tile<'a, T, E, const MRV: usize, const NR: usize, const CHAINS: usize> {
    /// Weights of the tile's first row and the operand of each part of the sum.
    pub terms: &'a Terms<'a, T>,
    /// What to do with the sums.
    pub epilogue: &'a E,
    /// First row.
    pub row: usize,
    /// Rows of the whole matrix: the last register may be partial.
    pub rows: usize,
    /// First column.
    pub col: usize,
    /// Tiles.
    pub count: usize,
    /// What the tiles of the product fetch.
    pub fetch: Share<T>,
    /// Number of the first tile.
    pub number: usize,
}

impl<T: Element, E: Epilogue<T>, const MRV: usize, const NR: usize, const CHAINS: usize> WithSimd
    for Tile<'_, T, E, MRV, NR, CHAINS>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        // Copies, because the fields of references would be read again after each store.
        let (terms, epilogue) = (*self.terms, *self.epilogue);
        let lanes = T::lanes::<S>();
        let chains = CHAINS / T::PARTS;
        let last = Lanes::<S, T, MRV>::first(s, self.rows - self.row - (MRV - 1) * lanes);
        for tile in 0..self.count {
            let col = self.col + tile * NR;
            // SAFETY: the caller of `gemm` owns weights readable to whole registers, an operand of `k` entries in each
            // column, and every address of the epilogue, for all rows and columns of the matrix.
            unsafe {
                // Small tiles, which have chains, are bound by loads, and a fetch at each step would take the place of one.
                let (mut fetch, fetch_step) = self.fetch.of(self.number + tile, chains, terms[0][0].ptr);
                let mut sum = [[[T::splat(s, T::default()); NR]; MRV]; CHAINS];
                for [weights, operand] in terms {
                    let mut w = weights.ptr;
                    // Columns in pairs, a pointer for the first one and the distance to the other: a pointer for each
                    // does not fit into the registers.
                    let near = NR.div_ceil(2);
                    let far = opaque(null::<T>().wrapping_add(near * operand.ld)) as usize;
                    let mut b = [operand.ptr; NR];
                    unroll!(for j in 0..NR {
                        b[j] = opaque(operand.at(0, col + j));
                    });
                    let (mut left, weights_step) = (weights.count, weights.ld);
                    macro_rules! step {
                        ($c:expr) => {{
                            let mut weights = [T::splat(s, T::default()); MRV];
                            unroll!(for i in 0..MRV {
                                weights[i] = T::load(s, w.add(i * lanes));
                            });
                            unroll!(for j in 0..NR {
                                let b = if j < near { b[j] } else { b[j - near].wrapping_byte_add(far) };
                                let x = T::broadcast(s, b, 0);
                                let c = $c * T::PARTS;
                                unroll!(for i in 0..MRV {
                                    sum[c][i][j] = T::fma(s, weights[i], x, sum[c][i][j]);
                                });
                                if const { T::PARTS == 2 } {
                                    let x = T::broadcast(s, b, 1);
                                    let c = (c + 1) % CHAINS;
                                    unroll!(for i in 0..MRV {
                                        sum[c][i][j] = T::fma(s, weights[i], x, sum[c][i][j]);
                                    });
                                }
                            });
                            if $c == 0 {
                                prefetch(fetch);
                                fetch = fetch.wrapping_byte_add(fetch_step);
                            }
                            w = w.wrapping_add(weights_step);
                            unroll!(for j in 0..NR {
                                b[j] = opaque(b[j].wrapping_add(operand.step));
                            });
                        }};
                    }
                    while left >= chains {
                        unroll!(for c in 0..CHAINS {
                            if c < chains {
                                step!(c);
                            }
                        });
                        left -= chains;
                    }
                    while left > 0 {
                        step!(0);
                        left -= 1;
                    }
                }
                let mut half = chains;
                while half > 1 {
                    half /= 2;
                    for c in 0..half * T::PARTS {
                        unroll!(for i in 0..MRV {
                            unroll!(for j in 0..NR {
                                sum[c][i][j] = T::plus(s, sum[c][i][j], sum[c + half * T::PARTS][i][j]);
                            });
                        });
                    }
                }
                let mut sums = sum[0];
                if const { T::PARTS == 2 } {
                    unroll!(for i in 0..MRV {
                        unroll!(for j in 0..NR {
                            sums[i][j] = T::join(s, sum[0][i][j], sum[1 % CHAINS][i][j]);
                        });
                    });
                }
                epilogue.finish(s, sums, self.row, col, last);
            }
        }
    }
}
