//! Applications of columns of every form, with and without a given `tau`, and what they should give.

use householder::method::Method;
use householder::number::{Number, Real, c64};
use householder::operator::{Form, Operator};
use householder::scalar::Scalar;

use super::{Random, explicit_of, multiply, to_c64};

/// What becomes of `tau`.
#[derive(Clone, Copy, Debug)]
pub enum Tau {
    /// `2 / |v|^2`, not given.
    Own,
    /// That, given, but zero for every third column.
    Reflecting,
    /// Any numbers: the product is then not unitary.
    Any,
}

#[derive(Clone)]
pub struct Problem<T: Scalar> {
    pub n: usize,
    pub m: usize,
    pub form: Form,
    pub u: Vec<T>,
    pub tau: Option<Vec<T>>,
    pub phases: Option<Vec<T::Real>>,
    pub h: Vec<T>,
    pub g: Vec<T>,
}

impl<T: Scalar> Problem<T> {
    pub fn new((n, m, rows): (usize, usize, usize), form: Form, tau: Tau) -> Self {
        Self::random(&mut Random((n * m + rows) as u64), (n, m, rows), form, tau)
    }

    /// Trapezoidal columns without `tau`, of these numbers.
    pub fn trapezoidal(seed: u64, shape: (usize, usize, usize)) -> Self {
        Self::random(&mut Random(seed), shape, Form::Trapezoidal, Tau::Own)
    }

    fn random(random: &mut Random, (n, m, rows): (usize, usize, usize), form: Form, tau: Tau) -> Self {
        let u: Vec<T> = random.numbers(n * m);
        let square = |j: usize| -> f64 {
            let below = (0..n).filter(|&i| form == Form::Full || i > j).map(|i| u[i * m + j].abs2().to_f64());
            f64::from(u8::from(form.has_ones())) + below.sum::<f64>()
        };
        let real = |x: f64| T::from_real(T::Real::of(x));
        let tau = match tau {
            Tau::Own => None,
            Tau::Reflecting => Some((0..m).map(|j| real(if j % 3 == 2 { 0.0 } else { 2.0 / square(j) })).collect()),
            // Small enough that products of many factors stay of ordinary size.
            Tau::Any => {
                Some(random.numbers::<T>(m).iter().zip(0..m).map(|(&x, j)| x * real(1.0 / square(j))).collect())
            }
        };
        let phases = (T::COMPLEX && m % 2 == 1).then(|| (0..n).map(|_| T::Real::of(3.0 * random.real())).collect());
        Self { n, m, form, u, tau, phases, h: random.numbers(rows * n), g: random.numbers(rows * n) }
    }

    pub fn operator(&self, adjoint: bool, method: Option<Method>) -> Operator<'_, T> {
        let shape = [1, self.n, self.m];
        let w = Operator::with_form(shape, &self.u, self.form, self.tau.as_deref()).unwrap();
        let w = if let Some(phases) = &self.phases { w.with_phases(phases).unwrap() } else { w };
        w.adjoint(adjoint).by(method)
    }

    /// `W`, row-major, as the product of explicit reflections in double precision.
    pub fn explicit(&self) -> Vec<c64> {
        explicit_of(self.n, self.m, &self.u, self.form, self.tau.as_deref(), self.phases.as_deref())
    }

    /// `Re <g, W h>`, or `Re <g, W* h>`, summed over the rows.
    pub fn loss(&self, adjoint: bool) -> f64 {
        let c = multiply(self.n, &self.explicit(), &self.h, adjoint);
        self.g.iter().zip(&c).map(|(&g, c)| (to_c64(g).conj() * c).re).sum()
    }
}
