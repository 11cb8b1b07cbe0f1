//! Compact WY factors, and the way back from `W` to reflections.

use householder_binding::columns::Columns;
use householder_binding::operands::{Arrays, named};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::returned;
use crate::library::library;

#[pyfunction]
pub fn wy(u: &Bound<'_, PyAny>, v: &Bound<'_, PyAny>, t: &Bound<'_, PyAny>, s: &Bound<'_, PyAny>) -> PyResult<()> {
    returned(|| {
        let [u, v, t, s] = [Array::read(u)?, Array::read(v)?, Array::read(t)?, Array::read(s)?];
        let columns = Columns::of(&u, "trapezoidal", false)?;
        (library().compact_wy)(
            &Arrays::new(&[("u", Some(&u))], &[("v", Some(&v)), ("t", Some(&t)), ("s", Some(&s))])?,
            &columns,
        )
    })
}

#[pyfunction]
pub fn departure(q: &Bound<'_, PyAny>) -> PyResult<f64> {
    returned(|| {
        let q = Array::read(q)?;
        (library().departure)(&Arrays::new(&[("q", Some(&q))], &[])?, q.last[2])
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
        let [_, n, m] = u.last;
        (library().factors)(
            &Arrays::new(&[("q", Some(&q))], &named(["u", "phases"], [Some(&u), phases.as_ref()]))?,
            [n, m],
            by_columns,
        )
    })
}
