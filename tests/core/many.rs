//! Many problems in one call: what each gives alone, by every method and with any number of threads. All bits are the same,
//! except where problems are solved side by side.

use std::ops::Range;

use crate::common::{Random, has_time_for, number_of_threads, refusal_of};
use householder::apply::{self, Gradients};
use householder::method::Method;
use householder::number::c64;
use householder::operator::Operator;
use householder::rnn::{self, Activation, Sequence, SequenceGradients, Series, Steps};
use householder::threads::Context;

/// Matrices and vectors of each: so few that each has all threads, so many that they share them.
const COUNTS: [usize; 4] = [0, 1, 2, 37];
const SIZES: [(usize, usize, usize); 5] = [(1, 1, 1), (5, 3, 0), (8, 8, 3), (33, 12, 5), (70, 40, 9)];

fn sizes() -> impl Iterator<Item = (usize, usize, usize)> {
    SIZES.into_iter().filter(|size| has_time_for(size.0))
}

fn with_threads(test: impl Fn(&mut Context<'_>)) {
    let set_num_threads = number_of_threads();
    for threads in [1, 3] {
        set_num_threads(threads);
        test(&mut Context::default());
    }
}

/// The numbers of some problems, of which each has `each`.
fn part<'a, T>(numbers: &'a [T], each: usize, problems: &Range<usize>) -> &'a [T] {
    &numbers[problems.start * each..problems.end * each]
}

/// Compares what all problems give in one call with what each gives alone. `run` gives arrays for some problems.
fn each_alone<const N: usize>(count: usize, about: &str, run: impl FnMut(Range<usize>) -> [Vec<f64>; N]) {
    each_alone_within(0.0, count, about, run);
}

/// The same, but for rounding errors.
fn each_alone_within<const N: usize>(
    rounding: f64,
    count: usize,
    about: &str,
    mut run: impl FnMut(Range<usize>) -> [Vec<f64>; N],
) {
    let all = run(0..count);
    for i in 0..count {
        let alone = run(i..i + 1);
        for (all, alone) in all.iter().zip(&alone) {
            let own = part(all, all.len() / count, &(i..i + 1));
            let allowed = rounding * alone.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
            let close = own.len() == alone.len() && own.iter().zip(alone).all(|(a, b)| (a - b).abs() <= allowed);
            assert!(close, "problem {i} of {count}: {about}");
        }
    }
}

#[test]
fn applications_are_those_of_each_problem() {
    with_threads(|context| {
        for (count, (n, m, rows)) in COUNTS.into_iter().flat_map(|count| sizes().map(move |size| (count, size))) {
            let random = &mut Random(7);
            let u = random.numbers::<f64>(count * n * m);
            let (h, g) = (random.numbers::<f64>(count * rows * n), random.numbers::<f64>(count * rows * n));
            for (method, adjoint) in Method::ALL.map(|x| [(x, true), (x, false)]).concat() {
                // Many small problems are solved side by side, and sum in another order.
                let rounding = if method == Method::Reflections && count > 2 && n <= 40 { 1e-13 } else { 0.0 };
                each_alone_within(rounding, count, &format!("({n}, {m}, {rows}), {method:?}"), |problems| {
                    let w = Operator::new([problems.len(), n, m], part(&u, n * m, &problems)).unwrap();
                    let w = w.adjoint(adjoint).by(Some(method));
                    let [h, g] = [&h, &g].map(|x| part(x, rows * n, &problems));
                    let mut out = [h.len(), problems.len() * n * m, h.len()].map(|len| vec![0.0; len]);
                    let [c, grad_u, grad_h] = &mut out;
                    apply::forward_and_save(context, &w, h, c).unwrap();
                    let gradients = Gradients { u: Some(grad_u), h: Some(grad_h), ..Gradients::default() };
                    apply::backward(context, &w, h, g, gradients, None).unwrap();
                    out
                });
            }
        }
    });
}

#[test]
fn gradients_may_take_the_place_of_those_given() {
    with_threads(|context| {
        for (count, (n, m, rows)) in COUNTS.into_iter().flat_map(|count| sizes().map(move |size| (count, size))) {
            let random = &mut Random(11);
            let u = random.numbers::<f64>(count * n * m);
            let (h, g) = (random.numbers::<f64>(count * rows * n), random.numbers::<f64>(count * rows * n));
            let w = Operator::new([count, n, m], &u).unwrap().by(Some(Method::Wy));
            let [mut grad_u, mut own_u] = [vec![1.0; u.len()], vec![1.0; u.len()]];
            let [mut grad_h, mut own_h] = [vec![1.0; h.len()], g.clone()];
            let saved = apply::forward_and_save(context, &w, &h, &mut vec![0.0; h.len()]).unwrap();
            let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), ..Gradients::default() };
            apply::backward(context, &w, &h, &g, gradients, saved.as_ref()).unwrap();
            let gradients = Gradients { u: Some(&mut own_u), ..Gradients::default() };
            apply::backward_in_place(context, &w, &h, &mut own_h, gradients, saved.as_ref()).unwrap();
            assert_eq!((own_u, own_h), (grad_u, grad_h), "{count} x ({n}, {m}, {rows})");
        }
    });
}

#[test]
fn phases_are_shared_or_of_each_problem() {
    let (n, m, rows, count) = (6, 3, 4, 3);
    let random = &mut Random(5);
    let u = random.numbers::<c64>(count * n * m);
    let (h, g) = (random.numbers::<c64>(count * rows * n), random.numbers::<c64>(count * rows * n));
    let theta: Vec<f64> = (0..n).map(|_| random.real()).collect();
    with_threads(|context| {
        for method in Method::ALL {
            let mut run = |theta: &[f64]| {
                let w = Operator::new([count, n, m], &u).unwrap().with_phases(theta).unwrap().by(Some(method));
                let (mut c, mut grad) = (h.clone(), vec![1.0; theta.len()]);
                apply::forward(context, &w, &h, &mut c).unwrap();
                let gradients = Gradients { phases: Some(&mut grad), ..Gradients::default() };
                apply::backward(context, &w, &h, &g, gradients, None).unwrap();
                (c, grad)
            };
            let (shared, each) = (run(&theta), run(&theta.repeat(count)));
            assert_eq!(shared.0, each.0);
            for (j, sum) in shared.1.iter().enumerate() {
                assert_eq!(*sum, (0..count).map(|i| each.1[i * n + j]).fold(0.0, |sum, x| sum + x), "{method:?}");
            }
        }
    });
}

#[test]
fn matrices_are_those_of_each_problem() {
    with_threads(|context| {
        for (count, (n, m, _)) in COUNTS.into_iter().flat_map(|count| sizes().map(move |size| (count, size))) {
            let random = &mut Random(8);
            let (u, g) = (random.numbers::<f64>(count * n * m), random.numbers::<f64>(count * n * n));
            each_alone(count, &format!("({n}, {m})"), |problems| {
                let w = Operator::new([problems.len(), n, m], part(&u, n * m, &problems)).unwrap();
                let (mut matrix, mut grad_u) = (vec![0.0; problems.len() * n * n], vec![0.0; problems.len() * n * m]);
                let saved = if problems.len() == count {
                    apply::matrix_and_save(context, &w, &mut matrix).unwrap()
                } else {
                    apply::matrix(context, &w, &mut matrix).unwrap();
                    None
                };
                apply::matrix_backward(context, &w, part(&g, n * n, &problems), &mut grad_u, saved.as_ref()).unwrap();
                [matrix, grad_u]
            });
        }
    });
}

#[test]
fn sequences_are_those_of_each_problem() {
    let (n, m, steps, batch) = (12, 5, 7, 3);
    with_threads(|context| {
        for count in COUNTS {
            let random = &mut Random(9);
            let (u, x) = (random.numbers::<f64>(count * n * m), random.numbers::<f64>(count * steps * batch * n));
            let (g, h0) = (random.numbers::<f64>(x.len()), random.numbers::<f64>(count * batch * n));
            let bias = random.numbers::<f64>(count * n / 2);
            for activation in ["tanh", "oplu", "modrelu"] {
                each_alone(count, activation, |problems| {
                    let rows = steps * batch;
                    let operator = Operator::new([problems.len(), n, m], part(&u, n * m, &problems)).unwrap();
                    let (steps, x) = (Steps::uniform(steps, batch).unwrap(), part(&x, rows * n, &problems));
                    let sequence = Sequence {
                        activation: match activation {
                            "tanh" => Activation::Tanh,
                            "oplu" => Activation::Oplu,
                            _ => Activation::ModRelu(part(&bias, n / 2, &problems)),
                        },
                        h0: Some(part(&h0, batch * n, &problems)),
                        ..Sequence::new(operator, steps, Series::new(x))
                    };
                    let count = problems.len();
                    let sizes = [rows * n, batch * n, n * m, rows * n, n / 2];
                    let mut out = sizes.map(|each| vec![0.0; count * each]);
                    let [h, last, grad_u, grad_x, grad_bias] = &mut out;
                    let saved = rnn::forward_and_save(
                        context,
                        &sequence,
                        rnn::States { last: Some(last), ..rnn::States::new(h) },
                    )
                    .unwrap();
                    let gradients = SequenceGradients {
                        u: Some(grad_u),
                        x: Some(grad_x),
                        activation_bias: (activation == "modrelu").then_some(grad_bias),
                        ..SequenceGradients::default()
                    };
                    let grad_h = Series::new(part(&g, rows * n, &problems));
                    let (trace, cotangents) = (
                        rnn::Trace { saved: Some(&saved), ..rnn::Trace::new(h) },
                        rnn::Cotangents { h: Some(grad_h), last: None },
                    );
                    rnn::backward(context, &sequence, trace, cotangents, gradients).unwrap();
                    out
                });
            }
        }
    });
}

#[test]
fn results_for_fewer_problems_are_refused() {
    let set_num_threads = number_of_threads();
    let (u, h, mut c) = ([1.0; 18], [1.0; 9], [0.0; 6]);
    let w = Operator::new([3, 3, 2], &u).unwrap();
    set_num_threads(1);
    let outcome = apply::forward(&mut Context::default(), &w, &h, &mut c);
    refusal_of(outcome);
}
