//! Workspace memory that reports exhaustion instead of aborting.

pub mod once;
pub mod recycle;
pub mod workspace;

use std::alloc::Layout;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::numbers::number::Number;

/// Alignment of every buffer: one cache line, one AVX-512 register.
pub const ALIGNMENT: usize = 64;

/// A fixed-size, 64-byte aligned array whose allocation can fail.
pub struct Buffer<T: Number> {
    ptr: NonNull<T>,
    len: usize,
}

// SAFETY: a Buffer owns its memory alone, and its elements are plain numbers.
unsafe impl<T: Number> Send for Buffer<T> {}
// SAFETY: shared access only reads plain numbers.
unsafe impl<T: Number> Sync for Buffer<T> {}

impl<T: Number> Buffer<T> {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Result<Self> {
        let (mut buffer, zeros) = Self::unset(len)?;
        if !zeros {
            buffer.fill(T::ZERO);
        }
        Ok(buffer)
    }

    /// `len` uninitialised numbers, which hold what the memory's last owner left: the caller overwrites them before it reads
    /// them. Small buffers are zeroed, because this is cheap and deterministic.
    pub fn scratch(len: usize) -> Result<Self> {
        let (mut buffer, zeros) = Self::unset(len)?;
        if !zeros && len * size_of::<T>() <= 1 << 12 {
            buffer.fill(T::ZERO);
        }
        Ok(buffer)
    }

    /// Memory for `len` numbers, and whether they are zeros.
    fn unset(len: usize) -> Result<(Self, bool)> {
        let oom = || Error::OutOfMemory { bytes: len.saturating_mul(size_of::<T>()) };
        let layout = Self::layout(len).ok_or_else(oom)?;
        let (block, zeros) = recycle::take(layout);
        NonNull::new(block.cast()).map(|ptr| (Self { ptr, len }, zeros)).ok_or_else(oom)
    }

    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<T>())?.max(ALIGNMENT);
        Layout::from_size_align(bytes, ALIGNMENT).ok().map(recycle::rounded)
    }

    /// Address of the first element, for kernels.
    pub fn ptr(&self) -> *const T {
        self.ptr.as_ptr()
    }

    /// Address of the first element, for kernels that write.
    pub fn ptr_mut(&mut self) -> *mut T {
        self.ptr.as_ptr()
    }
}

impl<T: Number> Drop for Buffer<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len).expect("it was allocated with this layout");
        // SAFETY: allocated with the same layout.
        unsafe { recycle::give(self.ptr.as_ptr().cast(), layout) }
    }
}

impl<T: Number> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated, and numbers have no invalid bit patterns.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Number> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

/// `len` copies of `value` in a vector whose allocation can fail.
pub fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    collected((0..len).map(|_| value.clone()))
}

/// `items` in a vector whose allocation can fail.
pub fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    let bytes = items.len().saturating_mul(size_of::<T>());
    vector.try_reserve_exact(items.len()).map_err(|_| Error::OutOfMemory { bytes })?;
    vector.extend(items);
    Ok(vector)
}

/// Leading dimension for rows or columns of `len` numbers: a multiple of the cache line and of eight. One more such unit is
/// added where the stride would be a multiple of 512 bytes, because such strides fall into few cache sets.
pub fn padded<T>(len: usize) -> usize {
    let line = (ALIGNMENT / size_of::<T>()).max(8);
    let padded = len.next_multiple_of(line);
    if padded > 0 && (padded * size_of::<T>()).is_multiple_of(512) { padded + line } else { padded }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)] // whose memory is that of the machine
    fn exhaustion_is_an_error() {
        let elements = isize::MAX as usize / 8 - 100;
        assert!(matches!(Buffer::<f64>::zeroed(elements), Err(Error::OutOfMemory { .. })));
        assert!(matches!(Buffer::<f64>::scratch(usize::MAX / 8), Err(Error::OutOfMemory { .. })));
    }

    #[test]
    fn buffers_are_aligned_and_zero() {
        for len in [0, 1, 3, 1000] {
            let buffer = Buffer::<f32>::zeroed(len).unwrap();
            assert_eq!(buffer.ptr() as usize % ALIGNMENT, 0);
            assert!(buffer.iter().all(|&x| x == 0.0));
        }
    }
}
