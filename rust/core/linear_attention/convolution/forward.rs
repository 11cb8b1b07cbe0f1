//! Outputs, token by token.

use super::operands::{Operands, Sizes};
use super::window::{AHEAD, ChannelBlock, Weights, Window, rows_of};
use crate::arrays::lengths::require;
use crate::arrays::stored::NumbersMut;
use crate::arrays::view::ViewMut;
use crate::error::Result;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::isa::simd;
use crate::threads::Context;

/// Tokens of a task. Its window begins with those before.
const SLICE: usize = 512;

/// Computes outputs `(batch, tokens, channels)` of sequences that begin with `x`.
pub fn forward<T: Exponential>(
    context: &mut Context<'_>,
    operands: Operands<'_, T>,
    out: NumbersMut<'_, T>,
) -> Result<()> {
    T::convolution(context, operands, None, out)
}

/// Computes the outputs of the next tokens of sequences. `state (batch, taps - 1, channels)` has their last inputs, the oldest
/// first; it moves to after the new ones. Zeros are the state before the first token.
pub fn advance<T: Exponential>(
    context: &mut Context<'_>,
    operands: Operands<'_, T>,
    state: &mut [T],
    out: NumbersMut<'_, T>,
) -> Result<()> {
    T::convolution(context, operands, Some(state), out)
}

/// [`forward`] and [`advance`], to be compiled for each type.
pub(crate) fn forward_of_type<T: Exponential>(
    context: &mut Context<'_>,
    mut operands: Operands<'_, T>,
    state: Option<&mut [T]>,
    out: NumbersMut<'_, T>,
) -> Result<()> {
    operands.check()?;
    operands.check_outputs("out", &out)?;
    let (isa, Sizes { batch, tokens, channels, taps }) = (context.isa, operands.sizes);
    require(1, &[("state", state.as_deref().map(<[T]>::len), &[batch, taps - 1, channels])])?;
    let (before, out) = (taps - 1, out.rows(channels));
    let state = state.map(|state| ViewMut::of(state, channels, batch * before));
    // The task that reads a part of the state also writes it.
    let slice = if state.is_some() { tokens.max(1) } else { SLICE };
    let (blocks, slices) = (ChannelBlock::count(channels), tokens.div_ceil(slice));
    context.run(batch * slices * blocks, operands.flops(), &|i, cancel| {
        let (i, block) = (i / blocks, ChannelBlock::number(i % blocks, channels));
        let (sequence, begin) = (i / slices, i % slices * slice);
        let (x, weights) = (rows_of(&operands, sequence, block), Weights::new(isa, &operands, block)?);
        let (mut window, mut row) = (Window::new(taps, block.width)?, WorkRows::scratch(1, block.width)?);
        let state = state.map(|state| state.part(sequence * before, (sequence + 1) * before).from(block.first, 0));
        if let Some(state) = state {
            // SAFETY: a row of the state for each vector of the window but the oldest, of channels that only this task uses.
            (0..before).for_each(|j| unsafe { window.next().copy_from_slice(state.read().vector(j, block.width)) });
        }
        for token in begin.saturating_sub(before)..tokens.min(begin + slice) {
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
        if let Some(state) = state {
            for (j, newest) in window.vectors().skip(1).enumerate() {
                // SAFETY: as above.
                unsafe { state.vector_mut(j, block.width).copy_from_slice(newest) };
            }
        }
        Ok(())
    })
}

simd! {
    /// `a = a sigmoid(a)`.
    fn silu<T: Exponential>(s, row: &mut [T]) -> () {
        for a in row {
            *a = *a / (T::ONE + (-*a).exp(s));
        }
    }
}
