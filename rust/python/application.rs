//! `W h` and its gradients.

use std::borrow::Cow;

use householder::apply::{self, Prepared};
use householder::diagonal::Diagonal;
use householder::error::Error;
use householder::gradients::Gradients;
use householder::memory::filled;
use householder::method::{self, Method};
use householder::number::Number as _;
use householder::reflections::{Form, Reflections};
use householder::scalar::Scalar;
use householder::unblocked;
use householder::wy::dense::{self, Dense};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::array::{Array, Number, Parts, Reading, optional, optional_mut, outputs, part, size};
use crate::by_dtype;
use crate::call::{attempt, run, to_python};
use crate::columns::Headers;
use crate::kept::Kept;

/// Flops of `count` applications to `rows` vectors, roughly, with what it takes to normalise the columns: decides how work
/// is spread, nothing else.
pub fn flops(count: usize, n: usize, m: usize, rows: usize) -> usize {
    (n * m).saturating_mul(8 * rows + 32).saturating_mul(count)
}

/// Whether reflections are applied one after the other; problems without vectors are not worth a special way.
fn one_by_one<T: Number>(method: Option<Method>, form: Form, (n, k): (usize, usize), rows: usize) -> bool {
    rows > 0 && method.unwrap_or_else(|| method::for_application::<T>(form, (n, k), rows)) == Method::Reflections
}

/// The diagonals of many matrices: phases, which they share, become numbers once.
pub struct Diagonals<T: Scalar>(Option<Diagonal<T>>);

impl<T: Scalar> Diagonals<T> {
    pub fn new(n: usize, phases: Option<&[T::Real]>) -> Result<Self, Error> {
        Ok(Self(phases.map(|theta| Diagonal::phases(n, theta)).transpose()?))
    }

    /// The diagonal of one matrix.
    #[inline(always)]
    pub fn of(&self, u: Reflections<'_, T>) -> Cow<'_, Diagonal<T>> {
        self.0.as_ref().map_or_else(|| Cow::Owned(Diagonal::of(u)), Cow::Borrowed)
    }
}

/// Gradients of `u`, `h` and `phases`, None where they are not wanted.
type Gradient<'py> = [Option<Bound<'py, PyAny>>; 3];

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
    let &Headers { count, n, m, form, .. } = u;
    let u = u.columns::<T>()?;
    let h = h.slice::<T>("h", size(&[count, rows, n])?)?;
    let out = out.slice_mut::<T>("out", h.len())?;
    let phases = optional::<T::Real>(phases, "phases", n)?;
    let outs = Parts::new(out, count);
    Ok(run(py, |context| {
        let (k, diagonals) = (u.count(), Diagonals::new(n, phases)?);
        let method = Some(method.unwrap_or_else(|| method::for_application::<T>(form, (n, k), rows)));
        if keep && count == 1 && method != Some(Method::Reflections) {
            let u = u.of(0)?;
            let diagonal = diagonals.of(u);
            if method == Some(Method::Wy) {
                let prepared = apply::forward_and_keep(context, u, &diagonal, h, out, adjoint)?;
                return Ok(Some(Kept::factors(prepared)));
            }
            let matrix = Dense::new(context, u, &diagonal)?;
            dense::multiply(context, n, &matrix.w, h, out, adjoint)?;
            return Ok(Some(Kept::matrix(matrix)));
        }
        // SAFETY: each problem writes its own part.
        let vectors = |i: usize| unsafe { (part(h, i, rows * n), outs.at(i)) };
        let (isa, flops) = (context.isa, flops(count, n, m, rows));
        if one_by_one::<T>(method, form, (n, k), rows) {
            unblocked::for_each(context, count, flops, &|| unblocked::Forward::new(n, k), &|i, room, cancel| {
                let u = u.of(i)?;
                let (h, out) = vectors(i);
                room.run(isa, cancel, u, &diagonals.of(u), h, out, adjoint)
            })?;
            return Ok(None);
        }
        context.for_each(count, flops, &|i, context| {
            let u = u.of(i)?;
            let (h, out) = vectors(i);
            apply::forward(context, u, &diagonals.of(u), h, out, adjoint, method)
        })?;
        Ok(None)
    })?)
}

#[pyfunction]
#[pyo3(signature = (u, h, grad_c, gradients, phases, transpose, method, kept=None, shape="trapezoidal", tau=None, grad_tau=None))]
pub fn backward(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    grad_c: &Bound<'_, PyAny>,
    gradients: Gradient<'_>,
    phases: Option<&Bound<'_, PyAny>>,
    transpose: bool,
    method: &str,
    kept: Option<&Bound<'_, Kept>>,
    shape: &str,
    tau: Option<&Bound<'_, PyAny>>,
    grad_tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    let py = u.py();
    let go = || -> Reading<_> {
        let method = Method::parse(method).map_err(to_python)?;
        let (u, h) = (Headers::read(u, shape, tau)?, Array::read(h)?);
        let (grad_c, phases, grad_tau) = (Array::read(grad_c)?, Array::optional(phases)?, Array::optional(grad_tau)?);
        let rows = rows(&u, &h)?;
        let gradients = Array::each(&gradients)?;
        let [grad_u, grad_h, grad_phases] = gradients.each_ref().map(Option::as_ref);
        let gradients = [grad_u, grad_h, grad_tau.as_ref(), grad_phases];
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
    [grad_u, grad_h, grad_tau, grad_phases]: [Option<&Array<'_, '_>>; 4],
    adjoint: bool,
    method: Option<Method>,
    kept: Option<&Kept>,
) -> Reading<()> {
    let &Headers { count, n, m, form, .. } = u;
    let u = u.columns::<T>()?;
    let h = h.slice::<T>("h", size(&[count, rows, n])?)?;
    let grad_c = grad_c.slice::<T>("grad_c", h.len())?;
    let phases = optional::<T::Real>(phases, "phases", n)?;
    let grad_u = outputs::<T>(grad_u, "grad_u", count, n * m)?;
    let grad_h = outputs::<T>(grad_h, "grad_h", count, rows * n)?;
    let grad_tau = outputs::<T>(grad_tau, "grad_tau", count, m)?;
    let grad_phases = optional_mut::<T::Real>(grad_phases, "grad_phases", n)?;
    // The matrices share the phases: one gradient each, summed in order.
    let mut each_phases =
        filled(if grad_phases.is_some() { count * n } else { 0 }, T::Real::ZERO).map_err(to_python)?;
    let phases_parts = grad_phases.is_some().then(|| Parts::new(&mut each_phases, count));
    let (k, kept) = (u.count(), kept.filter(|_| count == 1));
    let prepared = kept.and_then(Kept::get::<Prepared<T>>).filter(|kept| kept.shape() == [n, k, rows]);
    let matrix = kept.and_then(Kept::get::<Dense<T>>).filter(|kept| [kept.blocks.n, kept.blocks.k] == [n, k]);
    run(py, |context| {
        let (isa, flops) = (context.isa, 3 * flops(count, n, m, rows));
        let diagonals = Diagonals::new(n, phases)?;
        // SAFETY: each problem writes its own parts.
        let gradients = |i: usize| unsafe {
            Gradients {
                u: grad_u.as_ref().map(|x| x.at(i)),
                h: grad_h.as_ref().map(|x| x.at(i)),
                tau: grad_tau.as_ref().map(|x| x.at(i)),
                phases: phases_parts.as_ref().map(|x| x.at(i)),
            }
        };
        if prepared.is_none() && matrix.is_none() && one_by_one::<T>(method, form, (n, k), rows) {
            return unblocked::for_each(
                context,
                count,
                flops,
                &|| unblocked::Backward::new(n, k),
                &|i, room, cancel| {
                    let u = u.of(i)?;
                    let source = unblocked::Source::Vectors(part(h, i, rows * n));
                    let grad_c = part(grad_c, i, rows * n);
                    room.run(isa, cancel, u, &diagonals.of(u), source, grad_c, gradients(i), adjoint)
                },
            );
        }
        context.for_each(count, flops, &|i, context| {
            let u = u.of(i)?;
            let (h, grad_c, gradients) = (part(h, i, rows * n), part(grad_c, i, rows * n), gradients(i));
            let diagonal = diagonals.of(u);
            match (prepared, matrix) {
                (Some(prepared), _) => {
                    apply::backward_of(context, prepared, u, &diagonal, h, grad_c, gradients, adjoint)
                }
                (_, Some(matrix)) => {
                    apply::backward_by_matrix(context, matrix, u, &diagonal, h, grad_c, gradients, adjoint)
                }
                _ => apply::backward(context, u, &diagonal, h, grad_c, gradients, adjoint, method),
            }
        })
    })?;
    if let Some(grad_phases) = grad_phases {
        grad_phases.fill(T::Real::ZERO);
        each_phases.chunks(n).for_each(|each| grad_phases.iter_mut().zip(each).for_each(|(sum, &x)| *sum += x));
    }
    Ok(())
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
        let u = u.columns::<T>()?.of(0).map_err(to_python)?;
        if u.u1().is_some() {
            return Err(to_python(Error::InvalidArgument(format!("m: expected less than n = {n}, got {m}"))).into());
        }
        let h = h.slice::<T>("h", size(&[rows, n])?)?;
        let grad = grad.slice_mut::<T>("grad", h.len())?;
        let grad_u = grad_u.slice_mut::<T>("grad_u", n * m)?;
        let kept = kept.and_then(Kept::get::<Prepared<T>>).filter(|kept| kept.shape() == [n, m, rows]);
        Ok(run(py, |context| {
            if let Some(kept) = kept {
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
        let u = u.columns::<T>()?.of(0).map_err(to_python)?;
        let h = h.slice("h", size(&[rows, n])?)?;
        let tape = tape.slice_mut("tape", size(&[rows, m + 1, n])?)?;
        let diagonal = Diagonal::new(u, optional(phases, "phases", n)?).map_err(to_python)?;
        run(py, |context| unblocked::forward_tape(context, u, &diagonal, h, tape, adjoint))
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
    gradients: Gradient<'_>,
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
        let u = u.columns::<T>()?.of(0).map_err(to_python)?;
        let tape = tape.slice("tape", size(&[rows, m + 1, n])?)?;
        let grad_c = grad_c.slice("grad_c", size(&[rows, n])?)?;
        let diagonal = Diagonal::new(u, optional(phases, "phases", n)?).map_err(to_python)?;
        let gradients = Gradients {
            u: optional_mut(grad_u, "grad_u", n * m)?,
            h: optional_mut(grad_h, "grad_h", rows * n)?,
            tau: None,
            phases: optional_mut(grad_phases, "grad_phases", n)?,
        };
        run(py, |context| unblocked::backward_tape(context, u, &diagonal, tape, grad_c, gradients, adjoint))
    }
    let py = u.py();
    let (tape, grad_c, phases) = (Array::read(tape)?, Array::read(grad_c)?, Array::optional(phases)?);
    let (u, rows) = problem(u, &grad_c)?;
    let gradients = Array::each(&gradients)?;
    let gradients = gradients.each_ref().map(Option::as_ref);
    by_dtype!(grad_c.dtype, go(py, &u, rows, [&tape, &grad_c], gradients, phases.as_ref(), transpose))
}
