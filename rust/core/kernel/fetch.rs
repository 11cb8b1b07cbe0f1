//! Bringing memory into the cache while a product is computed.
//!
//! A core has a dozen or so lines under way between its first cache and memory. Fetched in one go before they are needed,
//! the rows of a step occupy all of them, and the product's own reads of the second-level cache wait behind. Tiles
//! therefore fetch a line at a time, at every step of their sums.

/// `chunks` pieces of `len` numbers, `stride` apart, that a later product needs.
#[derive(Clone, Copy)]
pub struct Fetch<T> {
    ptr: *const T,
    stride: isize,
    chunks: usize,
    len: usize,
}

impl<T> Fetch<T> {
    /// Any addresses will do: what cannot be fetched is not.
    pub fn new(ptr: *const T, stride: isize, chunks: usize, len: usize) -> Self {
        Self { ptr, stride, chunks, len }
    }
    /// Nothing.
    pub fn none() -> Self {
        Self::new(std::ptr::null(), 0, 0, 0)
    }
    /// One piece in two.
    pub fn halves(self) -> [Self; 2] {
        let first = self.len / 2;
        [Self { len: first, ..self }, Self { ptr: self.ptr.wrapping_add(first), len: self.len - first, ..self }]
    }
    /// Shared out between `tiles` tiles that sum over `k`.
    #[inline(always)]
    pub fn share(self, tiles: usize, k: usize) -> Share<T> {
        let parts = tiles.checked_div(self.chunks).unwrap_or(1).max(1);
        let len = self.len.div_ceil(parts);
        Share { fetch: self, parts, len, step: (len * size_of::<T>()).div_ceil(k.max(1)) }
    }
}

/// What each tile fetches.
#[derive(Clone, Copy)]
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
    /// First address of a tile and the distance to the next ones; `idle` over and over if there is nothing to fetch.
    #[inline(always)]
    pub fn of(&self, tile: usize, idle: *const T) -> (*const T, usize) {
        if self.fetch.chunks == 0 {
            return (idle, 0);
        }
        let (chunk, part) = (tile / self.parts, tile % self.parts);
        if chunk >= self.fetch.chunks {
            return (idle, 0);
        }
        let first = self.fetch.ptr.wrapping_offset(chunk as isize * self.fetch.stride);
        (first.wrapping_add(part * self.len), self.step)
    }
}

/// Fetches the line at `p` into the second-level cache.
#[inline(always)]
pub fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64, and a prefetch of any address has no effect but on the cache.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}
