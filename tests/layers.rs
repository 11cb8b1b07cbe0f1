//! Layers from files: sequences and steps agree, options act, and what does not fit is named.

use householder::layers::{Constraint, Options, OrthogonalRnn, SafeTensors};
use householder::rnn::Activation;
use householder::{Context, Error};
use safetensors::serialize;
use safetensors::tensor::{Dtype, TensorView};

const N: usize = 6;
const STEPS: usize = 5;
const BATCH: usize = 3;

fn waves(len: usize, frequency: f64) -> Vec<f64> {
    (0..len).map(|i| (i as f64 * frequency + 0.3).sin()).collect()
}

/// A file of two layers of this width of input and number of reflections, with all that a layer can have. `u_1` is the last
/// number of the reflections, where they are as many as the states.
fn file(d: usize, m: usize, modrelu: bool, u_1: f64) -> Vec<u8> {
    let mut arrays = Vec::new();
    for (i, d) in [d, N].into_iter().enumerate() {
        let mut add = |name: &str, shape: &[usize]| {
            let mut numbers = waves(shape.iter().product(), 0.7 + (i + name.len()) as f64);
            if name == "reflections" {
                numbers[N * m - 1] = u_1;
            }
            let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
            arrays.push((format!("rnn.cells.{i}.{name}"), shape.to_vec(), bytes));
        };
        add("reflections", &[N, m]);
        add("weight_ih", &[N, d]);
        add("bias", &[N]);
        add("h0", &[N]);
        if modrelu {
            add("nonlinearity_bias", &[N / 2]);
        }
    }
    let view = |shape: &Vec<usize>, bytes| TensorView::new(Dtype::F64, shape.clone(), bytes).unwrap();
    serialize(arrays.iter().map(|(name, shape, bytes)| (name, view(shape, bytes))), None).unwrap()
}

fn layer(bytes: &[u8], options: Options<f64>) -> Result<OrthogonalRnn<f64>, Error> {
    OrthogonalRnn::read(&SafeTensors::deserialize(bytes).unwrap(), "rnn.", options)
}

#[test]
fn sequences_and_their_steps_agree() {
    let activations = [Activation::Tanh, Activation::Oplu, Activation::ModRelu(&[]), Options::default().activation];
    for (activation, m) in activations.into_iter().flat_map(|activation| [(activation, 2), (activation, N)]) {
        let bytes = file(2, m, matches!(activation, Activation::ModRelu(_)), 0.5);
        let layer = layer(&bytes, Options { activation, constraint: Constraint::Soft }).unwrap();
        assert_eq!((layer.input_size(), layer.hidden_size()), (2, N));
        let (context, x) = (&mut Context::default(), waves(STEPS * BATCH * 2, 0.4));
        let states = layer.forward(context, STEPS, BATCH, &x).unwrap();
        let mut stream = layer.stream(context, BATCH).unwrap();
        for (x, expected) in x.chunks(BATCH * 2).zip(states.chunks(BATCH * N)) {
            let state = stream.step(x).unwrap();
            assert!(state.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
        }
    }
}

#[test]
fn the_constraint_decides_the_last_number() {
    let states = |u_1, constraint| {
        let layer = layer(&file(2, N, false, u_1), Options { constraint, ..Options::default() }).unwrap();
        layer.forward(&mut Context::default(), STEPS, 1, &waves(STEPS * 2, 0.4)).unwrap()
    };
    for (latent, hard, soft) in [(0.4, 1.0, 0.4), (-0.4, -1.0, -0.4), (3.0, 1.0, 1.0), (-3.0, -1.0, -1.0)] {
        for (constraint, expected) in [(Constraint::Hard, hard), (Constraint::Soft, soft)] {
            assert_eq!(states(latent, constraint), states(expected, Constraint::Soft));
        }
    }
    assert_ne!(states(0.4, Constraint::Soft), states(1.0, Constraint::Soft));
}

#[test]
fn what_does_not_fit_is_named() {
    let (bytes, options) = (file(2, 2, false, 0.5), Options::default());
    let found = SafeTensors::deserialize(&bytes).unwrap();
    let missing = OrthogonalRnn::<f64>::read(&found, "", options).err().unwrap().to_string();
    assert_eq!(missing, "cells.0.reflections: the file does not have it");
    let single = OrthogonalRnn::<f32>::read(&found, "rnn.", Options::default()).err().unwrap().to_string();
    assert_eq!(single, "rnn.cells.0.reflections: expected numbers of type F32, got F64");
    let biased = layer(&bytes, Options { activation: Activation::ModRelu(&[]), ..options }).err().unwrap().to_string();
    assert!(biased.starts_with("rnn.cells.0.nonlinearity_bias: expected it"), "{biased}");
    let many = layer(&file(2, N + 1, false, 0.5), options).err().unwrap().to_string();
    assert!(many.starts_with("rnn.cells.0.reflections: ") && many.ends_with("m = 7"), "{many}");
    let layer = layer(&bytes, options).unwrap();
    assert!(layer.forward(&mut Context::default(), 2, 1, &[0.0; 3]).is_err());
}
