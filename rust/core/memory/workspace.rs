//! Rows of workspace, for kernels that compute with one row after the other.

use crate::arrays::stored::StoredRows;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::number::{Number, Real};
use crate::simd::isa::InstructionSet;

/// Contiguous rows, padded to whole registers. Numbers beyond the width of a row are readable but meaningless.
pub struct WorkRows<T: Number> {
    data: Buffer<T>,
    count: usize,
    width: usize,
    ld: usize,
}

impl<T: Number> WorkRows<T> {
    /// Rows to be written before they are read.
    pub fn scratch(count: usize, width: usize) -> Result<Self> {
        let ld = padded::<T>(width);
        Ok(Self { data: Buffer::scratch(count.saturating_mul(ld))?, count, width, ld })
    }

    /// Rows of zeros.
    pub fn zeroed(count: usize, width: usize) -> Result<Self> {
        let ld = padded::<T>(width);
        Ok(Self { data: Buffer::zeroed(count.saturating_mul(ld))?, count, width, ld })
    }

    /// How many rows there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Numbers of a row.
    #[inline]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Row `i`.
    #[inline]
    pub fn row(&self, i: usize) -> &[T] {
        &self.data[i * self.ld..][..self.width]
    }

    /// Row `i`, to be written.
    #[inline]
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.ld..][..self.width]
    }

    /// Sets all to one value.
    pub fn fill(&mut self, value: T) {
        self.data.fill(value);
    }

    /// All rows, for kernels.
    #[inline]
    pub fn all(&self) -> View<'_, T> {
        View::of(&self.data, self.ld, self.count)
    }

    /// All rows, for kernels that write.
    #[inline]
    pub fn all_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::of(&mut self.data, self.ld, self.count)
    }

    /// `count` rows from `first` on.
    #[inline]
    pub fn view(&self, first: usize, count: usize) -> View<'_, T> {
        self.all().part(first, first + count)
    }

    /// `count` rows from `first` on, to be written.
    #[inline]
    pub fn view_mut(&mut self, first: usize, count: usize) -> ViewMut<'_, T> {
        self.all_mut().part(first, first + count)
    }

    /// All rows, `count` of them at a time, for tasks or steps that have rows of their own.
    pub fn groups(&mut self, count: usize) -> impl Iterator<Item = ViewMut<'_, T>> {
        let ld = self.ld;
        self.data.chunks_exact_mut(count * ld).map(move |rows| ViewMut::of(rows, ld, count))
    }
}

impl<T: Real> WorkRows<T> {
    /// Reads rows of an array, which take the place of as many from `first` on.
    #[inline]
    pub fn read(&mut self, isa: InstructionSet, first: usize, from: StoredRows<'_, T>) {
        assert!(first + from.count <= self.count, "workspace for fewer rows");
        // SAFETY: the caller gives rows of an array, and there are as many here.
        unsafe { from.read(isa, self.width, self.view_mut(first, from.count)) }
    }
}
