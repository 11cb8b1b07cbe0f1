//! `W` itself, and its gradient.

use householder::apply::{self, Saved};
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, attempt, run};
use crate::columns::Columns;
use crate::dtype::Number;
use crate::kept::Kept;
use crate::operands::{Arrays, Operands};

const TAU: usize = 1;

#[pyfunction]
#[pyo3(signature = (u, out, phases, keep=false, shape="trapezoidal", tau=None))]
pub fn matrix(
    u: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    keep: bool,
    shape: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        columns: &Columns,
        arrays: &Arrays<'_, '_, 3, 1>,
        keep: bool,
    ) -> Reading<Option<Kept>> {
        let w = columns.operator::<T>(arrays, TAU, arrays.read(2, "phases", &[columns.n])?)?;
        let out = arrays.write(0, &[columns.count, columns.n, columns.n])?.unwrap_or_default();
        let saved = run(py, |context| {
            if keep {
                return apply::matrix_and_save(context, &w, out);
            }
            apply::matrix(context, &w, out).map(|()| None)
        })?;
        Ok(saved.map(|saved| Kept::new(true, saved)))
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, out) = (Array::read(u)?, Array::read(out)?);
        let (phases, tau) = (Array::optional(phases)?, Array::optional(tau)?);
        let (columns, dtype) = (Columns::of(&u, shape, tau.as_ref())?, u.dtype);
        let arrays = Arrays::new([("u", Some(u)), ("tau", tau), ("phases", phases)], [("out", Some(out))])?;
        by_dtype!(dtype, go(py, &columns, &arrays, keep))
    };
    attempt(py, reading())
}

#[pyfunction]
pub fn matrix_backward(
    u: &Bound<'_, PyAny>,
    grad_w: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number>(
        py: Python<'_>,
        columns: &Columns,
        arrays: &Arrays<'_, '_, 2, 1>,
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let (w, n) = (columns.operator::<T>(arrays, TAU, None)?, columns.n);
        let grad_w = arrays.needed(1, "grad_w", &[columns.count, n, n])?;
        let grad_u = arrays.write(0, &columns.shape())?.unwrap_or_default();
        let saved = kept.and_then(Kept::get::<Saved<T>>).filter(|saved| saved.check(&w, n).is_ok());
        run(py, |context| apply::matrix_backward(context, &w, grad_w, grad_u, saved))
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, grad_w, grad_u) = (Array::read(u)?, Array::read(grad_w)?, Array::read(grad_u)?);
        let (columns, dtype) = (Columns::of(&u, "trapezoidal", None)?, u.dtype);
        let arrays = Arrays::new([("u", Some(u)), ("grad_w", Some(grad_w))], [("grad_u", Some(grad_u))])?;
        by_dtype!(dtype, go(py, &columns, &arrays, kept.map(Bound::get)))
    };
    attempt(py, reading())
}
