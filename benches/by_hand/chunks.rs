//! The gated delta rule and Mamba-2 by chunks of tokens, in the operations that tensors have.

use householder::delta::Sizes;
use ndarray::{Array1, Array2, ArrayView2, ArrayView3, ArrayViewMut2, Axis, s};

use crate::Call;
use crate::recurrence::Recurrence;

/// Tokens of a chunk.
const CHUNK: usize = 64;

impl Recurrence {
    pub fn by_chunks(&self) -> Call<'_> {
        let Sizes { heads, value_heads, key_width, value_width, .. } = self.sizes;
        let mut states = self.state();
        let keys = |array| ArrayView3::from_shape((self.tokens, heads, key_width), array).unwrap();
        let (q, k) = (keys(&self.q), keys(&self.k));
        let v = ArrayView3::from_shape((self.tokens, value_heads, value_width), &self.v).unwrap();
        let gates = |array| ArrayView2::from_shape((self.tokens, value_heads), array).unwrap();
        let (beta, g) = (gates(&self.beta), gates(&self.g));
        Box::new(move |out| {
            let shape = (self.tokens, value_heads * value_width);
            let mut outputs = ArrayViewMut2::from_shape(shape, out).unwrap();
            for (head, state) in states.chunks_exact_mut(key_width * value_width).enumerate() {
                let mut state = ArrayViewMut2::from_shape((key_width, value_width), state).unwrap();
                let (key, skip) = (head * heads / value_heads, self.skip.as_ref().map(|skip| skip[head]));
                for first in (0..self.tokens).step_by(CHUNK) {
                    let tokens = first..self.tokens.min(first + CHUNK);
                    let rows = |array: &ArrayView3<'_, f32>, head| array.slice(s![tokens.clone(), head, ..]).to_owned();
                    let column = |array: &ArrayView2<'_, f32>| array.slice(s![tokens.clone(), head]).to_owned();
                    let (q, k, v) = (rows(&q, key), rows(&k, key), rows(&v, head));
                    let chunk = Chunk { q, k, v, beta: column(&beta), g: column(&g), skip };
                    let columns = head * value_width..(head + 1) * value_width;
                    outputs.slice_mut(s![tokens.clone(), columns]).assign(&chunk.outputs(&mut state));
                }
            }
        })
    }
}

/// Operands of one head.
struct Chunk {
    q: Array2<f32>,
    k: Array2<f32>,
    v: Array2<f32>,
    beta: Array1<f32>,
    g: Array1<f32>,
    skip: Option<f32>,
}

impl Chunk {
    /// The outputs. Moves the state to the chunk's end.
    fn outputs(&self, state: &mut ArrayViewMut2<'_, f32>) -> Array2<f32> {
        let column = |numbers: Array1<f32>| numbers.insert_axis(Axis(1));
        let mut sum = self.g.clone();
        sum.accumulate_axis_inplace(Axis(0), |&before, sum| *sum += before);
        let (so_far, all) = (column(sum.mapv(f32::exp)), sum[sum.len() - 1]);
        let size = (sum.len(), sum.len());
        let decay = Array2::from_shape_fn(size, |(i, j)| if j > i { 0.0 } else { (sum[i] - sum[j]).exp() });
        let beta = column(self.beta.clone());
        let mut written = &self.v * &beta;
        if self.skip.is_none() {
            let keys = &self.k * &beta;
            let inverse = inverse(keys.dot(&self.k.t()) * &decay);
            written = inverse.dot(&written) - inverse.dot(&(keys * &so_far)).dot(state);
        }
        let mut out = (&self.q * &so_far).dot(state) + (self.q.dot(&self.k.t()) * decay).dot(&written);
        if let Some(skip) = self.skip {
            out.scaled_add(skip, &self.v);
        }
        let to_end = &self.k * &column(sum.mapv(|sum| (all - sum).exp()));
        *state *= all.exp();
        *state += &to_end.t().dot(&written);
        out
    }
}

/// The inverse of the identity plus the part of a matrix below its diagonal, row by row.
fn inverse(mut matrix: Array2<f32>) -> Array2<f32> {
    for i in 0..matrix.nrows() {
        let row = -matrix.slice(s![i, ..i]).dot(&matrix.slice(s![..i, ..i]));
        matrix.slice_mut(s![i, ..i]).assign(&row);
        matrix.slice_mut(s![i, i + 1..]).fill(0.0);
        matrix[[i, i]] = 1.0;
    }
    matrix
}
