//! The sizes and arrays of a call, with all their checks.

use crate::arrays::lengths::{flops, product, require};
use crate::arrays::stored::{NumbersMut, Tokens};
use crate::error::{Error, Result};
use crate::numbers::exponential::Exponential;

/// Channels of a task: a window of them and the weights stay in the first-level cache.
pub const BLOCK: usize = 512;

/// Sizes of a call.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Vectors of a sequence.
    pub tokens: usize,
    /// Numbers of a vector.
    pub channels: usize,
    /// Vectors that contribute to one output.
    pub taps: usize,
}

impl Sizes {
    /// Checks the shape of rows `(batch, tokens, 1, channels)`. The axes of batches may be others if the rows of each
    /// sequence are at one distance from each other.
    pub(super) fn expect<T>(&self, name: &'static str, rows: &mut Tokens<'_, T>) -> Result<()> {
        let &Self { batch, tokens, channels, .. } = self;
        rows.expect(name, [batch * tokens, 1, channels])?;
        // The sequence that has the last token of the first batch of rows speaks for all.
        let last = rows.of_batch().saturating_sub(1).checked_div(tokens);
        rows.expect_even(name, last.map(|i| i * tokens..(i + 1) * tokens))
    }
}

/// What the convolution reads.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a, T> {
    /// Sizes of the arrays.
    pub sizes: Sizes,
    /// `(batch, tokens, 1, channels)`.
    pub x: Tokens<'a, T>,
    /// `(channels, taps)`.
    pub weight: &'a [T],
    /// `(channels,)`.
    pub bias: Option<&'a [T]>,
    /// Whether outputs are multiplied by their logistic function.
    pub silu: bool,
}

impl<T: Exponential> Operands<'_, T> {
    /// Checks that the arrays fit the sizes.
    pub(super) fn check(&mut self) -> Result<()> {
        let Sizes { batch, tokens, channels, taps } = self.sizes;
        if channels == 0 || taps == 0 || product(&[batch, tokens, channels, size_of::<T>()]).is_none() {
            let found = format!("{:?}", self.sizes);
            return Err(Error::value("sizes", "positive numbers of channels and taps", found));
        }
        self.sizes.expect("x", &mut self.x)?;
        let bias = self.bias.map(<[T]>::len);
        require(1, &[("weight", Some(self.weight.len()), &[channels, taps]), ("bias", bias, &[channels])])
    }

    /// Checks the length of an array like the outputs.
    pub(super) fn check_outputs(&self, name: &'static str, array: &NumbersMut<'_, T>) -> Result<()> {
        let Sizes { batch, tokens, channels, .. } = self.sizes;
        require(1, &[(name, Some(array.len()), &[batch, tokens, channels])])
    }

    /// Operations of the forward pass.
    pub(super) fn flops(&self) -> usize {
        let Sizes { batch, tokens, channels, taps } = self.sizes;
        flops(&[batch * tokens * channels, 2 * taps + if self.silu { 30 } else { 0 }])
    }
}
