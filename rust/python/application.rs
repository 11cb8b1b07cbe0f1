//! `W h` and its gradients.

use householder_binding::apply::{ApplyCall, GRADIENTS, OF_TAPE, OPERANDS};
use householder_binding::operands::{Arrays, named};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::{attempt, returned};
use crate::library::library;
use crate::saved::{PySaved, held};

#[pyfunction]
#[pyo3(signature = (u, h, out, phases, transpose, method, save=false, form="trapezoidal", tau=None))]
pub fn forward(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    transpose: bool,
    method: &str,
    save: bool,
    form: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let (u, tau, h) = (Array::read(u)?, Array::optional(tau)?, Array::read(h)?);
        let (out, phases) = (Array::read(out)?, Array::optional(phases)?);
        let call = ApplyCall::of(&u, &h, tau.is_some(), transpose, method, form)?;
        call.columns.require_tau(&u, tau.as_ref())?;
        Ok((library().apply)(
            &Arrays::new(
                &named(OPERANDS, [Some(&u), tau.as_ref(), Some(&h), None, phases.as_ref()]),
                &[("out", Some(&out))],
            )?,
            &call,
            save,
        )?
        .map(PySaved::from))
    })
}

#[pyfunction]
#[pyo3(signature = (u, h, grad_c, gradients, phases, transpose, method, saved=None, form="trapezoidal", tau=None))]
pub fn backward(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    grad_c: &Bound<'_, PyAny>,
    gradients: [Option<Bound<'_, PyAny>>; 4],
    phases: Option<&Bound<'_, PyAny>>,
    transpose: bool,
    method: &str,
    saved: Option<&Bound<'_, PySaved>>,
    form: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let (u, tau, h) = (Array::read(u)?, Array::optional(tau)?, Array::read(h)?);
        let (grad_c, phases) = (Array::read(grad_c)?, Array::optional(phases)?);
        let call = ApplyCall::of(&u, &h, tau.is_some(), transpose, method, form)?;
        call.columns.require_tau(&u, tau.as_ref())?;
        let operands = named(OPERANDS, [Some(&u), tau.as_ref(), Some(&h), Some(&grad_c), phases.as_ref()]);
        let [grad_u, grad_h, grad_phases, grad_tau] = &Array::each(&gradients)?;
        let results = [grad_u, grad_tau, grad_h, grad_phases].map(Option::as_ref);
        (library().apply_backward)(&Arrays::new(&operands, &named(GRADIENTS, results))?, &call, held(saved))
    })
}

/// The gradient of `W h`, in `grad`, becomes that of `h`.
#[pyfunction]
pub fn backward_in_place(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    grad: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    saved: Option<&Bound<'_, PySaved>>,
) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let (u, h, grad, grad_u) = (Array::read(u)?, Array::read(h)?, Array::read(grad)?, Array::read(grad_u)?);
        let call = ApplyCall::of(&u, &h, false, false, "wy", "trapezoidal")?;
        let operands = named(OPERANDS, [Some(&u), None, Some(&h)]);
        (library().apply_backward_in_place)(
            &Arrays::new(&operands, &[("grad", Some(&grad)), ("grad_u", Some(&grad_u))])?,
            &call,
            held(saved),
        )
    })
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
    returned(|| {
        let (u, h, tape, phases) = (Array::read(u)?, Array::read(h)?, Array::read(tape)?, Array::optional(phases)?);
        let call = ApplyCall::of(&u, &h, false, transpose, "auto", "trapezoidal")?;
        let operands = named(OPERANDS, [Some(&u), None, Some(&h), None, phases.as_ref()]);
        (library().apply_tape)(&Arrays::new(&operands, &[("tape", Some(&tape))])?, &call)
    })
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
    returned(|| {
        let (u, tape, grad_c, phases) =
            (Array::read(u)?, Array::read(tape)?, Array::read(grad_c)?, Array::optional(phases)?);
        let call = ApplyCall::of(&u, &grad_c, false, transpose, "auto", "trapezoidal")?;
        let operands = named(OF_TAPE, [Some(&u), None, Some(&grad_c), Some(&tape), phases.as_ref()]);
        let [grad_u, grad_h, grad_phases] = &Array::each(&gradients)?;
        let results = [grad_u.as_ref(), None, grad_h.as_ref(), grad_phases.as_ref()];
        (library().apply_tape_backward)(&Arrays::new(&operands, &named(GRADIENTS, results))?, &call)
    })
}
