//! A matrix of workspace, rows contiguous and padded to whole registers.

use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::number::Number;
use crate::view::View;

/// Rows of one width. Numbers beyond the width of a row are readable but meaningless.
pub struct Rows<T: Number> {
    data: Buffer<T>,
    width: usize,
    ld: usize,
}

impl<T: Number> Rows<T> {
    /// Rows to be written before they are read.
    pub fn new(rows: usize, width: usize) -> Result<Self> {
        let ld = padded::<T>(width);
        Ok(Self { data: Buffer::scratch(rows.saturating_mul(ld))?, width, ld })
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[T] {
        &self.data[i * self.ld..][..self.width]
    }

    /// Row `i`, to be written.
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.ld..][..self.width]
    }

    /// Sets all to one value.
    pub fn fill(&mut self, value: T) {
        self.data.fill(value);
    }

    /// `count` rows from `first` on, for kernels. A view must not outlive its rows.
    pub fn view(&self, first: usize, count: usize) -> View<T> {
        View::new(self.data.ptr().wrapping_add(first * self.ld), self.ld, count)
    }
}

/// Vector `i` of a view, `width` contiguous numbers.
///
/// # Safety
/// The caller owns them, and nothing writes them meanwhile.
#[inline(always)]
pub unsafe fn row<'a, T>(view: View<T>, i: usize, width: usize) -> &'a [T] {
    std::slice::from_raw_parts(view.at(0, i), width)
}

/// Vector `i` of a view, to be written.
///
/// # Safety
/// The caller owns it, and nothing else reads it meanwhile.
#[inline(always)]
pub unsafe fn row_mut<'a, T>(view: View<T>, i: usize, width: usize) -> &'a mut [T] {
    std::slice::from_raw_parts_mut(view.at(0, i), width)
}
