//! Factorisation: what any product of reflections needs, and what rounding may cost.

use crate::common::{
    Random, error, explicit, number_of_threads, of_all_types, to_c64, tolerance, with_each_instruction_set,
};
use householder::factor::factor;
use householder::number::{Number, Real};
use householder::scalar::Scalar;
use householder::threads::Context;

/// Row-major product of reflections along arbitrary vectors (not trapezoidal ones), each with few nonzero entries.
fn product_of_reflections<T: Scalar<Real = R>, R: Real>(n: usize, vectors: &[Vec<f64>]) -> Vec<T> {
    let mut q = vec![0.0; n * n];
    (0..n).for_each(|i| q[i * n + i] = 1.0);
    for v in vectors {
        let square: f64 = v.iter().map(|v| v * v).sum();
        for row in q.chunks_mut(n) {
            let factor = 2.0 / square * row.iter().zip(v).map(|(q, v)| q * v).sum::<f64>();
            row.iter_mut().zip(v).for_each(|(q, v)| *q -= factor * v);
        }
    }
    q.into_iter().map(|x| T::from_real(R::of(x))).collect()
}

/// The larger number, NaN if one is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a >= b { a } else { b }
}

/// Residual, and the error of the product of the reflections found.
fn factored<T: Scalar>(n: usize, m: usize, q: &[T]) -> (f64, f64) {
    let mut worst = (0.0_f64, 0.0_f64);
    with_each_instruction_set(|context| {
        let mut u = vec![T::ZERO; n * m];
        let mut phases = vec![T::Real::ZERO; n];
        let residual = factor(context, n, m, q, &mut u, T::COMPLEX.then_some(&mut phases[..])).unwrap();
        for j in 0..m {
            let norm: f64 = (0..n).map(|i| to_c64(u[i * m + j]).norm_sqr()).sum();
            assert!((norm - 1.0).abs() < 1e-5, "unit columns");
            assert!((0..j).all(|i| u[i * m + j] == T::ZERO), "trapezoidal");
        }
        let again = explicit(n, m, &u, T::COMPLEX.then_some(&phases[..]));
        worst = (larger(worst.0, residual), larger(worst.1, error(q, &again)));
    });
    worst
}

fn recovers_sparse_products<T: Scalar<Real = R>, R: Real>() {
    for (seed, (n, k)) in [(4, 1), (9, 3), (40, 12), (70, 35), (101, 99)].into_iter().enumerate() {
        let mut random = Random(seed as u64);
        // Vectors along a few coordinates: most columns of the product need no reflection, anywhere in the matrix.
        let vectors: Vec<Vec<f64>> = (0..k)
            .map(|j| (0..n).map(|i| if (i * 7 + j * 5) % 4 == 0 { random.real() } else { 0.0 }).collect())
            .collect();
        let q = product_of_reflections::<T, R>(n, &vectors);
        let (residual, error) = factored(n, k, &q);
        assert!(
            residual < 4.0 * tolerance::<T>(n) && error < 4.0 * tolerance::<T>(n),
            "{n} {k}: {residual:e} {error:e}"
        );
        if k > 1 {
            assert!(factored(n, k - 1, &q).0 > 1e-3, "one reflection less leaves a determinant of the wrong sign");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn any_product_of_reflections_is_found_with_as_many() {
    recovers_sparse_products::<f64, _>();
    recovers_sparse_products::<f32, _>();
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn more_reflections_than_needed_do_no_harm() {
    let swap =
        product_of_reflections::<f64, _>(50, &[(0..50).map(|i| f64::from(i == 30) - f64::from(i == 31)).collect()]);
    for m in [1, 3, 49, 50] {
        let (residual, error) = factored(50, m, &swap);
        assert!(residual < 1e-14 && error < 1e-14, "{m}: {residual:e} {error:e}");
    }
}

/// A product of plane rotations by `angle`, with phases when complex.
fn rotations<T: Scalar>(n: usize, angle: f64) -> Vec<T> {
    let mut q = vec![<T::Wide as Number>::ZERO; n * n];
    (0..n).for_each(|i| q[i * n + i] = <T::Wide as Number>::unit(angle * i as f64));
    for i in 0..n - 1 {
        let (sin, cos) = (angle * (1.0 + i as f64 / n as f64)).sin_cos();
        for row in q.chunks_mut(n) {
            let (a, b) = (row[i], row[i + 1]);
            row[i] = a.scale(cos) + b.scale(sin);
            row[i + 1] = b.scale(cos) - a.scale(sin);
        }
    }
    q.into_iter().map(T::narrow).collect()
}

fn factors_rotations<T: Scalar>() {
    for n in [2, 33, 65, 130] {
        for angle in [1.0, 1e-4, 1e-8, 1e-20, 1e-40, 1e-170] {
            let (residual, error) = factored::<T>(n, if T::COMPLEX { n - 1 } else { n }, &rotations(n, angle));
            let allowed = tolerance::<T>(n);
            assert!(residual < allowed && error < allowed, "{n} {angle:e}: {residual:e} {error:e}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn rotations_by_any_angle_are_factored_to_rounding() {
    of_all_types!(factors_rotations);
}

/// One thread reduces the next panel while others are busy with the columns behind it.
fn several_threads_factor_as_one_does<T: Scalar>() {
    let set_num_threads = number_of_threads();
    for n in [163, 330] {
        let (q, m) = (rotations::<T>(n, 1.0), if T::COMPLEX { n - 1 } else { n });
        let [alone, together] = [1, 2].map(|threads| {
            set_num_threads(threads);
            let (mut u, mut phases) = (vec![T::ZERO; n * m], vec![T::Real::ZERO; n]);
            let phases = T::COMPLEX.then_some(&mut phases[..]);
            let residual = factor(&mut Context::default(), n, m, &q, &mut u, phases).unwrap();
            assert!(residual < tolerance::<T>(n), "{n}: {residual:e}");
            u
        });
        assert_eq!(alone, together, "{n}");
    }
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn several_threads_factor_as_one_does_in_every_precision() {
    of_all_types!(several_threads_factor_as_one_does);
}

#[test]
fn nan_is_reported() {
    let mut q = rotations::<f64>(70, 0.3);
    q[40 * 70 + 50] = f64::NAN;
    with_each_instruction_set(|context| {
        assert!(factor(context, 70, 70, &q, &mut vec![0.0; 4900], None).unwrap().is_nan());
    });
}
