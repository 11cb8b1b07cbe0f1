//! `W h` and its gradients.

use householder::apply::{self, Prepared};
use householder::diagonal::Diagonal;
use householder::error::Error;
use householder::gradients::Gradients;
use householder::many::{self, Applications, ManyGradients, Stack, StackMut};
use householder::method::Method;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::array::{Array, Number, Reading, disjoint, optional, optional_mut, outputs, size};
use crate::by_dtype;
use crate::call::{attempt, run, to_python};
use crate::columns::Headers;
use crate::kept::Kept;

/// `rows` of `h (.., n)`, so many for each matrix, of the type of `u`.
fn rows(u: &Headers<'_, '_>, h: &Array<'_, '_>) -> PyResult<usize> {
    let rows = h.len.checked_div(u.count * u.n).unwrap_or(0);
    let given = || Ok::<_, PyErr>(format!("got u {} and h {}", u.u.describe()?, h.describe()?));
    if h.dims == 0 || h.last[2] != u.n || u.count * rows * u.n != h.len {
        return Err(PyValueError::new_err(format!("expected u (.., n, m) and h (.., n), {}", given()?)));
    }
    if u.u.dtype != h.dtype {
        return Err(PyTypeError::new_err(format!("expected u and h of one type, {}", given()?)));
    }
    Ok(rows)
}

/// Trapezoidal `u (n, m)`, `tau` being its own, and `rows`.
fn problem<'a, 'py>(u: &'a Bound<'py, PyAny>, h: &Array<'_, '_>) -> Reading<(Headers<'a, 'py>, usize)> {
    let u = Headers::read(u, "trapezoidal", None)?;
    let rows = rows(&u, h)?;
    Ok((u, rows))
}

#[pyfunction]
#[pyo3(signature = (u, h, out, phases, transpose, method, keep=false, shape="trapezoidal", tau=None))]
pub fn forward(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    transpose: bool,
    method: &str,
    keep: bool,
    shape: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let py = u.py();
    let go = || -> Reading<_> {
        let method = Method::parse(method).map_err(to_python)?;
        let (u, h) = (Headers::read(u, shape, tau)?, Array::read(h)?);
        let (out, phases) = (Array::read(out)?, Array::optional(phases)?);
        let rows = rows(&u, &h)?;
        by_dtype!(h.dtype, forward_problems(py, &u, rows, [&h, &out], phases.as_ref(), transpose, method, keep))
    };
    attempt(py, go())
}

fn forward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    u: &Headers<'_, '_>,
    rows: usize,
    [h, out]: [&Array<'_, '_>; 2],
    phases: Option<&Array<'_, '_>>,
    adjoint: bool,
    method: Option<Method>,
    keep: bool,
) -> Reading<Option<Kept>> {
    let applications = applications::<T>(u, rows, h, phases, adjoint, method)?;
    let [of_u, of_tau] = u.arrays();
    disjoint(&[of_u, of_tau, ("h", Some(h)), ("phases", phases)], &[("out", Some(out))])?;
    let (count, out) = (u.count, out.slice_mut::<T>("out", h.len)?);
    let kept = run(py, |context| {
        if keep {
            return applications.forward_and_keep(context, out);
        }
        applications.forward(context, StackMut::new(out, count)).map(|()| None)
    })?;
    Ok(kept.map(|kept| {
        let is_matrix = matches!(kept, many::Kept::Matrix(_));
        Kept::new(kept, is_matrix)
    }))
}

/// The problems of a call.
fn applications<T: Number<Real: Number>>(
    u: &Headers<'_, '_>,
    rows: usize,
    h: &Array<'_, '_>,
    phases: Option<&Array<'_, '_>>,
    adjoint: bool,
    method: Option<Method>,
) -> Reading<Applications<'static, T>> {
    let h = Stack::new(h.slice::<T>("h", size(&[u.count, rows, u.n])?)?, u.count);
    Ok(Applications { u: u.reflections()?, phases: optional(phases, "phases", u.n)?, h, adjoint, method })
}

#[pyfunction]
#[pyo3(signature = (u, h, grad_c, gradients, phases, transpose, method, kept=None, shape="trapezoidal", tau=None))]
pub fn backward(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    grad_c: &Bound<'_, PyAny>,
    gradients: [Option<Bound<'_, PyAny>>; 4],
    phases: Option<&Bound<'_, PyAny>>,
    transpose: bool,
    method: &str,
    kept: Option<&Bound<'_, Kept>>,
    shape: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let py = u.py();
    let go = || -> Reading<_> {
        let method = Method::parse(method).map_err(to_python)?;
        let (u, h) = (Headers::read(u, shape, tau)?, Array::read(h)?);
        let (grad_c, phases) = (Array::read(grad_c)?, Array::optional(phases)?);
        let rows = rows(&u, &h)?;
        let gradients = Array::each(&gradients)?;
        let gradients = gradients.each_ref().map(Option::as_ref);
        let (given, kept) = ([&h, &grad_c], kept.map(Bound::get));
        by_dtype!(h.dtype, backward_problems(py, &u, rows, given, phases.as_ref(), gradients, transpose, method, kept))
    };
    attempt(py, go())
}

fn backward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    u: &Headers<'_, '_>,
    rows: usize,
    [h, grad_c]: [&Array<'_, '_>; 2],
    phases: Option<&Array<'_, '_>>,
    [grad_u, grad_h, grad_phases, grad_tau]: [Option<&Array<'_, '_>>; 4],
    adjoint: bool,
    method: Option<Method>,
    kept: Option<&Kept>,
) -> Reading<()> {
    let &Headers { count, n, m, .. } = u;
    let applications = applications::<T>(u, rows, h, phases, adjoint, method)?;
    let [of_u, of_tau] = u.arrays();
    disjoint(
        &[of_u, of_tau, ("h", Some(h)), ("grad_c", Some(grad_c)), ("phases", phases)],
        &[("grad_u", grad_u), ("grad_h", grad_h), ("grad_phases", grad_phases), ("grad_tau", grad_tau)],
    )?;
    let grad_c = Stack::new(grad_c.slice::<T>("grad_c", h.len)?, count);
    let gradients = ManyGradients {
        u: outputs::<T>(grad_u, "grad_u", count, n * m)?,
        h: outputs::<T>(grad_h, "grad_h", count, rows * n)?,
        tau: outputs::<T>(grad_tau, "grad_tau", count, m)?,
        phases: optional_mut::<T::Real>(grad_phases, "grad_phases", n)?,
    };
    let kept = kept.and_then(Kept::get::<many::Kept<T>>);
    Ok(run(py, |context| applications.backward(context, grad_c, gradients, kept))?)
}

/// The gradient of `W h`, in `grad`, becomes that of `h`.
#[pyfunction]
pub fn backward_in_place(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    grad: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        u: &Headers<'_, '_>,
        rows: usize,
        [h, grad, grad_u]: [&Array<'_, '_>; 3],
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let &Headers { n, m, .. } = u;
        disjoint(&[("u", Some(&u.u)), ("h", Some(h))], &[("grad", Some(grad)), ("grad_u", Some(grad_u))])?;
        let u = u.reflections::<T>()?.at(0).map_err(to_python)?;
        if u.u1().is_some() {
            return Err(to_python(Error::InvalidArgument(format!("m: expected less than n = {n}, got {m}"))).into());
        }
        let h = h.slice::<T>("h", size(&[rows, n])?)?;
        let grad = grad.slice_mut::<T>("grad", h.len())?;
        let grad_u = grad_u.slice_mut::<T>("grad_u", n * m)?;
        let kept = kept.and_then(Kept::get::<many::Kept<T>>);
        Ok(run(py, |context| {
            if let Some(many::Kept::Factors(kept)) = kept
                && kept.shape() == [n, m, rows]
            {
                return apply::backward_in_place(context, kept, u, h, grad, grad_u);
            }
            let prepared = Prepared::new(context, u, rows)?;
            apply::backward_in_place(context, &prepared, u, h, grad, grad_u)
        })?)
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (h, grad, grad_u) = (Array::read(h)?, Array::read(grad)?, Array::read(grad_u)?);
        let (u, rows) = problem(u, &h)?;
        by_dtype!(h.dtype, go(py, &u, rows, [&h, &grad, &grad_u], kept.map(Bound::get)))
    };
    attempt(py, reading())
}

/// Algorithm 1 of the paper, which stores the vectors between reflections.
#[pyfunction]
pub fn forward_tape(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    tape: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    transpose: bool,
) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        u: &Headers<'_, '_>,
        rows: usize,
        [h, tape]: [&Array<'_, '_>; 2],
        phases: Option<&Array<'_, '_>>,
        adjoint: bool,
    ) -> PyResult<()> {
        let &Headers { n, m, .. } = u;
        disjoint(&[("u", Some(&u.u)), ("h", Some(h)), ("phases", phases)], &[("tape", Some(tape))])?;
        let u = u.reflections::<T>()?.at(0).map_err(to_python)?;
        let h = h.slice("h", size(&[rows, n])?)?;
        let tape = tape.slice_mut("tape", size(&[rows, m + 1, n])?)?;
        let diagonal = Diagonal::new(u, optional(phases, "phases", n)?).map_err(to_python)?;
        run(py, |context| apply::forward_tape(context, u, &diagonal, h, tape, adjoint))
    }
    let py = u.py();
    let (h, tape, phases) = (Array::read(h)?, Array::read(tape)?, Array::optional(phases)?);
    let (u, rows) = problem(u, &h)?;
    by_dtype!(h.dtype, go(py, &u, rows, [&h, &tape], phases.as_ref(), transpose))
}

#[pyfunction]
pub fn backward_tape(
    u: &Bound<'_, PyAny>,
    tape: &Bound<'_, PyAny>,
    grad_c: &Bound<'_, PyAny>,
    gradients: [Option<Bound<'_, PyAny>>; 3],
    phases: Option<&Bound<'_, PyAny>>,
    transpose: bool,
) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        u: &Headers<'_, '_>,
        rows: usize,
        [tape, grad_c]: [&Array<'_, '_>; 2],
        [grad_u, grad_h, grad_phases]: [Option<&Array<'_, '_>>; 3],
        phases: Option<&Array<'_, '_>>,
        adjoint: bool,
    ) -> PyResult<()> {
        let &Headers { n, m, .. } = u;
        disjoint(
            &[("u", Some(&u.u)), ("tape", Some(tape)), ("grad_c", Some(grad_c)), ("phases", phases)],
            &[("grad_u", grad_u), ("grad_h", grad_h), ("grad_phases", grad_phases)],
        )?;
        let u = u.reflections::<T>()?.at(0).map_err(to_python)?;
        let tape = tape.slice("tape", size(&[rows, m + 1, n])?)?;
        let grad_c = grad_c.slice("grad_c", size(&[rows, n])?)?;
        let diagonal = Diagonal::new(u, optional(phases, "phases", n)?).map_err(to_python)?;
        let gradients = Gradients {
            u: optional_mut(grad_u, "grad_u", n * m)?,
            h: optional_mut(grad_h, "grad_h", rows * n)?,
            tau: None,
            phases: optional_mut(grad_phases, "grad_phases", n)?,
        };
        run(py, |context| apply::backward_tape(context, u, &diagonal, tape, grad_c, gradients, adjoint))
    }
    let py = u.py();
    let (tape, grad_c, phases) = (Array::read(tape)?, Array::read(grad_c)?, Array::optional(phases)?);
    let (u, rows) = problem(u, &grad_c)?;
    let gradients = Array::each(&gradients)?;
    let gradients = gradients.each_ref().map(Option::as_ref);
    by_dtype!(grad_c.dtype, go(py, &u, rows, [&tape, &grad_c], gradients, phases.as_ref(), transpose))
}
