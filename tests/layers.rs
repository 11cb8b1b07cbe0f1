//! Layers from files: sequences and steps agree, options act, and every array is read or refused by its name.

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

const LEAKY: Activation<'static, f64> = Activation::LeakyRelu(0.1);

/// Two layers, as [`file`] has.
fn two() -> Options<f64> {
    Options { constraint: Some(Constraint::Hard), num_layers: 2, ..Options::new(LEAKY) }
}

fn layer(bytes: &[u8], options: Options<f64>) -> Result<OrthogonalRnn<f64>, Error> {
    OrthogonalRnn::read(&SafeTensors::deserialize(bytes).unwrap(), "rnn.", options)
}

/// Why the file cannot be read.
#[track_caller]
fn refusal(bytes: &[u8], options: Options<f64>) -> String {
    layer(bytes, options).expect_err("it is refused").to_string()
}

/// The file with other arrays: `change` gets the name and the shape of each, and renames it, cuts it or leaves it out.
fn changed(bytes: &[u8], change: impl Fn(&str, &mut Vec<usize>) -> Option<String>) -> Vec<u8> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let arrays = file.iter().filter_map(|(name, view)| {
        let mut shape = view.shape().to_vec();
        let name = change(name, &mut shape)?;
        let bytes = &view.data()[..8 * shape.iter().product::<usize>()];
        Some((name, TensorView::new(view.dtype(), shape, bytes).unwrap()))
    });
    serialize(arrays.collect::<Vec<_>>(), None).unwrap()
}

fn assert_close(a: &[f64], b: &[f64]) {
    assert!(a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12), "{a:?} {b:?}");
}

#[test]
fn sequences_and_their_steps_agree() {
    let activations = [Activation::Tanh, Activation::Oplu, Activation::ModRelu(&[]), LEAKY];
    for (activation, m) in activations.into_iter().flat_map(|activation| [(activation, 2), (activation, N)]) {
        let bytes = file(2, m, matches!(activation, Activation::ModRelu(_)), 0.5);
        let layer = layer(&bytes, Options { activation, constraint: Some(Constraint::Soft), ..two() }).unwrap();
        assert_eq!((layer.input_size(), layer.hidden_size(), layer.num_layers()), (2, N, 2));
        let (context, x) = (&mut Context::default(), waves(STEPS * BATCH * 2, 0.4));
        let states = layer.forward(context, STEPS, BATCH, &x).unwrap();
        let mut stream = layer.stream(context, BATCH).unwrap();
        for (x, expected) in x.chunks(BATCH * 2).zip(states.chunks(BATCH * N)) {
            assert_close(stream.step(x).unwrap(), expected);
        }
    }
}

#[test]
fn sequences_go_on_from_the_states_in_which_others_end() {
    let layer = layer(&file(2, N, false, 0.5), two()).unwrap();
    let (context, x) = (&mut Context::default(), waves(STEPS * BATCH * 2, 0.4));
    let whole = layer.forward(context, STEPS, BATCH, &x).unwrap();
    let mut stream = layer.stream(context, BATCH).unwrap();
    let begin = stream.states().unwrap(); // those that the layers have learnt
    let steps = |range: std::ops::Range<usize>| &x[range.start * BATCH * 2..range.end * BATCH * 2];
    let (first, last) = layer.forward_from(context, 2, BATCH, steps(0..2), &begin).unwrap();
    let (second, end) = layer.forward_from(context, STEPS - 2, BATCH, steps(2..STEPS), &last).unwrap();
    assert_close(&[first, second].concat(), &whole);
    assert_eq!(layer.forward_from(context, 0, BATCH, &[], &end).unwrap(), (Vec::new(), end.clone()));

    for t in 0..2 {
        stream.step(steps(t..t + 1)).unwrap();
    }
    assert_close(&stream.states().unwrap(), &last);
    let mut other = stream.clone();
    for t in 2..STEPS {
        stream.step(steps(t..t + 1)).unwrap();
    }
    assert_close(&stream.states().unwrap(), &end);
    assert_close(&other.states().unwrap(), &last); // a clone goes on by itself
    other.set_states(&end).unwrap();
    assert_eq!(other.step(steps(0..1)).unwrap(), stream.step(steps(0..1)).unwrap());
}

#[test]
fn a_refused_step_changes_no_state() {
    let layer = layer(&file(2, 2, false, 0.5), two()).unwrap();
    let context = &mut Context::default();
    let mut stream = layer.stream(context, BATCH).unwrap();
    let before = stream.states().unwrap();
    assert!(stream.step(&[0.0; 3]).is_err());
    assert!(stream.set_states(&before[1..]).is_err());
    assert_eq!(stream.states().unwrap(), before);
}

#[test]
fn the_constraint_decides_the_last_number() {
    let states = |u_1, constraint| {
        let layer = layer(&file(2, N, false, u_1), Options { constraint: Some(constraint), ..two() }).unwrap();
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
fn every_name_under_the_prefix_is_read_or_refused() {
    let (bytes, three) = (file(N, 2, false, 0.5), Options { num_layers: 3, ..two() });
    let without = |missing: &str| changed(&bytes, |name, _| (name != missing).then(|| name.to_owned()));
    let renamed = |old: &str, new: &str| changed(&bytes, |name, _| Some(name.replace(old, new)));
    for name in ["cells.0.reflections", "cells.1.reflections", "cells.1.weight_ih"] {
        let name = format!("rnn.{name}");
        assert_eq!(refusal(&without(&name), two()), format!("{name}: the file does not have it"));
    }
    assert_eq!(refusal(&bytes, three), "rnn.cells.2.reflections: the file does not have it");
    // Both directions of one layer have the names of two layers.
    let one = "no parameter of a layer in one direction with num_layers = 1";
    assert_eq!(refusal(&bytes, Options::new(LEAKY)), format!("rnn.cells.1.bias: {one}"));
    for new in ["cells.0.bais", "cells.00.bias", "cells.+0.bias", "cells.2.bias", "bias", "cells.0.bias.0", "cell.bias"]
    {
        let text = refusal(&renamed("cells.0.bias", new), two());
        assert!(text.starts_with(&format!("rnn.{new}: no parameter of a layer")), "{text}");
    }
    // Without the prefix it is another module's.
    assert!(layer(&renamed("rnn.cells.0.bias", "head.bias"), two()).is_ok());
    assert!(layer(&without("rnn.cells.0.bias"), two()).is_ok());
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_those_that_do() {
    let (plain, biased) = (file(2, 2, false, 0.5), file(2, 2, true, 0.5));
    let modrelu = Options { activation: Activation::ModRelu(&[]), ..two() };
    let of = |bytes: &[u8], array: &str, shape: &[usize]| {
        changed(bytes, |name, old| {
            if name == format!("rnn.cells.1.{array}") {
                *old = shape.to_vec();
            }
            Some(name.to_owned())
        })
    };
    for (array, shape, text) in [
        ("weight_ih", &[N, N - 1][..], "expected 6 columns, as the layer before has states, got 5"),
        ("weight_ih", &[N - 1, N], "expected 6 rows, as reflections has, got 5"),
        ("weight_ih", &[N], "expected 2 axes, got the shape [6]"),
        ("bias", &[N - 1], "expected 6 numbers for n = 6 rows of reflections, got 5"),
        ("bias", &[1, N], "expected 1 axes, got the shape [1, 6]"),
        ("h0", &[3], "expected 6 numbers for n = 6 rows of reflections, got 3"),
        ("nonlinearity_bias", &[2], "expected 3 numbers for n = 6 rows of reflections, got 2"),
        ("reflections", &[N, 0], "expected 1 <= m <= n, got n = 6, m = 0"),
        ("reflections", &[0, 2], "expected 1 <= m <= n, got n = 0, m = 2"),
    ] {
        assert_eq!(refusal(&of(&biased, array, shape), modrelu), format!("rnn.cells.1.{array}: {text}"));
    }
    let fewer = |name: &str, shape: &mut Vec<usize>| {
        if name.starts_with("rnn.cells.1.") {
            shape[0] -= 1;
        }
        Some(name.to_owned())
    };
    let text = "rnn.cells.1.reflections: expected 6 rows, as in the first layer, got 5";
    assert_eq!(refusal(&changed(&plain, fewer), two()), text);
    let many = refusal(&file(2, N + 1, false, 0.5), two());
    assert!(many.starts_with("rnn.cells.0.reflections: ") && many.ends_with("m = 7"), "{many}");
    let unbiased = refusal(&plain, modrelu);
    assert!(unbiased.starts_with("rnn.cells.0.nonlinearity_bias: expected it"), "{unbiased}");
    assert!(refusal(&biased, two()).starts_with("rnn.cells.0.nonlinearity_bias: expected it"));

    let file = SafeTensors::deserialize(&plain).unwrap();
    let missing = OrthogonalRnn::<f64>::read(&file, "", two()).err().unwrap().to_string();
    assert_eq!(missing, "cells.0.reflections: the file does not have it");
    let single = OrthogonalRnn::<f32>::read(&file, "rnn.", Options::new(Activation::Tanh)).err().unwrap().to_string();
    assert_eq!(single, "rnn.cells.0.reflections: expected numbers of type F32, got F64");
}

#[test]
fn options_that_no_layer_has_are_refused() {
    let (plain, biased) = (file(2, 2, false, 0.5), file(2, 2, true, 0.5));
    let with = |activation| Options { activation, ..two() };
    let square = refusal(&file(2, N, false, 0.5), Options { constraint: None, ..two() });
    assert!(square.starts_with("rnn.cells.0.reflections: ") && square.contains("constraint"), "{square}");
    for slope in [-0.1, f64::NAN, f64::INFINITY] {
        assert!(refusal(&plain, with(Activation::LeakyRelu(slope))).starts_with("negative_slope: "));
    }
    assert!(refusal(&plain, Options { num_layers: 0, ..two() }).starts_with("num_layers: "));
    assert!(refusal(&plain, Options { num_layers: usize::MAX, ..two() }).starts_with("rnn.cells.2.reflections: "));
    assert!(refusal(&biased, with(Activation::ModRelu(&[1.0; N / 2]))).starts_with("activation: expected no biases"));
}

/// Inputs are looked at before memory is allocated for states.
#[test]
fn inputs_and_states_of_other_lengths_are_refused() {
    let layer = layer(&file(2, 2, false, 0.5), two()).unwrap();
    let context = &mut Context::default();
    for (steps, batch) in [(2, 1), (4_000_000, 1 << 40), (usize::MAX, 2), (1, usize::MAX)] {
        let refused = layer.forward(context, steps, batch, &[0.0; 3]).unwrap_err().to_string();
        assert_eq!(refused, format!("x: expected {steps} x {batch} x 2 numbers, got 3"));
    }
    let refused = layer.forward_from(context, 1, 1, &[0.0; 2], &[0.0; N]).unwrap_err().to_string();
    assert_eq!(refused, "h0: expected 2 x 1 x 6 numbers, got 6");
    assert_eq!(layer.forward(context, 0, usize::MAX, &[]), Ok(Vec::new()));
}

#[test]
fn layers_and_streams_show_their_sizes() {
    let layer = layer(&file(2, 2, false, 0.5), two()).unwrap();
    let text = format!("{layer:?} {:?}", layer.stream(&mut Context::default(), 7).unwrap());
    for part in ["input_size: 2", "hidden_size: 6", "num_layers: 2", "LeakyRelu(0.1)", "batch: 7"] {
        assert!(text.contains(part), "{text}");
    }
}
