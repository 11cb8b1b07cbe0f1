//! Transposition by squares in registers.
//!
//! A square of `L x L` numbers, `L` lanes of a register, is turned by rotations and selections, which every instruction set
//! has. With `r_j` for column `j` and all indices modulo `L`:
//!
//! ```text
//! a_j[l] = r_j[l - j],    b_i[l] = a_{l-i}[l],    row i: b_i[i + j] = r_j[i]
//! ```
//!
//! The middle step takes `log2 L` rounds: lanes whose number has bit `p` take what stands `2^p` registers before.

use pulp::Simd;

use super::element::Element;
use super::isa::simd;
use super::lanes::{Lanes, unroll};
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
    let (column, row) = (Lanes::<S, T, 1>::first(s, rows), Lanes::<S, T, 1>::first(s, cols));
    // Register (-j) mod L: the rounds below bring a_{l-i}[l] from register i - l to register i.
    let mut r = [T::splat(s, T::default()); MOST];
    unroll!(for j in 0..MOST {
        if j < lanes && j < cols {
            r[(lanes - j) % lanes] = T::rotate(s, column.load(from.add(j * ld_from))[0], j);
        }
    });
    unroll!(for bit in 0..4 {
        if 1 << bit < lanes {
            let before = r;
            unroll!(for i in 0..MOST {
                if i < lanes {
                    r[i] = T::with_bit(s, bit, before[(i + lanes - (1 << bit)) % lanes], before[i]);
                }
            });
        }
    });
    unroll!(for i in 0..MOST {
        if i < lanes && i < rows {
            row.store(to.add(i * ld_to), [T::rotate(s, r[i], lanes - i)]);
        }
    });
}

/// Number types whose values can be moved between lanes.
trait Turn: Element {
    /// Lane `l` of the result is lane `l - by`, modulo their number.
    fn rotate<S: Simd>(s: S, v: Self::V<S>, by: usize) -> Self::V<S>;
    /// `a` in the lanes whose number has that bit, `b` in the others.
    fn with_bit<S: Simd>(s: S, bit: usize, a: Self::V<S>, b: Self::V<S>) -> Self::V<S>;
}

macro_rules! turn {
    ($t:ident, $rotate:ident, $select:ident, $greater:ident, $splat:ident) => {
        impl Turn for $t {
            #[inline(always)]
            fn rotate<S: Simd>(s: S, v: Self::V<S>, by: usize) -> Self::V<S> {
                s.$rotate(v, by)
            }
            #[inline(always)]
            fn with_bit<S: Simd>(s: S, bit: usize, a: Self::V<S>, b: Self::V<S>) -> Self::V<S> {
                const BITS: [[$t; MOST]; 4] = {
                    let mut bits = [[0.0; MOST]; 4];
                    let mut i = 0;
                    while i < 4 * MOST {
                        bits[i / MOST][i % MOST] = (((i % MOST) >> (i / MOST)) & 1) as $t;
                        i += 1;
                    }
                    bits
                };
                // SAFETY: a register holds at most so many numbers.
                let bits = unsafe { <$t>::load(s, BITS[bit].as_ptr()) };
                s.$select(s.$greater(bits, s.$splat(0.0)), a, b)
            }
        }
    };
}
turn!(f32, rotate_right_f32s, select_f32s, greater_than_f32s, splat_f32s);
turn!(f64, rotate_right_f64s, select_f64s, greater_than_f64s, splat_f64s);

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
