//! Gradients of decayed products, of their rows and of the gates between them.
//!
//! A gate `g_l` decays the pairs `j < l <= i`. Its gradient is summed over exactly these pairs: a difference of sums over
//! all pairs would lose all its digits where decays are strong.

use super::gram::Queries;
use super::problem::{BLOCK, CHUNK};
use crate::arrays::view::{View, ViewMut};
use crate::numbers::exponential::Exponential;
use crate::simd::isa::simd;
use crate::simd::lanes::Lanes;
use crate::simd::vector::plain_dot;

/// The rows, decays and gradients of a chunk's channels. The gradients of rows and gates are added to.
pub struct Channels<'a, T> {
    /// Queries, then keys, also those that erase nothing.
    pub rows: View<'a, T>,
    /// `exp g`.
    pub step: View<'a, T>,
    /// Gradients of the products.
    pub table: View<'a, T>,
    /// Gradients of `rows` as the later of a pair.
    pub later: ViewMut<'a, T>,
    /// Gradients of keys as the earlier of a pair.
    pub earlier: ViewMut<'a, T>,
    /// Gradients of the gates.
    pub gates: ViewMut<'a, T>,
}

simd! {
    /// Adds to the gates' gradients what the pairs contribute, one number a step; `products` are the decayed ones.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn pair_gates<T: Exponential>(
        _s, len: usize, queries: Queries, gradients: View<'_, T>, products: View<'_, T>, gates: &mut [T],
    ) -> () {
        let mut sums = [T::ZERO; CHUNK];
        for l in (1..len).rev() {
            for i in queries.rows_at(l) {
                // SAFETY: rows of workspace.
                let (gradient, product) = unsafe { (gradients.vector(i, l), products.vector(i, l)) };
                for j in 0..l {
                    sums[j] += gradient[j] * product[j];
                }
            }
            gates[l] += plain_dot(&sums[..l], &[T::ONE; CHUNK][..l]);
        }
    }

    /// Adds to the gates' gradients what the states before and after the chunk contribute: rows read the former, and keys
    /// are written to the latter. `whole` is the contribution of the decay of the state itself.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn channel_gates<T: Exponential>(
        s, width: usize, len: usize, queries: Queries, whole: &[T], parts: &Channels<'_, T>,
    ) -> () {
        for begin in (0..width).step_by(T::lanes::<S>()) {
            let lanes = Lanes::<S, T, 1>::first(s, width - begin);
            // SAFETY: lanes of rows of workspace.
            unsafe {
                let mut sum = lanes.load(whole.as_ptr().add(begin))[0];
                for l in (0..len).rev() {
                    for i in queries.rows_at(l) {
                        sum = T::fma(s, lanes.load(parts.rows.at(begin, i))[0], lanes.load(parts.later.at(begin, i))[0], sum);
                    }
                    lanes.store(parts.gates.at(begin, l), [sum]);
                }
                let mut sum = T::splat(s, T::ZERO);
                for l in 0..len {
                    let gate = parts.gates.at(begin, l);
                    lanes.store(gate, [T::plus(s, lanes.load(gate)[0], sum)]);
                    let key = lanes.load(parts.rows.at(begin, queries.count + l))[0];
                    sum = T::fma(s, key, lanes.load(parts.earlier.at(begin, l))[0], sum);
                }
            }
        }
    }

    /// Pairs within blocks, where each channel has a gate.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn within_blocks_back<T: Exponential>(
        s, width: usize, len: usize, queries: Queries, parts: &Channels<'_, T>,
    ) -> () {
        for begin in (0..width).step_by(T::lanes::<S>()) {
            let lanes = Lanes::<S, T, 1>::first(s, width - begin);
            for first in (0..len).step_by(BLOCK) {
                // SAFETY: lanes of rows of workspace.
                unsafe { block_back(s, begin, lanes, first..len.min(first + BLOCK), queries, parts) };
            }
        }
    }

    /// Pairs of a row of the second block with a key of the first one. `later` and `earlier` hold the gradients relative to
    /// the edge between the blocks. They are decayed by `middle` and added to those of `parts`.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn between_blocks_back<T: Exponential>(
        s, width: usize, len: usize, queries: Queries, middle: View<'_, T>, later: View<'_, T>, earlier: View<'_, T>,
        parts: &Channels<'_, T>,
    ) -> () {
        for begin in (0..width).step_by(T::lanes::<S>()) {
            let lanes = Lanes::<S, T, 1>::first(s, width - begin);
            // SAFETY: lanes of rows of workspace.
            unsafe {
                let add = |to: *mut T, what: T::V<S>| lanes.store(to, [T::plus(s, lanes.load(to)[0], what)]);
                let times = |a, b| T::fma(s, a, b, T::splat(s, T::ZERO));
                let mut sum = T::splat(s, T::ZERO);
                for l in (BLOCK..len).rev() {
                    let decay = lanes.load(middle.at(begin, l))[0];
                    for i in queries.rows_at(l) {
                        let gradient = times(lanes.load(later.at(begin, i))[0], decay);
                        add(parts.later.at(begin, i), gradient);
                        sum = T::fma(s, lanes.load(parts.rows.at(begin, i))[0], gradient, sum);
                    }
                    add(parts.gates.at(begin, l), sum);
                }
                let mut sum = T::splat(s, T::ZERO);
                for l in 0..BLOCK {
                    add(parts.gates.at(begin, l), sum);
                    let gradient = times(lanes.load(earlier.at(begin, l))[0], lanes.load(middle.at(begin, l))[0]);
                    add(parts.earlier.at(begin, l), gradient);
                    sum = T::fma(s, lanes.load(parts.rows.at(begin, queries.count + l))[0], gradient, sum);
                }
            }
        }
    }
}

/// One register of channels of one block.
#[inline(always)]
unsafe fn block_back<S: pulp::Simd, T: Exponential>(
    s: S,
    begin: usize,
    lanes: Lanes<S, T, 1>,
    block: std::ops::Range<usize>,
    queries: Queries,
    Channels { rows, step, table, later, earlier, gates }: &Channels<'_, T>,
) {
    let zero = T::splat(s, T::ZERO);
    let read = |view: &View<'_, T>, i: usize| lanes.load(view.at(begin, i))[0];
    let coefficient = |i: usize, j: usize| T::splat(s, *table.at(j, i));
    let times = |a, b| T::fma(s, a, b, zero);
    let (mut of_keys, mut of_queries, mut of_gates) = ([zero; BLOCK], [zero; BLOCK], [zero; BLOCK]);
    let mut pairs = [zero; BLOCK];
    for j in block.clone() {
        let (key, own) = (read(rows, queries.count + j), j - block.start);
        let mut right = zero;
        if let Some(query) = queries.at(j) {
            let by = coefficient(query, j);
            of_queries[own] = T::fma(s, by, key, of_queries[own]);
            right = times(by, read(rows, query));
        }
        let mut decay = T::splat(s, T::ONE);
        for i in j + 1..block.end {
            let at = i - block.start;
            decay = times(decay, read(step, i));
            let (decayed, mut sum) = (times(decay, key), zero);
            if i < queries.erasing {
                let by = coefficient(queries.count + i, j);
                of_keys[at] = T::fma(s, by, decayed, of_keys[at]);
                sum = times(by, read(rows, queries.count + i));
            }
            if let Some(query) = queries.at(i) {
                let by = coefficient(query, j);
                of_queries[at] = T::fma(s, by, decayed, of_queries[at]);
                sum = T::fma(s, by, read(rows, query), sum);
            }
            right = T::fma(s, decay, sum, right);
            pairs[at] = times(decayed, sum);
        }
        let mut sum = zero;
        for i in (j + 1..block.end).rev() {
            let at = i - block.start;
            sum = T::plus(s, sum, pairs[at]);
            of_gates[at] = T::plus(s, of_gates[at], sum);
        }
        let to = earlier.at(begin, j);
        lanes.store(to, [T::plus(s, lanes.load(to)[0], right)]);
    }
    for i in block.clone() {
        let at = i - block.start;
        let add = |to: *mut T, what: T::V<S>| lanes.store(to, [T::plus(s, lanes.load(to)[0], what)]);
        if i < queries.erasing {
            add(later.at(begin, queries.count + i), of_keys[at]);
        }
        add(gates.at(begin, i), of_gates[at]);
        if let Some(query) = queries.at(i) {
            add(later.at(begin, query), of_queries[at]);
        }
    }
}
