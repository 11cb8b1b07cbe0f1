//! The convolution and the gated norm: by the crate, and row by row.

use householder::threads::Context;
use householder::{convolution, gated_norm};
use pulp::{Simd, WithSimd};

use crate::{Call, numbers};

pub struct Convolution {
    sizes: convolution::Sizes,
    x: Vec<f32>,
    /// `(channels, taps)`.
    weight: Vec<f32>,
}

impl Convolution {
    pub fn new(tokens: usize, channels: usize, taps: usize) -> Self {
        let sizes = convolution::Sizes { batch: 1, tokens, channels, taps };
        Self { sizes, x: numbers(tokens * channels), weight: numbers(channels * taps) }
    }

    /// The last inputs of a sequence without tokens.
    fn state(&self) -> Vec<f32> {
        vec![0.0; (self.sizes.taps - 1) * self.sizes.channels]
    }

    pub fn by_crate(&self) -> Call<'_> {
        let (x, weight, mut state) = ((&self.x).into(), &self.weight[..], self.state());
        let operands = convolution::Operands { sizes: self.sizes, x, weight, bias: None, silu: true };
        Box::new(move |out| {
            convolution::advance(&mut Context::default(), operands, &mut state, out.into()).unwrap();
        })
    }

    pub fn by_tokens(&self) -> Call<'_> {
        let convolution::Sizes { channels, taps, .. } = self.sizes;
        // Taps one after the other, so that loops run along channels.
        let taps: Vec<Vec<f32>> =
            (0..taps).map(|tap| self.weight.iter().skip(tap).step_by(taps).copied().collect()).collect();
        let mut state = self.state();
        Box::new(move |outputs| {
            let state = &mut state[..];
            pulp::Arch::new().dispatch(LoopOverTaps { x: &self.x, taps: &taps, channels, state, outputs });
        })
    }
}

struct LoopOverTaps<'a> {
    x: &'a [f32],
    taps: &'a [Vec<f32>],
    channels: usize,
    state: &'a mut [f32],
    outputs: &'a mut [f32],
}

impl WithSimd for LoopOverTaps<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { x, taps, channels, state, outputs } = self;
        for (token, out) in outputs.chunks_exact_mut(channels).enumerate() {
            out.fill(0.0);
            for (before, tap) in taps.iter().rev().enumerate() {
                let row = match token.checked_sub(before) {
                    Some(token) => &x[token * channels..],
                    None => &state[(taps.len() - 1 + token - before) * channels..],
                };
                out.iter_mut().zip(row).zip(tap).for_each(|((out, &x), &w)| *out = x.mul_add(w, *out));
            }
            out.iter_mut().for_each(|x| *x = silu(*x));
        }
        let new = state.len().min(x.len());
        state.copy_within(new.., 0);
        let kept = state.len() - new;
        state[kept..].copy_from_slice(&x[x.len() - new..]);
    }
}

pub struct GatedNorm {
    rows: usize,
    x: Vec<f32>,
    z: Vec<f32>,
    weight: Vec<f32>,
}

impl GatedNorm {
    const EPSILON: f32 = 1e-6;

    pub fn new(rows: usize, width: usize) -> Self {
        let [x, z] = [0, 1].map(|i| numbers(rows * width + i).split_off(i));
        Self { rows, x, z, weight: numbers(width) }
    }

    pub fn by_crate(&self) -> Call<'_> {
        let Self { rows, x, z, weight } = self;
        let (x, z) = (x.into(), z.into());
        let operands = gated_norm::Operands { rows: *rows, x, z, weight, epsilon: Self::EPSILON, silu: true };
        Box::new(move |out| gated_norm::forward(&mut Context::default(), operands, out.into()).unwrap())
    }

    pub fn by_rows(&self) -> Call<'_> {
        Box::new(move |outputs| pulp::Arch::new().dispatch(LoopOverRows { given: self, outputs }))
    }
}

struct LoopOverRows<'a> {
    given: &'a GatedNorm,
    outputs: &'a mut [f32],
}

impl WithSimd for LoopOverRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { given: GatedNorm { x, z, weight, .. }, outputs } = self;
        let width = weight.len();
        let rows = x.chunks_exact(width).zip(z.chunks_exact(width));
        for (out, (x, z)) in outputs.chunks_exact_mut(width).zip(rows) {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / width as f32;
            let inverse = (mean + GatedNorm::EPSILON).sqrt().recip();
            for ((out, &x), (&z, &weight)) in out.iter_mut().zip(x).zip(z.iter().zip(weight)) {
                *out = weight * (x * inverse) * silu(z);
            }
        }
    }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
