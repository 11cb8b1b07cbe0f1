//! Columns of every form, with and without a given `tau`: against explicit reflections, by every method.

use crate::common::problem::{Problem, Tau};
use crate::common::{
    error, has_time_for, multiply, number_of_threads, of_all_types, to_c64, tolerance, with_each_instruction_set,
};
use householder::apply::{self, Gradients};
use householder::method::Method;
use householder::number::{Number, c64};
use householder::operator::Form;
use householder::rnn::{self, Activation, Cotangents, Sequence, SequenceGradients, Series, States, Steps, Trace};
use householder::scalar::Scalar;
use householder::threads::Context;

/// Around the edges of registers, panels, tiles and chunks.
const TRAPEZOIDAL: [(usize, usize, usize); 16] = [
    (1, 1, 1),
    (2, 1, 3),
    (2, 2, 1),
    (3, 3, 2),
    (7, 4, 8),
    (8, 8, 5),
    (15, 3, 1),
    (16, 16, 7),
    (17, 5, 13),
    (31, 30, 9),
    (33, 32, 33),
    (64, 63, 65),
    (65, 64, 6),
    (100, 33, 130),
    (128, 16, 64),
    (130, 129, 70),
];
/// More reflections than coordinates, as many, and fewer; around the edges of registers, blocks and strips.
const FULL: [(usize, usize, usize); 10] = [
    (1, 1, 2),
    (1, 3, 1),
    (2, 5, 3),
    (7, 7, 4),
    (16, 33, 5),
    (17, 5, 13),
    (33, 70, 40),
    (65, 64, 6),
    (100, 33, 70),
    (300, 40, 3),
];
const LAPACK: [(usize, usize, usize); 9] =
    [(1, 1, 2), (2, 1, 1), (5, 5, 3), (17, 9, 4), (33, 33, 9), (66, 40, 5), (70, 66, 67), (100, 100, 3), (270, 33, 2)];

fn each<T: Scalar>(mut test: impl FnMut(&Problem<T>)) {
    let mut of = |form, shapes: &[(usize, usize, usize)], tau| {
        // A complex square has no last column.
        let is_possible = |&(n, m, _): &(usize, usize, usize)| !(T::COMPLEX && form == Form::Trapezoidal && m == n);
        let shapes = shapes.iter().copied().filter(|shape| has_time_for(shape.0) && is_possible(shape));
        shapes.for_each(|shape| test(&Problem::new(shape, form, tau)));
    };
    for form in Form::ALL {
        let (shapes, taus): (&[_], &[_]) = match form {
            Form::Trapezoidal => (&TRAPEZOIDAL, &[Tau::Own]),
            Form::UnitTrapezoidal => (&LAPACK, &[Tau::Reflecting, Tau::Any]),
            Form::Full => (&FULL, &[Tau::Own, Tau::Reflecting, Tau::Any]),
            other => unreachable!("{other:?} has no shapes here"),
        };
        taus.iter().for_each(|&tau| of(form, shapes, tau));
    }
}

fn applies_as_explicit_reflections<T: Scalar>() {
    each::<T>(|problem| {
        let (n, m, w) = (problem.n, problem.m, problem.explicit());
        with_each_instruction_set(|context| {
            for (method, adjoint) in Method::ALL.into_iter().flat_map(|method| [(method, false), (method, true)]) {
                let mut c = vec![T::ZERO; problem.h.len()];
                apply::forward(context, &problem.operator(adjoint, Some(method)), &problem.h, &mut c).unwrap();
                let error = error(&c, &multiply(n, &w, &problem.h, adjoint));
                assert!(error < tolerance::<T>(m), "{method:?} {n} {m} {:?} {adjoint}: {error:e}", problem.form);
            }
            let mut matrix = vec![T::ZERO; n * n];
            apply::matrix(context, &problem.operator(false, None), &mut matrix).unwrap();
            let error = error(&matrix, &w);
            assert!(error < tolerance::<T>(m), "{n} {m} {:?}: {error:e}", problem.form);
        });
    });
}

#[test]
fn every_form_applies_as_explicit_reflections() {
    of_all_types!(applies_as_explicit_reflections);
}

/// The derivative of `loss` by entry `i` of what `entries` names, in every direction there is.
fn derivative<T: Scalar<Real = f64>, X: Number<Real = f64>>(
    problem: &mut Problem<T>,
    entries: fn(&mut Problem<T>) -> &mut [X],
    i: usize,
    loss: impl Fn(&Problem<T>) -> f64,
) -> c64 {
    const STEP: f64 = 1e-6;
    let old = entries(problem)[i];
    let mut along = |direction: X| {
        let mut at = |step: f64| {
            entries(problem)[i] = old + direction.scale(step);
            loss(problem)
        };
        let difference = (at(STEP) - at(-STEP)) / (2.0 * STEP);
        entries(problem)[i] = old;
        difference
    };
    let re = along(X::ONE);
    c64::new(re, if X::COMPLEX { along(X::unit(std::f64::consts::FRAC_PI_2)) } else { 0.0 })
}

/// Compares a sample of the entries of gradients of `U`, and those of `tau` and of phases, with derivatives of `loss`.
fn compare<T: Scalar<Real = f64>>(
    problem: &Problem<T>,
    grad_u: &[T],
    grad_tau: Option<&[T]>,
    grad_phases: Option<&[f64]>,
    loss: impl Fn(&Problem<T>) -> f64,
    about: &str,
) {
    let (m, form) = (problem.m, problem.form);
    let scale = grad_u.iter().chain(grad_tau.into_iter().flatten()).map(|g| g.abs2().sqrt()).fold(1e-2, f64::max);
    let mut moved = problem.clone();
    let often = 1 + grad_u.len() / 40;
    for (i, &found) in grad_u.iter().enumerate() {
        if form.stored(i / m, m) <= i % m {
            assert_eq!(found, T::ZERO, "{about}: no entry, no gradient");
        } else if i % often == 0 {
            let want = derivative(&mut moved, |problem| &mut problem.u, i, &loss);
            assert!((to_c64(found) - want).norm() < 1e-7 * scale, "{about} u[{i}]: {found} {want}");
        }
    }
    for (j, &found) in grad_tau.into_iter().flatten().enumerate() {
        let want = derivative(&mut moved, |problem| problem.tau.as_deref_mut().unwrap(), j, &loss);
        assert!((to_c64(found) - want).norm() < 1e-7 * scale, "{about} tau[{j}]: {found} {want}");
    }
    for (j, &found) in grad_phases.into_iter().flatten().enumerate() {
        let want = derivative(&mut moved, |problem| problem.phases.as_deref_mut().unwrap(), j, &loss).re;
        assert!((found - want).abs() < 1e-7 * scale.max(problem.h.len() as f64), "{about} phases[{j}]: {found} {want}");
    }
}

fn gradients_are_derivatives<T: Scalar<Real = f64>>() {
    each::<T>(|problem| {
        let (n, m, rows) = (problem.n, problem.m, problem.h.len() / problem.n);
        if n > 40 {
            return;
        }
        let mut context = Context::default();
        let w = problem.explicit();
        for adjoint in [false, true] {
            let mut grad_u = vec![T::ONE; n * m];
            let mut grad_tau = problem.tau.as_ref().map(|_| vec![T::ONE; m]);
            let mut grad_h = vec![T::ONE; rows * n];
            let mut grad_phases = problem.phases.as_ref().map(|_| vec![0.0; n]);
            let (tau, phases) = (grad_tau.as_deref_mut(), grad_phases.as_deref_mut());
            let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), tau, phases };
            let operator = problem.operator(adjoint, Some(Method::Reflections));
            apply::backward(&mut context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
            assert!(error(&grad_h, &multiply(n, &w, &problem.g, !adjoint)) < tolerance::<T>(m));
            let about = format!("{n} {m} {:?} {adjoint}", problem.form);
            let loss = |problem: &Problem<T>| problem.loss(adjoint);
            compare(problem, &grad_u, grad_tau.as_deref(), grad_phases.as_deref(), loss, &about);
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn gradients_of_every_form_are_derivatives() {
    gradients_are_derivatives::<f64>();
    gradients_are_derivatives::<c64>();
}

/// The gradients of `u`, `h`, `tau` and phases that `back` computes.
fn gradients_of<T: Scalar>(problem: &Problem<T>, back: impl FnOnce(Gradients<'_, T>)) -> [Vec<T>; 4] {
    let (n, m) = (problem.n, problem.m);
    let [mut grad_u, mut grad_h, mut grad_tau] = [n * m, problem.h.len(), m].map(|len| vec![T::ONE; len]);
    let mut grad_phases = vec![T::Real::ONE; n];
    let tau = problem.tau.is_some().then_some(&mut grad_tau[..]);
    let phases = problem.phases.is_some().then_some(&mut grad_phases[..]);
    back(Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), tau, phases });
    [grad_u, grad_h, grad_tau, grad_phases.into_iter().map(T::from_real).collect()]
}

fn methods_agree_on_gradients<T: Scalar>() {
    each::<T>(|problem| {
        let (n, m, rows) = (problem.n, problem.m, problem.h.len() / problem.n);
        if n == 1 && problem.tau.is_none() {
            return; // -1 whatever the vector: the gradient is rounding alone
        }
        let tolerance = 4.0 * tolerance::<T>(m);
        with_each_instruction_set(|context| {
            for adjoint in [false, true] {
                let mut run = |back: &mut dyn FnMut(&mut Context<'_>, Gradients<'_, T>)| {
                    gradients_of(problem, |gradients| back(context, gradients))
                };
                let mut by = |method| {
                    run(&mut |context, gradients| {
                        let operator = problem.operator(adjoint, method);
                        apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
                    })
                };
                let want = by(Some(Method::Reflections)).map(|x| x.into_iter().map(to_c64).collect::<Vec<_>>());
                let mut found = vec![by(Some(Method::Wy)), by(Some(Method::Dense)), by(None)];
                for method in Method::ALL {
                    found.push(run(&mut |context, gradients| {
                        let (operator, mut c) = (problem.operator(adjoint, Some(method)), vec![T::ZERO; rows * n]);
                        let saved = apply::forward_and_save(context, &operator, &problem.h, &mut c).unwrap();
                        assert!(saved.is_some());
                        apply::backward(context, &operator, &problem.h, &problem.g, gradients, saved.as_ref()).unwrap();
                    }));
                }
                found.push(run(&mut |context, gradients| {
                    let operator = problem.operator(adjoint, Some(Method::Dense));
                    let w = problem.operator(false, Some(Method::Dense));
                    let saved = apply::matrix_and_save(context, &w, &mut vec![T::ZERO; n * n]).unwrap();
                    apply::backward(context, &operator, &problem.h, &problem.g, gradients, saved.as_ref()).unwrap();
                }));
                found.push(run(&mut |context, gradients| {
                    let (operator, mut tape) = (problem.operator(adjoint, None), vec![T::ZERO; rows * (m + 1) * n]);
                    apply::forward_tape(context, &operator, &problem.h, &mut tape).unwrap();
                    apply::backward_tape(context, &operator, &tape, &problem.g, gradients).unwrap();
                }));
                for (way, found) in found.iter().enumerate() {
                    for (name, (found, want)) in ["u", "h", "tau", "phases"].into_iter().zip(found.iter().zip(&want)) {
                        let error = error(found, want);
                        assert!(error < tolerance, "{name} {way} {n} {m} {:?} {adjoint}: {error:e}", problem.form);
                    }
                }
            }
        });
    });
}

#[test]
fn methods_agree_on_gradients_of_every_form() {
    of_all_types!(methods_agree_on_gradients);
}

/// Blocks of 48 to 80 reflections, and tasks of as many columns.
fn large_matrices_are_those_of_explicit_reflections<T: Scalar>() {
    let set_num_threads = number_of_threads();
    for (shape, form, tau) in [
        ((300, 70, 1), Form::Trapezoidal, Tau::Own),
        ((530, 500, 1), Form::Trapezoidal, Tau::Own),
        ((600, 130, 1), Form::Full, Tau::Any),
        ((550, 70, 1), Form::UnitTrapezoidal, Tau::Any),
    ] {
        let (n, m, problem) = (shape.0, shape.1, Problem::<T>::new(shape, form, tau));
        let w = problem.explicit();
        with_each_instruction_set(|context| {
            let [alone, together] = [1, 2].map(|threads| {
                set_num_threads(threads);
                let mut matrix = vec![T::ZERO; n * n];
                apply::matrix(context, &problem.operator(false, None), &mut matrix).unwrap();
                matrix
            });
            let error = error(&alone, &w);
            assert!(error < tolerance::<T>(m), "{:?} {n} {m} {form:?}: {error:e}", context.isa);
            assert_eq!(alone, together, "{:?} {n} {m} {form:?}", context.isa);
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn large_matrices_of_every_type_and_form_are_those_of_explicit_reflections() {
    of_all_types!(large_matrices_are_those_of_explicit_reflections);
}

/// Each thread lays out all panels for vectors of its own, and has gradients of its own.
fn several_threads_reflect_as_one_does<T: Scalar>() {
    let set_num_threads = number_of_threads();
    for (shape, form, tau) in [
        ((300, 40, 150), Form::Trapezoidal, Tau::Own),
        ((91, 91, 250), Form::Trapezoidal, Tau::Own),
        ((130, 100, 151), Form::Full, Tau::Any),
        ((1030, 65, 33), Form::UnitTrapezoidal, Tau::Any),
    ] {
        let (n, m, rows) = shape;
        let m = if T::COMPLEX { m.min(n - 1) } else { m };
        let problem = Problem::<T>::new((n, m, rows), form, tau);
        let w = problem.explicit();
        for adjoint in [false, true] {
            with_each_instruction_set(|context| {
                let mut pass = |method, threads, saves| {
                    set_num_threads(threads);
                    let mut c = vec![T::ZERO; rows * n];
                    let operator = problem.operator(adjoint, Some(method));
                    let saved = apply::forward_and_save(context, &operator, &problem.h, &mut c).unwrap();
                    let saved = saved.filter(|_| saves);
                    let gradients = gradients_of(&problem, |gradients| {
                        apply::backward(context, &operator, &problem.h, &problem.g, gradients, saved.as_ref()).unwrap();
                    });
                    (c, gradients)
                };
                let (c, gradients) = pass(Method::Reflections, 1, true);
                let (_, by_factors) = pass(Method::Wy, 1, true);
                for (threads, saves) in [(1, false), (2, true), (2, false)] {
                    let same = pass(Method::Reflections, threads, saves) == (c.clone(), gradients.clone());
                    assert!(same, "{:?} {n} {m} {form:?} {adjoint}: {threads} threads, saved {saves}", context.isa);
                }
                let error_of_c = error(&c, &multiply(n, &w, &problem.h, adjoint));
                assert!(error_of_c < tolerance::<T>(m), "{:?} {n} {m} {form:?} {adjoint}: {error_of_c:e}", context.isa);
                for (i, (x, by_factors)) in gradients.iter().zip(by_factors).enumerate() {
                    let error = error(x, &by_factors.into_iter().map(to_c64).collect::<Vec<_>>());
                    let allowed = 4.0 * tolerance::<T>(m);
                    assert!(error < allowed, "gradient {i} {:?} {n} {m} {form:?} {adjoint}: {error:e}", context.isa);
                }
            });
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn several_threads_reflect_as_one_does_in_every_precision() {
    of_all_types!(several_threads_reflect_as_one_does);
}

const STEPS: usize = 4;

/// `Re <g, h_t>` summed over the states `h_t = tanh(W h_{t-1} + x_t)`, or without the tanh; `h` are the inputs of `STEPS` steps.
fn loss_of_states<T: Scalar<Real = f64>>(problem: &Problem<T>, adjoint: bool) -> f64 {
    let (w, width) = (problem.explicit(), problem.h.len() / STEPS);
    let mut state = vec![c64::default(); width];
    let mut loss = 0.0;
    for (x, g) in problem.h.chunks(width).zip(problem.g.chunks(width)) {
        state = multiply::<c64>(problem.n, &w, &state, adjoint);
        for ((state, &x), &g) in state.iter_mut().zip(x).zip(g) {
            *state += to_c64(x);
            if !T::COMPLEX {
                *state = c64::new(state.re.tanh(), 0.0);
            }
            loss += (to_c64(g).conj() * *state).re;
        }
    }
    loss
}

fn gradients_of_sequences_are_derivatives<T: Scalar<Real = f64>>() {
    let shapes = [(5, 5), (6, 9), (16, 33), (20, 3)];
    for (form, tau) in [(Form::Full, Tau::Own), (Form::Full, Tau::Any), (Form::Full, Tau::Reflecting)]
        .into_iter()
        .chain([(Form::UnitTrapezoidal, Tau::Any), (Form::UnitTrapezoidal, Tau::Reflecting)])
    {
        for (n, m) in shapes.into_iter().filter(|(n, m)| form == Form::Full || m <= n) {
            let mut problem = Problem::<T>::new((n, m, STEPS * 3), form, tau);
            problem.phases = None;
            for (adjoint, method, with_tape) in [false, true].into_iter().flat_map(|adjoint| {
                [(Method::Wy, false), (Method::Wy, true), (Method::Dense, true)].map(|(a, b)| (adjoint, Some(a), b))
            }) {
                let (operator, steps) = (problem.operator(adjoint, method), Steps::uniform(STEPS, 3).unwrap());
                let activation = if T::COMPLEX { Activation::Identity } else { Activation::Tanh };
                let sequence = Sequence { activation, ..Sequence::new(operator, steps, Series::new(&problem.h)) };
                let mut context = Context::default();
                let mut h = vec![T::ZERO; problem.h.len()];
                let mut tape = vec![T::ZERO; STEPS * 3 * sequence.tape_width().unwrap()];
                let kept = with_tape.then_some(&mut tape[..]);
                let saved =
                    rnn::forward_and_save(&mut context, &sequence, States { tape: kept, ..States::new(&mut h) })
                        .unwrap();
                let (mut grad_u, mut grad_tau) = (vec![T::ONE; n * m], problem.tau.as_ref().map(|_| vec![T::ONE; m]));
                let gradients = SequenceGradients {
                    u: Some(&mut grad_u),
                    tau: grad_tau.as_deref_mut(),
                    ..SequenceGradients::default()
                };
                let cotangents = Cotangents { h: Some(Series::new(&problem.g)), last: None };
                let tape = with_tape.then_some(&tape[..]);
                let saved = with_tape.then_some(&saved);
                rnn::backward(&mut context, &sequence, Trace { h: &h, saved, tape }, cotangents, gradients).unwrap();
                let about = format!("{n} {m} {form:?} {tau:?} {adjoint} {method:?}");
                let loss = |problem: &Problem<T>| loss_of_states(problem, adjoint);
                compare(&problem, &grad_u, grad_tau.as_deref(), None, loss, &about);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn gradients_of_sequences_of_every_form_are_derivatives() {
    gradients_of_sequences_are_derivatives::<f64>();
    gradients_of_sequences_are_derivatives::<c64>();
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn columns_of_any_size_reflect_and_zero_ones_do_not() {
    for exponent in [-290, -20, 20, 290] {
        let mut problem = Problem::<f64>::new((20, 30, 4), Form::Full, Tau::Own);
        let scale = 10_f64.powi(exponent);
        (0..20).for_each(|i| problem.u[i * 30 + 7] = 0.0);
        let w = problem.explicit();
        problem.u.iter_mut().for_each(|x| *x *= scale);
        with_each_instruction_set(|context| {
            for method in Method::ALL {
                let mut c = vec![0.0; 80];
                let operator = problem.operator(false, Some(method));
                apply::forward(context, &operator, &problem.h, &mut c).unwrap();
                assert!(
                    error(&c, &multiply(20, &w, &problem.h, false)) < tolerance::<f64>(30),
                    "{exponent} {method:?}"
                );
                let mut grad_u = vec![1.0; 600];
                let gradients = Gradients { u: Some(&mut grad_u), ..Gradients::default() };
                apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
                assert!((0..20).all(|i| grad_u[i * 30 + 7] == 0.0) && grad_u.iter().all(|x| x.is_finite()));
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn what_does_not_belong_to_the_columns_is_not_read() {
    let mut problem = Problem::<f32>::new((40, 40, 3), Form::UnitTrapezoidal, Tau::Reflecting);
    (0..40).for_each(|i| problem.u[i * 40 + i..(i + 1) * 40].fill(f32::NAN));
    let w = problem.explicit();
    with_each_instruction_set(|context| {
        for method in Method::ALL {
            let mut c = vec![0.0; 120];
            apply::forward(context, &problem.operator(false, Some(method)), &problem.h, &mut c).unwrap();
            assert!(error(&c, &multiply(40, &w, &problem.h, false)) < tolerance::<f32>(40));
        }
    });
}
