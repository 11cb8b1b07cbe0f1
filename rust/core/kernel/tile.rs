//! One register tile: `MRV` registers of rows by `NR` columns, all sums in registers.

use std::ptr::null;

use pulp::{Simd, WithSimd};

use super::element::Element;
use super::epilogue::{Epilogue, Lanes};
use super::fetch::{Share, prefetch};

/// One part of the sum over `k`: weights on the lanes, a broadcast operand.
#[derive(Clone, Copy)]
pub struct Term<T> {
    /// Weights of this tile's first row: entry `(k, r)` at `w[k * w_step + r]`, readable to whole registers.
    pub w: *const T,
    /// Distance between weights of successive `k`.
    pub w_step: usize,
    /// Operand: entry `(k, j)` at `b[j * b_col + k * b_step]`.
    pub b: *const T,
    /// Distance between columns.
    pub b_col: usize,
    /// Distance between successive `k`.
    pub b_step: usize,
    /// Length of the sum; 0 for an absent term.
    pub k: usize,
}

/// Most registers of rows in a tile, by the size of the register file.
#[inline(always)]
pub const fn max_rows<S: Simd>() -> usize {
    match S::REGISTER_COUNT {
        _ if S::IS_SCALAR => 1,
        32.. => 4,
        _ => 2,
    }
}

/// Most columns of a tile with `mrv` registers of rows: as many as leave registers for the weights and a broadcast, and
/// no more than keep the FMA pipes busy, since every size is a function of its own to compile.
#[inline(always)]
pub const fn max_columns<S: Simd>(mrv: usize, parts: usize) -> usize {
    let columns = match (max_rows::<S>(), mrv) {
        _ if S::IS_SCALAR => 4,
        (4, 4) | (2, 2) => 6,
        _ => 8,
    };
    columns / parts
}

/// Calls `f(0), .., f(N - 1)`, unrolled: left to itself LLVM gives up on large nests and keeps the sums in memory.
#[inline(always)]
pub fn unroll<const N: usize>(mut f: impl FnMut(usize)) {
    const { assert!(N <= 16, "more calls than are written out") };
    macro_rules! calls { ($($i:literal)*) => { $( if const { $i < N } { f($i); } )* } }
    calls!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

/// `p`, of which the compiler forgets where it came from: a pointer into a sum is moved from step to step, not found again.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // there is no instruction that could follow the pointer
pub fn opaque<T>(mut p: *const T) -> *const T {
    // SAFETY: no instruction at all.
    unsafe { std::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags)) };
    p
}

/// Runs `count` tiles side by side. `CHAINS` independent accumulators a sum (times two for complex numbers) hide the
/// latency of an FMA where the tile alone is too small to.
pub struct Tile<'a, T, E, const MRV: usize, const NR: usize, const CHAINS: usize> {
    /// The sum.
    pub terms: &'a [Term<T>; 2],
    /// What becomes of it.
    pub epilogue: &'a E,
    /// First row and the number of rows of the whole matrix.
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
        // Copies: behind references every field would be read again after each store.
        let (terms, epilogue) = (*self.terms, *self.epilogue);
        let lanes = T::lanes::<S>();
        let chains = CHAINS / T::PARTS;
        let last = Lanes::<S, T, MRV>::first(s, self.rows - self.row - (MRV - 1) * lanes);
        for tile in 0..self.count {
            let col = self.col + tile * NR;
            // SAFETY: the caller of `gemm` owns weights readable to whole registers, an operand of `k` entries in each
            // column, and every address of the epilogue, for all rows and columns of the matrix.
            unsafe {
                let (mut fetch, fetch_step) = self.fetch.of(self.number + tile, terms[0].w);
                let mut sum = [[[T::splat(s, T::default()); NR]; MRV]; CHAINS];
                for term in terms {
                    let mut w = term.w;
                    // Columns in pairs, a pointer for the first one and the distance to the other: a pointer for each
                    // does not fit into the registers.
                    let near = NR.div_ceil(2);
                    let far = opaque(null::<T>().wrapping_add(near * term.b_col)) as usize;
                    let mut b = [term.b; NR];
                    unroll::<NR>(
                        #[inline(always)]
                        |j| b[j] = opaque(term.b.wrapping_add((col + j) * term.b_col)),
                    );
                    let mut left = term.k;
                    macro_rules! step {
                        ($c:expr) => {{
                            let mut weights = [T::splat(s, T::default()); MRV];
                            unroll::<MRV>(
                                #[inline(always)]
                                |i| weights[i] = T::load(s, w.add(i * lanes)),
                            );
                            unroll::<NR>(
                                #[inline(always)]
                                |j| {
                                    let b = if j < near { b[j] } else { b[j - near].wrapping_byte_add(far) };
                                    let x = T::broadcast(s, b, 0);
                                    let c = $c * T::PARTS;
                                    unroll::<MRV>(
                                        #[inline(always)]
                                        |i| sum[c][i][j] = T::fma(s, weights[i], x, sum[c][i][j]),
                                    );
                                    if const { T::PARTS == 2 } {
                                        let x = T::broadcast(s, b, 1);
                                        let c = (c + 1) % CHAINS;
                                        unroll::<MRV>(
                                            #[inline(always)]
                                            |i| sum[c][i][j] = T::fma(s, weights[i], x, sum[c][i][j]),
                                        );
                                    }
                                },
                            );
                            prefetch(fetch);
                            fetch = fetch.wrapping_byte_add(fetch_step);
                            w = w.wrapping_add(term.w_step);
                            unroll::<NR>(
                                #[inline(always)]
                                |j| b[j] = opaque(b[j].wrapping_add(term.b_step)),
                            );
                        }};
                    }
                    while left >= chains {
                        unroll::<CHAINS>(
                            #[inline(always)]
                            |c| {
                                if c < chains {
                                    step!(c);
                                }
                            },
                        );
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
                        unroll::<MRV>(
                            #[inline(always)]
                            |i| {
                                unroll::<NR>(
                                    #[inline(always)]
                                    |j| sum[c][i][j] = T::plus(s, sum[c][i][j], sum[c + half * T::PARTS][i][j]),
                                );
                            },
                        );
                    }
                }
                let mut sums = sum[0];
                if const { T::PARTS == 2 } {
                    unroll::<MRV>(
                        #[inline(always)]
                        |i| {
                            unroll::<NR>(
                                #[inline(always)]
                                |j| sums[i][j] = T::join(s, sum[0][i][j], sum[1 % CHAINS][i][j]),
                            );
                        },
                    );
                }
                epilogue.finish(s, sums, self.row, col, last);
            }
        }
    }
}
