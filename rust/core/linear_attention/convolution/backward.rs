//! Gradients: with `da_t` that of `a_t`, `dx_t = sum_j w_j da_{t + taps - 1 - j}`, `dw_j = sum_t da_t x_{t - taps + 1 + j}`,
//! `db = sum_t da_t`. The pre-activations `a` are computed again.

use super::operands::{Operands, Sizes};
use super::window::{AHEAD, ChannelBlock, Weights, Window, rows_of};
use crate::arrays::lengths::require;
use crate::arrays::stored::{NumbersMut, Tokens};
use crate::arrays::view::ViewMut;
use crate::error::Result;
use crate::memory::Buffer;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::isa::simd;
use crate::threads::Context;

/// Tokens whose contributions to `dw` are added up before they join those of the others, which keeps sums accurate.
const RUN: usize = 64;

/// Gradients of the operands, those that are needed.
#[derive(Debug)]
pub struct Gradients<'a, T> {
    /// `(batch, tokens, channels)`.
    pub x: Option<NumbersMut<'a, T>>,
    /// `(channels, taps)`.
    pub weight: Option<&'a mut [T]>,
    /// `(channels,)`.
    pub bias: Option<&'a mut [T]>,
}

/// Computes gradients from those of the outputs, `(batch, tokens, 1, channels)`.
pub fn backward<T: Exponential>(
    context: &mut Context<'_>,
    operands: Operands<'_, T>,
    grad_out: Tokens<'_, T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    T::convolution_backward(context, operands, grad_out, gradients)
}

/// [`backward`], to be compiled for each type.
pub(crate) fn backward_of_type<T: Exponential>(
    context: &mut Context<'_>,
    mut operands: Operands<'_, T>,
    mut grad_out: Tokens<'_, T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    operands.check()?;
    let (isa, Sizes { batch, tokens, channels, taps }) = (context.isa, operands.sizes);
    operands.sizes.expect("grad_out", &mut grad_out)?;
    gradients.x.as_ref().map_or(Ok(()), |x| operands.check_outputs("grad_x", x))?;
    let len = |array: &Option<&mut [T]>| array.as_ref().map(|array| array.len());
    require(
        1,
        &[("grad_weight", len(&gradients.weight), &[channels, taps]), ("grad_bias", len(&gradients.bias), &[channels])],
    )?;
    let (blocks, of_x) = (ChannelBlock::count(channels), gradients.x.map(|x| x.rows(channels)));
    let summed = gradients.weight.is_some() || gradients.bias.is_some();
    let batch = if tokens == 0 { 0 } else { batch };
    // `dw` of each tap, then `db`, of each sequence.
    let each = if summed { (taps + 1) * channels } else { 0 };
    let mut sums: Buffer<T> = Buffer::zeroed(batch.max(1).saturating_mul(each))?;
    let rows = sums.len() / channels;
    let of_taps = ViewMut::of(&mut sums, channels, rows);
    context.run(batch * blocks, operands.flops().saturating_mul(3), &|i, cancel| {
        let (sequence, block) = (i / blocks, ChannelBlock::number(i % blocks, channels));
        let (weights, width) = (Weights::new(isa, &operands, block)?, block.width);
        let reversed = weights.reversed()?;
        let (mut window, mut later) = (Window::new(taps, width)?, Window::new(taps, width)?);
        let mut row = WorkRows::zeroed(1, width)?;
        let (mut run, mut total) = (WorkRows::zeroed(taps + 1, width)?, WorkRows::zeroed(taps + 1, width)?);
        let x = rows_of(&operands, sequence, block);
        let grad = grad_out.rows((sequence * tokens, tokens), 0).part(0, tokens, block.first);
        for token in 0..tokens + taps - 1 {
            cancel.check()?;
            let ahead = usize::from(token + AHEAD < tokens);
            [x, grad].iter().for_each(|rows| rows.part(token + AHEAD, ahead, 0).prefetch(width));
            if token < tokens {
                window.push(isa, x.part(token, 1, 0));
                later.push(isa, grad.part(token, 1, 0));
                if operands.silu {
                    weights.product(isa, &window, row.row_mut(0));
                    times_derivative(isa, row.row(0), later.newest());
                }
                if summed {
                    let (newest, last) = (later.newest(), token + 1 == tokens);
                    for (tap, x) in window.vectors().enumerate() {
                        accumulate(isa, newest, Some(x), run.row_mut(tap));
                    }
                    accumulate(isa, newest, None, run.row_mut(taps));
                    if last || (token + 1).is_multiple_of(RUN) {
                        for tap in 0..=taps {
                            accumulate(isa, run.row(tap), None, total.row_mut(tap));
                            run.row_mut(tap).fill(T::ZERO);
                        }
                    }
                }
            } else {
                later.next().fill(T::ZERO);
            }
            if let (Some(of_x), Some(token)) = (of_x, (token + 1).checked_sub(taps)) {
                reversed.product(isa, &later, row.row_mut(0));
                // SAFETY: tasks write disjoint sequences or channels.
                unsafe { of_x.part(sequence * tokens + token, 1, block.first).write(isa, width, row.all()) };
            }
        }
        if summed {
            let to = of_taps.part(sequence * (taps + 1), (sequence + 1) * (taps + 1)).from(block.first, 0);
            // SAFETY: as above.
            unsafe { total.all().copy_to(to, width) };
        }
        Ok(())
    })?;
    if summed {
        let (first, others) = sums.split_at_mut(each);
        others.chunks_exact(each).for_each(|other| accumulate(isa, other, None, first));
        let (of_weight, of_bias) = first.split_at(taps * channels);
        if let Some(weight) = gradients.weight {
            for (x, weight) in weight.chunks_exact_mut(taps).enumerate() {
                (0..taps).for_each(|tap| weight[tap] = of_weight[tap * channels + x]);
            }
        }
        if let Some(bias) = gradients.bias {
            bias.copy_from_slice(of_bias);
        }
    }
    Ok(())
}

simd! {
    /// Multiplies gradients of `silu(a)` by its derivative.
    fn times_derivative<T: Exponential>(s, row: &[T], grad: &mut [T]) -> () {
        for (&a, grad) in row.iter().zip(grad) {
            let sigmoid = a.sigmoid(s);
            *grad = *grad * (sigmoid * (T::ONE + a * (T::ONE - sigmoid)));
        }
    }

    /// `sum += a b`, with ones for an absent `b`.
    fn accumulate<T: Exponential>(_s, a: &[T], b: Option<&[T]>, sum: &mut [T]) -> () {
        match b {
            Some(b) => sum.iter_mut().zip(a).zip(b).for_each(|((sum, &a), &b)| *sum += a * b),
            None => sum.iter_mut().zip(a).for_each(|(sum, &a)| *sum += a),
        }
    }
}
