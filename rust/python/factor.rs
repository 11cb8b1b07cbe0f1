//! Compact WY factors, and the way back from `W` to reflections.

use householder::reflections::Reflections;
use householder::{apply, factor as factorisation};
use pyo3::prelude::*;

use crate::array::{Array, Number, disjoint, optional_mut, size};
use crate::by_dtype;
use crate::call::{run, to_python};

#[pyfunction]
pub fn wy(u: &Bound<'_, PyAny>, v: &Bound<'_, PyAny>, t: &Bound<'_, PyAny>, s: &Bound<'_, PyAny>) -> PyResult<()> {
    fn go<T: Number>(py: Python<'_>, [n, m]: [usize; 2], [u, v, t, s]: [&Array<'_, '_>; 4]) -> PyResult<()> {
        disjoint(&[("u", Some(u))], &[("v", Some(v)), ("t", Some(t)), ("s", Some(s))])?;
        let u = Reflections::new(n, m, u.slice::<T>("u", size(&[n, m])?)?).map_err(to_python)?;
        let k = u.count();
        let (v, t, s) = (v.slice_mut("v", n * k)?, t.slice_mut("t", k * k)?, s.slice_mut("s", k * k)?);
        run(py, |context| apply::compact_wy(context, u, v, t, s))
    }
    let py = u.py();
    let (u, v, t, s) = (Array::read(u)?, Array::read(v)?, Array::read(t)?, Array::read(s)?);
    let [_, n, m] = u.last;
    by_dtype!(u.dtype, go(py, [n, m], [&u, &v, &t, &s]))
}

#[pyfunction]
pub fn departure(q: &Bound<'_, PyAny>) -> PyResult<f64> {
    fn go<T: Number>(py: Python<'_>, n: usize, q: &Array<'_, '_>) -> PyResult<f64> {
        let q = q.slice::<T>("q", size(&[n, n])?)?;
        run(py, |context| factorisation::departure(context, n, q))
    }
    let (py, q) = (q.py(), Array::read(q)?);
    by_dtype!(q.dtype, go(py, q.last[2], &q))
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
        [q, u]: [&Array<'_, '_>; 2],
        phases: Option<&Array<'_, '_>>,
        by_columns: bool,
    ) -> PyResult<f64> {
        disjoint(&[("q", Some(q))], &[("u", Some(u)), ("phases", phases)])?;
        let q = q.slice::<T>("q", size(&[n, n])?)?;
        let u = u.slice_mut::<T>("u", size(&[n, m])?)?;
        Reflections::new(n, m, u).map_err(to_python)?;
        let phases = optional_mut::<T::Real>(phases, "phases", n)?;
        let find = if by_columns { factorisation::by_columns } else { factorisation::factor };
        run(py, |context| find(context, n, m, q, u, phases))
    }
    let py = q.py();
    let (q, u, phases) = (Array::read(q)?, Array::read(u)?, Array::optional(phases)?);
    let [_, n, m] = u.last;
    by_dtype!(q.dtype, go(py, [n, m], [&q, &u], phases.as_ref(), by_columns))
}
