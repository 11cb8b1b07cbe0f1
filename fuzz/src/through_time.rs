//! Each state from the one before, for every activation; the gradients of U, x, V, b, h_0 and the phases from the states,
//! for pointwise activations. Rows stand in the order of time.

use householder::number::{Real, c64};
use householder::rnn::Sequence;
use householder::scalar::Scalar;

use crate::activation::{derivative, phi};
use crate::given::{Given, Outcome};
use crate::oracle::{Gradients, Oracle, compare, epsilon, norm, reflecting_norm, to_c64};

/// What came of a sequence, and what it should be.
pub struct Unrolled<'a, T: Scalar<Real: Scalar>> {
    oracle: &'a Oracle,
    given: &'a Given<T>,
    sequence: &'a Sequence<'a, T>,
    outcome: &'a Outcome<T>,
    h: Vec<c64>,
    /// `h_{t-1}` for each row.
    previous: Vec<c64>,
    x: Vec<c64>,
    input_weight: Option<Vec<c64>>,
    /// What results in between are made with.
    roundings: f64,
}

fn wide<T: Scalar<Real: Scalar>>(x: &[T]) -> Vec<c64> {
    x.iter().map(|&x| to_c64(x)).collect()
}

/// Whether gradients of such a size may overflow.
fn overflows<T: Scalar<Real: Scalar>>(size: f64) -> bool {
    size > 1e-6 / T::Real::MIN_POSITIVE.to_f64()
}

impl<'a, T: Scalar<Real: Scalar>> Unrolled<'a, T> {
    pub fn new(
        oracle: &'a Oracle,
        given: &'a Given<T>,
        sequence: &'a Sequence<'a, T>,
        outcome: &'a Outcome<T>,
    ) -> Self {
        let shape = &given.shape;
        let h = shape.in_time(&wide(&outcome.h), shape.n);
        let h0 = given.h0.as_deref().map_or_else(|| vec![c64::default(); shape.batch() * shape.n], wide);
        Self {
            oracle,
            given,
            sequence,
            outcome,
            previous: previous_states(shape.n, &shape.sizes, &h0, &h),
            h,
            x: shape.in_time(&wide(&given.x.rows), shape.d),
            input_weight: given.input_weight.as_deref().map(wide),
            roundings: (shape.m as f64).sqrt() + (shape.d as f64).sqrt() + 2.0,
        }
    }

    pub fn check_states(&self) {
        let (n, d) = (self.given.shape.n, self.given.shape.d);
        let mut a = self.oracle.apply(&self.previous, self.sequence.operator.is_adjoint());
        for (a, x) in a.chunks_mut(n).zip(self.x.chunks(d)) {
            for i in 0..n {
                a[i] += match &self.input_weight {
                    Some(v) => v[i * d..].iter().zip(x).map(|(v, x)| v * x).sum(),
                    None => x[i],
                };
                a[i] += self.given.bias.as_ref().map_or(c64::default(), |b| to_c64(b[i]));
            }
        }
        let scale = a.iter().map(|a| a.norm()).fold(1.0, f64::max);
        let allowed = 64.0 * epsilon::<T>() * self.roundings * scale;
        for (row, (h, a)) in self.h.chunks(n).zip(a.chunks(n)).enumerate() {
            let expected = phi(self.sequence.activation, a, T::COMPLEX);
            for (i, (h, expected)) in h.iter().zip(expected).enumerate() {
                let error = (h - expected).norm();
                assert!(error <= allowed, "h[{row}, {i}] is {h:e}, expected {expected:e}: differs by {error:e}");
            }
        }
    }

    pub fn check_gradients(&self) {
        let (shape, outcome) = (&self.given.shape, self.outcome);
        let (delta, grad_h0) = self.back();
        let long = self.roundings * (shape.sizes.len() as f64 + 1.0);
        if let Some(h0) = &outcome.h0 {
            compare("grad_h0", h0, &grad_h0, &delta, 8.0 * long);
        }
        if let Some(bias) = &outcome.bias {
            let sums: Vec<c64> = (0..shape.n).map(|i| delta.iter().skip(i).step_by(shape.n).sum()).collect();
            let allowed = 64.0 * epsilon::<T>() * long * norm(&delta) * (shape.rows() as f64).sqrt();
            for (got, want) in bias.iter().zip(&sums) {
                let error = (to_c64(*got) - want).norm();
                assert!(error <= allowed + 1e3 * T::Real::MIN_POSITIVE.to_f64(), "grad_bias: {got}, expected {want}");
            }
        }
        self.check_grad_x(&delta, long);
        self.check_grad_input_weight(&delta, long * (shape.rows() as f64).sqrt());
        self.check_grad_u(&delta, long);
    }

    /// `dL/da` of every row, and `dL/dh_0`.
    fn back(&self) -> (Vec<c64>, Vec<c64>) {
        let (given, sizes, n) = (self.given, &self.given.shape.sizes, self.given.shape.n);
        let mut delta = match &given.grad_h {
            Some(grad_h) => given.shape.in_time(&wide(&grad_h.rows), n),
            None => vec![c64::default(); self.h.len()],
        };
        let mut before = vec![c64::default(); given.shape.batch() * n];
        let mut end = given.shape.rows();
        for (t, &size) in sizes.iter().enumerate().rev() {
            let (size, next) = (size as usize, sizes.get(t + 1).map_or(0, |&size| size as usize));
            let begin = end - size;
            for k in 0..size * n {
                let last = given.grad_last.as_ref().filter(|_| k >= next * n).map_or(c64::default(), |g| to_c64(g[k]));
                let (h, g) = (self.h[begin * n + k], delta[begin * n + k] + before[k] + last);
                delta[begin * n + k] = derivative(self.sequence.activation, h, g);
            }
            let back = self.oracle.apply(&delta[begin * n..end * n], !self.sequence.operator.is_adjoint());
            before[..size * n].copy_from_slice(&back);
            end = begin;
        }
        (delta, before)
    }

    fn check_grad_x(&self, delta: &[c64], roundings: f64) {
        let (n, d) = (self.given.shape.n, self.given.shape.d);
        let size = self.input_weight.as_ref().map_or(1.0, |v| norm(v)) * norm(delta);
        let Some(grad_x) = self.outcome.x.as_ref().filter(|_| !overflows::<T>(size)) else { return };
        let mut want = delta.to_vec();
        if let Some(v) = &self.input_weight {
            want = vec![c64::default(); self.x.len()];
            for (want, delta) in want.chunks_mut(d).zip(delta.chunks(n)) {
                for (v, delta) in v.chunks(d).zip(delta) {
                    want.iter_mut().zip(v).for_each(|(want, v)| *want += v.conj() * delta);
                }
            }
        }
        compare("grad_x", &self.given.shape.in_time(grad_x, d), &want, &[c64::from(size)], roundings);
    }

    fn check_grad_input_weight(&self, delta: &[c64], roundings: f64) {
        let (n, d) = (self.given.shape.n, self.given.shape.d);
        let size = norm(delta) * norm(&self.x);
        let Some(got) = self.outcome.input_weight.as_ref().filter(|_| !overflows::<T>(size)) else { return };
        let mut want = vec![c64::default(); n * d];
        for (delta, x) in delta.chunks(n).zip(self.x.chunks(d)) {
            for (want, delta) in want.chunks_mut(d).zip(delta) {
                want.iter_mut().zip(x).for_each(|(want, x)| *want += delta * x.conj());
            }
        }
        compare("grad_input_weight", got, &want, &[c64::from(size)], roundings);
    }

    fn check_grad_u(&self, delta: &[c64], roundings: f64) {
        let (n, m) = (self.given.shape.n, self.given.shape.m);
        let want: Gradients = self.oracle.gradients(&self.previous, delta, self.sequence.operator.is_adjoint());
        let size = norm(delta) * norm(&self.previous).max(1e-9);
        let allowed = |size: f64| 64.0 * epsilon::<T>() * roundings * size + T::Real::MIN_POSITIVE.to_f64();
        for (j, grad_u) in (0..m).flat_map(|j| self.outcome.u.iter().map(move |grad_u| (j, grad_u))) {
            let last = m == n && j == n - 1;
            let column = if last { 1.0 } else { reflecting_norm(n, m, &self.given.entries, j).unwrap_or(1.0) };
            if overflows::<T>(size / column) {
                continue;
            }
            for k in (j..n).map(|i| i * m + j) {
                let (error, allowed) = ((to_c64(grad_u[k]) - want.u[k]).norm(), allowed(size / column));
                assert!(error <= allowed, "grad_u[{k}]: differs by {error:e}, allowed {allowed:e}");
            }
        }
        for (got, want) in self.outcome.phases.iter().flatten().zip(&want.phases) {
            let (error, allowed) = ((got.to_f64() - want).abs(), allowed(size));
            assert!(error <= allowed, "grad_phases: differs by {error:e}, allowed {allowed:e}");
        }
    }
}

/// `h_{t-1}` for each row.
fn previous_states(n: usize, sizes: &[i64], h0: &[c64], h: &[c64]) -> Vec<c64> {
    let mut previous = Vec::with_capacity(h.len());
    let mut begin = 0;
    for (t, &size) in sizes.iter().enumerate() {
        let source = if t == 0 { h0 } else { &h[begin * n..] };
        previous.extend_from_slice(&source[..size as usize * n]);
        if t > 0 {
            begin += sizes[t - 1] as usize;
        }
    }
    previous
}
