//! A product by tiles.

use pulp::{Simd, WithSimd};

use super::element::Element;
use super::epilogue::{Epilogue, Step, StepBack, Store, Terms, Tiles};
use super::isa::InstructionSet;
use super::lanes::{max_columns, max_rows};
use super::tile::Tile;
use crate::arrays::view::{Shape, View};
use crate::memory::ALIGNMENT;
use crate::numbers::number::{c32, c64};

/// Numbers in a cache line: every count of weight rows is padded to a multiple of it, on every instruction set.
#[inline(always)]
pub const fn line<T>() -> usize {
    ALIGNMENT / size_of::<T>()
}

/// `epilogue(sum over both terms)` for `rows` rows and `cols` columns.
///
/// Each term is a pair of weights and an operand: entry `r` of weight vector `k` and entry `k` of operand vector `j`
/// give entry `(r, j)`. Weights are contiguous over `r` and readable to whole registers (rows padded to [`line`]), or
/// packed by [`super::pack::pack`], which leaves `ld = 0`.
///
/// # Safety
/// The caller owns all memory that the terms and the epilogue name.
pub unsafe fn gemm2<T: Tiles, E: Epilogue<T>>(
    isa: InstructionSet,
    (rows, cols): Shape,
    terms: &Terms<'_, T>,
    epilogue: &E,
) {
    if rows > 0 && cols > 0 {
        epilogue.product(isa, (rows, cols), terms);
    }
}

macro_rules! tiles {
    ($($t:ty)*) => { $(
        impl Tiles for $t {
            unsafe fn product(isa: InstructionSet, shape: Shape, terms: &Terms<'_, $t>, epilogue: &Store<'_, $t>) {
                isa.dispatch(Product { shape, terms, epilogue });
            }
            unsafe fn step(isa: InstructionSet, shape: Shape, terms: &Terms<'_, $t>, epilogue: &Step<'_, $t>) {
                isa.dispatch(Product { shape, terms, epilogue });
            }
            unsafe fn step_back(isa: InstructionSet, shape: Shape, terms: &Terms<'_, $t>, epilogue: &StepBack<'_, $t>) {
                isa.dispatch(Product { shape, terms, epilogue });
            }
        }
    )* };
}
tiles!(f32 f64 c32 c64);

struct Product<'a, T, E> {
    shape: Shape,
    terms: &'a Terms<'a, T>,
    epilogue: &'a E,
}

impl<T: Element, E: Epilogue<T>> WithSimd for Product<'_, T, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Self { shape: (rows, cols), terms, epilogue } = self;
        let lanes = T::lanes::<S>();
        let panel = max_rows::<S>() * lanes;
        let padded_rows = rows.next_multiple_of(lanes);
        let tiles = rows.div_ceil(panel) * cols.div_ceil(max_columns::<S>(max_rows::<S>(), T::PARTS));
        let fetch = epilogue.fetch().share(tiles, terms[0][0].count + terms[1][0].count);
        let mut number = 0;
        let mut row = 0;
        while row < padded_rows {
            let height = panel.min(padded_rows - row);
            let mrv = height / lanes;
            let terms = terms.map(|[w, b]| {
                let packed = w.ld == 0;
                let ptr = w.ptr.wrapping_add(if packed { row * w.count } else { row });
                [View { ptr, ld: if packed { height } else { w.ld }, ..w }, b]
            });
            // Columns are spread evenly over the fewest tiles: 25 = 5 x 5, never 6 + 6 + 6 + 6 + 1.
            let widest = max_columns::<S>(mrv, T::PARTS);
            let tiles = cols.div_ceil(widest);
            let (narrow, extra) = (cols / tiles, cols % tiles);
            let mut col = 0;
            for (nr, count) in [(narrow + 1, extra), (narrow, tiles - extra)] {
                if count == 0 {
                    continue;
                }
                macro_rules! tile {
                    ($m:literal, $n:literal) => {
                        if const { $m <= max_rows::<S>() && $n <= max_columns::<S>($m, T::PARTS) } {
                            // Eight sums in flight fill the FMA pipes. Const arguments cannot be computed from T: literals.
                            macro_rules! run {
                                ($chains:literal) => {
                                    s.vectorize(Tile::<T, E, $m, $n, $chains> { terms: &terms, epilogue, row, rows, col, count, fetch, number })
                                };
                            }
                            if const { T::PARTS == 2 } {
                                if const { $m * $n >= 4 } {
                                    run!(2)
                                } else {
                                    run!(4)
                                }
                            } else if const { $m * $n >= 8 } {
                                run!(1)
                            } else if const { $m * $n >= 4 } {
                                run!(2)
                            } else if const { $m * $n >= 2 } {
                                run!(4)
                            } else {
                                run!(8)
                            }
                        }
                    };
                }
                macro_rules! columns {
                    ($m:literal) => {
                        match nr {
                            1 => tile!($m, 1),
                            2 => tile!($m, 2),
                            3 => tile!($m, 3),
                            4 => tile!($m, 4),
                            5 => tile!($m, 5),
                            6 => tile!($m, 6),
                            7 => tile!($m, 7),
                            _ => tile!($m, 8),
                        }
                    };
                }
                match mrv {
                    4 => columns!(4),
                    3 => columns!(3),
                    2 => columns!(2),
                    _ => columns!(1),
                }
                col += nr * count;
                number += count;
            }
            row += height;
        }
    }
}

/// [`gemm2`] with one term.
///
/// # Safety
/// As of [`gemm2`].
pub unsafe fn gemm<T: Tiles, E: Epilogue<T>>(
    isa: InstructionSet,
    shape: Shape,
    weights: View<'_, T>,
    operand: View<'_, T>,
    epilogue: &E,
) {
    gemm2(isa, shape, &[[weights, operand], [View::none(); 2]], epilogue);
}

/// Terms of a sum whose weights stay in the first-level cache: times four registers of 64 bytes, 32 KiB.
pub const PIECE: usize = 128;

/// [`gemm`] for a long sum over strided weights: in pieces, whose weights stay in the first-level cache while all columns
/// pass.
///
/// # Safety
/// As of [`gemm2`].
pub unsafe fn long_gemm<T: Tiles>(
    isa: InstructionSet,
    shape: Shape,
    weights: View<'_, T>,
    operand: View<'_, T>,
    epilogue: &Store<'_, T>,
) {
    let mut epilogue = *epilogue;
    for begin in (0..weights.count).step_by(PIECE) {
        let weights = weights.part(begin, weights.count.min(begin + PIECE));
        gemm(isa, shape, weights, operand.from(begin, 0), &epilogue);
        epilogue.add = epilogue.out.read();
    }
}
