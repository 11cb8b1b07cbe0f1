//! Weights laid out in the order in which tiles read them: panels of rows, within a panel `k` after `k`.

use super::dispatch::InstructionSet;
use super::gemm::{Weights, line};
use crate::error::Result;
use crate::memory::Buffer;
use crate::scalar::Scalar;

/// Owned, packed weights of a product.
pub struct Packed<T: Scalar> {
    data: Buffer<T>,
    k: usize,
}

impl<T: Scalar> Packed<T> {
    /// For the kernels.
    pub fn weights(&self) -> Weights<T> {
        Weights { ptr: self.data.ptr(), k: self.k, ld: 0 }
    }
}

/// A matrix with entry `(r, k)` at `ptr[r * row_step + k * k_step]`, conjugated if asked.
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
    let padded_rows = rows.next_multiple_of(line::<T>());
    let mut data = Buffer::<T>::zeroed(padded_rows * k)?;
    let (lanes, tallest) = isa.tile_height::<T>();
    let panel = tallest * lanes;
    let mut row = 0;
    while row < rows {
        // The height that `gemm2` will give this panel.
        let height = panel.min(rows.next_multiple_of(lanes) - row);
        let mut to = data.ptr_mut().add(row * k);
        for part in parts {
            part.fill(row, height.min(rows - row), to, height);
            to = to.add(part.k * height);
        }
        row += height;
    }
    Ok(Packed { data, k })
}

impl<T: Scalar> Part<T> {
    /// Writes the rows `row..row + count` to a panel of that height.
    unsafe fn fill(&self, row: usize, count: usize, to: *mut T, height: usize) {
        let from = self.ptr.add(row * self.row_step);
        if self.row_step == 1 {
            for k in 0..self.k {
                std::ptr::copy_nonoverlapping(from.add(k * self.k_step), to.add(k * height), count);
            }
        } else {
            // A transposition, by squares that fit the cache.
            const SQUARE: usize = 16;
            for k0 in (0..self.k).step_by(SQUARE) {
                for r0 in (0..count).step_by(SQUARE) {
                    for r in r0..count.min(r0 + SQUARE) {
                        for k in k0..self.k.min(k0 + SQUARE) {
                            *to.add(k * height + r) = *from.add(r * self.row_step + k * self.k_step);
                        }
                    }
                }
            }
        }
        if T::COMPLEX && self.conjugate {
            (0..self.k * height).for_each(|i| *to.add(i) = (*to.add(i)).conj());
        }
    }
}
