//! Arrays of other lengths than the sizes say, and sizes that no array can have: refused everywhere, before anything is read.

use householder::apply::{self, Dense, Prepared};
use householder::diagonal::Diagonal;
use householder::error::{Error, Result};
use householder::factor;
use householder::gradients::Gradients;
use householder::many::{Applications, ManyGradients, ManyReflections, Stack, StackMut, matrices, matrices_backward};
use householder::method::Method;
use householder::number::c64;
use householder::recurrence::{self, Activation, Sequence, SequenceGradients, Series, Steps};
use householder::reflections::{Form, Reflections};
use householder::threads::Context;

const N: usize = 5;
const M: usize = 3;
const ROWS: usize = 6;
const METHODS: [Option<Method>; 3] = [Some(Method::Reflections), Some(Method::Wy), Some(Method::Dense)];
/// Lengths that `ROWS` vectors do not have.
const WRONG: [usize; 4] = [0, N, ROWS * N - 1, ROWS * N + N];

fn in_context<R>(work: impl FnOnce(&mut Context<'_>) -> R) -> R {
    let mut never = || false;
    work(&mut Context::new(&mut never))
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
    let u = Reflections::new(N, M, &entries).unwrap();
    let (d, h) = (Diagonal::of(u), numbers(ROWS * N));
    in_context(|context| {
        for len in WRONG {
            let mut other = numbers(len);
            for method in METHODS {
                refused(apply::forward(context, u, &d, &h, &mut other, false, method));
                let none = Gradients::default();
                refused(apply::backward(context, u, &d, &h, &other, none, false, method));
                let gradients = Gradients { h: Some(&mut other), ..Gradients::default() };
                refused(apply::backward(context, u, &d, &h, &h, gradients, false, method));
                let gradients = Gradients { u: Some(&mut other), ..Gradients::default() };
                refused(apply::backward(context, u, &d, &h, &h, gradients, false, method));
                let gradients = Gradients { tau: Some(&mut [0.0]), ..Gradients::default() };
                refused(apply::backward(context, u, &d, &h, &h, gradients, false, method));
                let gradients = Gradients { phases: Some(&mut [0.0; N]), ..Gradients::default() };
                refused(apply::backward(context, u, &d, &h, &h, gradients, false, method));
            }
            refused(apply::forward_and_keep(context, u, &d, &h, &mut other, false));
            refused(apply::forward_tape(context, u, &d, &h, &mut other, false));
            let none = Gradients::default();
            refused(apply::backward_tape(context, u, &d, &other, &h, none, false));
            refused(apply::matrix(context, u, &d, &mut other));
            refused(apply::compact_wy(context, u, &mut other, &mut [0.0; M * M], &mut [0.0; M * M]));
            refused(factor::factor(context, N, M, &h, &mut other, None));
            refused(factor::by_columns(context, N, M, &other, &mut numbers(N * M), None));
            refused(factor::departure(context, N, &other));
            let prepared = Prepared::new(context, u, ROWS).unwrap();
            refused(apply::backward_in_place(context, &prepared, u, &h, &mut other, &mut numbers(N * M)));
            refused(apply::backward_in_place(context, &prepared, u, &h, &mut h.clone(), &mut other));
        }
        refused(apply::forward(context, u, &d, &h[1..], &mut numbers(ROWS * N - 1), false, None));
        refused(factor::factor(context, N, M, &numbers(N * N), &mut numbers(N * M), Some(&mut [0.0; N])));
    });
}

#[test]
fn of_what_was_prepared_for_another_problem() {
    let entries = numbers(N * (N + 1));
    let h = numbers(ROWS * N);
    let of = |m: usize, form, tau| Reflections::with_form(N, m, &entries[..N * m], form, tau).unwrap();
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
        for (i, &u) in all.iter().enumerate() {
            let prepared = Prepared::new(context, u, ROWS).unwrap();
            let matrix = Dense::new(context, u, &Diagonal::of(u)).unwrap();
            for (j, &other) in all.iter().enumerate().filter(|&(j, _)| j != i) {
                // The same number of reflections of the same form may be those of n columns.
                if [(1, 2), (2, 1)].contains(&(i, j)) {
                    continue;
                }
                let mut grad_u = numbers(N * other.m());
                let gradients = Gradients { u: Some(&mut grad_u), ..Gradients::default() };
                let d = Diagonal::of(other);
                refused(apply::backward_of(context, &prepared, other, &d, &h, &h, gradients, false));
                let none = Gradients::default();
                refused(apply::backward_by_matrix(context, &matrix, other, &d, &h, &h, none, false));
            }
            let none = Gradients::default();
            refused(apply::backward_of(context, &prepared, u, &Diagonal::of(u), &h[N..], &h[N..], none, false));
        }
    });
}

#[test]
fn of_diagonals() {
    let numbers = [1.0, 2.0, 3.0].map(|x| c64::new(x, 0.0));
    let u = Reflections::new(3, 1, &numbers).unwrap();
    in_context(|context| {
        for phases in [0, 1, 2, 4] {
            let d = Diagonal::Phases(vec![c64::new(0.0, 1.0); phases]);
            let mut out = [c64::default(); 9];
            for method in METHODS {
                refused(apply::forward(context, u, &d, &numbers, &mut out[..3], true, method));
                let none = Gradients::default();
                refused(apply::backward(context, u, &d, &numbers, &numbers, none, true, method));
            }
            refused(apply::matrix(context, u, &d, &mut out));
            refused(Dense::new(context, u, &d));
        }
        let real = [1.0, 2.0, 3.0];
        let u = Reflections::new(3, 1, &real).unwrap();
        for d in [Diagonal::Phases(vec![1.0; 3]), Diagonal::Last(-1.0)] {
            refused(apply::forward(context, u, &d, &real, &mut [0.0; 3], false, None));
        }
    });
}

#[test]
fn of_many_problems() {
    const COUNT: usize = 3;
    let (entries, h) = (numbers(COUNT * N * M), numbers(COUNT * ROWS * N));
    let u = ManyReflections::new([COUNT, N, M], Form::Trapezoidal, &entries, None).unwrap();
    refused(ManyReflections::new([COUNT, N, M], Form::Trapezoidal, &entries[1..], None));
    in_context(|context| {
        for method in METHODS {
            let of = |h| Applications { u, phases: None, h, adjoint: false, method };
            let all = of(Stack::new(&h, COUNT));
            for (len, count) in
                [(h.len() - 1, COUNT), (h.len(), COUNT + 1), (h.len(), 1), (0, COUNT), (h.len() + 1, COUNT)]
            {
                let mut other = numbers(len);
                refused(all.forward(context, StackMut::new(&mut other, count)));
                refused(all.backward(context, Stack::new(&other, count), ManyGradients::default(), None));
                let g = Stack::new(&h, COUNT);
                let gradients = ManyGradients { h: Some(StackMut::new(&mut other, count)), ..ManyGradients::default() };
                refused(all.backward(context, g, gradients, None));
                let gradients = ManyGradients { u: Some(StackMut::new(&mut other, count)), ..ManyGradients::default() };
                refused(all.backward(context, g, gradients, None));
            }
            refused(of(Stack::new(&h[1..], COUNT)).forward(context, StackMut::new(&mut numbers(h.len()), COUNT)));
        }
        let mut w = numbers(COUNT * N * N);
        refused(matrices(context, u, None, &mut w[1..], false));
        let mut grad_u = entries.clone();
        refused(matrices_backward(context, u, Stack::new(&w[1..], COUNT), StackMut::new(&mut grad_u, COUNT), None));
        refused(matrices_backward(context, u, Stack::new(&w, COUNT), StackMut::new(&mut grad_u[1..], COUNT), None));
        refused(matrices_backward(context, u, Stack::new(&w, COUNT), StackMut::new(&mut grad_u, 1), None));
    });
}

#[test]
fn of_a_sequence() {
    const D: usize = 2;
    const STEPS: usize = 3;
    const BATCH: usize = 2;
    let [entries, x, v, b, h0, h] = [N * M, ROWS * D, N * D, N, BATCH * N, ROWS * N].map(numbers);
    let sequence = || {
        let u = Reflections::new(N, M, &entries).unwrap();
        Sequence {
            u,
            diagonal: Diagonal::of(u),
            adjoint: false,
            activation: Activation::Relu,
            method: Some(Method::Wy),
            steps: Steps::uniform(STEPS, BATCH).unwrap(),
            d: D,
            x: Series::new(&x),
            input_weight: Some(&v),
            bias: Some(&b),
            h0: Some(&h0),
        }
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
        Sequence { diagonal: Diagonal::Last(-1.0), ..sequence() },
        Sequence { activation: Activation::RealModRelu(&[0.0]), ..sequence() },
    ];
    in_context(|context| {
        for sequence in &wrong {
            refused(recurrence::forward(context, sequence, &mut h.clone(), None));
            let none = SequenceGradients::default();
            refused(recurrence::backward(context, sequence, None, &h, None, None, None, none));
        }
        let sequence = sequence();
        for len in WRONG {
            let mut other = numbers(len);
            refused(recurrence::forward(context, &sequence, &mut other, None));
            refused(recurrence::forward(context, &sequence, &mut h.clone(), Some(&mut other)));
            refused(sequence.copy_last(&other, &mut numbers(BATCH * N)));
            refused(sequence.copy_last(&h, &mut other[..len.min(N)]));
            let none = SequenceGradients::default;
            macro_rules! backward {
                ($($argument:expr),*) => {
                    refused(recurrence::backward(context, &sequence, None, $($argument),*))
                };
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
    let u = Reflections::new(n, 4, &entries).unwrap();
    for method in [Method::Wy, Method::Dense] {
        let sequence = Sequence {
            u,
            diagonal: Diagonal::of(u),
            adjoint: false,
            activation: Activation::Relu,
            method: Some(method),
            steps: Steps::uniform(1, 1 << 58).unwrap(),
            d: n,
            x: Series::new(&[]),
            input_weight: None,
            bias: None,
            h0: None,
        };
        in_context(|context| {
            refused(recurrence::forward(context, &sequence, &mut [], None));
            let none = SequenceGradients::default();
            refused(recurrence::backward(context, &sequence, None, &[], None, None, None, none));
        });
    }
}
