//! Bringing memory into the cache while a product is computed.
//!
//! A core can have about a dozen lines in flight between its first-level cache and memory. If the rows of a step are
//! fetched all at once, they occupy all of these slots, and the product's own reads of the second-level cache wait. Tiles
//! therefore fetch one line at each step of their sums, or for each round of their chains.

use crate::arrays::view::View;
use crate::memory::ALIGNMENT;

/// Pieces of `len` numbers that a later product needs: rows of them, `strides[0]` apart, and in each row `strides[1]`.
#[derive(Clone, Copy, Debug)]
pub struct Fetch<T> {
    ptr: *const T,
    strides: [isize; 2],
    chunks: [usize; 2],
    len: usize,
    /// Whether a tile fetches all of a piece.
    whole: bool,
}

impl<T> Fetch<T> {
    /// Addresses need not be valid: the processor ignores those that it cannot fetch.
    pub fn new(ptr: *const T, strides: [isize; 2], chunks: [usize; 2], len: usize) -> Self {
        Self { ptr, strides, chunks, len, whole: false }
    }
    /// So many lines of each of `rows` rows, `ld` apart. A product over as many terms fetches a row at each step, if its tiles
    /// have no chains.
    pub fn rows(ptr: *const T, (rows, ld): (usize, usize), lines: usize) -> Self {
        let line = (ALIGNMENT / size_of::<T>()) as isize;
        Self { whole: true, ..Self::new(ptr, [line, 0], [lines, 1], rows * ld) }
    }
    /// Nothing.
    pub fn none() -> Self {
        Self::new(std::ptr::null(), [0; 2], [0; 2], 0)
    }
    /// Splits each piece in two.
    pub fn halves(self) -> [Self; 2] {
        let first = self.len / 2;
        [Self { len: first, ..self }, Self { ptr: self.ptr.wrapping_add(first), len: self.len - first, ..self }]
    }
    /// Split over the tiles, one cache line per `k` iteration.
    #[inline(always)]
    pub fn share(self, tiles: usize, k: usize) -> Share<T> {
        let parts = tiles.checked_div(self.chunks[0] * self.chunks[1]).unwrap_or(1).max(1);
        let parts = if self.whole { 1 } else { parts };
        let len = self.len.div_ceil(parts);
        Share { fetch: self, parts, len, step: (len * size_of::<T>()).div_ceil(k.max(1)) }
    }
}

/// What each tile fetches.
#[derive(Clone, Copy, Debug)]
pub struct Share<T> {
    fetch: Fetch<T>,
    /// Tiles that share a chunk.
    parts: usize,
    /// Numbers a tile.
    len: usize,
    /// Bytes from one fetch to the next.
    step: usize,
}

impl<T> Share<T> {
    /// First address of a tile and the distance to the next ones, if it fetches at every `interval`-th step; `idle` over and
    /// over if there is nothing to fetch.
    #[inline(always)]
    pub fn of(&self, tile: usize, interval: usize, idle: *const T) -> (*const T, usize) {
        let Fetch { ptr, strides, chunks, .. } = self.fetch;
        if chunks[0] == 0 {
            return (idle, 0);
        }
        let (chunk, part) = (tile / self.parts, tile % self.parts);
        let [row, column] = [chunk / chunks[1], chunk % chunks[1]];
        if row >= chunks[0] {
            return (idle, 0);
        }
        let first = ptr.wrapping_offset(row as isize * strides[0] + column as isize * strides[1]);
        (first.wrapping_add(part * self.len), self.step * interval)
    }
}

/// Fetches `width` numbers of each vector of a view. If the vectors lie pages apart, a core would read them line by line,
/// because its own prefetchers stop at the end of a page.
pub fn prefetch_rows<T>(view: View<'_, T>, width: usize) {
    let line = ALIGNMENT / size_of::<T>();
    for i in 0..view.count {
        (0..width).step_by(line).for_each(|x| prefetch(view.at(x, i)));
    }
}

/// Fetches the line at `p` into the second-level cache.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address has no effect but on the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = p;
}
