//! Blocks of reflections on columns of `W`, which lie in the lanes of registers, a few registers of them at a time:
//!
//! ```text
//! H_j .. H_{j+B-1} W = W - V A,   a_i = tau_i (v_i* W - sum_{l > i} (v_i* v_l) a_l)
//! ```
//!
//! with `v_i* W` and then the rows of `A` in registers. `W` is read twice and written once for `B` reflections.

use std::ops::Range;

use pulp::Simd;

use super::Chain;
use crate::arrays::view::{View, ViewMut};
use crate::numbers::scalar::Scalar;
use crate::operator::Form;
use crate::simd::element::Element;
use crate::simd::lanes::{Lanes, unroll};

/// Real, and imaginary if there is one.
#[inline(always)]
fn parts<T: Element>() -> Range<usize> {
    0..T::PARTS
}

/// `C` registers of columns of `V* W`, or of `-A`; for complex numbers also `i` times them.
pub type Products<T, S, const C: usize, const B: usize> = [[[<T as Element>::V<S>; 2]; C]; B];

/// The reflections in blocks of `B`.
pub struct Reflectors<'a, T: Scalar, const B: usize> {
    chain: &'a Chain<T>,
    /// `-tau_i v_i* v_l` at `i * B + l`, block by block.
    gram: &'a [T],
}

impl<'a, T: Scalar, const B: usize> Reflectors<'a, T, B> {
    #[inline(always)]
    pub fn new<S: Simd>(s: S, chain: &'a Chain<T>, gram: &'a mut [T]) -> Self {
        let (count, lanes) = (chain.k.div_ceil(B), T::lanes::<S>());
        for (block, gram) in gram.chunks_exact_mut(B * B).take(count).enumerate() {
            for l in (0..B).step_by(lanes) {
                let mut sums = [[[T::splat(s, T::ZERO); 2]; 1]; B];
                let columns = View::of(&chain.rows, chain.ld_k, chain.n).from(block * B + l, 0);
                // SAFETY: padded rows of V: whole registers.
                unsafe { project(s, chain, block * B, 0..chain.n, columns, &mut sums) };
                let inside = Lanes::<S, T, 1>::first(s, B - l);
                for ((row, sum), &tau) in gram.chunks_exact_mut(B).zip(sums).zip(&chain.tau[block * B..]) {
                    // SAFETY: the lanes of a row of B numbers.
                    unsafe { inside.store(row.as_mut_ptr().add(l), [times(s, sum[0][0], -tau)]) };
                }
            }
        }
        Self { chain, gram }
    }

    /// Applies all reflections to `C` registers of unit vectors, from column `begin` on, and writes the last result to `out`,
    /// which may be `w`.
    ///
    /// # Safety
    /// The caller owns these columns of `w` and `out`.
    #[inline(always)]
    pub unsafe fn reflect<S: Simd, const C: usize>(
        &self,
        s: S,
        unit: View<'_, T>,
        [w, out]: [ViewMut<'_, T>; 2],
        begin: usize,
    ) {
        let (chain, lanes) = (self.chain, T::lanes::<S>());
        // Reflection j leaves the columns before its first coordinate alone.
        let most = if chain.form == Form::Full { chain.k } else { begin + C * lanes };
        let count = chain.k.min(most).div_ceil(B);
        if count == 0 {
            return copy::<T, S, C>(s, chain.n, unit, out);
        }
        // Rows that are unit vectors until a reflection changes them.
        copy::<T, S, C>(s, chain.form.first((count - 1) * B), unit, w);
        let mut from = unit;
        for block in (0..count).rev() {
            let zero = [T::splat(s, T::ZERO); 2];
            let mut a = [[zero; C]; B];
            if block + 1 == count {
                // Unit vectors still: row i is zero but for column i.
                unroll!(for c in 0..C {
                    let begin = begin + c * lanes;
                    let mut products = [[zero]; B];
                    // SAFETY: as of all C registers.
                    unsafe {
                        project(s, chain, block * B, begin..begin + lanes, unit.from(c * lanes, 0), &mut products);
                    }
                    for (a, product) in a.iter_mut().zip(products) {
                        a[c] = product[0];
                    }
                });
            } else {
                project(s, chain, block * B, 0..chain.n, from, &mut a);
            }
            self.solve::<S, C>(s, block, &mut a);
            expand::<T, S, C, B>(s, chain, block * B, &a, from, if block == 0 { out } else { w });
            from = w.read();
        }
    }

    /// Rows of `-A` in place of `V* W`: `-a_i = -tau_i v_i* W + sum_{l > i} (-tau_i v_i* v_l) (-a_l)`.
    #[inline(always)]
    fn solve<S: Simd, const C: usize>(&self, s: S, block: usize, a: &mut Products<T, S, C, B>) {
        let (gram, tau) = (&self.gram[block * B * B..][..B * B], &self.chain.tau[block * B..][..B]);
        unroll!(for i in 0..B {
            for a in &mut a[i] {
                a[0] = times(s, a[0], -tau[i]);
            }
        });
        unroll!(for back in 0..B {
            let i = B - 1 - back;
            // The oldest results first, so that a sum waits only for the newest one.
            for l in (i + 1..B).rev() {
                for part in parts::<T>() {
                    // SAFETY: a number of `gram`.
                    let g = unsafe { T::broadcast(s, &raw const gram[i * B + l], part) };
                    unroll!(for c in 0..C {
                        a[i][c][0] = T::fma(s, a[l][c][part], g, a[i][c][0]);
                    });
                }
            }
            for a in &mut a[i] {
                a[1] = T::join(s, T::splat(s, T::ZERO), a[0]);
            }
        });
    }
}

/// `x` times a number.
#[inline(always)]
fn times<T: Scalar, S: Simd>(s: S, x: T::V<S>, factor: T) -> T::V<S> {
    let zero = T::splat(s, T::ZERO);
    let both = |part: T::Real| T::splat(s, T::from_parts(part, part));
    let product = T::fma(s, x, both(factor.re()), zero);
    if T::COMPLEX { T::fma(s, T::join(s, zero, x), both(factor.im()), product) } else { product }
}

/// `C` registers of a row.
#[inline(always)]
fn whole<S: Simd, T: Element, const C: usize>(s: S) -> Lanes<S, T, C> {
    Lanes::first(s, T::lanes::<S>())
}

/// The first row of the `B` columns from `first` on, and the first one in which all of them have entries.
#[inline(always)]
fn edges<T: Scalar, const B: usize>(chain: &Chain<T>, first: usize) -> (usize, usize) {
    let top = chain.form.first(first);
    (top, if chain.form == Form::Full { top } else { top + B })
}

/// Adds `v_i* W`, summed over `rows`, to `a` for the `B` reflections from `first` on.
///
/// # Safety
/// The caller owns `C` registers in each row of `w`.
#[inline(always)]
pub unsafe fn project<T: Scalar, S: Simd, const C: usize, const B: usize>(
    s: S,
    chain: &Chain<T>,
    first: usize,
    rows: Range<usize>,
    w: View<'_, T>,
    a: &mut Products<T, S, C, B>,
) {
    let v = View::of(&chain.rows, chain.ld_k, chain.n).from(first, 0);
    let (top, whole) = edges::<T, B>(chain, first);
    let rows = rows.start.max(top)..rows.end.min(chain.n);
    unroll!(for i in 0..B {
        if top + i < whole && rows.contains(&(top + i)) {
            project_row(s, v.at(0, top + i), i + 1, w.at(0, top + i), a);
        }
    });
    for row in rows.start.max(whole)..rows.end {
        project_row(s, v.at(0, row), B, w.at(0, row), a);
    }
    if T::COMPLEX {
        for a in a.iter_mut().flatten() {
            a[0] = T::join(s, a[0], times(s, a[1], -T::ONE));
        }
    }
}

/// One row's part of `v_i* W`, of the first `count` reflections.
///
/// # Safety
/// The caller owns `count` numbers at `v` and `C` registers at `w`.
#[inline(always)]
unsafe fn project_row<T: Scalar, S: Simd, const C: usize, const B: usize>(
    s: S,
    v: *const T,
    count: usize,
    w: *const T,
    a: &mut Products<T, S, C, B>,
) {
    let x = whole::<S, T, C>(s).load(w);
    unroll!(for i in 0..B {
        if i < count {
            for part in parts::<T>() {
                let v = T::broadcast(s, v.add(i), part);
                unroll!(for c in 0..C {
                    a[i][c][part] = T::fma(s, x[c], v, a[i][c][part]);
                });
            }
        }
    });
}

/// `W - V A` of the reflections from `first` on, from `-A`.
///
/// # Safety
/// The caller owns `C` registers in each row of both.
#[inline(always)]
unsafe fn expand<T: Scalar, S: Simd, const C: usize, const B: usize>(
    s: S,
    chain: &Chain<T>,
    first: usize,
    a: &Products<T, S, C, B>,
    from: View<'_, T>,
    to: ViewMut<'_, T>,
) {
    let v = View::of(&chain.rows, chain.ld_k, chain.n).from(first, 0);
    let (top, whole) = edges::<T, B>(chain, first);
    unroll!(for i in 0..B {
        if top + i < whole.min(chain.n) {
            expand_row(s, v.at(0, top + i), i + 1, a, from.at(0, top + i), to.at(0, top + i));
        }
    });
    for row in whole..chain.n {
        expand_row(s, v.at(0, row), B, a, from.at(0, row), to.at(0, row));
    }
}

/// One row of `W - V A`, of the first `count` reflections.
///
/// # Safety
/// The caller owns `count` numbers at `v` and `C` registers at both addresses.
#[inline(always)]
unsafe fn expand_row<T: Scalar, S: Simd, const C: usize, const B: usize>(
    s: S,
    v: *const T,
    count: usize,
    a: &Products<T, S, C, B>,
    from: *const T,
    to: *mut T,
) {
    let mut x = whole::<S, T, C>(s).load(from);
    unroll!(for i in 0..B {
        if i < count {
            for part in parts::<T>() {
                let v = T::broadcast(s, v.add(i), part);
                unroll!(for c in 0..C {
                    x[c] = T::fma(s, a[i][c][part], v, x[c]);
                });
            }
        }
    });
    whole(s).store(to, x);
}

/// The first `rows` rows.
///
/// # Safety
/// The caller owns `C` registers in each row of both.
#[inline(always)]
unsafe fn copy<T: Scalar, S: Simd, const C: usize>(s: S, rows: usize, from: View<'_, T>, to: ViewMut<'_, T>) {
    for row in 0..rows {
        whole(s).store(to.at(0, row), whole::<S, T, C>(s).load(from.at(0, row)));
    }
}
