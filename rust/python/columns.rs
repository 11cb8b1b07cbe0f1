//! The reflections of all problems of a call: `u (.., n, m)`, the `shape` of its columns, and `tau (.., m)`.

use householder::operator::{Form, Operator};
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, Refusal, attempt};
use crate::dtype::Number;
use crate::operands::Operands;
use crate::options;

/// The columns of `u`.
pub struct Columns {
    pub count: usize,
    /// How many axes enumerate the problems.
    pub axes: usize,
    pub n: usize,
    pub m: usize,
    form: Form,
    has_tau: bool,
}

impl Columns {
    /// Those of `u` and `tau`, checked.
    pub fn of(u: &Array<'_, '_>, shape: &str, tau: Option<&Array<'_, '_>>) -> Reading<Self> {
        let form = options::form(shape, tau.is_some())?;
        let [_, n, m] = u.last;
        if u.dims < 2 || n < 1 || m < 1 || (m > n && form != Form::Full) {
            let most = if form == Form::Full { "" } else { " <= n" };
            let given = u.describe()?;
            return Err(Refusal::invalid(format!("expected u (.., n, m) with 1 <= m{most}, got {given}")));
        }
        let (count, axes) = (u.len / (n * m), u.dims - 2);
        if let Some(tau) = tau {
            tau.require_shape("tau", (count, axes), &[m])?;
            if tau.dtype != u.dtype {
                return Err(Refusal::Type(format!("expected tau of {}, got {}", u.dtype, tau.describe()?)));
            }
        }
        Ok(Self { count, axes, n, m, form, has_tau: tau.is_some() })
    }

    /// Trapezoidal columns without `tau`, of that shape.
    pub fn trapezoidal([count, n, m]: [usize; 3]) -> Self {
        Self { count, axes: 1, n, m, form: Form::Trapezoidal, has_tau: false }
    }

    /// The shape of `u`.
    pub fn shape(&self) -> [usize; 3] {
        [self.count, self.n, self.m]
    }

    /// `W` of `u`, in slot 0, and of `tau` in another one, with phases where they are given.
    pub fn operator<'a, T: Number>(
        &self,
        operands: &impl Operands<'a>,
        tau: usize,
        phases: Option<&[T::Real]>,
    ) -> Reading<Operator<'a, T>> {
        let shape = self.shape();
        let tau = if self.has_tau { operands.read(tau, "tau", &[self.count, self.m])? } else { None };
        let w = Operator::with_form(shape, operands.needed(0, "u", &shape)?, self.form, tau)?;
        Ok(if let Some(phases) = phases { w.with_phases(phases)? } else { w })
    }
}

/// Replaces a latent `u_1` of each problem of a real `u (.., n, n)` in place: by 1 if it is positive and else by -1, or, if
/// `soft`, by the nearest number in [-1, 1].
#[pyfunction]
pub fn constrain(u: &Bound<'_, PyAny>, soft: bool) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real = T> + PartialOrd>(u: &Array<'_, '_>, soft: bool) -> Reading<()> {
        let [_, n, m] = u.last;
        if n != m || n == 0 {
            return Err(Refusal::invalid(format!("expected u (.., n, n), got {}", u.describe()?)));
        }
        for u in u.slice_mut::<T>("u", u.len)?.chunks_exact_mut(n * n) {
            let latent = &mut u[n * n - 1];
            let is_inside = soft && !(*latent > T::ONE || *latent < -T::ONE);
            if !is_inside {
                *latent = if *latent > T::ZERO { T::ONE } else { -T::ONE };
            }
        }
        Ok(())
    }
    let reading = || -> Reading<_> {
        let u = Array::read(u)?;
        by_dtype!(real u.dtype, go(&u, soft))
    };
    attempt(u.py(), reading())
}
