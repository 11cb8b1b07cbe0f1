//! The gated delta rule and Mamba-2: by the crate, and token by token.

use householder::delta::{Gate, Operands, Problem, Results, Sizes, forward};
use householder::threads::Context;
use pulp::{Simd, WithSimd};

use crate::{Call, numbers};

/// Operands, as in `householder::delta`. Those of Mamba-2 have a `skip`, and erase nothing.
pub struct Recurrence {
    pub sizes: Sizes,
    pub tokens: usize,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub beta: Vec<f32>,
    pub g: Vec<f32>,
    pub skip: Option<Vec<f32>>,
}

/// Rows of length one.
fn units(rows: usize, width: usize) -> Vec<f32> {
    let mut numbers = numbers(rows * width);
    for row in numbers.chunks_exact_mut(width) {
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x /= norm);
    }
    numbers
}

impl Recurrence {
    pub fn new(sizes: Sizes, tokens: usize, skip: Option<Vec<f32>>) -> Self {
        let Sizes { heads, value_heads, key_width, value_width, .. } = sizes;
        let gates = numbers(tokens * value_heads);
        Self {
            sizes,
            tokens,
            q: units(tokens * heads, key_width),
            k: units(tokens * heads + 1, key_width).split_off(key_width), // other rows than those of `q`
            v: numbers(tokens * value_heads * value_width),
            beta: gates.iter().map(|x| 0.5 + 0.4 * x).collect(),
            g: gates.iter().map(|x| -0.05 * (1.5 + x)).collect(),
            skip,
        }
    }

    /// A state of all heads.
    pub fn state(&self) -> Vec<f32> {
        numbers(self.sizes.value_heads * self.sizes.key_width * self.sizes.value_width)
    }

    pub fn by_crate(&self) -> Call<'_> {
        let operands = Operands::new(self.sizes, &self.q, &self.k, &self.v, &self.beta);
        let skip = self.skip.as_deref();
        let problem = Problem::new(Operands { gate: Gate::Head(&self.g), scale: 1.0, skip, ..operands }).unwrap();
        let (mut context, mut state) = (Context::default(), self.state());
        Box::new(move |out| {
            let results = Results { out: Some(out.into()), last: Some(&mut state), in_place: true, saved: None };
            forward(&mut context, &problem, results).unwrap();
        })
    }

    pub fn by_tokens(&self) -> Call<'_> {
        let mut states = self.state();
        Box::new(move |outputs| {
            pulp::Arch::new().dispatch(LoopOverTokens { given: self, states: &mut states, outputs });
        })
    }
}

struct LoopOverTokens<'a> {
    given: &'a Recurrence,
    states: &'a mut [f32],
    outputs: &'a mut [f32],
}

impl WithSimd for LoopOverTokens<'_> {
    type Output = ();

    /// Head after head, so that its state stays in a cache, and token after token, in two passes over the state.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { given, states, outputs } = self;
        let Sizes { heads, value_heads, key_width, value_width, .. } = given.sizes;
        let (mut read, mut written) = (vec![0.0_f32; value_width], vec![0.0_f32; value_width]);
        for (head, state) in states.chunks_exact_mut(key_width * value_width).enumerate() {
            for token in 0..given.tokens {
                let (key, value) = (token * heads + head * heads / value_heads, token * value_heads + head);
                let (q, k) = (&given.q[key * key_width..][..key_width], &given.k[key * key_width..][..key_width]);
                let v = &given.v[value * value_width..][..value_width];
                let out = &mut outputs[value * value_width..][..value_width];
                let (beta, decay) = (given.beta[value], given.g[value].exp());
                read.fill(0.0);
                out.fill(0.0);
                if given.skip.is_none() {
                    for (row, k) in state.chunks_exact(value_width).zip(k) {
                        read.iter_mut().zip(row).for_each(|(read, &s)| *read = k.mul_add(s, *read));
                    }
                }
                for ((written, read), v) in written.iter_mut().zip(&read).zip(v) {
                    *written = beta * (v - decay * read);
                }
                for ((row, k), &q) in state.chunks_exact_mut(value_width).zip(k).zip(q) {
                    for ((s, &written), out) in row.iter_mut().zip(&written).zip(&mut *out) {
                        *s = k.mul_add(written, decay * *s);
                        *out = q.mul_add(*s, *out);
                    }
                }
                if let Some(skip) = &given.skip {
                    out.iter_mut().zip(v).for_each(|(out, &v)| *out = skip[head].mul_add(v, *out));
                }
            }
        }
    }
}
