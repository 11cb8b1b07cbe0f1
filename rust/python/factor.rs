//! Compact WY factors, and the way back from `W` to reflections.

use householder::{apply, factor as factorisation};
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, run};
use crate::columns::Columns;
use crate::dtype::Number;
use crate::operands::{Arrays, Operands};

#[pyfunction]
pub fn wy(u: &Bound<'_, PyAny>, v: &Bound<'_, PyAny>, t: &Bound<'_, PyAny>, s: &Bound<'_, PyAny>) -> PyResult<()> {
    fn go<T: Number>(py: Python<'_>, columns: &Columns, arrays: &Arrays<'_, '_, 1, 3>) -> Reading<()> {
        let w = columns.operator::<T>(arrays, 0, None)?;
        let (n, k) = (w.n(), w.reflections());
        let [v, t, s] = [arrays.write(0, &[n, k])?, arrays.write(1, &[k, k])?, arrays.write(2, &[k, k])?];
        let [v, t, s] = [v, t, s].map(Option::unwrap_or_default);
        run(py, |context| apply::compact_wy(context, &w, v, t, s))
    }
    let py = u.py();
    let [u, v, t, s] = [Array::read(u)?, Array::read(v)?, Array::read(t)?, Array::read(s)?];
    let (columns, dtype) = (Columns::of(&u, "trapezoidal", None)?, u.dtype);
    let arrays = Arrays::new([("u", Some(u))], [("v", Some(v)), ("t", Some(t)), ("s", Some(s))])?;
    Ok(by_dtype!(dtype, go(py, &columns, &arrays))?)
}

#[pyfunction]
pub fn departure(q: &Bound<'_, PyAny>) -> PyResult<f64> {
    fn go<T: Number>(py: Python<'_>, n: usize, arrays: &Arrays<'_, '_, 1, 0>) -> Reading<f64> {
        let q = arrays.needed::<T>(0, "q", &[n, n])?;
        run(py, |context| factorisation::departure(context, n, q))
    }
    let (py, q) = (q.py(), Array::read(q)?);
    let (n, dtype) = (q.last[2], q.dtype);
    Ok(by_dtype!(dtype, go(py, n, &Arrays::new([("q", Some(q))], [])?))?)
}

#[pyfunction]
#[pyo3(signature = (q, u, phases, by_columns=false))]
pub fn factor(
    q: &Bound<'_, PyAny>,
    u: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    by_columns: bool,
) -> PyResult<f64> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        [n, m]: [usize; 2],
        arrays: &Arrays<'_, '_, 1, 2>,
        by_columns: bool,
    ) -> Reading<f64> {
        let (q, u) = (arrays.needed::<T>(0, "q", &[n, n])?, arrays.write(0, &[n, m])?.unwrap_or_default());
        let phases = arrays.write::<T::Real>(1, &[n])?;
        let find = if by_columns { factorisation::by_columns } else { factorisation::factor };
        run(py, |context| find(context, n, m, q, u, phases))
    }
    let py = q.py();
    let (q, u, phases) = (Array::read(q)?, Array::read(u)?, Array::optional(phases)?);
    let ([_, n, m], dtype) = (u.last, q.dtype);
    let arrays = Arrays::new([("q", Some(q))], [("u", Some(u)), ("phases", phases)])?;
    Ok(by_dtype!(dtype, go(py, [n, m], &arrays, by_columns))?)
}
