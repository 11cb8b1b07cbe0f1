//! Runs a layer that was trained in Python, over whole sequences in one call, then over the same inputs as they arrive.
//!
//! ```sh
//! cargo run --release --example infer --features safetensors -- layer.safetensors x.safetensors y.safetensors leaky_relu
//! ```
//!
//! The first file has the `state_dict` of an `ht.OrthogonalRNN`, the second its inputs `x (T, B, d)`. The third receives all
//! states twice, `sequence (T, B, n)` and `stream (T, B, n)`. The fourth argument is the layer's `nonlinearity`, and a fifth its
//! `num_layers`. Slopes and constraints are those of Python's defaults. Times are medians.

#![allow(clippy::print_stdout)] // an example shows what it does

use std::error::Error;
use std::time::{Duration, Instant};

use householder::Context;
use householder::layers::{Constraint, Options, OrthogonalRnn, SafeTensors};
use householder::rnn::Activation;
use safetensors::tensor::{Dtype, TensorView};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [layer, inputs, results, nonlinearity, layers @ ..] = &arguments[..] else {
        return Err("expected the names of three files, and of a nonlinearity".into());
    };
    let num_layers = layers.first().map_or(Ok(1), |layers| layers.to_string_lossy().parse())?;

    let (weights, inputs) = (std::fs::read(layer)?, std::fs::read(inputs)?);
    let activation = activation(&nonlinearity.to_string_lossy())?;
    let options = Options { activation, constraint: Some(Constraint::Hard), num_layers };
    let layer = OrthogonalRnn::<f32>::read(&SafeTensors::deserialize(&weights)?, "", options)?;
    let inputs = SafeTensors::deserialize(&inputs)?.tensor("x")?;
    let [steps, batch, _] = inputs.shape()[..] else { return Err("expected x (T, B, d)".into()) };
    let x: Vec<f32> = inputs.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();

    let context = &mut Context::default();
    let sequence = layer.forward(context, steps, batch, &x)?;

    // The weights are packed once. Later steps reuse the workspace of the first.
    let mut stream = layer.stream(context, batch)?;
    let mut states = Vec::with_capacity(sequence.len());
    let inputs = || x.chunks((batch * layer.input_size()).max(1));
    for x in inputs() {
        states.extend_from_slice(stream.step(x)?);
    }

    let call = median_us(|| layer.forward(context, steps, batch, &x).map(drop))?;
    let step = median_us(|| inputs().try_for_each(|x| stream.step(x).map(|_| ())))? / steps.max(1) as f64;
    println!("{steps} steps of {batch} sequences: {call:.2} us in one call, {step:.2} us a step as inputs arrive");

    let shape = vec![steps, batch, layer.hidden_size()];
    let [sequence, states] = [sequence, states].map(|x| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
    let view = |bytes| TensorView::new(Dtype::F32, shape.clone(), bytes);
    let file = safetensors::serialize([("sequence", view(&sequence)?), ("stream", view(&states)?)], None)?;
    std::fs::write(results, file)?;
    Ok(())
}

/// The nonlinearity that Python calls by this name; biases come from the file.
fn activation(name: &str) -> Result<Activation<'static, f32>, Box<dyn Error>> {
    let written = |activation: &Activation<'_, f32>| format!("{activation:?}").split('(').next().map(str::to_lowercase);
    let mut all = Activation::all(0.1, &[]).into_iter();
    let named = all.find(|activation| written(activation).is_some_and(|known| known == name.replace('_', "")));
    named.ok_or_else(|| format!("no layer has the nonlinearity {name}").into())
}

/// The median time of a hundred calls, in microseconds.
fn median_us<E>(mut call: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut times = [Duration::ZERO; 100];
    for time in &mut times {
        let begin = Instant::now();
        call()?;
        *time = begin.elapsed();
    }
    times.sort_unstable();
    Ok(1e6 * times[50].as_secs_f64())
}
