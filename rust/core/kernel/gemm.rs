//! A product by tiles.

use pulp::{Simd, WithSimd};

use super::dispatch::InstructionSet;
use super::element::Element;
use super::epilogue::{Epilogue, Step, StepBack, Store};
use super::tile::{Term, Tile, max_columns, max_rows};
use crate::memory::ALIGNMENT;
use crate::scalar::{Scalar, c32, c64};

/// Weights of a product: `w[k][r]`, rows `r` on the lanes.
#[derive(Clone, Copy)]
pub struct Weights<T> {
    /// First entry.
    pub ptr: *const T,
    /// Length of the sum.
    pub k: usize,
    /// Distance between successive `k`; 0: packed into panels by [`super::pack::pack`].
    pub ld: usize,
}

impl<T> Weights<T> {
    /// Weights whose rows are contiguous for each `k`, `ld` apart, and readable to whole registers.
    pub fn strided(ptr: *const T, ld: usize, k: usize) -> Self {
        Self { ptr, k, ld }
    }
    /// No weights: an absent second term.
    pub fn none() -> Self {
        Self { ptr: std::ptr::null(), k: 0, ld: 0 }
    }
}

/// The broadcast operand: entry `(k, j)` at `ptr[j * col + k * step]`.
#[derive(Clone, Copy)]
pub struct Operand<T> {
    /// First entry.
    pub ptr: *const T,
    /// Distance between columns.
    pub col: usize,
    /// Distance between successive `k`.
    pub step: usize,
}

impl<T> Operand<T> {
    /// Contiguous columns, `ld` apart.
    pub fn columns(ptr: *const T, ld: usize) -> Self {
        Self { ptr, col: ld, step: 1 }
    }
    /// Contiguous over the columns for each `k`, `ld` apart.
    pub fn rows(ptr: *const T, ld: usize) -> Self {
        Self { ptr, col: 1, step: ld }
    }
    /// Absent.
    pub fn none() -> Self {
        Self { ptr: std::ptr::null(), col: 0, step: 0 }
    }
}

/// Numbers in a cache line: every count of weight rows is padded to a multiple of it, on every instruction set.
#[inline(always)]
pub const fn line<T>() -> usize {
    ALIGNMENT / size_of::<T>()
}

/// `epilogue(sum over both terms)` for `rows` rows and `cols` columns.
///
/// The caller owns all memory named by the terms and the epilogue; weights are readable to whole registers (rows padded
/// to [`line`]).
pub unsafe fn gemm2<T: Scalar, E: Epilogue<T>>(
    isa: InstructionSet,
    rows: usize,
    cols: usize,
    weights: [Weights<T>; 2],
    operands: [Operand<T>; 2],
    epilogue: &E,
) {
    if rows > 0 && cols > 0 {
        epilogue.product(isa, (rows, cols), &weights, &operands);
    }
}

/// The products of a number type, one function for each epilogue. They are not generic: whoever uses this crate finds
/// them compiled, instead of compiling all tiles again.
pub trait Tiles: Element {
    /// See [`gemm2`].
    unsafe fn product(
        isa: InstructionSet,
        shape: Shape,
        w: &Both<Weights<Self>>,
        b: &Both<Operand<Self>>,
        e: &Store<Self>,
    );
    /// See [`gemm2`].
    unsafe fn step(
        isa: InstructionSet,
        shape: Shape,
        w: &Both<Weights<Self>>,
        b: &Both<Operand<Self>>,
        e: &Step<'_, Self>,
    ) where
        Self: Scalar;
    /// See [`gemm2`].
    unsafe fn step_back(
        isa: InstructionSet,
        shape: Shape,
        w: &Both<Weights<Self>>,
        b: &Both<Operand<Self>>,
        e: &StepBack<'_, Self>,
    ) where
        Self: Scalar;
}

/// Rows and columns of a result.
pub type Shape = (usize, usize);
/// One for each term of the sum.
pub type Both<X> = [X; 2];

macro_rules! tiles {
    ($($t:ty)*) => { $(
        impl Tiles for $t {
            unsafe fn product(isa: InstructionSet, (rows, cols): Shape, weights: &Both<Weights<$t>>, operands: &Both<Operand<$t>>, epilogue: &Store<$t>) {
                isa.dispatch(Product { rows, cols, weights, operands, epilogue });
            }
            unsafe fn step(isa: InstructionSet, (rows, cols): Shape, weights: &Both<Weights<$t>>, operands: &Both<Operand<$t>>, epilogue: &Step<'_, $t>) {
                isa.dispatch(Product { rows, cols, weights, operands, epilogue });
            }
            unsafe fn step_back(isa: InstructionSet, (rows, cols): Shape, weights: &Both<Weights<$t>>, operands: &Both<Operand<$t>>, epilogue: &StepBack<'_, $t>) {
                isa.dispatch(Product { rows, cols, weights, operands, epilogue });
            }
        }
    )* };
}
tiles!(f32 f64 c32 c64);

struct Product<'a, T, E> {
    rows: usize,
    cols: usize,
    weights: &'a [Weights<T>; 2],
    operands: &'a [Operand<T>; 2],
    epilogue: &'a E,
}

impl<T: Element, E: Epilogue<T>> WithSimd for Product<'_, T, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Self { rows, cols, weights, operands, epilogue } = self;
        let lanes = T::lanes::<S>();
        let panel = max_rows::<S>() * lanes;
        let padded_rows = rows.next_multiple_of(lanes);
        let tiles = rows.div_ceil(panel) * cols.div_ceil(max_columns::<S>(max_rows::<S>(), T::PARTS));
        let fetch = epilogue.fetch().share(tiles, weights[0].k + weights[1].k);
        let mut number = 0;
        let mut row = 0;
        while row < padded_rows {
            let height = panel.min(padded_rows - row);
            let mrv = height / lanes;
            let term = |w: Weights<T>, b: Operand<T>| Term {
                w: w.ptr.wrapping_add(if w.ld == 0 { row * w.k } else { row }),
                w_step: if w.ld == 0 { height } else { w.ld },
                b: b.ptr,
                b_col: b.col,
                b_step: b.step,
                k: w.k,
            };
            let terms = [term(weights[0], operands[0]), term(weights[1], operands[1])];
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
pub unsafe fn gemm<T: Scalar, E: Epilogue<T>>(
    isa: InstructionSet,
    rows: usize,
    cols: usize,
    weights: Weights<T>,
    operand: Operand<T>,
    epilogue: &E,
) {
    gemm2(isa, rows, cols, [weights, Weights::none()], [operand, Operand::none()], epilogue);
}

/// Terms of a sum whose weights stay in the first-level cache: times four registers of 64 bytes, 32 KiB.
pub const PIECE: usize = 128;

/// [`gemm`] for a long sum over strided weights: in pieces, whose weights stay in the first-level cache while all columns
/// pass.
pub unsafe fn long_gemm<T: Scalar>(
    isa: InstructionSet,
    rows: usize,
    cols: usize,
    weights: Weights<T>,
    operand: Operand<T>,
    epilogue: &Store<T>,
) {
    let mut epilogue = *epilogue;
    for begin in (0..weights.k).step_by(PIECE) {
        let k = PIECE.min(weights.k - begin);
        let piece = Weights { ptr: weights.ptr.wrapping_add(begin * weights.ld), k, ..weights };
        let operand = Operand { ptr: operand.ptr.wrapping_add(begin * operand.step), ..operand };
        gemm(isa, rows, cols, piece, operand, &epilogue);
        epilogue.add = epilogue.out;
    }
}
