//! One application: every method, number type and instruction set against explicit reflections.

use crate::common::{
    Random, error, explicit, has_time_for, multiply, number_of_threads, to_c64, tolerance, with_each_instruction_set,
};
use householder::apply::{self, Gradients};
use householder::factor;
use householder::method::Method;
use householder::number::{Number, Real, c32, c64};
use householder::operator::Operator;
use householder::scalar::Scalar;
use proptest::prelude::*;

/// Sizes up to which a matrix is formed in registers.
const SMALL: usize = 64;
const METHODS: [Method; 3] = [Method::Reflections, Method::Wy, Method::Dense];
/// Sizes around the edges of registers, panels, tiles and chunks.
const SHAPES: [(usize, usize, usize); 16] = [
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

fn shapes() -> impl Iterator<Item = (usize, usize, usize)> {
    SHAPES.into_iter().filter(|shape| has_time_for(shape.0))
}

struct Problem<T: Scalar> {
    n: usize,
    m: usize,
    u: Vec<T>,
    phases: Option<Vec<T::Real>>,
    h: Vec<T>,
    g: Vec<T>,
}

impl<T: Scalar> Problem<T> {
    fn new(n: usize, m: usize, rows: usize, seed: u64) -> Option<Self> {
        if T::COMPLEX && m == n {
            return None;
        }
        let mut random = Random(seed);
        let phases =
            (T::COMPLEX && seed.is_multiple_of(2)).then(|| (0..n).map(|_| T::Real::of(3.0 * random.real())).collect());
        Some(Self { n, m, u: random.numbers(n * m), phases, h: random.numbers(rows * n), g: random.numbers(rows * n) })
    }
    fn operator(&self, adjoint: bool, method: Option<Method>) -> Operator<'_, T> {
        let w = Operator::new([1, self.n, self.m], &self.u).unwrap();
        let w = if let Some(phases) = &self.phases { w.with_phases(phases).unwrap() } else { w };
        w.adjoint(adjoint).by(method)
    }
}

fn applies_as_explicit_reflections<T: Scalar>() {
    for (seed, (n, m, rows)) in shapes().enumerate() {
        let Some(problem) = Problem::<T>::new(n, m, rows, seed as u64) else { continue };
        let w = explicit(n, m, &problem.u, problem.phases.as_deref());
        with_each_instruction_set(|context| {
            for (method, adjoint) in METHODS.into_iter().flat_map(|method| [(method, false), (method, true)]) {
                let mut c = vec![T::ZERO; rows * n];
                let operator = problem.operator(adjoint, Some(method));
                apply::forward(context, &operator, &problem.h, &mut c).unwrap();
                let error = error(&c, &multiply(n, &w, &problem.h, adjoint));
                assert!(error < tolerance::<T>(m), "{:?} {method:?} {n} {m} {rows} {adjoint}: {error:e}", context.isa);
            }
            let mut matrix = vec![T::ZERO; n * n];
            apply::matrix(context, &problem.operator(false, None), &mut matrix).unwrap();
            assert!(error(&matrix, &w) < tolerance::<T>(m));
        });
    }
}

#[test]
fn f32_applies_as_explicit_reflections() {
    applies_as_explicit_reflections::<f32>();
}
#[test]
fn f64_applies_as_explicit_reflections() {
    applies_as_explicit_reflections::<f64>();
}
#[test]
fn c32_applies_as_explicit_reflections() {
    applies_as_explicit_reflections::<c32>();
}
#[test]
fn c64_applies_as_explicit_reflections() {
    applies_as_explicit_reflections::<c64>();
}

/// `L = Re <g, W h>` as a function of one entry of `U`.
fn large_vectors_apply_as_explicit_reflections<T: Scalar>() {
    let set_num_threads = number_of_threads();
    for (n, m, rows) in [(300, 40, 70), (519, 33, 3), (1030, 9, 2)] {
        let mut problem = Problem::<T>::new(n, m, rows, 1).unwrap();
        for (i, row) in problem.u.chunks_mut(m).enumerate() {
            row[1] = row[1].scale(T::Real::of(1e-12));
            row[2] = row[2].scale(T::Real::of(1e12));
            row[3] = T::ZERO;
            row[4] = if i < n - 5 { T::ZERO } else { row[4] };
        }
        let w = explicit(n, m, &problem.u, None);
        with_each_instruction_set(|context| {
            let [alone, together] = [1, 2].map(|threads| {
                set_num_threads(threads);
                let mut c = vec![T::ZERO; rows * n];
                let operator = problem.operator(false, Some(Method::Wy));
                apply::forward(context, &operator, &problem.h, &mut c).unwrap();
                c
            });
            let error = error(&alone, &multiply(n, &w, &problem.h, false));
            assert!(error < tolerance::<T>(m), "{:?} {n} {m}: {error:e}", context.isa);
            assert_eq!(alone, together, "{:?} {n} {m}", context.isa);
        });
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn large_vectors_apply_whatever_the_sizes_of_columns_and_the_number_of_threads() {
    large_vectors_apply_as_explicit_reflections::<f32>();
    large_vectors_apply_as_explicit_reflections::<f64>();
    large_vectors_apply_as_explicit_reflections::<c32>();
    large_vectors_apply_as_explicit_reflections::<c64>();
}

fn loss<T: Scalar>(p: &Problem<T>, u: &[T], phases: Option<&[T::Real]>, adjoint: bool) -> f64 {
    let c = multiply(p.n, &explicit(p.n, p.m, u, phases), &p.h, adjoint);
    p.g.iter().zip(&c).map(|(&g, c)| (to_c64(g).conj() * c).re).sum()
}

fn gradients_are_derivatives<T: Scalar<Real = f64>>() {
    for (seed, (n, m, rows)) in shapes().take(10).enumerate() {
        let Some(problem) = Problem::<T>::new(n, m, rows, seed as u64) else { continue };
        let w = explicit(n, m, &problem.u, problem.phases.as_deref());
        for (method, adjoint) in METHODS.into_iter().flat_map(|method| [(method, false), (method, true)]) {
            with_each_instruction_set(|context| {
                let mut grad_u = vec![T::ONE; n * m];
                let mut grad_h = vec![T::ONE; rows * n];
                let mut grad_phases = problem.phases.as_ref().map(|_| vec![0.0; n]);
                let gradients = Gradients {
                    u: Some(&mut grad_u),
                    h: Some(&mut grad_h),
                    tau: None,
                    phases: grad_phases.as_deref_mut(),
                };
                let operator = problem.operator(adjoint, Some(method));
                apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
                assert!(error(&grad_h, &multiply(n, &w, &problem.g, !adjoint)) < tolerance::<T>(m));
                let scale = grad_u.iter().map(|g| g.abs2().sqrt()).fold(1e-3, f64::max);
                let step = 1e-6;
                for (i, j) in (0..n).flat_map(|i| (0..m).map(move |j| (i, j))) {
                    if j > i {
                        assert_eq!(grad_u[i * m + j], T::ZERO, "zero above the diagonal");
                        continue;
                    }
                    if (i * 7 + j * 3) % 11 > 1 {
                        continue; // a sample suffices
                    }
                    let along = |direction: T| {
                        let mut moved = problem.u.clone();
                        moved[i * m + j] = problem.u[i * m + j] + direction.scale(step);
                        let ahead = loss(&problem, &moved, problem.phases.as_deref(), adjoint);
                        moved[i * m + j] = problem.u[i * m + j] - direction.scale(step);
                        (ahead - loss(&problem, &moved, problem.phases.as_deref(), adjoint)) / (2.0 * step)
                    };
                    let difference = (grad_u[i * m + j].re() - along(T::ONE)).abs();
                    assert!(
                        difference < 1e-7 * scale,
                        "{method:?} {n} {m} {rows} {adjoint} ({i}, {j}): {difference:e}"
                    );
                    if T::COMPLEX {
                        let imaginary = T::unit(std::f64::consts::FRAC_PI_2);
                        assert!((grad_u[i * m + j].im() - along(imaginary)).abs() < 1e-7 * scale);
                    }
                }
                if let (Some(grad), Some(phases)) = (&grad_phases, &problem.phases) {
                    for j in 0..n {
                        let mut moved = phases.clone();
                        moved[j] = phases[j] + step;
                        let ahead = loss(&problem, &problem.u, Some(&moved), adjoint);
                        moved[j] = phases[j] - step;
                        let numeric = (ahead - loss(&problem, &problem.u, Some(&moved), adjoint)) / (2.0 * step);
                        assert!((grad[j] - numeric).abs() < 1e-7 * scale.max(rows as f64));
                    }
                }
            });
        }
    }
}

#[test]
fn real_gradients_are_derivatives() {
    gradients_are_derivatives::<f64>();
}
#[test]
fn complex_gradients_are_derivatives() {
    gradients_are_derivatives::<c64>();
}

fn methods_agree_on_gradients<T: Scalar>() {
    for (seed, (n, m, rows)) in shapes().enumerate() {
        let Some(problem) = Problem::<T>::new(n, m, rows, seed as u64) else { continue };
        for adjoint in [false, true] {
            with_each_instruction_set(|context| {
                let run = |context: &mut _, method| {
                    let mut grad_u = vec![T::ONE; n * m];
                    let gradients = Gradients { u: Some(&mut grad_u), h: None, tau: None, phases: None };
                    let operator = problem.operator(adjoint, method);
                    apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
                    grad_u
                };
                let want: Vec<c64> = run(context, Some(Method::Reflections)).into_iter().map(to_c64).collect();
                for method in [None, Some(Method::Wy), Some(Method::Dense)] {
                    let error = error(&run(context, method), &want);
                    assert!(error < 4.0 * tolerance::<T>(m), "{method:?} {n} {m} {rows} {adjoint}: {error:e}");
                }
                let (operator, mut tape) = (problem.operator(adjoint, None), vec![T::ZERO; rows * (m + 1) * n]);
                apply::forward_tape(context, &operator, &problem.h, &mut tape).unwrap();
                let mut grad_u = vec![T::ONE; n * m];
                let gradients = Gradients { u: Some(&mut grad_u), h: None, tau: None, phases: None };
                apply::backward_tape(context, &operator, &tape, &problem.g, gradients).unwrap();
                assert!(error(&grad_u, &want) < tolerance::<T>(m));
            });
        }
    }
}

#[test]
fn methods_agree_on_gradients_in_every_precision() {
    methods_agree_on_gradients::<f32>();
    methods_agree_on_gradients::<f64>();
    methods_agree_on_gradients::<c32>();
    methods_agree_on_gradients::<c64>();
}

/// A backward pass may run twice: it leaves what is kept as it was.
fn what_a_forward_pass_keeps_serves_the_backward_pass<T: Scalar>() {
    for (seed, (n, m, rows)) in shapes().chain((!cfg!(miri)).then_some((130, 100, 1100))).enumerate() {
        let Some(problem) = Problem::<T>::new(n, m, rows, seed as u64) else { continue };
        for adjoint in [false, true] {
            with_each_instruction_set(|context| {
                let operator = problem.operator(adjoint, Some(Method::Wy));
                let [mut c, mut grad_h] = [vec![T::ZERO; rows * n], vec![T::ZERO; rows * n]];
                let mut grad_u = vec![T::ONE; n * m];
                let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), tau: None, phases: None };
                apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
                let want = [grad_u, grad_h].map(|x| x.into_iter().map(to_c64).collect::<Vec<_>>());
                let saved = apply::forward_and_save(context, &operator, &problem.h, &mut c).unwrap();
                for _ in 0..2 {
                    let [mut grad_u, mut grad_h] = [vec![T::ONE; n * m], vec![T::ZERO; rows * n]];
                    let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), tau: None, phases: None };
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
fn what_a_forward_pass_keeps_serves_the_backward_pass_in_every_precision() {
    what_a_forward_pass_keeps_serves_the_backward_pass::<f32>();
    what_a_forward_pass_keeps_serves_the_backward_pass::<f64>();
    what_a_forward_pass_keeps_serves_the_backward_pass::<c32>();
    what_a_forward_pass_keeps_serves_the_backward_pass::<c64>();
}

fn a_gradient_of_w_is_that_of_its_columns<T: Scalar>() {
    for (seed, (n, m, _)) in shapes().filter(|shape| shape.0 <= SMALL).enumerate() {
        let problem = Problem::<T>::new(n, m, n, seed as u64).unwrap();
        let mut unit_vectors = vec![T::ZERO; n * n];
        let mut transposed = unit_vectors.clone();
        for i in 0..n {
            unit_vectors[i * n + i] = T::ONE;
            (0..n).for_each(|j| transposed[i * n + j] = problem.g[j * n + i]);
        }
        with_each_instruction_set(|context| {
            let operator = problem.operator(false, Some(Method::Wy));
            let mut want = vec![T::ONE; n * m];
            let gradients = Gradients { u: Some(&mut want), h: None, tau: None, phases: None };
            apply::backward(context, &operator, &unit_vectors, &transposed, gradients, None).unwrap();
            let want: Vec<c64> = want.into_iter().map(to_c64).collect();
            // Problems of one task share a workspace.
            let (twice, nan) = (problem.u.repeat(2), vec![T::from_real(T::Real::of(f64::NAN)); n * n]);
            let both = Operator::new([2, n, m], &twice).unwrap();
            let (grad_w, mut grad_u) = ([nan, problem.g.clone()].concat(), vec![T::ONE; 2 * n * m]);
            apply::matrix_backward(context, &both, &grad_w, &mut grad_u, None).unwrap();
            let error = error(&grad_u[n * m..], &want);
            assert!(error < 4.0 * tolerance::<T>(m), "{:?} {n} {m}: {error:e}", context.isa);
        });
    }
}

#[test]
fn a_gradient_of_w_is_that_of_its_columns_after_nan() {
    a_gradient_of_w_is_that_of_its_columns::<f32>();
    a_gradient_of_w_is_that_of_its_columns::<f64>();
}

fn factor_inverts_matrix<T: Scalar>(n: usize, seed: u64) {
    let m = if T::COMPLEX { n - 1 } else { n };
    if m == 0 {
        return;
    }
    let mut problem = Problem::<T>::new(n, m, 1, seed).unwrap();
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
        let problem = Problem::<f64>::new(n, m, 3, seed).unwrap();
        let mut scaled = Problem::<f64>::new(n, m, 3, seed).unwrap();
        scaled.u.iter_mut().for_each(|x| *x *= 10_f64.powi(exponent));
        with_each_instruction_set(|context| {
            for method in METHODS {
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
    let mut problem = Problem::<f64>::new(20, 6, 5, 1).unwrap();
    (0..20).for_each(|i| problem.u[i * 6 + 2] = 0.0);
    let w = explicit(20, 6, &problem.u, None);
    with_each_instruction_set(|context| {
        for method in METHODS {
            let (operator, mut c) = (problem.operator(false, Some(method)), vec![0.0; 100]);
            apply::forward(context, &operator, &problem.h, &mut c).unwrap();
            assert!(error(&c, &multiply(20, &w, &problem.h, false)) < tolerance::<f64>(6));
            let mut grad_u = vec![1.0; 120];
            let gradients = Gradients { u: Some(&mut grad_u), h: None, tau: None, phases: None };
            apply::backward(context, &operator, &problem.h, &problem.g, gradients, None).unwrap();
            assert!((0..20).all(|i| grad_u[i * 6 + 2] == 0.0) && grad_u.iter().all(|x| x.is_finite()));
        }
    });
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn nan_propagates() {
    for method in METHODS {
        let mut problem = Problem::<f32>::new(20, 6, 5, 1).unwrap();
        problem.h[7] = f32::NAN;
        with_each_instruction_set(|context| {
            let mut c = vec![0.0; 100];
            let operator = problem.operator(false, Some(method));
            apply::forward(context, &operator, &problem.h, &mut c).unwrap();
            assert!(c[..20].iter().all(|x| x.is_nan()) && c[20..].iter().all(|x| x.is_finite()));
        });
    }
}
