//! Compact WY factors, and the way back from `W` to reflections.

use householder::{apply, factor as factorisation};
use householder_binding::by_dtype;
use householder_binding::columns::Columns;
use householder_binding::operands::{Arrays, Caller, Operands};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::returned;

#[pyfunction]
pub fn wy(u: &Bound<'_, PyAny>, v: &Bound<'_, PyAny>, t: &Bound<'_, PyAny>, s: &Bound<'_, PyAny>) -> PyResult<()> {
    returned(|| {
        let [u, v, t, s] = [Array::read(u)?, Array::read(v)?, Array::read(t)?, Array::read(s)?];
        let (columns, dtype) = (Columns::of(&u, "trapezoidal", false)?, u.dtype);
        let arrays = Arrays::new([("u", Some(&u))], [("v", Some(&v)), ("t", Some(&t)), ("s", Some(&s))])?;
        by_dtype!(dtype, |T| {
            let w = columns.operator::<T>(&arrays, 0, None)?;
            let (n, k) = (w.n(), w.reflections());
            let [v, t, s] = [arrays.write(0, &[n, k])?, arrays.write(1, &[k, k])?, arrays.write(2, &[k, k])?];
            let [v, t, s] = [v, t, s].map(Option::unwrap_or_default);
            arrays.run(|context| apply::compact_wy(context, &w, v, t, s))
        })
    })
}

#[pyfunction]
pub fn departure(q: &Bound<'_, PyAny>) -> PyResult<f64> {
    returned(|| {
        let q = Array::read(q)?;
        let (n, dtype) = (q.last[2], q.dtype);
        let arrays = Arrays::new([("q", Some(&q))], [])?;
        by_dtype!(dtype, |T| {
            let q = arrays.needed::<T>(0, "q", &[n, n])?;
            arrays.run(|context| factorisation::departure(context, n, q))
        })
    })
}

#[pyfunction]
#[pyo3(signature = (q, u, phases, by_columns=false))]
pub fn factor(
    q: &Bound<'_, PyAny>,
    u: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    by_columns: bool,
) -> PyResult<f64> {
    returned(|| {
        let (q, u, phases) = (Array::read(q)?, Array::read(u)?, Array::optional(phases)?);
        let ([_, n, m], dtype) = (u.last, q.dtype);
        let arrays = Arrays::new([("q", Some(&q))], [("u", Some(&u)), ("phases", phases.as_ref())])?;
        by_dtype!(dtype, |T| {
            let (q, u) = (arrays.needed::<T>(0, "q", &[n, n])?, arrays.write(0, &[n, m])?.unwrap_or_default());
            let phases = arrays.write(1, &[n])?;
            let find = if by_columns { factorisation::by_columns } else { factorisation::factor };
            arrays.run(|context| find(context, n, m, q, u, phases))
        })
    })
}
