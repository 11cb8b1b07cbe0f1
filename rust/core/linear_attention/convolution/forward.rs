//! Outputs, token by token.

use super::operands::{Operands, Sizes};
use super::window::{AHEAD, ChannelBlock, Weights, Window, rows_of};
use crate::arrays::stored::NumbersMut;
use crate::error::Result;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::isa::simd;
use crate::threads::Context;

/// Tokens of a task. Its window begins with those before.
const SLICE: usize = 512;

/// Computes outputs `(batch, tokens, channels)`.
pub fn forward<T: Exponential>(
    context: &mut Context<'_>,
    operands: Operands<'_, T>,
    out: NumbersMut<'_, T>,
) -> Result<()> {
    T::convolution(context, operands, out)
}

/// [`forward`], to be compiled for each type.
pub(crate) fn forward_of_type<T: Exponential>(
    context: &mut Context<'_>,
    mut operands: Operands<'_, T>,
    out: NumbersMut<'_, T>,
) -> Result<()> {
    operands.check()?;
    operands.check_outputs("out", &out)?;
    let (isa, Sizes { batch, tokens, channels, taps }) = (context.isa, operands.sizes);
    let (blocks, slices, out) = (ChannelBlock::count(channels), tokens.div_ceil(SLICE), out.rows(channels));
    context.run(batch * slices * blocks, operands.flops(), &|i, cancel| {
        let (i, block) = (i / blocks, ChannelBlock::number(i % blocks, channels));
        let (sequence, begin) = (i / slices, i % slices * SLICE);
        let (x, weights) = (rows_of(&operands, sequence, block), Weights::new(isa, &operands, block)?);
        let (mut window, mut row) = (Window::new(taps, block.width)?, WorkRows::zeroed(1, block.width)?);
        for token in begin.saturating_sub(taps - 1)..tokens.min(begin + SLICE) {
            let ahead = usize::from(token + AHEAD < tokens);
            x.part(token + AHEAD, ahead, 0).prefetch(block.width);
            out.part(sequence * tokens + token + AHEAD, ahead, block.first).prefetch(block.width);
            window.push(isa, x.part(token, 1, 0));
            if token >= begin {
                cancel.check()?;
                weights.product(isa, &window, row.row_mut(0));
                if operands.silu {
                    silu(isa, row.row_mut(0));
                }
                let to = out.part(sequence * tokens + token, 1, block.first);
                // SAFETY: tasks write disjoint tokens or channels.
                unsafe { to.write(isa, block.width, row.all()) };
            }
        }
        Ok(())
    })
}

simd! {
    /// `a = a sigmoid(a)`.
    fn silu<T: Exponential>(_s, row: &mut [T]) -> () {
        for a in row {
            *a = *a / (T::ONE + (-*a).exp());
        }
    }
}
