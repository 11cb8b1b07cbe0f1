//! Arrays of other lengths than the sizes say, and sizes that no array can have: refused everywhere, before anything is read.

use crate::common::refusal_of;
use householder::apply::{self, Gradients};
use householder::convolution;
use householder::delta;
use householder::error::{Error, Result};
use householder::factor;
use householder::gated_norm;
use householder::method::Method;
use householder::operator::{Form, Operator};
use householder::rnn::{self, Activation, Cotangents, Sequence, SequenceGradients, Series, States, Steps, Trace};
use householder::rows::{Rows, RowsMut};
use householder::stored::{Numbers, Tokens};
use householder::threads::Context;

const N: usize = 5;
const M: usize = 3;
const ROWS: usize = 6;
/// Lengths that `ROWS` vectors do not have.
const WRONG: [usize; 4] = [0, N, ROWS * N - 1, ROWS * N + N];

fn in_context<R>(work: impl FnOnce(&mut Context<'_>) -> R) -> R {
    work(&mut Context::default())
}

#[track_caller]
fn refused<R>(outcome: Result<R>) {
    refusal_of(outcome);
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
            for w in Method::ALL.map(Some).map(w) {
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
        let adjoint = w.adjoint(true);
        refused(apply::backward_in_place(context, &adjoint, &h, &mut h.clone(), none(), None));
        refused(apply::matrix(context, &adjoint, &mut numbers(N * N)));
        refused(apply::compact_wy(context, &adjoint, &mut numbers(N * M), &mut [0.0; M * M], &mut [0.0; M * M]));
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
        for method in Method::ALL {
            for (i, w) in all.iter().enumerate() {
                let w = w.clone().by(Some(method));
                let saved = apply::forward_and_save(context, &w, &h, &mut h.clone()).unwrap();
                assert_eq!(saved.as_ref().map(apply::Saved::method), Some(Some(method)));
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
                assert_eq!(outcome.is_err(), method != Method::Dense, "all but W is of so many vectors");
                let adjoint = w.clone().adjoint(true);
                let outcome = apply::backward(context, &adjoint, &h, &h, Gradients::default(), saved.as_ref());
                assert_eq!(outcome.is_err(), method == Method::Reflections, "states are of W or of W*");
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
        for method in Method::ALL.map(Some) {
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

/// Sizes that cannot be multiplied or added, among others.
const EXTREMES: [usize; 8] = [0, 1, 3, 1 << 32, 1 << 63, usize::MAX / 2, usize::MAX / 16 + 1, usize::MAX];

fn extremes<const N: usize>() -> impl Iterator<Item = [usize; N]> {
    let digits =
        |number: usize| std::array::from_fn(|i| EXTREMES[number / EXTREMES.len().pow(i as u32) % EXTREMES.len()]);
    (0..EXTREMES.len().pow(N as u32)).map(digits)
}

/// Whether there can be so many numbers.
fn count(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))
}

/// Overflow is checked in this program: a product that wraps would panic.
#[test]
fn of_extreme_sizes() {
    let three = [1.0, 2.0, 3.0];
    for [count_, n, m] in extremes() {
        for (form, tau) in [
            (Form::Trapezoidal, None),
            (Form::Full, None),
            (Form::Full, Some(&[][..])),
            (Form::UnitTrapezoidal, Some(&[][..])),
        ] {
            for entries in [&three[..], &[]] {
                let Ok(w) = Operator::with_form([count_, n, m], entries, form, tau) else { continue };
                assert_eq!(Some(entries.len()), count(&[count_, n, m]));
                if count_ == 0 {
                    with_no_problems(w);
                }
            }
        }
    }
    for shape @ [rows, columns] in extremes() {
        for strides in extremes() {
            let reach = || (rows - 1).checked_mul(strides[0])?.checked_add((columns - 1).checked_mul(strides[1])?);
            let fits = rows == 0 || columns == 0 || reach().is_some_and(|reach| reach < 3);
            assert_eq!(Rows::strided(&three, shape, strides).is_ok(), fits, "{shape:?} {strides:?}");
            let apart = RowsMut::strided(&mut three.clone(), shape, strides).is_ok();
            assert!(fits || !apart, "{shape:?} {strides:?}");
        }
    }
    for shape in extremes::<4>() {
        for strides in [[0; 3], [1, 0, 0], [0, 1, 1], [usize::MAX; 3], [1 << 32; 3]] {
            drop(Tokens::strided(Numbers::Full(&three), shape, strides));
        }
    }
}

/// Calls of no problems compute nothing, whatever the sizes.
fn with_no_problems(w: Operator<'_, f64>) {
    in_context(|context| {
        let w = |adjoint, method| w.clone().adjoint(adjoint).by(method);
        for (adjoint, method) in [(false, None), (true, Some(Method::Wy)), (false, Some(Method::Dense))] {
            let w = w(adjoint, method);
            let _ = apply::forward(context, &w, &[], &mut []);
            let _ = apply::forward_and_save(context, &w, &[], &mut []);
            let _ = apply::backward(context, &w, &[], &[], Gradients::default(), None);
            let _ = apply::matrix(context, &w, &mut []);
            let _ = apply::matrix_backward(context, &w, &[], &mut [], None);
            let _ = apply::compact_wy(context, &w, &mut [], &mut [], &mut []);
            let sequence = Sequence::new(w, Steps::uniform(2, 3).unwrap(), Series::new(&[]));
            let _ = sequence.tape_width();
            let _ = rnn::forward_and_save(context, &sequence, States::new(&mut []));
            let _ =
                rnn::backward(context, &sequence, Trace::new(&[]), Cotangents::default(), SequenceGradients::default());
        }
    });
}

#[test]
fn of_extreme_steps() {
    let one = [1.0];
    // A number of steps that might just fit into memory is left out.
    for [steps, batch] in extremes().filter(|[steps, _]| *steps != 1 << 32) {
        let rows = count(&[steps, batch]).filter(|&rows| isize::try_from(rows).is_ok());
        let uniform = || Steps::uniform(steps, batch);
        assert_eq!(uniform().is_ok(), steps <= 3 && rows.is_some(), "{steps} {batch}");
        for strides in extremes().filter(|_| uniform().is_ok()) {
            let w = Operator::new([1, 1, 1], &one).unwrap();
            let sequence = Sequence::new(w, uniform().unwrap(), Series::strided(&one, strides));
            let (mut h, mut of_x) = ([0.0], [7.0]);
            let outcome = in_context(|context| rnn::forward(context, &sequence, States::new(&mut h)));
            assert_eq!((outcome.is_ok(), h), if rows == Some(1) { (true, [1.0]) } else { (false, [0.0]) });
            let cotangents = Cotangents { h: Some(Series::strided(&one, strides)), last: None };
            let of_x = &mut of_x[..rows.map_or(1, |rows| rows.min(1))];
            let gradients = SequenceGradients { x: Some(of_x), ..SequenceGradients::default() };
            let outcome =
                in_context(|context| rnn::backward(context, &sequence, Trace::new(&h), cotangents, gradients));
            assert_eq!(outcome.is_ok(), rows <= Some(1));
        }
    }
    for sizes in [&[i64::MAX, i64::MAX][..], &[i64::MAX, 1], &[1 << 62, 1 << 62, 1], &[i64::MIN], &[0], &[1, 2]] {
        refused(Steps::ragged(sizes));
    }
    // A product of lengths and sequences that wraps to the number of rows.
    let first = 1_i64 << 60;
    let mut wrapped = vec![first];
    wrapped.extend([first / 17; 16]);
    wrapped.push(first - 16 * (first / 17));
    assert_eq!((wrapped.iter().sum::<i64>() as usize, wrapped.len().wrapping_mul(1 << 60)), (1 << 61, 1 << 61));
    wrapped.sort_unstable_by(|a, b| b.cmp(a));
    refused(Steps::ragged(&wrapped).unwrap().reversed());
    assert!(in_context(|context| factor::departure::<f64>(context, 0, &[])).is_err());
    assert!(in_context(|context| factor::factor::<f64>(context, 0, 0, &[], &mut [], None)).is_err());
}

#[test]
fn of_gradients_of_no_steps() {
    let entries = numbers(N * M);
    let w = || Operator::new([1, N, M], &entries).unwrap();
    let sequence = Sequence::new(w(), Steps::uniform(0, 1).unwrap(), Series::new(&[]));
    let none = SequenceGradients::default;
    in_context(|context| {
        let [mut short, mut h0] = [vec![1.0; N * M - 1], vec![1.0; N]];
        let mut refuse = |gradients: SequenceGradients<'_, f64>, last: &[f64]| {
            let cotangents = Cotangents { h: None, last: Some(last) };
            refused(rnn::backward(context, &sequence, Trace::new(&[]), cotangents, gradients));
        };
        refuse(SequenceGradients { u: Some(&mut short), ..none() }, &numbers(N));
        refuse(SequenceGradients { bias: Some(&mut short), ..none() }, &numbers(N));
        let mut u = numbers(N * M);
        refuse(SequenceGradients { u: Some(&mut u), h0: Some(&mut h0), ..none() }, &numbers(N + 1));
        assert!(u == numbers(N * M) && h0 == [1.0; N] && short.iter().all(|&x| x == 1.0), "a refused call has written");
        let cotangents = Cotangents { h: None, last: Some(&[2.0; N]) };
        let gradients = SequenceGradients { u: Some(&mut u), h0: Some(&mut h0), ..none() };
        rnn::backward(context, &sequence, Trace::new(&[]), cotangents, gradients).unwrap();
        assert!(u.iter().all(|&x| x == 0.0) && h0 == [2.0; N]);
    });
}

#[test]
fn of_extreme_rows_of_tokens() {
    let three = [1.0_f32, 2.0, 3.0];
    let none = Tokens::from(&[]);
    for [batch, tokens, channels, taps] in extremes() {
        let sizes = convolution::Sizes { batch, tokens, channels, taps };
        for weight in [&three[..], &[]] {
            let same = |shape| Tokens::strided(Numbers::Full(&three), shape, [0; 3]).unwrap_or(none);
            for x in [none, same([batch, tokens, 1, channels]), same([1, tokens, 1, channels])] {
                let operands = convolution::Operands { sizes, x, weight, bias: None, silu: true };
                let outcome = in_context(|context| convolution::forward(context, operands, (&mut []).into()));
                assert!(outcome.is_err() || batch == 0 || tokens == 0, "{sizes:?}");
                let mut state = weight.to_vec();
                let outcome =
                    in_context(|context| convolution::advance(context, operands, &mut state, (&mut []).into()));
                assert!(outcome.is_err() || batch == 0 || tokens == 0, "{sizes:?}");
                let mut of_weight = weight.to_vec();
                let gradients =
                    convolution::Gradients { x: Some((&mut []).into()), weight: Some(&mut of_weight), bias: None };
                let back = in_context(|context| convolution::backward(context, operands, none, gradients));
                assert!(back.is_err() || of_weight == [0.0; 3], "{sizes:?}");
            }
        }
    }
    for [rows, width] in extremes() {
        let x = Tokens::strided(Numbers::Full(&three), [1, rows, 1, 3], [0; 3]).unwrap_or(none);
        let weight = &three[..width.min(3)];
        let operands = gated_norm::Operands { rows, x, z: x, weight, epsilon: 1.0, silu: true };
        let outcome = in_context(|context| gated_norm::forward(context, operands, (&mut []).into()));
        assert!(outcome.is_err() || rows == 0, "{rows} {width}");
    }
}

#[test]
fn of_extreme_problems_of_the_delta_rule() {
    let (row, none) = ([1.0_f32; 3], Tokens::from(&[]));
    for [tokens, value_heads, key_width, value_width, reflections] in extremes() {
        let sizes = delta::Sizes { heads: 1, value_heads, key_width, value_width, reflections };
        let steps = tokens.checked_mul(reflections).unwrap_or(0);
        let same = |shape| Tokens::strided(Numbers::Full(&row), shape, [0; 3]).unwrap_or(none);
        let operands = delta::Operands {
            sequences: std::iter::once(0..tokens).collect(),
            q: same([1, tokens, 1, key_width]),
            k: same([1, steps, 1, key_width]),
            v: same([1, steps, value_heads, value_width]),
            beta: None,
            ..delta::Operands::new(sizes, &[], &[], &[], &[])
        };
        drop(delta::interval(key_width, value_width));
        let Ok(problem) = delta::Problem::new(operands) else { continue };
        let delta::Lengths { out, last, saved } = problem.lengths();
        assert_eq!(Some(out), count(&[tokens, value_heads, value_width]));
        assert_eq!(Some(last), count(&[value_heads, key_width, value_width]));
        let interval = delta::interval(key_width, value_width).unwrap();
        assert_eq!(Some(saved), count(&[steps.saturating_sub(1) / interval, value_heads, key_width, value_width]));
        if tokens == 0 && value_heads.max(value_width) <= 3 {
            let outcome = in_context(|context| delta::forward(context, &problem, delta::Results::default()));
            assert!(matches!(outcome, Ok(()) | Err(Error::OutOfMemory { .. })), "{sizes:?}: {outcome:?}");
        }
    }
}
