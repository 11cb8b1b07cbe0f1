//! Views of numbers in memory: addresses with strides, which tasks on several threads may hold.

/// Strided raw matrix pointer: entry `i` of vector `j` is at `ptr[i * step + j * ld]`; null means no operand.
///
/// Kernels that take a view state which of its entries they read or write. Their caller owns these entries.
#[derive(Clone, Copy, Debug)]
pub struct View<T> {
    /// First entry of the first vector.
    pub ptr: *mut T,
    /// Distance between successive entries of a vector.
    pub step: usize,
    /// Distance between vectors.
    pub ld: usize,
    /// Number of vectors.
    pub count: usize,
}

// SAFETY: whoever hands a view to several tasks promises that what one writes, no other touches at the same time.
unsafe impl<T> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for View<T> {}

impl<T> View<T> {
    /// `count` vectors of contiguous entries, `ld` apart.
    pub fn new(ptr: *const T, ld: usize, count: usize) -> Self {
        Self { ptr: ptr.cast_mut(), step: 1, ld, count }
    }

    /// No vectors.
    pub fn none() -> Self {
        Self::new(std::ptr::null(), 0, 0)
    }

    /// Entry `i` of all vectors as vector `i`, for `i < len`.
    pub fn transposed(self, len: usize) -> Self {
        Self { step: self.ld, ld: self.step, count: len, ..self }
    }

    /// Vectors `begin..end`.
    pub fn part(self, begin: usize, end: usize) -> Self {
        Self { count: end - begin, ..self.from(0, begin) }
    }

    /// Entries from `i` on of the vectors from `j` on; absent if this view is.
    #[inline(always)]
    pub fn from(self, i: usize, j: usize) -> Self {
        let ptr = if self.ptr.is_null() { self.ptr } else { self.at(i, j) };
        Self { ptr, count: self.count.saturating_sub(j), ..self }
    }

    /// Address of entry `i` of vector `j`.
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> *mut T {
        self.ptr.wrapping_add(i * self.step + j * self.ld)
    }

    /// Vector `j`, `len` contiguous entries.
    ///
    /// # Safety
    /// The caller owns them, and nothing writes them meanwhile.
    #[inline(always)]
    pub unsafe fn vector<'a>(self, j: usize, len: usize) -> &'a [T] {
        std::slice::from_raw_parts(self.at(0, j), len)
    }

    /// Vector `j`, to be written.
    ///
    /// # Safety
    /// The caller owns it, and nothing else reads it meanwhile.
    #[inline(always)]
    pub unsafe fn vector_mut<'a>(self, j: usize, len: usize) -> &'a mut [T] {
        std::slice::from_raw_parts_mut(self.at(0, j), len)
    }

    /// Copies `n` contiguous entries of each vector, possibly to where they are.
    ///
    /// # Safety
    /// The caller owns these entries of both.
    pub unsafe fn copy_to(self, to: Self, n: usize) {
        for j in 0..self.count {
            std::ptr::copy(self.at(0, j), to.at(0, j), n);
        }
    }
}

/// An address that tasks on several threads may use.
pub struct Shared<T>(pub *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}
// SAFETY: whoever makes a Shared promises that what one task writes, no other touches at the same time.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address; a method, so that closures capture the whole wrapper.
    pub fn get(self) -> *mut T {
        self.0
    }
}

/// Rows and columns of a matrix.
pub type Shape = (usize, usize);
