//! Decayed products of queries and keys with keys, `<a_i, b_j> = sum_x a_ix b_jx exp(c_ix - c_jx)`.

use pulp::Simd;

use super::decay::{decayed, longer};
use super::problem::BLOCK;
use crate::arrays::view::{View, ViewMut};
use crate::numbers::exponential::Exponential;
use crate::simd::element::sum_of_lanes;
use crate::simd::isa::simd;
use crate::simd::lanes::Lanes;

/// The positions of the queries of a chunk: query `i` comes after step `first + i * every`. Their rows come before those of
/// the keys that erase, which read the state like queries.
#[derive(Clone, Copy, Debug)]
pub struct Queries {
    /// How many.
    pub count: usize,
    /// Keys that erase: all or none.
    pub erasing: usize,
    /// The step of the first.
    pub first: usize,
    /// Steps from one to the next.
    pub every: usize,
}

impl Queries {
    /// Finds the queries among `len` steps from step `first` on.
    pub fn within(first: usize, len: usize, reflections: usize, erases: bool) -> Self {
        let token = first / reflections;
        let count = (first + len) / reflections - token;
        let erasing = if erases { len } else { 0 };
        Self { count, erasing, first: (token + 1) * reflections - 1 - first, every: reflections }
    }

    /// Rows that read the state: queries, then keys that erase.
    pub fn rows(&self) -> usize {
        self.count + self.erasing
    }

    /// The rows at a step.
    pub fn rows_at(&self, position: usize) -> impl Iterator<Item = usize> + use<> {
        let key = (position < self.erasing).then_some(self.count + position);
        key.into_iter().chain(self.at(position))
    }

    /// The step that query `i` comes after.
    pub fn position(&self, i: usize) -> usize {
        self.first + i * self.every
    }

    /// The query after step `position`.
    pub fn at(&self, position: usize) -> Option<usize> {
        let distance = position.checked_sub(self.first)?;
        distance.is_multiple_of(self.every).then_some(distance / self.every)
    }

    /// Queries before step `position`.
    pub fn before(&self, position: usize) -> usize {
        position.saturating_sub(self.first).div_ceil(self.every).min(self.count)
    }
}

simd! {
    /// `decay_ij = exp(c_i - c_j)` for `j <= i`, zero elsewhere; `step`: a number a row, absent without gates.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn decays<T: Exponential>(_s, len: usize, step: View<'_, T>, decay: ViewMut<'_, T>) -> () {
        for i in 0..len {
            // SAFETY: rows of workspace.
            let to = unsafe { decay.vector_mut(i, len) };
            if i > 0 {
                // SAFETY: as above, another row.
                let (from, by) = unsafe {
                    (decay.read().vector(i - 1, len), if step.ptr.is_null() { T::ONE } else { *step.at(0, i) })
                };
                for j in 0..len {
                    to[j] = longer(from[j], by);
                }
            } else {
                to.fill(T::ZERO);
            }
            to[i] = T::ONE;
        }
    }

    /// Multiplies plain products of rows that read with keys by their decays. Zero where the key comes later, and on the
    /// diagonal of the keys' own products: what stands there is not read.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn decay_products<T: Exponential>(
        _s, len: usize, queries: Queries, plain: View<'_, T>, decay: View<'_, T>, out: ViewMut<'_, T>,
    ) -> () {
        for i in 0..queries.rows() {
            let key = i.checked_sub(queries.count);
            let position = key.unwrap_or_else(|| queries.position(i));
            // SAFETY: rows of workspace; where both are one, each number is read before it is written.
            unsafe {
                let (plain, decay, out) = (plain.at(0, i), decay.at(0, position), out.at(0, i));
                let pairs = position + usize::from(key.is_none());
                for j in 0..pairs {
                    *out.add(j) = decayed(*plain.add(j), *decay.add(j));
                }
                for j in pairs..len {
                    *out.add(j) = T::ZERO;
                }
            }
        }
    }

    /// The pairs within each block of rows, where each channel has a gate: `out` is zero elsewhere.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn within_blocks<T: Exponential>(
        s, width: usize, len: usize, queries: Queries, rows: View<'_, T>, step: View<'_, T>, decayed: &mut [T],
        out: ViewMut<'_, T>,
    ) -> () {
        for i in 0..queries.rows() {
            // SAFETY: rows of workspace.
            unsafe { out.vector_mut(i, len) }.fill(T::ZERO);
        }
        for begin in (0..len).step_by(BLOCK) {
            for j in begin..len.min(begin + BLOCK) {
                // SAFETY: rows of workspace.
                unsafe {
                    decayed.copy_from_slice(rows.vector(queries.count + j, width));
                    for i in j..len.min(begin + BLOCK) {
                        if i > j {
                            let (decay, key) = (step.vector(i, width), rows.vector(queries.count + i, width));
                            let product = decayed_dot(s, Some(decay), key, decayed);
                            if i < queries.erasing {
                                *out.at(j, queries.count + i) = product;
                            }
                        }
                        if let Some(query) = queries.at(i) {
                            *out.at(j, query) = decayed_dot(s, None, rows.vector(query, width), decayed);
                        }
                    }
                }
            }
        }
    }
}

/// `b = e b` if there is an `e`, then `sum a b`.
#[inline(always)]
fn decayed_dot<S: Simd, T: Exponential>(s: S, e: Option<&[T]>, a: &[T], b: &mut [T]) -> T {
    let (width, lanes) = (b.len(), T::lanes::<S>());
    let mut sums = [T::splat(s, T::ZERO); 2];
    for (i, begin) in (0..width).step_by(lanes).enumerate() {
        let part = Lanes::<S, T, 1>::first(s, width - begin);
        // SAFETY: lanes within the slices.
        unsafe {
            let [mut x] = part.load(b.as_ptr().add(begin));
            if let Some(e) = e {
                x = T::fma(s, x, part.load(e.as_ptr().add(begin))[0], T::splat(s, T::ZERO));
                part.store(b.as_mut_ptr().add(begin), [x]);
            }
            sums[i % 2] = T::fma(s, part.load(a.as_ptr().add(begin))[0], x, sums[i % 2]);
        }
    }
    sum_of_lanes::<T, S>(s, T::plus(s, sums[0], sums[1]))
}
