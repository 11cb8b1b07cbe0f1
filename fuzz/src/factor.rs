//! Reflections of a matrix: of an orthogonal one the right ones, of any other a residual.

use householder::factor::factor;
use householder::number::{Number, Real};
use householder::scalar::Scalar;

use crate::call::{Results, bits, call};
use crate::oracle::{Oracle, epsilon, to_c64};
use crate::source::{Extent, Source, Wildness};

struct Factors<T: Scalar<Real: Scalar>> {
    u: Vec<T>,
    phases: Option<Vec<T::Real>>,
    residual: f64,
}

impl<T: Scalar<Real: Scalar>> Results for Factors<T> {
    fn bits(&self) -> Vec<u64> {
        [bits([Some(&self.u)]), bits([self.phases.as_ref()]), vec![self.residual.to_bits()]].concat()
    }
}

/// One problem.
pub fn check<T: Scalar<Real: Scalar>>(source: &mut Source) {
    let extent = source.extent();
    let n = if extent == Extent::Large { 100 + source.below(60) } else { source.size() };
    let n = n.max(1 + usize::from(T::COMPLEX));
    let full = n - usize::from(T::COMPLEX);
    let m = if T::COMPLEX { full } else { 1 + source.below(full) };
    let wildness = source.wildness();
    let run = |source: &mut Source, q: &[T]| {
        call(source, extent, |context| {
            let mut u = vec![T::ONE; n * m];
            let mut phases = T::COMPLEX.then(|| vec![T::Real::ONE; n]);
            let residual = factor(context, n, m, q, &mut u, phases.as_deref_mut()).expect("factor");
            Factors { u, phases, residual }
        })
    };
    if wildness != Wildness::Tame {
        let q = source.numbers::<T>(n * n, wildness);
        run(source, &q);
        return;
    }
    let mut entries = source.numbers::<T>(n * m, wildness);
    if m == n {
        entries[n * n - 1] = if source.one_in(2) { T::ONE } else { -T::ONE };
    }
    let angles = T::COMPLEX.then(|| source.numbers::<T::Real>(n, wildness));
    let w = Oracle::new(n, m, &entries, angles.as_deref()).matrix();
    let q: Vec<T> = w.iter().map(|w| T::from_parts(T::Real::of(w.re), T::Real::of(w.im))).collect();
    let Factors { u, phases, residual } = run(source, &q);
    let allowed = 64.0 * epsilon::<T>() * (n + 8) as f64;
    // With fewer reflections than any matrix needs, the result may miss working precision. The residual then says by how much.
    assert!(residual <= allowed || m < full, "residual of {n} x {m}: {residual:e}, allowed {allowed:e}");
    let again = Oracle::new(n, m, &u, phases.as_deref()).matrix();
    let error = q.iter().zip(&again).map(|(&q, w)| (to_c64(q) - w).norm()).fold(0.0, f64::max);
    let allowed = allowed + residual * n as f64;
    assert!(error <= allowed, "{n} x {m}: differs by {error:e}, allowed {allowed:e}");
}
