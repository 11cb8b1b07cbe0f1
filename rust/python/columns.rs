//! The reflections of all problems of a call: `u (.., n, m)`, the `shape` of its columns, and `tau (.., m)`.

use householder::many::ManyReflections;
use householder::reflections::Form;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::array::{Array, Named, Number, Reading, optional, size};
use crate::call::to_python;

/// The form of the columns. With `tau`, trapezoidal columns are LAPACK's, which begin with a one.
fn form(shape: &str, has_tau: bool) -> PyResult<Form> {
    match (shape, has_tau) {
        ("trapezoidal", false) => Ok(Form::Trapezoidal),
        ("trapezoidal", true) => Ok(Form::UnitTrapezoidal),
        ("full", _) => Ok(Form::Full),
        _ => Err(PyValueError::new_err(format!("shape: expected 'trapezoidal' or 'full', got '{shape}'"))),
    }
}

/// The headers of `u` and `tau`, checked.
pub struct Headers<'a, 'py> {
    pub count: usize,
    pub n: usize,
    pub m: usize,
    pub form: Form,
    pub u: Array<'a, 'py>,
    tau: Option<Array<'a, 'py>>,
}

impl<'a, 'py> Headers<'a, 'py> {
    pub fn read(u: &'a Bound<'py, PyAny>, shape: &str, tau: Option<&'a Bound<'py, PyAny>>) -> Reading<Self> {
        Self::of(Array::read(u)?, shape, Array::optional(tau)?)
    }

    pub fn of(u: Array<'a, 'py>, shape: &str, tau: Option<Array<'a, 'py>>) -> Reading<Self> {
        let form = form(shape, tau.is_some())?;
        let [_, n, m] = u.last;
        if u.dims < 2 || n < 1 || m < 1 || (m > n && form != Form::Full) {
            let most = if form == Form::Full { "" } else { " <= n" };
            let given = u.describe()?;
            return Err(PyValueError::new_err(format!("expected u (.., n, m) with 1 <= m{most}, got {given}")).into());
        }
        let count = u.len / (n * m);
        if let Some(tau) = &tau {
            tau.require_shape("tau", (count, u.dims - 2), &[m])?;
            if tau.dtype != u.dtype {
                return Err(
                    PyTypeError::new_err(format!("expected tau of {}, got {}", u.dtype, tau.describe()?)).into()
                );
            }
        }
        Ok(Self { count, n, m, form, u, tau })
    }

    /// What a call reads of them.
    pub fn arrays(&self) -> [Named<'_, 'a, 'py>; 2] {
        [("u", Some(&self.u)), ("tau", self.tau.as_ref())]
    }

    /// The numbers themselves.
    pub fn reflections<T: Number>(&self) -> Reading<ManyReflections<'static, T>> {
        let &Self { count, n, m, form, .. } = self;
        let u = self.u.slice::<T>("u", size(&[count, n, m])?)?;
        let tau = optional::<T>(self.tau.as_ref(), "tau", size(&[count, m])?)?;
        Ok(ManyReflections::new([count, n, m], form, u, tau).map_err(to_python)?)
    }
}
