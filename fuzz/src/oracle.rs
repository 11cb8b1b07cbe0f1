//! Explicit reflections in double precision, and gradients by the product rule.

use householder::scalar::{Real, Scalar, c64};

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

/// `W`, row-major, its unit vectors (empty: the identity), their lengths, and its diagonal factor.
pub struct Oracle {
    n: usize,
    m: usize,
    columns: Vec<(Vec<c64>, f64)>,
    diagonal: Vec<c64>,
    phases: bool,
    /// `W`.
    pub w: Vec<c64>,
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
        let columns: Vec<_> = (0..if m == n { n - 1 } else { m })
            .map(|j| {
                let Some(norm) = reflecting_norm(n, m, u, j) else { return (Vec::new(), 1.0) };
                // In two steps: 1 / norm may overflow.
                let half = norm.sqrt();
                (
                    (0..n).map(|i| if i < j { c64::default() } else { to_c64(u[i * m + j]) / half / half }).collect(),
                    norm,
                )
            })
            .collect();
        let mut diagonal = vec![c64::new(1.0, 0.0); n];
        if let Some(phases) = phases {
            diagonal.iter_mut().zip(phases).for_each(|(d, theta)| *d = c64::new(0.0, theta.to_f64()).exp());
        } else if m == n {
            diagonal[n - 1] = to_c64(u[n * n - 1]);
        }
        let mut w = identity(n);
        w.iter_mut().enumerate().for_each(|(i, w)| *w *= diagonal[i % n]);
        columns.iter().rev().for_each(|(v, _)| reflect_from_left(n, v, &mut w));
        Self { n, m, columns, diagonal, phases: phases.is_some(), w }
    }

    /// `W h`, or `W* h`, for each row.
    pub fn apply(&self, h: &[c64], adjoint: bool) -> Vec<c64> {
        multiply(self.n, &self.w, h, adjoint)
    }

    /// With `G = dL/dH_j`: `dL/dv = -2 (G + G*) v + 4 Re(v* G v) v` for a unit vector `v`.
    pub fn gradients(&self, h: &[c64], g: &[c64], adjoint: bool) -> Gradients {
        let (n, m) = (self.n, self.m);
        let (left, right) = if adjoint { (h, g) } else { (g, h) };
        let mut before = vec![c64::default(); n * n]; // F_{j-1} .. F_0 dL/dW, for the factors F of W
        for (left, right) in left.chunks(n).zip(right.chunks(n)) {
            before.iter_mut().enumerate().for_each(|(k, x)| *x += left[k / n] * right[k % n].conj());
        }
        let mut after = vec![identity(n)]; // D* F_{k-1} .. F_{j+1}
        after[0].iter_mut().enumerate().for_each(|(k, x)| *x *= self.diagonal[k / n].conj());
        for (v, _) in self.columns.iter().skip(1).rev() {
            let mut next = after[after.len() - 1].clone();
            reflect_from_right(n, v, &mut next);
            after.push(next);
        }
        let mut u = vec![c64::default(); n * m];
        for ((j, (v, norm)), after) in self.columns.iter().enumerate().zip(after.iter().rev()) {
            if v.is_empty() {
                continue;
            }
            let ahead = multiply(n, &before, &multiply(n, after, v, false), false);
            let back = multiply(n, after, &multiply(n, &before, v, true), true);
            let inner = v.iter().zip(&ahead).map(|(v, x)| (v.conj() * x).re).sum::<f64>();
            for i in j..n {
                u[i * m + j] = (4.0 * inner * v[i] - 2.0 * (ahead[i] + back[i])) / norm;
            }
            reflect_from_left(n, v, &mut before);
        }
        if m == n && !self.phases {
            u[n * n - 1] = before[n * n - 1];
        }
        let phase = |j: usize| (before[j * n + j].conj() * c64::new(0.0, 1.0) * self.diagonal[j]).re;
        Gradients { u, phases: if self.phases { (0..n).map(phase).collect() } else { Vec::new() } }
    }
}

fn identity(n: usize) -> Vec<c64> {
    (0..n * n).map(|k| c64::new(f64::from(u8::from(k / n == k % n)), 0.0)).collect()
}

fn reflect_from_left(n: usize, v: &[c64], w: &mut [c64]) {
    for j in 0..n.min(v.len()) {
        let product: c64 = (0..n).map(|i| v[i].conj() * w[i * n + j]).sum();
        (0..n).for_each(|i| w[i * n + j] -= 2.0 * product * v[i]);
    }
}

fn reflect_from_right(n: usize, v: &[c64], w: &mut [c64]) {
    for row in w.chunks_mut(n).take(v.len()) {
        let product: c64 = row.iter().zip(v).map(|(w, v)| w * v).sum();
        row.iter_mut().zip(v).for_each(|(w, v)| *w -= 2.0 * product * v.conj());
    }
}

fn multiply(n: usize, w: &[c64], h: &[c64], adjoint: bool) -> Vec<c64> {
    let mut out = Vec::with_capacity(h.len());
    for h in h.chunks(n) {
        for i in 0..n {
            out.push((0..n).map(|j| h[j] * if adjoint { w[j * n + i].conj() } else { w[i * n + j] }).sum());
        }
    }
    out
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
