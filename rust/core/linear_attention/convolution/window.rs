//! The last vectors of a block of channels, the weights of the block, and their products.

use pulp::Simd;

use super::operands::{BLOCK, Operands, Sizes};
use crate::arrays::stored::StoredRows;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::lanes::{Lanes, unroll};
use crate::simd::transpose::turned;

/// A block of channels.
#[derive(Clone, Copy)]
pub struct ChannelBlock {
    pub first: usize,
    pub width: usize,
}

impl ChannelBlock {
    /// How many blocks there are.
    pub fn count(channels: usize) -> usize {
        channels.div_ceil(BLOCK)
    }

    pub fn number(i: usize, channels: usize) -> Self {
        let first = i * BLOCK;
        Self { first, width: BLOCK.min(channels - first) }
    }
}

/// The weights of a block of channels, a row for each tap.
pub struct Weights<T: Exponential> {
    taps: WorkRows<T>,
    bias: WorkRows<T>,
}

impl<T: Exponential> Weights<T> {
    pub fn new(isa: InstructionSet, operands: &Operands<'_, T>, block: ChannelBlock) -> Result<Self> {
        let (taps, width) = (operands.sizes.taps, block.width);
        let (mut rows, mut bias) = (WorkRows::scratch(taps, width)?, WorkRows::zeroed(1, width)?);
        let weights = &operands.weight[block.first * taps..][..width * taps];
        // SAFETY: the weights of these channels, and a row of so many channels for each tap.
        unsafe { turned(isa, (taps, width), View::of(weights, taps, width), rows.view_mut(0, taps)) };
        if let Some(given) = operands.bias {
            bias.row_mut(0).copy_from_slice(&given[block.first..][..width]);
        }
        Ok(Self { taps: rows, bias })
    }

    /// The same from the last tap on, without a bias.
    pub fn reversed(&self) -> Result<Self> {
        let (count, width) = (self.taps.count(), self.taps.width());
        let (mut taps, bias) = (WorkRows::scratch(count, width)?, WorkRows::zeroed(1, width)?);
        for tap in 0..count {
            taps.row_mut(tap).copy_from_slice(self.taps.row(count - 1 - tap));
        }
        Ok(Self { taps, bias })
    }

    /// `out = b + sum_j w_j r_j` over the rows of a window, the oldest first.
    pub fn product(&self, isa: InstructionSet, window: &Window<T>, out: &mut [T]) {
        // SAFETY: as many rows of weights and of the window as there are taps, of the width of `out`.
        unsafe { products(isa, self.taps.all(), window.rows.all(), window.oldest(), self.bias.all(), out) }
    }
}

/// The last vectors.
pub struct Window<T: Exponential> {
    rows: WorkRows<T>,
    newest: usize,
}

impl<T: Exponential> Window<T> {
    /// Zeros.
    pub fn new(taps: usize, width: usize) -> Result<Self> {
        Ok(Self { rows: WorkRows::zeroed(taps, width)?, newest: taps - 1 })
    }

    /// Puts a vector in the place of the oldest.
    pub fn push(&mut self, isa: InstructionSet, from: StoredRows<'_, T>) {
        self.newest = self.oldest();
        self.rows.read(isa, self.newest, from);
    }

    /// The place of the oldest vector, to be overwritten with the next.
    pub fn next(&mut self) -> &mut [T] {
        self.newest = self.oldest();
        self.rows.row_mut(self.newest)
    }

    /// The vector put in last.
    pub fn newest(&mut self) -> &mut [T] {
        self.rows.row_mut(self.newest)
    }

    fn oldest(&self) -> usize {
        (self.newest + 1) % self.rows.count()
    }

    /// The vectors, the oldest first.
    pub fn vectors(&self) -> impl Iterator<Item = &[T]> {
        let (oldest, count) = (self.oldest(), self.rows.count());
        (0..count).map(move |j| self.rows.row((oldest + j) % count))
    }
}

/// Tokens from one that is read or written to the one that is fetched meanwhile.
pub const AHEAD: usize = 8;

/// Where the channels of a block of a sequence are: a row for each of its tokens.
pub fn rows_of<'a, T: Exponential>(
    operands: &Operands<'a, T>,
    sequence: usize,
    block: ChannelBlock,
) -> StoredRows<'a, T> {
    let Sizes { tokens, .. } = operands.sizes;
    operands.x.rows((sequence * tokens, tokens), 0).part(0, tokens, block.first)
}

simd! {
    /// `out = b + sum_j w_j r_{(first + j) mod taps}`.
    ///
    /// # Safety
    /// Weights, rows and the bias are workspace of the width of `out`, and there are as many rows as weights.
    unsafe fn products<T: Exponential>(
        s, weights: View<'_, T>, rows: View<'_, T>, first: usize, bias: View<'_, T>, out: &mut [T],
    ) -> () {
        const WIDE: usize = 4;
        let (lanes, width, to) = (T::lanes::<S>(), out.len(), ViewMut::of(out, 0, 1));
        let mut begin = 0;
        // SAFETY: as above.
        unsafe {
            while begin + WIDE * lanes <= width {
                stripe::<S, T, WIDE>(s, begin, Lanes::first(s, lanes), weights, rows, first, bias, to);
                begin += WIDE * lanes;
            }
            while begin < width {
                stripe::<S, T, 1>(s, begin, Lanes::first(s, width - begin), weights, rows, first, bias, to);
                begin += lanes;
            }
        }
    }
}

/// `N` registers of channels.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // what a product of rows takes
unsafe fn stripe<S: Simd, T: Exponential, const N: usize>(
    s: S,
    begin: usize,
    lanes: Lanes<S, T, N>,
    weights: View<'_, T>,
    rows: View<'_, T>,
    first: usize,
    bias: View<'_, T>,
    out: ViewMut<'_, T>,
) {
    let (mut sum, mut place) = (lanes.load(bias.at(begin, 0)), first);
    for tap in 0..weights.count {
        let (weight, row) = (lanes.load(weights.at(begin, tap)), lanes.load(rows.at(begin, place)));
        unroll!(for i in 0..N {
            sum[i] = T::fma(s, weight[i], row[i], sum[i]);
        });
        place = if place + 1 == weights.count { 0 } else { place + 1 };
    }
    lanes.store(out.at(begin, 0), sum);
}
