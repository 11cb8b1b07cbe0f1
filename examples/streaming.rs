//! Runs a recurrent network over a whole sequence in one call, then over the same inputs as they arrive, one step at a time.
//!
//! ```sh
//! cargo run --release --example streaming
//! ```

#![allow(clippy::print_stdout)] // an example shows what it does

use householder::rnn::{self, Activation, Recurrence, Sequence, Series, States, Steps};
use householder::{Context, Error, Operator};

const N: usize = 64;
const M: usize = 16;
const INPUTS: usize = 3;
const STEPS: usize = 100;

fn waves(len: usize, frequency: f32) -> Vec<f32> {
    (0..len).map(|i| (i as f32 * frequency).sin()).collect()
}

fn main() -> Result<(), Error> {
    let context = &mut Context::default();
    let (u, input_weight, bias) = (waves(N * M, 0.7), waves(N * INPUTS, 1.3), waves(N, 0.3));
    let x = waves(STEPS * INPUTS, 0.05);
    let sequence = Sequence {
        activation: Activation::Tanh,
        d: INPUTS,
        input_weight: Some(&input_weight),
        bias: Some(&bias),
        ..Sequence::new(Operator::new([1, N, M], &u)?, Steps::uniform(STEPS, 1)?, Series::new(&x))
    };
    let mut states = vec![0.0; STEPS * N];
    rnn::forward(context, &sequence, States::new(&mut states))?;

    // The weights are packed once. Later steps reuse the workspace of the first.
    let recurrence = Recurrence::new(context, &sequence)?;
    let (mut h, mut next) = (vec![0.0; N], vec![0.0; N]);
    let mut furthest = 0.0_f32;
    for (x, expected) in x.chunks(INPUTS).zip(states.chunks(N)) {
        recurrence.step(x, &h, &mut next)?;
        std::mem::swap(&mut h, &mut next);
        furthest = h.iter().zip(expected).fold(furthest, |most, (a, b)| most.max((a - b).abs()));
    }
    println!("{STEPS} steps of {N} states differ by {furthest:.1e} from the sequence in one call");
    assert!(furthest < 1e-5);
    Ok(())
}
