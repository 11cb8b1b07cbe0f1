//! `W h` and its gradients for arbitrary sizes, numbers, methods and instruction sets: right, and nothing out of bounds.

use householder::apply::{self, Diagonal, Gradients};
use householder::reflections::Reflections;
use householder::scalar::{Real, Scalar};
use householder::sequential;

use crate::oracle::{Oracle, compare, epsilon, norm, reflecting_norm, to_c64};
use crate::source::{Source, Wildness};

/// One problem.
pub fn check<T: Scalar>(source: &mut Source) {
    let (n, m, rows) = (source.size(), source.size(), source.size());
    let (method, adjoint, wildness) = (source.method(), source.one_in(2), source.wildness());
    let entries = source.reflections::<T>(n, m, wildness);
    let Ok(u) = Reflections::new(n, m, &entries) else {
        assert!(m == 0 || m > n || (T::COMPLEX && m == n), "{n} x {m} is refused");
        return;
    };
    let phases = (T::COMPLEX && source.one_in(2)).then(|| source.numbers::<T::Real>(n, wildness));
    let diagonal = Diagonal::new(u, phases.as_deref()).expect("phases of the right length");
    let (h, g) = (source.numbers::<T>(rows * n, wildness), source.numbers::<T>(rows * n, wildness));

    let mut c = vec![T::ONE; rows * n];
    let mut grad_h = vec![T::ONE; rows * n];
    let mut grad_u = vec![T::ONE; n * m];
    let mut grad_phases = phases.as_ref().map(|phases| vec![T::Real::ONE; phases.len()]);
    let with_tape = source.one_in(4);
    source.call(|context| {
        let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), phases: grad_phases.as_deref_mut() };
        if with_tape {
            let mut tape = vec![T::ONE; rows * (m + 1) * n];
            sequential::forward_tape(context, u, &diagonal, &h, &mut tape, adjoint).expect("forward_tape");
            for (c, tape) in c.chunks_mut(n).zip(tape.chunks((m + 1) * n)) {
                c.copy_from_slice(&tape[..n]);
            }
            sequential::backward_tape(context, u, &diagonal, &tape, &g, gradients, adjoint).expect("backward_tape");
        } else {
            apply::forward(context, u, &diagonal, &h, &mut c, adjoint, method).expect("forward");
            apply::backward(context, u, &diagonal, &h, &g, gradients, adjoint, method).expect("backward");
        }
    });
    for (k, grad) in grad_u.iter().enumerate() {
        assert!(k % m <= k / m || *grad == T::ZERO, "a gradient above the diagonal");
    }
    if wildness == Wildness::Anything {
        return;
    }
    let oracle = Oracle::new(n, m, &entries, phases.as_deref());
    let [wide_h, wide_g] = [&h, &g].map(|x| x.iter().map(|&x| to_c64(x)).collect::<Vec<_>>());
    let roundings = (m as f64).sqrt() + 2.0;
    compare("c", &c, &oracle.apply(&wide_h, adjoint), &wide_h, roundings);
    compare("grad_h", &grad_h, &oracle.apply(&wide_g, !adjoint), &wide_g, roundings);
    // Gradients of small columns are large: relative to |g| |h| / |u| they are rounded as everything else.
    let want = oracle.gradients(&wide_h, &wide_g, adjoint);
    let size = norm(&wide_h) * norm(&wide_g);
    for j in 0..m {
        let column = if m == n && j == n - 1 { 1.0 } else { reflecting_norm(n, m, &entries, j).unwrap_or(1.0) };
        let allowed = 64.0 * epsilon::<T>() * roundings * size / column;
        if size / column > 1e-6 / T::Real::MIN_POSITIVE.to_f64() {
            continue; // a gradient of this size may overflow
        }
        for i in j..n {
            let error = (to_c64(grad_u[i * m + j]) - want.u[i * m + j]).norm();
            let allowed = allowed + T::Real::MIN_POSITIVE.to_f64();
            assert!(error <= allowed, "grad_u[{i}, {j}] of {n} x {m}: differs by {error:e}, allowed {allowed:e}");
        }
    }
    for (got, want) in grad_phases.iter().flatten().zip(&want.phases) {
        let error = (got.to_f64() - want).abs();
        assert!(
            error <= 64.0 * epsilon::<T>() * roundings * size + T::Real::MIN_POSITIVE.to_f64(),
            "grad_phases: {error:e}"
        );
    }
}
