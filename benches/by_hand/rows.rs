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

    pub fn by_crate(&self) -> Call<'_> {
        let (x, weight) = ((&self.x).into(), &self.weight[..]);
        let operands = convolution::Operands { sizes: self.sizes, x, weight, bias: None, silu: true };
        Box::new(move |out| convolution::forward(&mut Context::default(), operands, out.into()).unwrap())
    }

    pub fn by_tokens(&self) -> Call<'_> {
        let convolution::Sizes { channels, taps, .. } = self.sizes;
        // Taps one after the other, so that loops run along channels.
        let taps: Vec<Vec<f32>> =
            (0..taps).map(|tap| self.weight.iter().skip(tap).step_by(taps).copied().collect()).collect();
        Box::new(move |outputs| pulp::Arch::new().dispatch(LoopOverTaps { x: &self.x, taps: &taps, channels, outputs }))
    }
}

struct LoopOverTaps<'a> {
    x: &'a [f32],
    taps: &'a [Vec<f32>],
    channels: usize,
    outputs: &'a mut [f32],
}

impl WithSimd for LoopOverTaps<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { x, taps, channels, outputs } = self;
        for (token, out) in outputs.chunks_exact_mut(channels).enumerate() {
            out.fill(0.0);
            for (before, tap) in taps.iter().rev().enumerate().take(token + 1) {
                let row = &x[(token - before) * channels..][..channels];
                out.iter_mut().zip(row).zip(tap).for_each(|((out, &x), &w)| *out = x.mul_add(w, *out));
            }
            out.iter_mut().for_each(|x| *x = silu(*x));
        }
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
