//! Compact WY factors, and the way back from `W` to reflections.

use householder::{apply, factor as factorisation};
use householder_binding::by_dtype;
use householder_binding::columns::Columns;
use householder_binding::dtype::Number;
use householder_binding::operands::{Arrays, Caller};
use householder_binding::refusal::Reading;
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::returned;

#[pyfunction]
pub fn wy(u: &Bound<'_, PyAny>, v: &Bound<'_, PyAny>, t: &Bound<'_, PyAny>, s: &Bound<'_, PyAny>) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(columns: &Columns, arrays: &impl Caller<'static>) -> Reading<()> {
        let w = columns.operator::<T>(arrays, 0, None)?;
        let (n, k) = (w.n(), w.reflections());
        let [v, t, s] = [arrays.write(0, &[n, k])?, arrays.write(1, &[k, k])?, arrays.write(2, &[k, k])?];
        let [v, t, s] = [v, t, s].map(Option::unwrap_or_default);
        arrays.run(|context| apply::compact_wy(context, &w, v, t, s))
    }
    returned(|| {
        let [u, v, t, s] = [Array::read(u)?, Array::read(v)?, Array::read(t)?, Array::read(s)?];
        let (columns, dtype) = (Columns::of(&u, "trapezoidal", false)?, u.dtype);
        let arrays = Arrays::new([("u", Some(u))], [("v", Some(v)), ("t", Some(t)), ("s", Some(s))])?;
        by_dtype!(dtype, go(&columns, &arrays))
    })
}

#[pyfunction]
pub fn departure(q: &Bound<'_, PyAny>) -> PyResult<f64> {
    fn go<T: Number>(n: usize, arrays: &impl Caller<'static>) -> Reading<f64> {
        let q = arrays.needed::<T>(0, "q", &[n, n])?;
        arrays.run(|context| factorisation::departure(context, n, q))
    }
    returned(|| {
        let q = Array::read(q)?;
        let (n, dtype) = (q.last[2], q.dtype);
        by_dtype!(dtype, go(n, &Arrays::new([("q", Some(q))], [])?))
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
    fn go<T: Number<Real: Number>>(
        [n, m]: [usize; 2],
        arrays: &impl Caller<'static>,
        by_columns: bool,
    ) -> Reading<f64> {
        let (q, u) = (arrays.needed::<T>(0, "q", &[n, n])?, arrays.write(0, &[n, m])?.unwrap_or_default());
        let phases = arrays.write::<T::Real>(1, &[n])?;
        let find = if by_columns { factorisation::by_columns } else { factorisation::factor };
        arrays.run(|context| find(context, n, m, q, u, phases))
    }
    returned(|| {
        let (q, u, phases) = (Array::read(q)?, Array::read(u)?, Array::optional(phases)?);
        let ([_, n, m], dtype) = (u.last, q.dtype);
        let arrays = Arrays::new([("q", Some(q))], [("u", Some(u)), ("phases", phases)])?;
        by_dtype!(dtype, go([n, m], &arrays, by_columns))
    })
}
