//! Whole calls, factors and all gradients included: one application forward and backward, and sequences.

mod peak;

use criterion::{Criterion, criterion_group, criterion_main};
use householder::apply::{self, Gradients};
use householder::operator::Operator;
use householder::rnn::{self, Activation, Cotangents, Sequence, SequenceGradients, Series, States, Steps, Trace};
use householder::threads::{Context, InstructionSet, num_threads};

/// Numbers in [-1, 1).
fn numbers(len: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn applications(criterion: &mut Criterion) {
    let peak = peak::peak::<f32>(InstructionSet::current()) * num_threads() as f64;
    for (n, m, rows) in [(16, 4, 1), (128, 16, 50), (256, 32, 50), (512, 64, 64), (1024, 64, 256), (512, 512, 32)] {
        let (entries, h, g) = (numbers(n * m), numbers(rows * n), numbers(rows * n));
        let w = Operator::new([1, n, m], &entries).unwrap();
        let mut never = || false;
        let mut context = Context::new(&mut never);
        let mut c = vec![0.0; rows * n];
        peak::bench(criterion, &format!("forward n={n} m={m} B={rows}"), 4 * n * m * rows, peak, || {
            apply::forward(&mut context, &w, &h, &mut c).unwrap();
        });
        let (mut grad_u, mut grad_h) = (vec![0.0; n * m], vec![0.0; rows * n]);
        peak::bench(criterion, &format!("backward anew n={n} m={m} B={rows}"), 10 * n * m * rows, peak, || {
            let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), tau: None, phases: None };
            apply::backward(&mut context, &w, &h, &g, gradients, None).unwrap();
        });
    }
}

fn sequences(criterion: &mut Criterion) {
    let peak = peak::peak::<f32>(InstructionSet::current()) * num_threads() as f64;
    for (d, n, m, batch, steps) in [
        (2, 128, 16, 50, 400),
        (1, 256, 32, 50, 784),
        (64, 512, 64, 64, 512),
        (49, 512, 64, 1, 300),
        (49, 512, 510, 1, 300),
        (2, 128, 128, 50, 400),
    ] {
        let rows = batch * steps;
        let (entries, x, weight, bias) = (numbers(n * m), numbers(rows * d), numbers(n * d), numbers(n));
        let (h0, grad_h) = (numbers(batch * n), numbers(rows * n));
        let sequence = Sequence {
            operator: Operator::new([1, n, m], &entries).unwrap(),
            activation: Activation::Relu,
            steps: Steps::uniform(steps, batch).unwrap(),
            d,
            x: Series::new(&x),
            input_weight: Some(&weight),
            bias: Some(&bias),
            h0: Some(&h0),
        };
        let mut never = || false;
        let mut context = Context::new(&mut never);
        let mut h = vec![0.0; rows * n];
        let mut tape = vec![0.0; rows * sequence.tape_width().unwrap()];
        let (mut grad_u, mut grad_h0) = (vec![0.0; n * m], vec![0.0; batch * n]);
        let (mut grad_weight, mut grad_bias) = (vec![0.0; n * d], vec![0.0; n]);
        let dense = tape.is_empty();
        let per_state = if dense { 6 * n * n } else { 12 * n * m } + 4 * n * d;
        let name = format!("sequence d={d} n={n} m={m} B={batch} T={steps}");
        peak::bench(criterion, &name, rows * per_state, peak, || {
            rnn::forward(&mut context, &sequence, States { tape: Some(&mut tape), ..States::new(&mut h) }).unwrap();
            let gradients = SequenceGradients {
                u: Some(&mut grad_u),
                x: None,
                h0: Some(&mut grad_h0),
                input_weight: Some(&mut grad_weight),
                bias: Some(&mut grad_bias),
                tau: None,
                phases: None,
                activation_bias: None,
            };
            let trace = Trace { tape: Some(&tape), ..Trace::new(&h) };
            let cotangents = Cotangents { h: Some(Series::new(&grad_h)), last: None };
            rnn::backward(&mut context, &sequence, trace, cotangents, gradients).unwrap();
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).without_plots()
        .warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(2));
    targets = applications, sequences
}
criterion_main!(benches);
