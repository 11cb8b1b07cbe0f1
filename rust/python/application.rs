//! `W h` and its gradients.

use householder::apply::{self, Gradients, Saved};
use householder::method::Method;
use householder::operator::Operator;
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, Refusal, attempt, run};
use crate::columns::Columns;
use crate::dtype::Number;
use crate::kept::Kept;
use crate::operands::{Arrays, Operands};
use crate::options;

const TAU: usize = 1;
const PHASES: usize = 2;
const H: usize = 3;
const GRAD: usize = 4;

/// The matrices of a call, with `rows` vectors each.
struct Call {
    columns: Columns,
    rows: usize,
    transpose: bool,
    method: Option<Method>,
}

impl Call {
    /// For `h (.., n)` of the type of `u`.
    fn of(
        u: &Array<'_, '_>,
        shape: &str,
        tau: Option<&Array<'_, '_>>,
        h: &Array<'_, '_>,
        transpose: bool,
        method: &str,
    ) -> Reading<Self> {
        let (method, columns) = (options::method(method)?, Columns::of(u, shape, tau)?);
        let rows = h.len.checked_div(columns.count * columns.n).unwrap_or(0);
        let given = || Ok::<_, PyErr>(format!("got u {} and h {}", u.describe()?, h.describe()?));
        if h.dims == 0 || h.last[2] != columns.n || columns.count * rows * columns.n != h.len {
            return Err(Refusal::invalid(format!("expected u (.., n, m) and h (.., n), {}", given()?)));
        }
        if u.dtype != h.dtype {
            return Err(Refusal::Type(format!("expected u and h of one type, {}", given()?)));
        }
        Ok(Self { columns, rows, transpose, method })
    }

    /// `W`, or `W*`, with the phases that all matrices share.
    fn operator<T: Number<Real: Number>>(&self, operands: &impl Operands<'static>) -> Reading<Operator<'static, T>> {
        let phases = operands.read::<T::Real>(PHASES, "phases", &[self.columns.n])?;
        Ok(self.columns.operator(operands, TAU, phases)?.adjoint(self.transpose).by(self.method))
    }

    /// The shape of all vectors.
    fn vectors(&self) -> [usize; 3] {
        [self.columns.count, self.rows, self.columns.n]
    }
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
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        call: &Call,
        arrays: &Arrays<'_, '_, 4, 1>,
        keep: bool,
    ) -> Reading<Option<Kept>> {
        let (w, h) = (call.operator::<T>(arrays)?, arrays.needed(H, "h", &call.vectors())?);
        let out = arrays.write(0, &call.vectors())?.unwrap_or_default();
        let saved = run(py, |context| {
            if keep {
                return apply::forward_and_save(context, &w, h, out);
            }
            apply::forward(context, &w, h, out).map(|()| None)
        })?;
        Ok(saved.map(|saved| Kept::new(saved.is_matrix(), saved)))
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, tau, h) = (Array::read(u)?, Array::optional(tau)?, Array::read(h)?);
        let (out, phases, dtype) = (Array::read(out)?, Array::optional(phases)?, h.dtype);
        let call = Call::of(&u, shape, tau.as_ref(), &h, transpose, method)?;
        let operands = [("u", Some(u)), ("tau", tau), ("phases", phases), ("h", Some(h))];
        let arrays = Arrays::new(operands, [("out", Some(out))])?;
        by_dtype!(dtype, go(py, &call, &arrays, keep))
    };
    attempt(py, reading())
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
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        call: &Call,
        arrays: &Arrays<'_, '_, 5, 4>,
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let (w, vectors, Columns { count, n, m, .. }) = (call.operator::<T>(arrays)?, call.vectors(), &call.columns);
        let (h, g) = (arrays.needed(H, "h", &vectors)?, arrays.needed(GRAD, "grad_c", &vectors)?);
        let gradients = Gradients {
            u: arrays.write(0, &[*count, *n, *m])?,
            h: arrays.write(1, &vectors)?,
            phases: arrays.write(2, &[*n])?,
            tau: arrays.write(3, &[*count, *m])?,
        };
        let saved = kept.and_then(Kept::get::<Saved<T>>).filter(|saved| saved.check(&w, call.rows).is_ok());
        run(py, |context| apply::backward(context, &w, h, g, gradients, saved))
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, tau, h) = (Array::read(u)?, Array::optional(tau)?, Array::read(h)?);
        let (grad_c, phases, dtype) = (Array::read(grad_c)?, Array::optional(phases)?, h.dtype);
        let call = Call::of(&u, shape, tau.as_ref(), &h, transpose, method)?;
        let [grad_u, grad_h, grad_phases, grad_tau] = Array::each(&gradients)?;
        let arrays = Arrays::new(
            [("u", Some(u)), ("tau", tau), ("phases", phases), ("h", Some(h)), ("grad_c", Some(grad_c))],
            [("grad_u", grad_u), ("grad_h", grad_h), ("grad_phases", grad_phases), ("grad_tau", grad_tau)],
        )?;
        by_dtype!(dtype, go(py, &call, &arrays, kept.map(Bound::get)))
    };
    attempt(py, reading())
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
        call: &Call,
        arrays: &Arrays<'_, '_, 4, 2>,
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let (w, h) = (call.operator::<T>(arrays)?, arrays.needed(H, "h", &call.vectors())?);
        let grad = arrays.write(0, &call.vectors())?.unwrap_or_default();
        let gradients = Gradients { u: arrays.write(1, &call.columns.shape())?, ..Gradients::default() };
        let saved = kept.and_then(Kept::get::<Saved<T>>);
        let saved = saved.filter(|saved| !saved.is_matrix() && saved.check(&w, call.rows).is_ok());
        run(py, |context| apply::backward_in_place(context, &w, h, grad, gradients, saved))
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, h, grad, grad_u) = (Array::read(u)?, Array::read(h)?, Array::read(grad)?, Array::read(grad_u)?);
        let (call, dtype) = (Call::of(&u, "trapezoidal", None, &h, false, "wy")?, h.dtype);
        let operands = [("u", Some(u)), ("tau", None), ("phases", None), ("h", Some(h))];
        let arrays = Arrays::new(operands, [("grad", Some(grad)), ("grad_u", Some(grad_u))])?;
        by_dtype!(dtype, go(py, &call, &arrays, kept.map(Bound::get)))
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
    fn go<T: Number<Real: Number>>(py: Python<'_>, call: &Call, arrays: &Arrays<'_, '_, 4, 1>) -> Reading<()> {
        let (w, h) = (call.operator::<T>(arrays)?, arrays.needed(H, "h", &call.vectors())?);
        let tape = arrays.write(0, &[call.rows, call.columns.m + 1, call.columns.n])?.unwrap_or_default();
        run(py, |context| apply::forward_tape(context, &w, h, tape))
    }
    let py = u.py();
    let (u, h, tape, phases) = (Array::read(u)?, Array::read(h)?, Array::read(tape)?, Array::optional(phases)?);
    let (call, dtype) = (Call::of(&u, "trapezoidal", None, &h, transpose, "auto")?, h.dtype);
    let operands = [("u", Some(u)), ("tau", None), ("phases", phases), ("h", Some(h))];
    let arrays = Arrays::new(operands, [("tape", Some(tape))])?;
    Ok(by_dtype!(dtype, go(py, &call, &arrays))?)
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
    fn go<T: Number<Real: Number>>(py: Python<'_>, call: &Call, arrays: &Arrays<'_, '_, 5, 3>) -> Reading<()> {
        let (w, Columns { n, m, .. }) = (call.operator::<T>(arrays)?, &call.columns);
        let g = arrays.needed(H, "grad_c", &call.vectors())?;
        let tape = arrays.needed(H + 1, "tape", &[call.rows, m + 1, *n])?;
        let gradients = Gradients {
            u: arrays.write(0, &call.columns.shape())?,
            h: arrays.write(1, &call.vectors())?,
            tau: None,
            phases: arrays.write(2, &[*n])?,
        };
        run(py, |context| apply::backward_tape(context, &w, tape, g, gradients))
    }
    let py = u.py();
    let (u, tape, grad_c, phases) =
        (Array::read(u)?, Array::read(tape)?, Array::read(grad_c)?, Array::optional(phases)?);
    let (call, dtype) = (Call::of(&u, "trapezoidal", None, &grad_c, transpose, "auto")?, grad_c.dtype);
    let [grad_u, grad_h, grad_phases] = Array::each(&gradients)?;
    let arrays = Arrays::new(
        [("u", Some(u)), ("tau", None), ("phases", phases), ("grad_c", Some(grad_c)), ("tape", Some(tape))],
        [("grad_u", grad_u), ("grad_h", grad_h), ("grad_phases", grad_phases)],
    )?;
    Ok(by_dtype!(dtype, go(py, &call, &arrays))?)
}
