//! Weights laid out in the order in which tiles read them: panels of rows, within a panel `k` after `k`.

use super::dispatch::InstructionSet;
use super::epilogue::Columns;
use super::gemm::{Weights, line};
use super::transpose::transpose;
use super::vector::copy_columns;
use crate::error::Result;
use crate::memory::Buffer;
use crate::scalar::Scalar;

/// Rows that are whole panels on every instruction set, for every number type.
pub const ROWS: usize = 64;

/// Owned, packed weights of a product.
pub struct Packed<T: Scalar> {
    data: Buffer<T>,
    k: usize,
}

impl<T: Scalar> Packed<T> {
    /// For the kernels.
    pub fn weights(&self) -> Weights<T> {
        self.weights_from(0)
    }

    /// Those of the rows from `begin` on, a multiple of [`ROWS`].
    pub fn weights_from(&self, begin: usize) -> Weights<T> {
        Weights { ptr: self.data.ptr().wrapping_add(begin * self.k), k: self.k, ld: 0 }
    }
}

/// A matrix with entry `(r, k)` at `ptr[r * row_step + k * k_step]`, one of the steps being 1; conjugated if asked.
#[derive(Clone, Copy)]
pub struct Part<T> {
    /// First entry.
    pub ptr: *const T,
    /// Columns.
    pub k: usize,
    /// Distance between rows.
    pub row_step: usize,
    /// Distance between columns.
    pub k_step: usize,
    /// Whether the conjugates are packed.
    pub conjugate: bool,
}

/// Packs matrices of `rows` rows side by side. The caller owns all entries.
pub unsafe fn pack<T: Scalar>(isa: InstructionSet, rows: usize, parts: &[Part<T>]) -> Result<Packed<T>> {
    let k = parts.iter().map(|part| part.k).sum();
    let mut data = Buffer::<T>::zeroed(rows.next_multiple_of(line::<T>()) * k)?;
    pack_into(isa, rows, parts, data.ptr_mut());
    Ok(Packed { data, k })
}

/// [`pack`] to memory of the caller's: as many numbers for each `k` as there are rows, up to the next whole line.
pub unsafe fn pack_into<T: Scalar>(isa: InstructionSet, rows: usize, parts: &[Part<T>], data: *mut T) {
    let k: usize = parts.iter().map(|part| part.k).sum();
    let (lanes, tallest) = isa.tile_height::<T>();
    let panel = tallest * lanes;
    let mut row = 0;
    while row < rows {
        // The height that `gemm2` will give this panel.
        let height = panel.min(rows.next_multiple_of(lanes) - row);
        let mut to = data.add(row * k);
        for part in parts {
            part.fill(isa, row, height.min(rows - row), to, height);
            to = to.add(part.k * height);
        }
        row += height;
    }
}

impl<T> Part<T> {
    /// A matrix of `k` contiguous columns, `ld` apart.
    pub fn columns(ptr: *const T, ld: usize, k: usize) -> Self {
        Self { ptr, k, row_step: 1, k_step: ld, conjugate: false }
    }

    /// The adjoint of a matrix whose columns, as many as this one has rows, are `k` numbers each, `ld` apart.
    pub fn adjoint(ptr: *const T, ld: usize, k: usize) -> Self {
        Self { ptr, k, row_step: ld, k_step: 1, conjugate: true }
    }

    /// The part that begins at row `row` and column `k`, at most `most` columns wide.
    pub fn from(self, row: usize, k: usize, most: usize) -> Self {
        let ptr = self.ptr.wrapping_add(row * self.row_step + k * self.k_step);
        Self { ptr, k: most.min(self.k - k), ..self }
    }
}

impl<T: Scalar> Part<T> {
    /// Writes the rows `row..row + count` to a panel of that height.
    unsafe fn fill(&self, isa: InstructionSet, row: usize, count: usize, to: *mut T, height: usize) {
        let from = self.ptr.add(row * self.row_step);
        if self.row_step == 1 {
            let (columns, packed) = (Columns::new(from, self.k_step), Columns::new(to, height));
            copy_columns(isa, (count, self.k), columns, packed, from);
        } else if self.k > 0 {
            let from = std::slice::from_raw_parts(from, (count - 1) * self.row_step + self.k);
            let to = std::slice::from_raw_parts_mut(to, self.k * height);
            transpose(isa, (self.k, count), from, self.row_step, to, height);
        }
        if T::COMPLEX && self.conjugate {
            (0..self.k * height).for_each(|i| *to.add(i) = (*to.add(i)).conj());
        }
    }
}
