//! Views of numbers in memory: addresses with strides, which tasks on several threads may hold.

use std::marker::PhantomData;

/// Vectors to be read: entry `i` of vector `j` is at `ptr[i * step + j * ld]`; null means no operand.
///
/// Kernels that take a view state which of its entries they read. Their caller owns or borrows these entries, and nothing
/// but the kernel writes them meanwhile: a [`ViewMut`] among its operands may be of the same memory if the kernel says so.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    /// First entry of the first vector.
    pub ptr: *const T,
    /// Distance between successive entries of a vector.
    pub step: usize,
    /// Distance between vectors.
    pub ld: usize,
    /// Number of vectors.
    pub count: usize,
    /// Whose memory it is.
    pub owner: PhantomData<&'a T>,
}

/// Vectors to be written or changed in place, addressed as in [`View`].
///
/// It is `Copy`, because a result may take the place of an operand, and tasks share views: whoever hands a view to several
/// tasks promises that what one writes, no other touches at the same time.
#[derive(Clone, Copy, Debug)]
pub struct ViewMut<'a, T> {
    /// First entry of the first vector.
    pub ptr: *mut T,
    /// Distance between successive entries of a vector.
    pub step: usize,
    /// Distance between vectors.
    pub ld: usize,
    /// Number of vectors.
    pub count: usize,
    /// Whose memory it is.
    pub owner: PhantomData<&'a mut T>,
}

impl<'a, T> View<'a, T> {
    /// `count` vectors of contiguous entries, `ld` apart.
    pub fn of(numbers: &'a [T], ld: usize, count: usize) -> Self {
        // SAFETY: these numbers are borrowed as long as the view lives.
        unsafe { Self::from_raw(numbers.as_ptr(), ld, count) }
    }

    /// Entry `i` of all vectors as vector `i`, for `i < len`.
    pub fn transposed(self, len: usize) -> Self {
        Self { step: self.ld, ld: self.step, count: len, ..self }
    }

    /// Vector `j`, `len` contiguous entries.
    ///
    /// # Safety
    /// They are in the view's memory, and nothing writes them meanwhile.
    #[inline(always)]
    pub unsafe fn vector(self, j: usize, len: usize) -> &'a [T] {
        std::slice::from_raw_parts(self.at(0, j), len)
    }

    /// Copies `n` contiguous entries of each vector, possibly to where they are.
    ///
    /// # Safety
    /// These entries are in the memory of both, and nothing else uses those of `to` meanwhile.
    pub unsafe fn copy_to(self, to: ViewMut<'_, T>, n: usize) {
        for j in 0..self.count {
            std::ptr::copy(self.at(0, j), to.at(0, j), n);
        }
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// `count` vectors of contiguous entries, `ld` apart.
    pub fn of(numbers: &'a mut [T], ld: usize, count: usize) -> Self {
        // SAFETY: these numbers are borrowed as long as the view lives.
        unsafe { Self::from_raw(numbers.as_mut_ptr(), ld, count) }
    }

    /// The same vectors, to be read.
    #[inline(always)]
    pub fn read(self) -> View<'a, T> {
        View { ptr: self.ptr, step: self.step, ld: self.ld, count: self.count, owner: PhantomData }
    }

    /// Vector `j`, `len` contiguous entries, to be written.
    ///
    /// # Safety
    /// They are in the view's memory, and nothing else uses them meanwhile.
    #[inline(always)]
    pub unsafe fn vector_mut(self, j: usize, len: usize) -> &'a mut [T] {
        std::slice::from_raw_parts_mut(self.at(0, j), len)
    }
}

/// What both kinds of views have.
macro_rules! strided {
    ($view:ident, $pointer:ty, $null:expr) => {
        // SAFETY: numbers are read on any thread, and whoever hands a view to several tasks promises that what one writes,
        // no other touches at the same time.
        unsafe impl<T> Send for $view<'_, T> {}
        // SAFETY: as above.
        unsafe impl<T> Sync for $view<'_, T> {}

        impl<T> $view<'_, T> {
            /// `count` vectors of contiguous entries, `ld` apart, from an address on.
            ///
            /// # Safety
            /// Their memory lives as long as the view, whose lifetime nothing else limits.
            pub unsafe fn from_raw(ptr: $pointer, ld: usize, count: usize) -> Self {
                Self { ptr, step: 1, ld, count, owner: PhantomData }
            }

            /// No vectors.
            pub fn none() -> Self {
                Self { ptr: $null, step: 1, ld: 0, count: 0, owner: PhantomData }
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
            pub fn at(&self, i: usize, j: usize) -> $pointer {
                self.ptr.wrapping_add(i * self.step + j * self.ld)
            }
        }
    };
}
strided!(View, *const T, std::ptr::null());
strided!(ViewMut, *mut T, std::ptr::null_mut());

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
