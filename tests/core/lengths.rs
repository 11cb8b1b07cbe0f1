//! Arrays of other lengths than the sizes say, and sizes that no array can have: refused everywhere, before anything is read.

use householder::apply::{self, Gradients};
use householder::error::{Error, Result};
use householder::factor;
use householder::method::Method;
use householder::operator::{Form, Operator};
use householder::rnn::{self, Activation, Cotangents, Sequence, SequenceGradients, Series, States, Steps, Trace};
use householder::threads::Context;

const N: usize = 5;
const M: usize = 3;
const ROWS: usize = 6;
const METHODS: [Option<Method>; 3] = [Some(Method::Reflections), Some(Method::Wy), Some(Method::Dense)];
/// Lengths that `ROWS` vectors do not have.
const WRONG: [usize; 4] = [0, N, ROWS * N - 1, ROWS * N + N];

fn in_context<R>(work: impl FnOnce(&mut Context<'_>) -> R) -> R {
    work(&mut Context::default())
}

#[track_caller]
fn refused<R>(outcome: Result<R>) {
    match outcome {
        Err(Error::InvalidArgument(_)) => {}
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

fn numbers(len: usize) -> Vec<f64> {
    (0..len).map(|i| 1.0 + (i as f64).sin()).collect()
}

#[test]
fn of_one_application() {
    let entries = numbers(N * M);
    let h = numbers(ROWS * N);
    let none = Gradients::default;
    in_context(|context| {
        for len in WRONG {
            let mut other = numbers(len);
            let w = |method| Operator::new([1, N, M], &entries).unwrap().by(method);
            for w in METHODS.map(w) {
                refused(apply::forward(context, &w, &h, &mut other));
                refused(apply::forward_and_save(context, &w, &h, &mut other));
                refused(apply::backward(context, &w, &h, &other, none(), None));
                for gradients in [
                    Gradients { h: Some(&mut other.clone()), ..none() },
                    Gradients { u: Some(&mut other.clone()), ..none() },
                    Gradients { tau: Some(&mut [0.0]), ..none() },
                    Gradients { phases: Some(&mut [0.0; N]), ..none() },
                ] {
                    refused(apply::backward(context, &w, &h, &h, gradients, None));
                }
            }
            let w = w(None);
            refused(apply::forward_tape(context, &w, &h, &mut other));
            refused(apply::backward_tape(context, &w, &other, &h, none()));
            refused(apply::matrix(context, &w, &mut other));
            refused(apply::compact_wy(context, &w, &mut other, &mut [0.0; M * M], &mut [0.0; M * M]));
            refused(factor::factor(context, N, M, &h, &mut other, None));
            refused(factor::by_columns(context, N, M, &other, &mut numbers(N * M), None));
            refused(factor::departure(context, N, &other));
            refused(apply::backward_in_place(context, &w, &h, &mut other, none(), None));
            let gradients = Gradients { u: Some(&mut other), ..none() };
            refused(apply::backward_in_place(context, &w, &h, &mut h.clone(), gradients, None));
        }
        let w = Operator::new([1, N, M], &entries).unwrap();
        refused(apply::forward(context, &w, &h[1..], &mut numbers(ROWS * N - 1)));
        refused(factor::factor(context, N, M, &numbers(N * N), &mut numbers(N * M), Some(&mut [0.0; N])));
        refused(apply::backward_in_place(context, &w.adjoint(true), &h, &mut h.clone(), none(), None));
    });
}

#[test]
fn of_what_was_saved_of_another_problem() {
    let entries = numbers(N * (N + 1));
    let h = numbers(ROWS * N);
    let of = |m: usize, form, tau| Operator::with_form([1, N, m], &entries[..N * m], form, tau).unwrap();
    let tau = [0.5; N];
    let all = [
        of(M, Form::Trapezoidal, None),
        of(M + 1, Form::Trapezoidal, None),
        of(N, Form::Trapezoidal, None),
        of(M, Form::Full, None),
        of(M, Form::Full, Some(&tau[..M])),
        of(M + 1, Form::Full, None),
    ];
    in_context(|context| {
        for method in [Method::Wy, Method::Dense] {
            for (i, w) in all.iter().enumerate() {
                let w = w.clone().by(Some(method));
                let saved = apply::forward_and_save(context, &w, &h, &mut h.clone()).unwrap();
                assert_eq!(saved.as_ref().map(apply::Saved::is_matrix), Some(method == Method::Dense));
                for (j, other) in all.iter().enumerate().filter(|&(j, _)| j != i) {
                    // The same number of reflections of the same form may be those of n columns.
                    if [(1, 2), (2, 1)].contains(&(i, j)) {
                        continue;
                    }
                    let mut grad_u = numbers(N * other.m());
                    let gradients = Gradients { u: Some(&mut grad_u), ..Gradients::default() };
                    refused(apply::backward(context, other, &h, &h, gradients, saved.as_ref()));
                }
                let (none, fewer) = (Gradients::default(), &h[N..]);
                let outcome = apply::backward(context, &w, fewer, fewer, none, saved.as_ref());
                assert_eq!(outcome.is_err(), method == Method::Wy, "factors are of so many vectors");
            }
        }
    });
}

#[test]
fn of_many_problems() {
    const COUNT: usize = 3;
    let (entries, h) = (numbers(COUNT * N * M), numbers(COUNT * ROWS * N));
    refused(Operator::new([COUNT, N, M], &entries[1..]));
    let none = Gradients::default;
    in_context(|context| {
        for method in METHODS {
            let w = Operator::new([COUNT, N, M], &entries).unwrap().by(method);
            for len in [h.len() - 1, ROWS * N, h.len() + N, 0, h.len() + 1] {
                let mut other = numbers(len);
                refused(apply::forward(context, &w, &h, &mut other));
                refused(apply::backward(context, &w, &h, &other, none(), None));
                refused(apply::backward(context, &w, &h, &h, Gradients { h: Some(&mut other), ..none() }, None));
                refused(apply::backward(context, &w, &h, &h, Gradients { u: Some(&mut other), ..none() }, None));
            }
            refused(apply::forward(context, &w, &h[1..], &mut numbers(h.len())));
            refused(apply::forward_tape(context, &w, &h, &mut numbers(h.len() * (M + 1))));
        }
        let (w, mut matrix) = (Operator::new([COUNT, N, M], &entries).unwrap(), numbers(COUNT * N * N));
        refused(apply::matrix(context, &w, &mut matrix[1..]));
        let mut grad_u = entries.clone();
        refused(apply::matrix_backward(context, &w, &matrix[1..], &mut grad_u, None));
        refused(apply::matrix_backward(context, &w, &matrix, &mut grad_u[1..], None));
        refused(apply::matrix_backward(context, &w.adjoint(true), &matrix, &mut grad_u, None));
    });
}

#[test]
fn of_a_sequence() {
    const D: usize = 2;
    const STEPS: usize = 3;
    const BATCH: usize = 2;
    let [entries, x, v, b, h0, h] = [N * M, ROWS * D, N * D, N, BATCH * N, ROWS * N].map(numbers);
    let sequence = || Sequence {
        operator: Operator::new([1, N, M], &entries).unwrap().by(Some(Method::Wy)),
        activation: Activation::Relu,
        steps: Steps::uniform(STEPS, BATCH).unwrap(),
        d: D,
        x: Series::new(&x),
        input_weight: Some(&v),
        bias: Some(&b),
        h0: Some(&h0),
    };
    let wrong = [
        Sequence { x: Series::new(&x[1..]), ..sequence() },
        Sequence { x: Series::strided(&x[1..], [BATCH * D, D]), ..sequence() },
        Sequence { x: Series::strided(&x, [usize::MAX, D]), ..sequence() },
        Sequence { input_weight: Some(&v[1..]), ..sequence() },
        Sequence { input_weight: None, ..sequence() },
        Sequence { bias: Some(&v), ..sequence() },
        Sequence { h0: Some(&h0[1..]), ..sequence() },
        Sequence { d: usize::MAX, ..sequence() },
        Sequence { steps: Steps::uniform(STEPS, 1 << 58).unwrap(), ..sequence() },
        Sequence { operator: sequence().operator.by(Some(Method::Reflections)), ..sequence() },
        Sequence { activation: Activation::RealModRelu(&[0.0]), ..sequence() },
    ];
    in_context(|context| {
        for sequence in &wrong {
            refused(rnn::forward(context, sequence, States::new(&mut h.clone())));
            let none = SequenceGradients::default();
            refused(rnn::backward(context, sequence, Trace::new(&h), Cotangents::default(), none));
        }
        let sequence = sequence();
        for len in WRONG {
            let mut other = numbers(len);
            refused(rnn::forward(context, &sequence, States::new(&mut other)));
            refused(rnn::forward(context, &sequence, States { last: Some(&mut other), ..States::new(&mut h.clone()) }));
            refused(rnn::forward(context, &sequence, States { tape: Some(&mut other), ..States::new(&mut h.clone()) }));
            let none = SequenceGradients::default;
            macro_rules! backward {
                ($h:expr, $tape:expr, $grad_h:expr, $grad_last:expr, $gradients:expr) => {{
                    let cotangents = Cotangents { h: $grad_h, last: $grad_last };
                    let trace = Trace { tape: $tape, ..Trace::new($h) };
                    refused(rnn::backward(context, &sequence, trace, cotangents, $gradients));
                }};
            }
            backward!(&other, None, None, None, none());
            backward!(&h, Some(&other), None, None, none());
            backward!(&h, None, Some(Series::new(&other)), None, none());
            backward!(&h, None, None, Some(&h), none());
            let (mut other, mut more) = (vec![0.0; len], vec![0.0; len]);
            backward!(&h, None, None, None, SequenceGradients { u: Some(&mut other), ..none() });
            backward!(&h, None, None, None, SequenceGradients { x: Some(&mut other), ..none() });
            backward!(&h, None, None, None, SequenceGradients { h0: Some(&mut other), ..none() });
            backward!(&h, None, None, None, SequenceGradients { input_weight: Some(&mut other), ..none() });
            backward!(&h, None, None, None, SequenceGradients { bias: Some(&mut [0.0; N + 1]), ..none() });
            backward!(&h, None, None, None, SequenceGradients { tau: Some(&mut [0.0; M]), ..none() });
            backward!(&h, None, None, None, SequenceGradients { phases: Some(&mut [0.0; N]), ..none() });
            more.push(0.0);
            backward!(&h, None, None, None, SequenceGradients { activation_bias: Some(&mut more), ..none() });
        }
    });
}

/// `rows * n` is zero modulo the size of the address space.
#[test]
fn of_a_sequence_longer_than_memory() {
    let (n, entries) = (64, numbers(64 * 4));
    for method in [Method::Wy, Method::Dense] {
        let (operator, steps) = (Operator::new([1, n, 4], &entries).unwrap(), Steps::uniform(1, 1 << 58).unwrap());
        let sequence = Sequence::new(operator.by(Some(method)), steps, Series::new(&[]));
        in_context(|context| {
            refused(rnn::forward(context, &sequence, States::new(&mut [])));
            let none = SequenceGradients::default();
            refused(rnn::backward(context, &sequence, Trace::new(&[]), Cotangents::default(), none));
        });
    }
}
