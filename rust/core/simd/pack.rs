//! Weights laid out in the order in which tiles read them: panels of rows, within a panel `k` after `k`.

use super::element::Element;
use super::gemm::line;
use super::isa::InstructionSet;
use super::transpose::turned;
use super::vector::copy_columns;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::Buffer;

/// Rows that are whole panels on every instruction set, for every number type.
pub const ROWS: usize = 64;

/// Owned, packed weights of a product.
pub struct Packed<T: Element> {
    data: Buffer<T>,
    k: usize,
}

impl<T: Element> Packed<T> {
    /// Views all rows.
    pub fn weights(&self) -> View<'_, T> {
        self.weights_from(0)
    }

    /// Those of the rows from `begin` on, a multiple of [`ROWS`].
    pub fn weights_from(&self, begin: usize) -> View<'_, T> {
        View::of(&self.data, 0, self.k).from(begin * self.k, 0)
    }
}

/// Weights to be packed: entry `r` of vector `k`, with `step` or `ld` of the view being 1; conjugated if asked.
#[derive(Clone, Copy)]
pub struct Part<'a, T> {
    /// The weights.
    pub view: View<'a, T>,
    /// Whether the conjugates are packed.
    pub conjugate: bool,
}

/// Packs matrices of `rows` rows side by side.
///
/// # Safety
/// The caller owns all entries of the parts.
pub unsafe fn pack<T: Element>(isa: InstructionSet, rows: usize, parts: &[Part<'_, T>]) -> Result<Packed<T>> {
    let k = parts.iter().map(|part| part.view.count).sum();
    let mut data = Buffer::<T>::zeroed(rows.next_multiple_of(line::<T>()) * k)?;
    pack_into(isa, rows, parts, &mut data);
    Ok(Packed { data, k })
}

/// [`pack`] to memory of the caller's: as many numbers for each `k` as there are rows, up to the next whole line.
///
/// # Safety
/// The caller owns all entries of the parts, and `data` has so many numbers.
pub unsafe fn pack_into<T: Element>(isa: InstructionSet, rows: usize, parts: &[Part<'_, T>], data: &mut [T]) {
    let k: usize = parts.iter().map(|part| part.view.count).sum();
    let (lanes, tallest) = isa.tile_height::<T>();
    let panel = tallest * lanes;
    let mut row = 0;
    while row < rows {
        // The height that `gemm2` will give this panel.
        let height = panel.min(rows.next_multiple_of(lanes) - row);
        let mut to = data.as_mut_ptr().add(row * k);
        for part in parts {
            let panel = ViewMut::from_raw(to, height, part.view.count);
            part.fill(isa, row, height.min(rows - row), panel);
            to = to.add(part.view.count * height);
        }
        row += height;
    }
}

impl<'a, T: Copy> Part<'a, T> {
    /// A matrix of `k` contiguous columns, `ld` apart.
    pub fn columns(matrix: &'a [T], ld: usize, k: usize) -> Self {
        Self { view: View::of(matrix, ld, k), conjugate: false }
    }

    /// The adjoint of a matrix whose columns, as many as this one has rows, are `k` numbers each, `ld` apart.
    pub fn adjoint(matrix: &'a [T], ld: usize, k: usize) -> Self {
        Self { view: View::of(matrix, ld, 0).transposed(k), conjugate: true }
    }

    /// The part that begins at row `row` and column `k`, at most `most` columns wide.
    pub fn from(self, row: usize, k: usize, most: usize) -> Self {
        let rest = self.view.from(row, k);
        Self { view: rest.part(0, most.min(rest.count)), ..self }
    }
}

impl<T: Element> Part<'_, T> {
    /// Writes the rows `row..row + count` to a panel, which may be higher.
    ///
    /// # Safety
    /// The caller owns these entries, and the panel for all `k`.
    unsafe fn fill(&self, isa: InstructionSet, row: usize, count: usize, to: ViewMut<'_, T>) {
        let from = self.view.from(row, 0);
        let k = from.count;
        if from.step == 1 {
            copy_columns(isa, (count, k), from, to, from);
        } else {
            turned(isa, (k, count), from.transposed(count), to);
        }
        if T::COMPLEX && self.conjugate {
            (0..k * to.ld).for_each(|i| *to.ptr.add(i) = (*to.ptr.add(i)).conj());
        }
    }
}
