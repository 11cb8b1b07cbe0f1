//! `W` itself, and its gradient.

use householder_binding::columns::Columns;
use householder_binding::matrix::OPERANDS;
use householder_binding::operands::{Arrays, named};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::attempt;
use crate::library::library;
use crate::saved::{PySaved, held};

#[pyfunction]
#[pyo3(signature = (u, out, phases, save=false, form="trapezoidal", tau=None))]
pub fn matrix(
    u: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    save: bool,
    form: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let (u, out) = (Array::read(u)?, Array::read(out)?);
        let (phases, tau) = (Array::optional(phases)?, Array::optional(tau)?);
        let columns = Columns::of(&u, form, tau.is_some())?;
        columns.require_tau(&u, tau.as_ref())?;
        Ok((library().matrix)(
            &Arrays::new(&named(OPERANDS, [Some(&u), None, tau.as_ref(), phases.as_ref()]), &[("out", Some(&out))])?,
            &columns,
            save,
        )?
        .map(PySaved::from))
    })
}

#[pyfunction]
pub fn matrix_backward(
    u: &Bound<'_, PyAny>,
    grad_w: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    saved: Option<&Bound<'_, PySaved>>,
) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let (u, grad_w, grad_u) = (Array::read(u)?, Array::read(grad_w)?, Array::read(grad_u)?);
        let columns = Columns::of(&u, "trapezoidal", false)?;
        (library().matrix_backward)(
            &Arrays::new(&named(OPERANDS, [Some(&u), Some(&grad_w)]), &[("grad_u", Some(&grad_u))])?,
            &columns,
            held(saved),
        )
    })
}
