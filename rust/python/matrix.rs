//! `W` itself, and its gradient.

use householder::apply::Dense;
use householder::many::{self, Stack, StackMut};
use pyo3::prelude::*;

use crate::array::{Array, Number, Reading, disjoint, optional, size};
use crate::by_dtype;
use crate::call::{attempt, run};
use crate::columns::Headers;
use crate::kept::Kept;

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
        u: &Headers<'_, '_>,
        out: &Array<'_, '_>,
        phases: Option<&Array<'_, '_>>,
        keep: bool,
    ) -> Reading<Option<Kept>> {
        let [of_u, of_tau] = u.arrays();
        disjoint(&[of_u, of_tau, ("phases", phases)], &[("out", Some(out))])?;
        let phases = optional::<T::Real>(phases, "phases", u.n)?;
        let out = out.slice_mut::<T>("out", size(&[u.count, u.n, u.n])?)?;
        let u = u.reflections::<T>()?;
        Ok(run(py, |context| many::matrices(context, u, phases, out, keep))?.map(|kept| Kept::new(kept, true)))
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, out, phases) = (Headers::read(u, shape, tau)?, Array::read(out)?, Array::optional(phases)?);
        by_dtype!(u.u.dtype, go(py, &u, &out, phases.as_ref(), keep))
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
        u: &Headers<'_, '_>,
        [grad_w, grad_u]: [&Array<'_, '_>; 2],
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let &Headers { count, n, m, .. } = u;
        disjoint(&[("u", Some(&u.u)), ("grad_w", Some(grad_w))], &[("grad_u", Some(grad_u))])?;
        let u = u.reflections::<T>()?;
        let grad_w = Stack::new(grad_w.slice::<T>("grad_w", size(&[count, n, n])?)?, count);
        let grad_u = StackMut::new(grad_u.slice_mut::<T>("grad_u", size(&[count, n, m])?)?, count);
        let kept = kept.and_then(Kept::get::<Vec<Option<Dense<T>>>>).map(Vec::as_slice);
        Ok(run(py, |context| many::matrices_backward(context, u, grad_w, grad_u, kept))?)
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let u = Headers::read(u, "trapezoidal", None)?;
        let (grad_w, grad_u) = (Array::read(grad_w)?, Array::read(grad_u)?);
        by_dtype!(u.u.dtype, go(py, &u, [&grad_w, &grad_u], kept.map(Bound::get)))
    };
    attempt(py, reading())
}
