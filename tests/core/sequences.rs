//! Whole sequences: against explicit reflections step by step, on every instruction set, for any number of threads.

use crate::common::{Random, error, explicit, multiply, number_of_threads, to_c64, with_each_instruction_set};
use householder::method::Method;
use householder::number::{Real, c64};
use householder::operator::{Form, Operator};
use householder::rnn::{
    self, Activation, Cotangents, Recurrence, Sequence, SequenceGradients, Series, States, Steps, Trace,
};
use householder::scalar::Scalar;
use householder::threads::Context;

/// Those of single numbers, without a bias.
fn pointwise() -> impl Iterator<Item = Activation<'static, f64>> {
    let is_pointwise = |phi: &Activation<'_, f64>| phi.bias().is_none() && *phi != Activation::Oplu;
    Activation::all(0.1, &[]).into_iter().filter(is_pointwise)
}

struct Problem<T: Scalar> {
    n: usize,
    m: usize,
    d: usize,
    sizes: Vec<i64>,
    u: Vec<T>,
    x: Vec<T>,
    h0: Vec<T>,
    input_weight: Vec<T>,
    bias: Vec<T>,
    grad_h: Vec<T>,
    grad_last: Vec<T>,
    phases: Option<Vec<T::Real>>,
}

impl<T: Scalar> Problem<T> {
    fn new(n: usize, m: usize, d: usize, sizes: &[i64]) -> Self {
        let mut random = Random((n * m + d) as u64);
        let (rows, batch) = (sizes.iter().sum::<i64>() as usize, sizes[0] as usize);
        Self {
            n,
            m,
            d,
            sizes: sizes.to_vec(),
            u: random.numbers(n * m),
            x: random.numbers(rows * d),
            h0: random.numbers(batch * n),
            input_weight: random.numbers(n * d),
            bias: random.numbers(n),
            grad_h: random.numbers(rows * n),
            grad_last: random.numbers(batch * n),
            phases: None,
        }
    }

    fn sequence(&self, activation: Activation<'static, T>, adjoint: bool, method: Option<Method>) -> Sequence<'_, T> {
        let w = Operator::new([1, self.n, self.m], &self.u).unwrap();
        let w = if let Some(phases) = &self.phases { w.with_phases(phases).unwrap() } else { w };
        Sequence {
            operator: w.adjoint(adjoint).by(method),
            activation,
            steps: Steps::ragged(&self.sizes).unwrap(),
            d: self.d,
            x: Series::new(&self.x),
            input_weight: Some(&self.input_weight),
            bias: Some(&self.bias),
            h0: Some(&self.h0),
        }
    }

    /// States and gradients, these with all that the forward pass left or with none of it: `h`, then `u`, `x`, `h0`, `input_weight`, `bias`.
    fn run(&self, context: &mut Context<'_>, sequence: &Sequence<'_, T>, with_tape: bool) -> [Vec<T>; 6] {
        self.run_with(context, sequence, Series::new(&self.grad_h), with_tape)
    }

    fn run_with(
        &self,
        context: &mut Context<'_>,
        sequence: &Sequence<'_, T>,
        grad_h: Series<'_, T>,
        with_tape: bool,
    ) -> [Vec<T>; 6] {
        let rows = sequence.steps.rows();
        let mut h = vec![T::ZERO; rows * self.n];
        let mut tape = vec![T::ZERO; rows * sequence.tape_width().unwrap()];
        let place = with_tape.then_some(&mut tape[..]);
        let saved = rnn::forward_and_save(context, sequence, States { tape: place, ..States::new(&mut h) }).unwrap();
        let mut out = [self.u.len(), self.x.len(), self.h0.len(), self.n * self.d, self.n].map(|len| vec![T::ONE; len]);
        let [u, x, h0, input_weight, bias] = &mut out;
        let gradients = SequenceGradients {
            u: Some(u),
            x: Some(x),
            h0: Some(h0),
            input_weight: Some(input_weight),
            bias: Some(bias),
            ..SequenceGradients::default()
        };
        let (saved, tape) = (with_tape.then_some(&saved), with_tape.then_some(&tape[..]));
        let cotangents = Cotangents { h: Some(grad_h), last: Some(&self.grad_last) };
        rnn::backward(context, sequence, Trace { h: &h, saved, tape }, cotangents, gradients).unwrap();
        let [u, x, h0, input_weight, bias] = out;
        [h, u, x, h0, input_weight, bias]
    }
}

fn phi(activation: Activation<f64>, a: c64) -> c64 {
    match activation {
        Activation::Identity => a,
        Activation::Relu => c64::new(a.re.max(0.0), 0.0),
        Activation::LeakyRelu(slope) => c64::new(if a.re > 0.0 { a.re } else { slope * a.re }, 0.0),
        Activation::Tanh => c64::new(a.re.tanh(), 0.0),
        other => unreachable!("{other:?} pairs entries or has a bias for each"),
    }
}

/// States by explicit reflections.
fn states<T: Scalar>(
    p: &Problem<T>,
    u: &[T],
    h0: &[T],
    x: &[T],
    activation: Activation<f64>,
    adjoint: bool,
) -> Vec<c64> {
    let n = p.n;
    let w = explicit(n, p.m, u, p.phases.as_deref());
    let mut state: Vec<c64> = h0.iter().map(|&h| to_c64(h)).collect();
    let mut all = Vec::new();
    let mut row = 0;
    for &size in &p.sizes {
        let size = size as usize;
        state = multiply(n, &w, &state[..size * n], adjoint);
        for b in 0..size {
            for i in 0..n {
                let input = (0..p.d).map(|j| to_c64(p.input_weight[i * p.d + j]) * to_c64(x[(row + b) * p.d + j]));
                let a = state[b * n + i] + input.sum::<c64>() + to_c64(p.bias[i]);
                state[b * n + i] = phi(activation, a);
            }
        }
        all.extend_from_slice(&state);
        row += size;
    }
    all
}

fn loss<T: Scalar>(p: &Problem<T>, states: &[c64]) -> f64 {
    let n = p.n;
    let dot = |g: &[T], h: &[c64]| g.iter().zip(h).map(|(&g, h)| (to_c64(g).conj() * h).re).sum::<f64>();
    let mut total = dot(&p.grad_h, states);
    let mut row = 0;
    for (t, &size) in p.sizes.iter().enumerate() {
        let next = p.sizes.get(t + 1).copied().unwrap_or(0);
        for b in next as usize..size as usize {
            total += dot(&p.grad_last[b * n..(b + 1) * n], &states[(row + b) * n..(row + b + 1) * n]);
        }
        row += size as usize;
    }
    total
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn states_and_gradients_are_those_of_explicit_reflections() {
    for (n, m, d, sizes) in [
        (5, 2, 3, vec![4; 6]),
        (9, 9, 2, vec![3; 5]),
        (16, 4, 1, vec![1; 9]),
        (20, 19, 4, vec![13, 13, 9, 9, 9, 2, 1]),
        (33, 8, 2, vec![20; 40]),
        (12, 3, 17, [vec![3; 30], vec![2; 3], vec![1; 20]].concat()), // the input of several steps projected at once
        (130, 129, 70, vec![16, 16, 9, 3]),                           // with W, steps of several tasks
    ] {
        let p = Problem::<f64>::new(n, m, d, &sizes);
        for (activation, adjoint) in pointwise().flat_map(|a| [(a, false), (a, true)]) {
            let want = states(&p, &p.u, &p.h0, &p.x, activation, adjoint);
            // Central differences along a sample of coordinates, made once for all instruction sets and methods.
            let step = 1e-6;
            let derivative = |which: usize, at: usize| {
                let moved = |by: f64| {
                    let (mut u, mut x, mut h0) = (p.u.clone(), p.x.clone(), p.h0.clone());
                    [&mut u, &mut x, &mut h0][which][at] += by;
                    loss(&p, &states(&p, &u, &h0, &x, activation, adjoint))
                };
                (moved(step) - moved(-step)) / (2.0 * step)
            };
            let lengths = [p.u.len(), p.x.len(), p.h0.len()];
            let samples: Vec<(usize, usize, f64)> = (0..3)
                .flat_map(|which| [0, 1, 2, 3].map(|q| (which, (q * 37 + 5) % lengths[which])))
                .filter(|&(which, at)| which != 0 || at % m <= at / m)
                .map(|(which, at)| (which, at, derivative(which, at)))
                .collect();
            with_each_instruction_set(|context| {
                for (method, tape) in [(Method::Wy, true), (Method::Wy, false), (Method::Dense, false)] {
                    let got = p.run(context, &p.sequence(activation, adjoint, Some(method)), tape);
                    assert!(error(&got[0], &want) < 1e-12, "{n} {m} {activation:?} {method:?}");
                    for &(which, at, numeric) in &samples {
                        let scale = got[1 + which].iter().fold(1e-3, |a: f64, b| a.max(b.abs()));
                        let difference = (got[1 + which][at] - numeric).abs();
                        assert!(
                            difference < 1e-6 * scale,
                            "{n} {m} {activation:?} {method:?} {which} {at}: {difference:e}"
                        );
                    }
                }
            });
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn complex_sequences_agree_with_explicit_reflections_and_across_methods() {
    for (n, m, with_phases, batch) in
        [(8, 3, false, 6), (8, 7, true, 6), (33, 10, true, 6), (17, 16, false, 6), (130, 20, true, 16)]
    {
        let mut p = Problem::<c64>::new(n, m, if batch < 8 { 18 } else { 3 }, &[batch, batch, 5, 2]);
        p.phases = with_phases.then(|| (0..n).map(|i| i as f64 * 0.7).collect());
        for adjoint in [false, true] {
            let want = states(&p, &p.u, &p.h0, &p.x, Activation::Identity, adjoint);
            let mut reference: Option<[Vec<c64>; 6]> = None;
            with_each_instruction_set(|context| {
                for (method, tape) in [(Method::Dense, false), (Method::Wy, true), (Method::Wy, false)] {
                    let got = p.run(context, &p.sequence(Activation::Identity, adjoint, Some(method)), tape);
                    assert!(error(&got[0], &want) < 1e-12, "{n} {m} {method:?} {adjoint}");
                    match &reference {
                        None => reference = Some(got),
                        Some(want) => got.iter().zip(want).for_each(|(g, w)| assert!(error(g, w) < 1e-11)),
                    }
                }
            });
        }
    }
}

#[test]
fn single_steps_are_those_of_explicit_reflections() {
    fn check<T: Scalar>(activations: &[Activation<'static, T>]) {
        for (n, m, d, batch) in [(2, 1, 1, 1), (5, 2, 3, 4), (9, 8, 2, 1), (33, 20, 17, 3)] {
            let p = Problem::<T>::new(n, m, d, &[batch]);
            for (&activation, adjoint) in activations.iter().flat_map(|a| [(a, false), (a, true)]) {
                let kind = if activation == Activation::Tanh { Activation::Tanh } else { Activation::Identity };
                let want = states(&p, &p.u, &p.h0, &p.x, kind, adjoint);
                with_each_instruction_set(|context| {
                    for method in [None, Some(Method::Wy), Some(Method::Dense)] {
                        let sequence = p.sequence(activation, adjoint, method);
                        let [mut h, mut out] = [vec![T::ZERO; p.h0.len()], vec![T::ZERO; p.h0.len()]];
                        rnn::forward(context, &sequence, States::new(&mut h)).unwrap();
                        Recurrence::new(context, &sequence).unwrap().step(&p.x, &p.h0, &mut out).unwrap();
                        for got in [h, out] {
                            assert!(
                                error(&got, &want) < 1e4 * T::Real::EPSILON.to_f64(),
                                "{n} {m} {method:?} {activation:?}"
                            );
                        }
                    }
                });
            }
        }
    }
    check::<f64>(&[Activation::Identity, Activation::Tanh]);
    check::<f32>(&[Activation::Identity, Activation::Tanh]);
    check::<c64>(&[Activation::Identity]);
}

#[test]
fn inputs_may_have_no_width() {
    let p = Problem::<f64>::new(5, 2, 0, &[2]);
    let sequence = p.sequence(Activation::Identity, false, None);
    let want = states(&p, &p.u, &p.h0, &p.x, Activation::Identity, false);
    with_each_instruction_set(|context| {
        let mut out = vec![0.0; p.h0.len()];
        Recurrence::new(context, &sequence).unwrap().step(&[], &p.h0, &mut out).unwrap();
        assert!(error(&out, &want) < 1e-12);
    });
}

#[test]
fn what_is_prepared_for_sequences_has_the_same_bits() {
    fn check<T: Scalar>(activation: Activation<'static, T>) {
        for (n, m, d, sizes) in
            [(2, 1, 1, vec![1; 4]), (9, 8, 2, vec![3; 7]), (33, 32, 20, vec![5, 5, 2, 1]), (130, 129, 20, vec![2; 9])]
        {
            let p = Problem::<T>::new(n, m, d, &sizes);
            for (adjoint, method) in [(false, None), (true, Some(Method::Wy)), (false, Some(Method::Dense))] {
                let sequence = p.sequence(activation, adjoint, method);
                with_each_instruction_set(|context| {
                    let mut once = vec![T::ZERO; sequence.steps.rows() * n];
                    rnn::forward(context, &sequence, States::new(&mut once)).unwrap();
                    let recurrence = Recurrence::for_sequences(context, &sequence).unwrap();
                    for _ in 0..2 {
                        let mut again = vec![T::ZERO; once.len()];
                        recurrence.run(context, &sequence, States::new(&mut again)).unwrap();
                        assert!(once == again, "{n} {m} {adjoint} {method:?}");
                    }
                });
            }
        }
    }
    check::<f64>(Activation::Tanh);
    check::<f32>(Activation::Relu);
    check::<c64>(Activation::Identity);
}

#[test]
fn a_recurrence_refuses_sequences_of_other_sizes_and_methods() {
    let context = &mut Context::default();
    let p = Problem::<f64>::new(5, 2, 3, &[2]);
    let of = |method| p.sequence(Activation::Tanh, false, Some(method));
    let recurrence = Recurrence::for_sequences(context, &of(Method::Wy)).unwrap();
    let mut h = [0.0; 14];
    assert!(recurrence.run(context, &of(Method::Wy), States::new(&mut h[..10])).is_ok());
    assert!(recurrence.run(context, &of(Method::Dense), States::new(&mut h[..10])).is_err());
    assert!(recurrence.run(context, &of(Method::Wy), States::new(&mut h[..9])).is_err());
    for (n, m, d) in [(5, 3, 3), (5, 2, 4), (7, 2, 3)] {
        let other = Problem::<f64>::new(n, m, d, &[2]);
        let sequence = other.sequence(Activation::Tanh, false, Some(Method::Wy));
        assert!(recurrence.run(context, &sequence, States::new(&mut h[..2 * n])).is_err(), "{n} {m} {d}");
    }
}

#[test]
fn a_recurrence_refuses_arrays_of_other_lengths() {
    let p = Problem::<f64>::new(5, 2, 3, &[2]);
    let recurrence = Recurrence::new(&mut Context::default(), &p.sequence(Activation::Tanh, false, None)).unwrap();
    for (x, h, out) in [(5, 10, 10), (0, 10, 10), (6, 9, 10), (6, 10, 11), (6, 10, 5), (3, 10, 10)] {
        assert!(recurrence.step(&vec![0.0; x], &vec![0.0; h], &mut vec![0.0; out]).is_err(), "{x} {h} {out}");
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn single_precision_and_chosen_methods_agree_with_double_precision() {
    for (n, m, d, sizes) in
        [(128, 16, 2, vec![50; 20]), (64, 64, 5, vec![9; 30]), (100, 40, 3, vec![33; 12]), (512, 500, 49, vec![1; 9])]
    {
        let wide = Problem::<f64>::new(n, m, d, &sizes);
        let narrow = Problem::<f32>::new(n, m, d, &sizes);
        let want = wide.run(&mut Context::default(), &wide.sequence(Activation::Tanh, false, None), true);
        with_each_instruction_set(|context| {
            let got = narrow.run(context, &narrow.sequence(Activation::Tanh, false, None), true);
            for (got, want) in got.iter().zip(&want) {
                let want: Vec<c64> = want.iter().map(|&x| to_c64(x)).collect();
                assert!(error(got, &want) < 2e-4, "{n} {m}: {:e}", error(got, &want));
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn any_number_of_threads_gives_the_same_bits() {
    let set_num_threads = number_of_threads();
    for (n, m, batch) in [(128, 16, 50), (64, 64, 33), (40, 30, 257), (512, 400, 1), (300, 299, 13)] {
        let p = Problem::<f32>::new(n, m, if batch == 1 { 40 } else { 4 }, &vec![batch; 60]);
        let sequence = p.sequence(Activation::Relu, false, None);
        let mut results = Vec::new();
        for threads in [1, 2, 7] {
            set_num_threads(threads);
            results.push(p.run(&mut Context::default(), &sequence, true));
        }
        assert!(results[0] == results[1] && results[0] == results[2]);
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn tasks_that_share_a_ring_agree_with_explicit_factors() {
    let set_num_threads = number_of_threads();
    for (n, m, d, batch, steps) in [(512, 300, 130, 1, 200), (256, 200, 64, 4, 60), (300, 160, 20, 7, 30)] {
        let p = Problem::<f64>::new(n, m, d, &vec![batch; steps]);
        let run = |threads: usize, method: Method| {
            set_num_threads(threads);
            p.run(&mut Context::default(), &p.sequence(Activation::Tanh, false, Some(method)), true)
        };
        let want = run(1, Method::Wy).map(|x| x.into_iter().map(to_c64).collect::<Vec<_>>()); // one task
        for threads in [1, 2, 7] {
            for (got, want) in run(threads, Method::Dense).iter().zip(&want) {
                assert!(error(got, want) < 1e-11, "{n} {m} {threads}: {:e}", error(got, want));
            }
        }
    }
}

/// Vectors `(steps, batch, width)` where `strides` say, and NaN elsewhere.
fn spread<T: Scalar>(rows: &[T], [steps, batch, width]: [usize; 3], strides: [usize; 2]) -> Vec<T> {
    let nan = T::from_real(T::Real::of(f64::NAN));
    let mut numbers = vec![nan; Series::<T>::span([steps, batch, width], strides)];
    for (i, row) in rows.chunks(width).enumerate() {
        numbers[i / batch * strides[0] + i % batch * strides[1]..][..width].copy_from_slice(row);
    }
    numbers
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn vectors_may_lie_anywhere_at_even_distances() {
    for (n, m, d, batch, steps) in
        [(8, 3, 2, 3, 5), (40, 40, 33, 26, 7), (300, 299, 20, 1, 9), (70, 5, 70, 50, 20), (16, 2, 16, 4, 70)]
    {
        let p = Problem::<f32>::new(n, m, d, &vec![batch as i64; steps]);
        for activation in [Activation::Tanh, Activation::Identity] {
            let rows = p.run(&mut Context::default(), &p.sequence(activation, false, None), true);
            for distances in [
                |[steps, _, width]: [usize; 3]| [width, steps * width], // one sequence after the other
                |[_, batch, width]: [usize; 3]| [2 * batch * width, 2 * width], // one of two directions
                |[_, batch, width]: [usize; 3]| [(batch + 1) * width, width], // some sequences of a larger batch
            ] {
                let [of_x, of_h] = [[steps, batch, d], [steps, batch, n]];
                let x = spread(&p.x, of_x, distances(of_x));
                let grad_h = spread(&p.grad_h, of_h, distances(of_h));
                let x = Series::strided(&x, distances(of_x));
                let grad_h = Series::strided(&grad_h, distances(of_h));
                let sequence = Sequence { x, ..p.sequence(activation, false, None) };
                let there = p.run_with(&mut Context::default(), &sequence, grad_h, true);
                assert!(there == rows, "{n} {m} {d}");
            }
        }
    }
}

fn from_the_end<T: Copy>(rows: &[T], step: usize) -> Vec<T> {
    rows.chunks(step).rev().flatten().copied().collect()
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn time_may_run_backwards() {
    for (n, m, d, batch, steps) in [(8, 3, 2, 3, 5), (40, 40, 17, 26, 7), (300, 299, 20, 1, 9), (16, 2, 16, 4, 70)] {
        let there = Problem::<f32>::new(n, m, d, &vec![batch as i64; steps]);
        let mut back = Problem::<f32>::new(n, m, d, &vec![batch as i64; steps]);
        back.x = from_the_end(&back.x, batch * d);
        back.grad_h = from_the_end(&back.grad_h, batch * n);
        let expected = there.run(&mut Context::default(), &there.sequence(Activation::Tanh, false, None), true);
        let sequence = back.sequence(Activation::Tanh, false, None);
        let sequence = Sequence { steps: Steps::uniform(steps, batch).unwrap().reversed().unwrap(), ..sequence };
        let mut found = back.run(&mut Context::default(), &sequence, true);
        found[0] = from_the_end(&found[0], batch * n);
        found[2] = from_the_end(&found[2], batch * d);
        assert!(found == expected, "{n} {m} {d}");
    }
}

/// The text of the error.
fn refusal<R>(outcome: householder::error::Result<R>) -> String {
    outcome.err().expect("an error").to_string()
}

#[test]
fn sequences_of_different_lengths_have_neither_one_end_nor_strides() {
    let text = refusal(Steps::ragged(&[2, 1]).unwrap().reversed());
    assert!(text.contains("sequences of different lengths have ends of their own"), "{text}");
    let p = Problem::<f64>::new(8, 3, 2, &[2, 1]);
    let sequence = Sequence { x: Series::strided(&p.x, [2, 4]), ..p.sequence(Activation::Tanh, false, None) };
    let text = refusal(rnn::forward(&mut Context::default(), &sequence, States::new(&mut [0.0; 24])));
    assert!(text.contains("x: sequences of different lengths have no strides"), "{text}");
}

#[test]
fn strides_lead_nowhere_else() {
    let p = Problem::<f64>::new(8, 3, 2, &[1, 1, 1]);
    let grad_h = Series::strided(&p.grad_h[..23], [8, 0]);
    let (mut context, sequence, none) =
        (Context::default(), p.sequence(Activation::Tanh, false, None), SequenceGradients::default());
    let cotangents = Cotangents { h: Some(grad_h), last: None };
    let text = refusal(rnn::backward(&mut context, &sequence, Trace::new(&[0.0; 24]), cotangents, none));
    assert!(text.contains("dL/dh: expected 24 numbers, got 23"), "{text}");
}

fn tanh_is_accurate<T: Scalar<Real = R>, R: Real>() {
    let mut points: Vec<f64> = (0..4000).map(|i| (f64::from(i) - 2000.0) / 90.0).collect();
    points.extend((0..600).map(|i| 10_f64.powi(i / 2 - 299) * if i % 2 == 0 { 1.0 } else { -1.0 }));
    points.extend((0..4000).map(|i| f64::from(i) / 16_000.0)); // where errors are largest
    points.extend([0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    let points: Vec<T> = points.into_iter().map(|x| T::from_real(R::of(x))).collect();
    with_each_instruction_set(|context| {
        // h_1 = tanh(0 + x): a sequence of one step shows the nonlinearity alone.
        let u = [T::ONE, T::ZERO];
        let (operator, steps) = (Operator::new([1, 2, 1], &u).unwrap(), Steps::uniform(1, points.len() / 2).unwrap());
        let activation = Activation::Tanh;
        let sequence = Sequence { activation, ..Sequence::new(operator, steps, Series::new(&points)) };
        let mut h = vec![T::ZERO; points.len()];
        rnn::forward(context, &sequence, States::new(&mut h)).unwrap();
        for (x, h) in points.iter().zip(h) {
            let (h, want) = (h.re().to_f64(), x.re().to_f64().tanh());
            assert!(h.is_nan() == want.is_nan());
            assert!(!((h - want).abs() > 3.0 * R::EPSILON.to_f64() * want.abs()), "{x}: {h} {want}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn tanh_is_accurate_to_the_last_places() {
    tanh_is_accurate::<f32, f32>();
    tanh_is_accurate::<f64, f64>();
}

#[test]
fn impossible_batch_sizes_are_refused() {
    assert!(Steps::ragged(&[3, 4]).is_err());
    assert!(Steps::ragged(&[3, 0]).is_err());
    assert!(Steps::uniform(usize::MAX, 2).is_err());
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn a_long_sequence_can_be_interrupted() {
    let (n, steps) = (64, 2_000_000);
    let random = Random(1).numbers::<f32>(n * 32);
    let x = vec![0.0_f32; steps];
    let input_weight = vec![0.0; n];
    let (operator, mut h) = (Operator::new([1, n, 32], &random).unwrap(), vec![0.0; steps * n]);
    let sequence = Sequence {
        activation: Activation::Tanh,
        d: 1,
        input_weight: Some(&input_weight),
        ..Sequence::new(operator, Steps::uniform(steps, 1).unwrap(), Series::new(&x))
    };
    let mut always = || true;
    let outcome = rnn::forward(&mut Context::new(&mut always), &sequence, States::new(&mut h));
    assert_eq!(outcome.err(), Some(householder::error::Error::Interrupted));
}

#[test]
fn nonlinearities_have_their_bias_and_their_pairs() {
    let mut context = Context::default();
    let mut forward = |n: usize, activation| {
        let p = Problem::<f64>::new(n, 3, 2, &[1]);
        let mut h = vec![0.0; n];
        refusal(rnn::forward(&mut context, &p.sequence(activation, false, None), States::new(&mut h)))
    };
    let text = forward(8, Activation::ModRelu(&[0.0; 5]));
    assert!(text.contains("the bias of modReLU: expected 4 numbers, got 5"), "{text}");
    let text = forward(7, Activation::Oplu);
    assert!(text.contains("expected an even n for pairs of numbers, got 7"), "{text}");
}

#[test]
fn what_a_forward_pass_left_serves_its_own_sequence() {
    fn sequence(p: &Problem<f64>, form: Form, method: Method) -> Sequence<'_, f64> {
        let operator = Operator::with_form([1, p.n, p.m], &p.u, form, None).unwrap().by(Some(method));
        Sequence { operator, ..p.sequence(Activation::Tanh, false, None) }
    }

    let mut context = Context::default();
    let problems = [(8, 3), (8, 4), (8, 6), (8, 8)].map(|(n, m)| Problem::<f64>::new(n, m, 2, &[1]));
    let mut all = Vec::new();
    for p in &problems {
        for form in [Form::Trapezoidal, Form::Full] {
            all.extend([Method::Wy, Method::Dense].map(|method| sequence(p, form, method)));
        }
    }
    for (i, of) in all.iter().enumerate() {
        let mut h = [0.0; 8];
        let kept = rnn::forward_and_save(&mut context, of, States::new(&mut h)).unwrap();
        for (j, sequence) in all.iter().enumerate() {
            let (mut grad_u, grad) = (vec![0.0; 8 * sequence.operator.m()], [1.0; 8]);
            let gradients = SequenceGradients { u: Some(&mut grad_u), ..SequenceGradients::default() };
            let (trace, cotangents) =
                (Trace { saved: Some(&kept), ..Trace::new(&h) }, Cotangents { h: None, last: Some(&grad) });
            let outcome = rnn::backward(&mut context, sequence, trace, cotangents, gradients);
            assert_eq!(outcome.is_ok(), i == j, "{i} {j}: {outcome:?}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn a_kept_tape_serves_as_one_with_a_place_of_its_own() {
    let p = Problem::<f32>::new(24, 9, 5, &[7, 7, 4, 1]);
    let longer = Problem::<f32>::new(24, 9, 5, &[7, 7, 4, 2]);
    let rows = 19;
    let mut context = Context::default();
    for (activation, method, adjoint) in [Activation::Oplu, Activation::Tanh].into_iter().flat_map(|activation| {
        [Method::Wy, Method::Dense]
            .into_iter()
            .flat_map(move |method| [(activation, method, false), (activation, method, true)])
    }) {
        let sequence = p.sequence(activation, adjoint, Some(method));
        let (mut h, mut place) = (vec![0.0; rows * p.n], vec![0.0; rows * sequence.tape_width().unwrap()]);
        let tape = Some(&mut place[..]).filter(|place| !place.is_empty());
        rnn::forward(&mut context, &sequence, States { tape, ..States::new(&mut h) }).unwrap();
        let place = Some(&place[..]).filter(|place| !place.is_empty());
        let mut again = vec![0.0; rows * p.n];
        let kept = rnn::forward_and_save(&mut context, &sequence, States::new(&mut again)).unwrap();
        assert!(again == h);
        let mut gradients_of = |saved, tape| {
            let (mut u, mut x) = (vec![1.0; p.u.len()], vec![1.0; p.x.len()]);
            let gradients = SequenceGradients { u: Some(&mut u), x: Some(&mut x), ..SequenceGradients::default() };
            let cotangents = Cotangents { h: Some(Series::new(&p.grad_h)), last: Some(&p.grad_last) };
            rnn::backward(&mut context, &sequence, Trace { h: &h, saved, tape }, cotangents, gradients).unwrap();
            (u, x)
        };
        let want = gradients_of(None, place);
        for _ in 0..2 {
            assert!(gradients_of(Some(&kept), None) == want, "{activation:?} {method:?} {adjoint}");
        }
        let other = longer.sequence(activation, adjoint, Some(method));
        assert_eq!(kept.check(&other).is_ok(), sequence.tape_width().unwrap() == 0, "a tape of other rows");
    }
}
