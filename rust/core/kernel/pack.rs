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

/// Packs the `rows x k` matrix with entry `(r, k)` at `src[r * row_step + k * k_step]`, conjugated if asked.
///
/// The caller owns all entries.
pub unsafe fn pack<T: Scalar>(
    isa: InstructionSet,
    rows: usize,
    k: usize,
    src: *const T,
    row_step: usize,
    k_step: usize,
    conjugate: bool,
) -> Result<Packed<T>> {
    let padded_rows = rows.next_multiple_of(line::<T>());
    let mut data = Buffer::<T>::zeroed(padded_rows * k)?;
    let (lanes, tallest) = isa.tile_height::<T>();
    let panel = tallest * lanes;
    let mut row = 0;
    while row < rows {
        // The height that `gemm2` will give this panel.
        let height = panel.min(rows.next_multiple_of(lanes) - row);
        let filled = height.min(rows - row);
        let to = data.ptr_mut().add(row * k);
        let from = src.add(row * row_step);
        if row_step == 1 {
            for kk in 0..k {
                std::ptr::copy_nonoverlapping(from.add(kk * k_step), to.add(kk * height), filled);
            }
        } else {
            // A transposition, by squares that fit the cache.
            const SQUARE: usize = 16;
            for k0 in (0..k).step_by(SQUARE) {
                for r0 in (0..filled).step_by(SQUARE) {
                    for r in r0..filled.min(r0 + SQUARE) {
                        for kk in k0..k.min(k0 + SQUARE) {
                            *to.add(kk * height + r) = *from.add(r * row_step + kk * k_step);
                        }
                    }
                }
            }
        }
        row += height;
    }
    if T::COMPLEX && conjugate {
        data.iter_mut().for_each(|x| *x = x.conj());
    }
    Ok(Packed { data, k })
}
