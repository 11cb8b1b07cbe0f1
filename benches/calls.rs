//! Whole calls, factors and all gradients included: applications of one operator and of many, sequences, the delta rule,
//! matrices and their factorisation.

mod peak;

use criterion::{Criterion, criterion_group, criterion_main};
use householder::apply::{self, Gradients};
use householder::delta::{self, Gate, Operands, Problem, Results, Sizes};
use householder::factor;
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
    for [count, n, m, rows] in [
        [1, 16, 4, 1],
        [1, 128, 16, 50],
        [1, 256, 32, 50],
        [1, 512, 64, 64],
        [1, 1024, 64, 256],
        [1, 512, 512, 32],
        [1, 1024, 1024, 256],
        [1024, 8, 8, 1],
        [100_000, 4, 3, 1],
        [1024, 32, 8, 1],
    ] {
        let vectors = count * rows * n;
        let (entries, h, g) = (numbers(count * n * m), numbers(vectors), numbers(vectors));
        let w = Operator::new([count, n, m], &entries).unwrap();
        let mut context = Context::default();
        let mut c = vec![0.0; vectors];
        let name = format!("{count} x n={n} m={m} B={rows}");
        peak::bench(criterion, &format!("forward {name}"), 4 * m * vectors, peak, || {
            apply::forward(&mut context, &w, &h, &mut c).unwrap();
        });
        let (mut grad_u, mut grad_h) = (vec![0.0; count * n * m], vec![0.0; vectors]);
        peak::bench(criterion, &format!("backward anew {name}"), 10 * m * vectors, peak, || {
            let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), ..Gradients::default() };
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
        let mut context = Context::default();
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
                h0: Some(&mut grad_h0),
                input_weight: Some(&mut grad_weight),
                bias: Some(&mut grad_bias),
                ..SequenceGradients::default()
            };
            let trace = Trace { tape: Some(&tape), ..Trace::new(&h) };
            let cotangents = Cotangents { h: Some(Series::new(&grad_h)), last: None };
            rnn::backward(&mut context, &sequence, trace, cotangents, gradients).unwrap();
        });
    }
}

/// Flops are those of products between chunks of 32 steps and the state, which dominate.
fn delta_rules(criterion: &mut Criterion) {
    let peak = peak::peak::<f32>(InstructionSet::current()) * num_threads() as f64;
    for (heads, width, tokens) in [(8, 128, 2048), (16, 64, 512), (32, 128, 1)] {
        let [q, mut k, v] = [(); 3].map(|()| numbers(tokens * heads * width));
        k.chunks_mut(width).for_each(|k| {
            let norm = k.iter().map(|x| x * x).sum::<f32>().sqrt();
            k.iter_mut().for_each(|x| *x /= norm);
        });
        let [beta, g] = [0.5, -0.1].map(|x| vec![x; tokens * heads]);
        let operands = Operands::new(Sizes::new(heads, width, width), &q, &k, &v, &beta);
        let problem = Problem::new(Operands { gate: Gate::Head(&g), ..operands }).unwrap();
        let lengths = problem.lengths();
        let [mut out, mut last, mut saved] = [lengths.out, lengths.last, lengths.saved].map(|len| vec![0.0; len]);
        let mut context = Context::default();
        let (name, flops) = (format!("heads={heads} width={width} T={tokens}"), 6 * heads * tokens * width * width);
        peak::bench(criterion, &format!("delta forward {name}"), flops, peak, || {
            let results = Results {
                out: Some((&mut out).into()),
                last: Some(&mut last),
                saved: Some(&mut saved),
                ..Results::default()
            };
            delta::forward(&mut context, &problem, results).unwrap();
        });
        let [mut grad_q, mut grad_k, mut grad_v] = [&q, &k, &v].map(|x| vec![0.0; x.len()]);
        let [mut grad_beta, mut grad_g] = [&beta, &g].map(|x| vec![0.0; x.len()]);
        peak::bench(criterion, &format!("delta backward {name}"), 2 * flops, peak, || {
            let gradients = delta::Gradients {
                q: Some(&mut grad_q),
                k: Some(&mut grad_k),
                v: Some((&mut grad_v).into()),
                beta: Some(&mut grad_beta),
                gate: Some(&mut grad_g),
                ..delta::Gradients::default()
            };
            let cotangents = delta::Cotangents { out: Some((&v).into()), last: None };
            delta::backward(&mut context, &problem, Some(&saved), cotangents, gradients).unwrap();
        });
    }
}

/// `W` of half of all reflections and of all of them, its gradient, and its reflections.
fn matrices(criterion: &mut Criterion) {
    let peak = peak::peak::<f64>(InstructionSet::current()) * num_threads() as f64;
    for (n, m) in [(32, 32), (512, 256), (512, 511)] {
        let entries: Vec<f64> = numbers(n * m).into_iter().map(f64::from).collect();
        let w = Operator::new([1, n, m], &entries).unwrap();
        let mut context = Context::default();
        let (mut q, mut u) = (vec![0.0; n * n], vec![0.0; n * m]);
        // As LAPACK counts them, without the zeros before a reflection's first coordinate.
        let (name, flops) = (format!("n={n} m={m}"), 4 * n * n * m - 4 * n * m * m + 4 * m * m * m / 3);
        peak::bench(criterion, &format!("matrix {name}"), flops, peak, || {
            apply::matrix(&mut context, &w, &mut q).unwrap();
        });
        let grad_w = q.clone();
        peak::bench(criterion, &format!("matrix backward anew {name}"), 3 * flops, peak, || {
            apply::matrix_backward(&mut context, &w, &grad_w, &mut u, None).unwrap();
        });
        peak::bench(criterion, &format!("factor {name}"), flops, peak, || {
            factor::factor(&mut context, n, m, &q, &mut u, None).unwrap();
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).without_plots()
        .warm_up_time(std::time::Duration::from_millis(300)).measurement_time(std::time::Duration::from_secs(2));
    targets = applications, sequences, delta_rules, matrices
}
criterion_main!(benches);
