//! Applications that are special: large vectors, what is kept, gradients of `W`, its factors, columns of any size, NaN.
//! All others are in `forms.rs`.

use crate::common::problem::{Problem, Tau};
use crate::common::{
    error, explicit, multiply, number_of_threads, of_all_types, to_c64, tolerance, with_each_instruction_set,
};
use householder::apply::{self, Gradients};
use householder::factor;
use householder::method::Method;
use householder::number::{Number, Real, c64};
use householder::operator::{Form, Operator};
use householder::scalar::Scalar;
use proptest::prelude::*;

fn large_vectors_apply_as_explicit_reflections<T: Scalar>() {
    let set_num_threads = number_of_threads();
    for (n, m, rows) in [(300, 40, 70), (260, 170, 11), (519, 33, 3), (1030, 9, 2)] {
        let mut problem = Problem::<T>::trapezoidal(1, (n, m, rows));
        for (i, row) in problem.u.chunks_mut(m).enumerate() {
            row[1] = row[1].scale(T::Real::of(1e-12));
            row[2] = row[2].scale(T::Real::of(1e12));
            row[3] = T::ZERO;
            row[4] = if i < n - 5 { T::ZERO } else { row[4] };
        }
        problem.phases = None;
        let w = problem.explicit();
        with_each_instruction_set(|context| {
            for (method, adjoint) in [(Method::Wy, false), (Method::Reflections, false), (Method::Reflections, true)] {
                let [alone, together] = [1, 2].map(|threads| {
                    set_num_threads(threads);
                    let mut c = vec![T::ZERO; rows * n];
                    let operator = problem.operator(adjoint, Some(method));
                    apply::forward(context, &operator, &problem.h, &mut c).unwrap();
                    c
                });
                let error = error(&alone, &multiply(n, &w, &problem.h, adjoint));
                assert!(error < tolerance::<T>(m), "{:?} {n} {m} {method:?} {adjoint}: {error:e}", context.isa);
                assert_eq!(alone, together, "{:?} {n} {m} {method:?} {adjoint}", context.isa);
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn large_vectors_apply_whatever_the_sizes_of_columns_and_the_number_of_threads() {
    of_all_types!(large_vectors_apply_as_explicit_reflections);
}

/// A backward pass may run twice: it leaves what is kept as it was.
fn what_a_forward_pass_keeps_serves_the_backward_pass<T: Scalar>() {
    for (n, m, rows) in [(7, 4, 8), (33, 31, 33), (130, 100, 1100)] {
        let problem = Problem::<T>::trapezoidal(2, (n, m, rows));
        for adjoint in [false, true] {
            with_each_instruction_set(|context| {
                let operator = problem.operator(adjoint, Some(Method::Wy));
                let [mut c, mut grad_h] = [vec![T::ZERO; rows * n], vec![T::ZERO; rows * n]];
                let mut grad_u = vec![T::ONE; n * m];
                let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), ..Gradients::default() };
                apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
                let want = [grad_u, grad_h].map(|x| x.into_iter().map(to_c64).collect::<Vec<_>>());
                let saved = apply::forward_and_save(context, &operator, &problem.h, &mut c).unwrap();
                for _ in 0..2 {
                    let [mut grad_u, mut grad_h] = [vec![T::ONE; n * m], vec![T::ZERO; rows * n]];
                    let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), ..Gradients::default() };
                    apply::backward(context, &operator, &problem.h, &problem.g, gradients, saved.as_ref()).unwrap();
                    for (found, want) in [grad_u, grad_h].iter().zip(&want) {
                        assert!(error(found, want) < tolerance::<T>(m), "{n} {m} {rows} {adjoint}");
                    }
                }
            });
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn what_a_forward_pass_keeps_serves_the_backward_pass_in_every_precision() {
    of_all_types!(what_a_forward_pass_keeps_serves_the_backward_pass);
}

fn a_gradient_of_w_is_that_of_its_columns<T: Scalar>() {
    let trapezoids = [(1, 1), (2, 1), (3, 3), (8, 8), (15, 3), (17, 5), (31, 30), (33, 32), (64, 63)];
    let full = [(2, 5), (7, 7), (16, 33), (17, 5), (33, 70)];
    for (form, (n, m)) in
        trapezoids.map(|shape| (Form::Trapezoidal, shape)).into_iter().chain(full.map(|shape| (Form::Full, shape)))
    {
        let problem = Problem::<T>::new((n, m, n), form, Tau::Own);
        let mut unit_vectors = vec![T::ZERO; n * n];
        let mut transposed = unit_vectors.clone();
        for i in 0..n {
            unit_vectors[i * n + i] = T::ONE;
            (0..n).for_each(|j| transposed[i * n + j] = problem.g[j * n + i]);
        }
        with_each_instruction_set(|context| {
            let operator = problem.operator(false, Some(Method::Wy));
            let mut want = vec![T::ONE; n * m];
            let gradients = Gradients { u: Some(&mut want), ..Gradients::default() };
            apply::backward(context, &operator, &unit_vectors, &transposed, gradients, None).unwrap();
            let want: Vec<c64> = want.into_iter().map(to_c64).collect();
            // Problems of one task share a workspace.
            let (twice, nan) = (problem.u.repeat(2), vec![T::from_real(T::Real::of(f64::NAN)); n * n]);
            let both = Operator::with_form([2, n, m], &twice, form, None).unwrap();
            let (grad_w, mut grad_u) = ([nan, problem.g.clone()].concat(), vec![T::ONE; 2 * n * m]);
            apply::matrix_backward(context, &both, &grad_w, &mut grad_u, None).unwrap();
            let error = error(&grad_u[n * m..], &want);
            assert!(error < 4.0 * tolerance::<T>(m), "{:?} {form:?} {n} {m}: {error:e}", context.isa);
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn a_gradient_of_w_is_that_of_its_columns_after_nan() {
    a_gradient_of_w_is_that_of_its_columns::<f32>();
    a_gradient_of_w_is_that_of_its_columns::<f64>();
}

fn factor_inverts_matrix<T: Scalar>(n: usize, seed: u64) {
    let m = if T::COMPLEX { n - 1 } else { n };
    if m == 0 {
        return;
    }
    let mut problem = Problem::<T>::trapezoidal(seed, (n, m, 1));
    if m == n {
        problem.u[n * n - 1] = if seed.is_multiple_of(3) { -T::ONE } else { T::ONE };
    }
    with_each_instruction_set(|context| {
        let mut w = vec![T::ZERO; n * n];
        apply::matrix(context, &problem.operator(false, None), &mut w).unwrap();
        let mut u = vec![T::ZERO; n * m];
        let mut phases = vec![T::Real::ZERO; n];
        let wanted = T::COMPLEX.then_some(&mut phases[..]);
        let residual = factor::factor(context, n, m, &w, &mut u, wanted).unwrap();
        assert!(residual < tolerance::<T>(n) * 4.0, "{n}: {residual:e}");
        let again = explicit(n, m, &u, T::COMPLEX.then_some(&phases[..]));
        assert!(error(&w, &again) < tolerance::<T>(n) * 4.0);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore)] // which takes long for so many numbers
    fn every_orthogonal_matrix_is_a_product_of_reflections(n in 1_usize..40, seed in 0_u64..1000) {
        factor_inverts_matrix::<f64>(n, seed);
        factor_inverts_matrix::<f32>(n, seed);
        factor_inverts_matrix::<c64>(n, seed);
    }

    #[test]
    #[cfg_attr(miri, ignore)] // which takes long for so many numbers
    fn scale_of_a_reflection_is_irrelevant(n in 2_usize..40, exponent in -290_i32..290, seed in 0_u64..1000) {
        let m = 1 + seed as usize % (n - 1);
        let problem = Problem::<f64>::trapezoidal(seed, (n, m, 3));
        let mut scaled = problem.clone();
        scaled.u.iter_mut().for_each(|x| *x *= 10_f64.powi(exponent));
        with_each_instruction_set(|context| {
            for method in Method::ALL {
                let mut c = [vec![0.0; 3 * n], vec![0.0; 3 * n]];
                for (problem, c) in [&problem, &scaled].into_iter().zip(&mut c) {
                    let operator = problem.operator(false, Some(method));
                apply::forward(context, &operator, &problem.h, c).unwrap();
                }
                let want: Vec<c64> = c[0].iter().map(|&x| to_c64(x)).collect();
                assert!(error(&c[1], &want) < tolerance::<f64>(m));
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn a_zero_column_is_the_identity_and_gets_no_gradient() {
    let mut problem = Problem::<f64>::trapezoidal(1, (20, 6, 5));
    (0..20).for_each(|i| problem.u[i * 6 + 2] = 0.0);
    let w = problem.explicit();
    with_each_instruction_set(|context| {
        for method in Method::ALL {
            let (operator, mut c) = (problem.operator(false, Some(method)), vec![0.0; 100]);
            apply::forward(context, &operator, &problem.h, &mut c).unwrap();
            assert!(error(&c, &multiply(20, &w, &problem.h, false)) < tolerance::<f64>(6));
            let mut grad_u = vec![1.0; 120];
            let gradients = Gradients { u: Some(&mut grad_u), ..Gradients::default() };
            apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
            assert!((0..20).all(|i| grad_u[i * 6 + 2] == 0.0) && grad_u.iter().all(|x| x.is_finite()));
        }
    });
}

/// The states of a tape give the factor of a reflection at its largest entry, which a zero column does not have.
#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn a_zero_column_behind_others_has_no_factor_on_a_tape() {
    let (n, m, rows) = (40, 34, 2);
    let mut problem = Problem::<f64>::trapezoidal(1, (n, m, rows));
    problem.u[(n - 1) * m] = 10.0;
    (0..n).for_each(|i| problem.u[i * m + 32] = 0.0);
    with_each_instruction_set(|context| {
        for adjoint in [false, true] {
            let w = problem.operator(adjoint, None);
            let [mut expected, mut grad_u] = [vec![1.0; n * m], vec![1.0; n * m]];
            let gradients = Gradients { u: Some(&mut expected), ..Gradients::default() };
            apply::backward(context, &w, &problem.h, &problem.g, gradients, None).unwrap();
            let mut tape = vec![0.0; rows * (m + 1) * n];
            apply::forward_tape(context, &w, &problem.h, &mut tape).unwrap();
            let gradients = Gradients { u: Some(&mut grad_u), ..Gradients::default() };
            apply::backward_tape(context, &w, &tape, &problem.g, gradients).unwrap();
            let expected: Vec<c64> = expected.into_iter().map(to_c64).collect();
            assert!(error(&grad_u, &expected) < tolerance::<f64>(m), "adjoint: {adjoint}");
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn nan_propagates() {
    for method in Method::ALL {
        let mut problem = Problem::<f32>::trapezoidal(1, (20, 6, 5));
        problem.h[7] = f32::NAN;
        with_each_instruction_set(|context| {
            let mut c = vec![0.0; 100];
            let operator = problem.operator(false, Some(method));
            apply::forward(context, &operator, &problem.h, &mut c).unwrap();
            assert!(c[..20].iter().all(|x| x.is_nan()) && c[20..].iter().all(|x| x.is_finite()));
        });
    }
}
