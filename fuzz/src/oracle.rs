//! Explicit reflections in double precision, and gradients by the product rule.

use householder::number::{Number, Real, c64};
use householder::scalar::Scalar;

/// In double precision.
pub fn to_c64<T: Scalar>(x: T) -> c64 {
    c64::new(x.widen().re(), x.widen().im())
}

/// The unit of rounding.
pub fn epsilon<T: Scalar>() -> f64 {
    T::Real::EPSILON.to_f64()
}

/// Euclidean norm, without overflow or underflow.
pub fn norm(x: &[c64]) -> f64 {
    x.iter().fold(0.0, |norm: f64, x| norm.hypot(x.re).hypot(x.im))
}

/// `|u_j|`, without overflow; none where it is so small that the column is the identity.
pub fn reflecting_norm<T: Scalar>(n: usize, m: usize, u: &[T], j: usize) -> Option<f64> {
    let norm = norm(&(j..n).map(|i| to_c64(u[i * m + j])).collect::<Vec<_>>());
    (norm >= T::Real::MIN_POSITIVE.to_f64()).then_some(norm)
}

/// The factors of `W`: unit vectors, each without the zeros before its first coordinate (empty: the identity), their
/// lengths as they were given, and the diagonal.
pub struct Oracle {
    n: usize,
    m: usize,
    columns: Vec<(Vec<c64>, f64)>,
    diagonal: Vec<c64>,
    phases: bool,
}

/// The gradients of `Re <g, W h>`, or of `Re <g, W* h>`, summed over rows.
pub struct Gradients {
    /// `(n, m)`.
    pub u: Vec<c64>,
    /// `(n,)`, or empty.
    pub phases: Vec<f64>,
}

impl Oracle {
    /// Of `U (n, m)` and phases.
    pub fn new<T: Scalar>(n: usize, m: usize, u: &[T], phases: Option<&[T::Real]>) -> Self {
        let columns = (0..if m == n { n - 1 } else { m })
            .map(|j| {
                let Some(norm) = reflecting_norm(n, m, u, j) else { return (Vec::new(), 1.0) };
                // In two steps: 1 / norm may overflow.
                let half = norm.sqrt();
                ((j..n).map(|i| to_c64(u[i * m + j]) / half / half).collect(), norm)
            })
            .collect();
        let mut diagonal = vec![c64::new(1.0, 0.0); n];
        if let Some(phases) = phases {
            diagonal.iter_mut().zip(phases).for_each(|(d, theta)| *d = c64::new(0.0, theta.to_f64()).exp());
        } else if m == n {
            diagonal[n - 1] = to_c64(u[n * n - 1]);
        }
        Self { n, m, columns, diagonal, phases: phases.is_some() }
    }

    /// `W h`, or `W* h`, for each row.
    pub fn apply(&self, h: &[c64], adjoint: bool) -> Vec<c64> {
        let mut out = h.to_vec();
        if adjoint {
            self.columns.iter().for_each(|(v, _)| reflect(self.n, v, &mut out));
        }
        for (i, x) in out.iter_mut().enumerate() {
            let d = self.diagonal[i % self.n];
            *x *= if adjoint { d.conj() } else { d };
        }
        if !adjoint {
            self.columns.iter().rev().for_each(|(v, _)| reflect(self.n, v, &mut out));
        }
        out
    }

    /// `W`, row-major.
    pub fn matrix(&self) -> Vec<c64> {
        let n = self.n;
        let identity: Vec<_> = (0..n * n).map(|k| c64::from(f64::from(u8::from(k / n == k % n)))).collect();
        self.apply(&identity, true).into_iter().map(|w| w.conj()).collect()
    }

    /// With `G = dL/dH_j`: `dL/dv = -2 (G + G*) v + 4 Re(v* G v) v` for a unit vector `v`. `G` is the sum of `a b*` over
    /// rows, `a` the gradient that has come through the factors before, `b` what has come through those behind.
    pub fn gradients(&self, h: &[c64], g: &[c64], adjoint: bool) -> Gradients {
        let (n, m) = (self.n, self.m);
        let (before, behind) = if adjoint { (h, g) } else { (g, h) };
        let (mut a, mut b) = (before.to_vec(), self.apply(behind, false));
        let mut u = vec![c64::default(); n * m];
        for (j, (v, norm)) in self.columns.iter().enumerate() {
            reflect(n, v, &mut b);
            let mut of_v = vec![c64::default(); v.len()];
            let mut inner = 0.0;
            for (a, b) in a.chunks(n).zip(b.chunks(n)) {
                let [a, b] = [a, b].map(|x| &x[n - v.len()..]);
                let (along_a, along_b) = (dot(a, v), dot(b, v));
                inner += (along_a.conj() * along_b).re;
                of_v.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * along_b + b * along_a);
            }
            for (i, (of_v, v)) in of_v.iter().zip(v).enumerate() {
                u[(j + i) * m + j] = (4.0 * inner * v - 2.0 * of_v) / norm;
            }
            reflect(n, v, &mut a);
        }
        let of_diagonal =
            |j: usize| -> c64 { a.iter().zip(behind).skip(j).step_by(n).map(|(a, b)| a.conj() * b).sum() };
        if m == n && !self.phases {
            u[n * n - 1] = of_diagonal(n - 1);
        }
        let phase = |j: usize| (of_diagonal(j) * c64::new(0.0, 1.0) * self.diagonal[j]).re;
        Gradients { u, phases: if self.phases { (0..n).map(phase).collect() } else { Vec::new() } }
    }
}

/// `x* v`.
fn dot(x: &[c64], v: &[c64]) -> c64 {
    x.iter().zip(v).map(|(x, v)| x.conj() * v).sum()
}

/// `x - 2 v v* x` for each row.
fn reflect(n: usize, v: &[c64], rows: &mut [c64]) {
    for row in rows.chunks_mut(n) {
        let row = &mut row[n - v.len()..];
        let product = 2.0 * dot(v, row);
        row.iter_mut().zip(v).for_each(|(x, v)| *x -= product * v);
    }
}

/// Fails where results differ by more than rounding does, relative to the largest number that they were made of.
pub fn compare<T: Scalar>(what: &str, got: &[T], want: &[c64], made_of: &[c64], roundings: f64) {
    let scale = made_of.iter().map(|x| x.norm()).fold(1e9 * T::Real::MIN_POSITIVE.to_f64(), f64::max);
    let allowed = 64.0 * epsilon::<T>() * roundings * scale;
    for (i, (&got, want)) in got.iter().zip(want).enumerate() {
        let got = to_c64(got);
        let error = (got - want).norm();
        assert!(
            error <= allowed,
            "{what}[{i}] is {got:e}, expected {want:e}: differs by {error:e}, allowed {allowed:e}"
        );
    }
}
