//! Transposition by squares in registers.
//!
//! A square of `L x L` numbers, `L` lanes of a register, consists of blocks of 128 bits: `Q x Q` numbers, four or two. Some `Q`
//! registers hold a row of blocks, each in lanes of its own. Shuffles within these lanes turn all blocks of a row at once, and
//! each block is written to its place.

use std::mem::MaybeUninit;
use std::ptr::copy_nonoverlapping;

use pulp::Simd;

use super::element::Element;
use super::isa::simd;
use super::lanes::Lanes;
use crate::arrays::view::{Shape, View, ViewMut};

/// Most lanes of a register.
const MOST: usize = 16;

simd! {
    /// `to[i * ld_to + j] = from[j * ld_from + i]` for `i < rows`, `j < cols`.
    ///
    /// # Panics
    /// If one of the slices is too short.
    pub fn transpose<T: Element>(s, shape: Shape, from: &[T], ld_from: usize, to: &mut [T], ld_to: usize) -> () {
        transpose_with(s, shape, from, ld_from, to, ld_to);
    }

    /// Entry `i` of vector `j` of `from` becomes entry `j` of vector `i` of `to`, for `i < rows`, `j < cols`.
    ///
    /// # Safety
    /// The caller owns `cols` vectors of `rows` contiguous numbers, and as many numbers the other way round.
    pub unsafe fn turned<T: Element>(s, shape: Shape, from: View<'_, T>, to: ViewMut<'_, T>) -> () {
        // SAFETY: as said.
        unsafe { transpose_at(s, shape, from.ptr, from.ld, to.ptr, to.ld) };
    }
}

/// [`transpose`] in a function compiled for an instruction set.
#[inline(always)]
pub fn transpose_with<S: Simd, T: Element>(
    s: S,
    (rows, cols): Shape,
    from: &[T],
    ld_from: usize,
    to: &mut [T],
    ld_to: usize,
) {
    if rows == 0 || cols == 0 {
        return;
    }
    let reach = |count: usize, ld: usize, len: usize| (count - 1).checked_mul(ld)?.checked_add(len);
    let fits = |have: usize, need: Option<usize>| need.is_some_and(|need| need <= have);
    assert!(
        fits(from.len(), reach(cols, ld_from, rows)) && fits(to.len(), reach(rows, ld_to, cols)),
        "a transposition"
    );
    // SAFETY: both lengths are checked above.
    unsafe { transpose_at(s, (rows, cols), from.as_ptr(), ld_from, to.as_mut_ptr(), ld_to) };
}

/// [`transpose_with`] of a matrix at an address.
///
/// # Safety
/// The caller owns `cols` columns of `rows` numbers at `from`, and `rows` rows of `cols` numbers at `to`.
#[inline(always)]
pub unsafe fn transpose_at<S: Simd, T: Element>(
    s: S,
    (rows, cols): Shape,
    from: *const T,
    ld_from: usize,
    to: *mut T,
    ld_to: usize,
) {
    // Complex numbers are moved like real ones of the same size.
    match size_of::<T>() {
        4 if !S::IS_SCALAR => by_squares::<S, f32>(s, (rows, cols), from.cast(), ld_from, to.cast(), ld_to),
        8 if !S::IS_SCALAR => by_squares::<S, f64>(s, (rows, cols), from.cast(), ld_from, to.cast(), ld_to),
        _ => {
            for i0 in (0..rows).step_by(MOST) {
                for j in 0..cols {
                    for i in i0..rows.min(i0 + MOST) {
                        *to.add(i * ld_to + j) = *from.add(j * ld_from + i);
                    }
                }
            }
        }
    }
}

/// # Safety
/// As of [`transpose_at`].
#[inline(always)]
unsafe fn by_squares<S: Simd, T: Turn>(
    s: S,
    (rows, cols): Shape,
    from: *const T,
    ld_from: usize,
    to: *mut T,
    ld_to: usize,
) {
    let lanes = T::lanes::<S>();
    for i in (0..rows).step_by(lanes) {
        for j in (0..cols).step_by(lanes) {
            let shape = (rows - i, cols - j);
            square(s, shape, from.add(j * ld_from + i), ld_from, to.add(i * ld_to + j), ld_to);
        }
    }
}

/// One square; `shape` is what is left of the matrix.
///
/// # Safety
/// As of [`transpose_at`].
#[inline(always)]
unsafe fn square<S: Simd, T: Turn>(
    s: S,
    (rows, cols): Shape,
    from: *const T,
    ld_from: usize,
    to: *mut T,
    ld_to: usize,
) {
    let lanes = T::lanes::<S>();
    if cols >= lanes {
        if rows >= lanes {
            return T::turn(s, lanes, from, ld_from, to, ld_to); // known to the compiler, which drops the comparisons
        }
        return T::turn(s, rows, from, ld_from, to, ld_to);
    }
    let [mut square, mut turned] = [MaybeUninit::<[T; MOST * MOST]>::uninit(); 2];
    let [square, turned] = [&mut square, &mut turned].map(|x| x.as_mut_ptr().cast::<T>());
    let column = Lanes::<S, T, 1>::first(s, rows);
    for j in 0..lanes {
        let numbers = if j < cols { column.load(from.add(j * ld_from))[0] } else { T::splat(s, T::default()) };
        T::store(s, square.add(j * lanes), numbers);
    }
    T::turn(s, lanes, square, lanes, turned, lanes);
    let whole = cols - cols % T::BLOCK;
    for i in 0..lanes.min(rows) {
        // Block by block, as they were written: processors forward from stores to loads of no other size.
        let (from, to) = (turned.add(i * lanes), to.add(i * ld_to));
        (0..whole).step_by(T::BLOCK).for_each(|j| copy_nonoverlapping(from.add(j), to.add(j), T::BLOCK));
        (whole..cols).for_each(|j| *to.add(j) = *from.add(j));
    }
}

/// Number types that are turned in registers.
trait Turn: Element {
    /// Rows and columns of a block.
    const BLOCK: usize;
    /// Turns the first `rows` rows of a square, at most all of them.
    ///
    /// # Safety
    /// As of [`transpose_at`], for as many columns as a register has lanes.
    unsafe fn turn<S: Simd>(s: S, rows: usize, from: *const Self, ld_from: usize, to: *mut Self, ld_to: usize);
}

macro_rules! turn {
    ($t:ident, $q:literal, $turn_blocks:ident) => {
        impl Turn for $t {
            const BLOCK: usize = $q;
            #[inline(always)]
            unsafe fn turn<S: Simd>(s: S, rows: usize, from: *const Self, ld_from: usize, to: *mut Self, ld_to: usize) {
                let blocks = Self::lanes::<S>() / $q;
                let column = Lanes::<S, Self, 1>::first(s, rows);
                for p in (0..blocks).map(|block| $q * block) {
                    let columns: [Self::V<S>; $q] = std::array::from_fn(
                        #[inline(always)]
                        |i| column.load(from.add((p + i) * ld_from))[0],
                    );
                    // Block g of register c has entry $q g + c of these columns.
                    for (c, row) in s.$turn_blocks(columns).iter().enumerate() {
                        let row = std::ptr::from_ref(row).cast::<[Self; $q]>();
                        for g in 0..blocks {
                            let i = $q * g + c;
                            if i < rows {
                                to.add(i * ld_to + p).cast::<[Self; $q]>().write_unaligned(*row.add(g));
                            }
                        }
                    }
                }
            }
        }
    };
}
turn!(f32, 4, deinterleave_shfl_f32s);
turn!(f64, 2, deinterleave_shfl_f64s);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::number::{c32, c64};
    use crate::simd::isa::InstructionSet;

    fn rows_become_columns<T: Element>(number: impl Fn(usize) -> T) {
        for isa in InstructionSet::available() {
            let [many_rows, many_cols]: [&[usize]; 2] = if cfg!(miri) {
                [&[1, 17], &[3, 18]]
            } else {
                [&[1, 2, 3, 7, 8, 9, 15, 16, 17, 33], &[1, 2, 4, 5, 8, 15, 16, 18, 31]]
            };
            for &rows in many_rows {
                for &cols in many_cols {
                    let (ld_from, ld_to) = (rows + 1, cols + 2);
                    let from: Vec<T> = (0..cols * ld_from).map(&number).collect();
                    let mut to = vec![number(1 << 12); rows * ld_to];
                    transpose(isa, (rows, cols), &from, ld_from, &mut to, ld_to);
                    for (i, row) in to.chunks(ld_to).enumerate() {
                        for (j, x) in row.iter().enumerate() {
                            let expected = if j < cols { from[j * ld_from + i] } else { number(1 << 12) };
                            assert_eq!(*x, expected, "{} {rows} x {cols}: ({i}, {j})", isa.name());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_stride_that_leaves_the_address_space_is_refused() {
        let turn = |ld| transpose(InstructionSet::current(), (1, 3), &[0.0_f32; 4], ld, &mut [0.0; 3], 3);
        turn(1);
        assert!(std::panic::catch_unwind(|| turn(usize::MAX / 2 + 1)).is_err());
    }

    #[test]
    fn rows_become_columns_of_every_type() {
        rows_become_columns(|i| i as f32);
        rows_become_columns(|i| i as f64);
        rows_become_columns(|i| c32::new(i as f32, -(i as f32)));
        rows_become_columns(|i| c64::new(i as f64, -(i as f64)));
    }
}
