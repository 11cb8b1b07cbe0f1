//! Runs a gated DeltaNet layer of Qwen3.5: a prompt in one call, then one token at a time.
//!
//! ```sh
//! cargo run --release --example gated_layer --features safetensors -- layer.safetensors x.safetensors y.safetensors 16
//! ```
//!
//! The first file has the `state_dict` of a `Qwen3_5GatedDeltaNet` of transformers, in float32 or bfloat16. The second has its
//! inputs, `prompt (T, hidden_size)` and `tokens (S, hidden_size)`. The third receives the outputs under the same names. The
//! last number is `linear_num_key_heads`, which the shapes of the weights do not tell. A fifth argument is the prefix of the
//! parameters' names, such as `model.language_model.layers.0.linear_attn.` in the file of a whole model.
//!
//! The crate computes what lies between the projections. An engine brings its own matrix products, threads and formats of
//! weights; here the products are plain loops.

use std::error::Error;

use householder::convolution;
use householder::delta::{self, Gate, Operands, Problem, Results, Sizes};
use householder::gated_norm;
use householder::layers::SafeTensors;
use householder::stored::{Numbers, Tokens};
use householder::{Context, Error as Refusal};
use safetensors::tensor::{Dtype, TensorView};

/// Added to mean squares by the norm: `rms_norm_eps`.
const EPSILON: f32 = 1e-6;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [layer, inputs, results, heads, prefix @ ..] = &arguments[..] else {
        return Err("expected the names of three files and the number of key heads".into());
    };
    let (weights, inputs) = (std::fs::read(layer)?, std::fs::read(inputs)?);
    let prefix = prefix.first().map_or("", String::as_str);
    let layer = Layer::read(&SafeTensors::deserialize(&weights)?, prefix, heads.parse()?)?;
    let inputs = SafeTensors::deserialize(&inputs)?;
    let (prompt, tokens) = (numbers(&inputs, "prompt")?, numbers(&inputs, "tokens")?);

    let context = &mut Context::default();
    let mut state = State::new(&layer);
    let prompt = layer.forward(context, &mut state, &prompt)?;
    let mut outputs = Vec::with_capacity(tokens.len());
    for token in tokens.chunks_exact(layer.hidden_size) {
        outputs.extend(layer.forward(context, &mut state, token)?);
    }

    let [prompt, tokens] = [prompt, outputs].map(|x| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let view = |bytes| {
        let shape = vec![size_of_val(bytes) / (size_of::<f32>() * layer.hidden_size), layer.hidden_size];
        TensorView::new(Dtype::F32, shape, bytes)
    };
    let file = safetensors::serialize([("prompt", view(&prompt[..])?), ("tokens", view(&tokens[..])?)], None)?;
    std::fs::write(results, file)?;
    Ok(())
}

/// A layer. Weights are `(outputs, inputs)`.
struct Layer {
    hidden_size: usize,
    /// Heads of keys and of values, and their widths.
    sizes: Sizes,
    in_proj_qkv: Vec<f32>,
    in_proj_z: Vec<f32>,
    in_proj_b: Vec<f32>,
    in_proj_a: Vec<f32>,
    /// `(channels, taps)`.
    conv: Vec<f32>,
    dt_bias: Vec<f32>,
    a_log: Vec<f32>,
    norm: Vec<f32>,
    out_proj: Vec<f32>,
}

/// What one call leaves for the next tokens of its sequence.
struct State {
    /// The last inputs of the convolution, `(taps - 1, channels)`.
    window: Vec<f32>,
    /// The recurrent state, `(value_heads, key_width, value_width)`.
    memory: Vec<f32>,
}

impl State {
    /// That of a sequence without tokens.
    fn new(layer: &Layer) -> Self {
        let Sizes { value_heads, key_width, value_width, .. } = layer.sizes;
        Self {
            window: vec![0.0; (layer.taps() - 1) * layer.channels()],
            memory: vec![0.0; value_heads * key_width * value_width],
        }
    }
}

impl Layer {
    /// That whose parameters have names with this prefix.
    fn read(file: &SafeTensors<'_>, prefix: &str, heads: usize) -> Result<Self, Box<dyn Error>> {
        let read = |name: &str| numbers(file, &format!("{prefix}{name}"));
        let (a_log, norm) = (read("A_log")?, read("norm.weight")?);
        let hidden_size = file.tensor(&format!("{prefix}in_proj_qkv.weight"))?.shape()[1];
        let in_proj_qkv = read("in_proj_qkv.weight")?;
        let (value_heads, value_width) = (a_log.len(), norm.len());
        let key_width = (in_proj_qkv.len() / hidden_size - value_heads * value_width) / (2 * heads);
        Ok(Self {
            hidden_size,
            sizes: Sizes { value_heads, ..Sizes::new(heads, key_width, value_width) },
            in_proj_qkv,
            in_proj_z: read("in_proj_z.weight")?,
            in_proj_b: read("in_proj_b.weight")?,
            in_proj_a: read("in_proj_a.weight")?,
            conv: read("conv1d.weight")?,
            dt_bias: read("dt_bias")?,
            a_log,
            norm,
            out_proj: read("out_proj.weight")?,
        })
    }

    /// Numbers of a query, key and value of all heads.
    fn channels(&self) -> usize {
        self.in_proj_qkv.len() / self.hidden_size
    }

    fn taps(&self) -> usize {
        self.conv.len() / self.channels()
    }

    /// Outputs of the next tokens of a sequence, one or many: `x (tokens, hidden_size)`.
    fn forward(&self, context: &mut Context<'_>, state: &mut State, x: &[f32]) -> Result<Vec<f32>, Refusal> {
        let mixed = self.convolved(context, &mut state.window, &product(x, &self.in_proj_qkv, self.hidden_size))?;
        let out = self.recurrence(context, &mut state.memory, &mixed, x)?;
        let z = product(x, &self.in_proj_z, self.hidden_size);
        let operands = gated_norm::Operands {
            rows: out.len() / self.norm.len(),
            x: (&out).into(),
            z: (&z).into(),
            weight: &self.norm,
            epsilon: EPSILON,
            silu: true,
        };
        let mut normed = vec![0.0; out.len()];
        gated_norm::forward(context, operands, (&mut normed).into())?;
        Ok(product(&normed, &self.out_proj, self.sizes.value_heads * self.sizes.value_width))
    }

    /// The rows of the tokens after the convolution, which takes its window from before the first to after the last.
    fn convolved(&self, context: &mut Context<'_>, window: &mut [f32], qkv: &[f32]) -> Result<Vec<f32>, Refusal> {
        let (channels, taps) = (self.channels(), self.taps());
        let operands = convolution::Operands {
            sizes: convolution::Sizes { batch: 1, tokens: qkv.len() / channels, channels, taps },
            x: qkv.into(),
            weight: &self.conv,
            bias: None,
            silu: true,
        };
        let mut mixed = vec![0.0; qkv.len()];
        convolution::advance(context, operands, window, (&mut mixed).into())?;
        Ok(mixed)
    }

    /// The delta rule of all tokens, which takes the memory from before the first to after the last.
    fn recurrence(
        &self,
        context: &mut Context<'_>,
        memory: &mut [f32],
        mixed: &[f32],
        x: &[f32],
    ) -> Result<Vec<f32>, Refusal> {
        let Sizes { heads, value_heads, key_width, value_width, .. } = self.sizes;
        let (channels, keys) = (self.channels(), heads * key_width);
        // Queries, keys and values are read where they are: side by side in the row of each token.
        let part = |first: usize, heads: usize, width: usize| {
            let shape = [1, mixed.len() / channels, heads, width];
            Tokens::strided(Numbers::Full(&mixed[first..]), shape, [0, channels, width])
        };
        let (q, k) = (part(0, heads, key_width)?, part(keys, heads, key_width)?);
        let v = part(2 * keys, value_heads, value_width)?;
        let beta: Vec<f32> = product(x, &self.in_proj_b, self.hidden_size).into_iter().map(sigmoid).collect();
        let a = product(x, &self.in_proj_a, self.hidden_size);
        let biases = self.a_log.iter().zip(&self.dt_bias).cycle();
        let g: Vec<f32> = a.iter().zip(biases).map(|(a, (a_log, bias))| -a_log.exp() * softplus(a + bias)).collect();

        let operands = Operands { gate: Gate::Head(&g), normalize: true, ..Operands::new(self.sizes, q, k, v, &beta) };
        let problem = Problem::new(operands)?;
        let mut out = vec![0.0; problem.lengths().out];
        let results =
            Results { out: Some((&mut out).into()), last: Some(memory), in_place: true, ..Results::default() };
        delta::forward(context, &problem, results)?;
        Ok(out)
    }
}

/// `x W'`, row by row.
fn product(x: &[f32], weight: &[f32], width: usize) -> Vec<f32> {
    let rows = x.chunks_exact(width);
    rows.flat_map(|x| weight.chunks_exact(width).map(|w| x.iter().zip(w).map(|(x, w)| x * w).sum())).collect()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The array of that name.
fn numbers(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>, Box<dyn Error>> {
    let tensor = file.tensor(name)?;
    match tensor.dtype() {
        Dtype::F32 => Ok(tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()),
        Dtype::BF16 => {
            let bits = tensor.data().as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
            Ok(bits.map(|bits| f32::from_bits(u32::from(bits) << 16)).collect())
        }
        other => Err(format!("{name}: expected float32 or bfloat16, got {other:?}").into()),
    }
}
