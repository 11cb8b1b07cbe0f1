//! `W h` and its gradients.

use householder::apply::{self, Gradients, Saved};
use householder_binding::apply::{
    ApplyCall, GRAD, GRADIENTS, H, OPERANDS, backward as gradients_of, forward as apply_to,
};
use householder_binding::by_dtype;
use householder_binding::kept::fitting;
use householder_binding::operands::{Arrays, Caller, Operands, each, named};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::{attempt, returned};
use crate::kept::{PyKept, held};

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
    attempt(u.py(), || {
        let (u, tau, h) = (Array::read(u)?, Array::optional(tau)?, Array::read(h)?);
        let (out, phases) = (Array::read(out)?, Array::optional(phases)?);
        let call = ApplyCall::of(&u, &h, tau.is_some(), transpose, method, shape)?;
        call.columns.require_tau(&u, tau.as_ref())?;
        let arrays = Arrays::new(
            named(OPERANDS, [Some(&u), tau.as_ref(), Some(&h), None, phases.as_ref()]),
            [("out", Some(&out))],
        )?;
        Ok(apply_to(&arrays, &call, keep)?.map(PyKept::from))
    })
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
    kept: Option<&Bound<'_, PyKept>>,
    shape: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let (u, tau, h) = (Array::read(u)?, Array::optional(tau)?, Array::read(h)?);
        let (grad_c, phases) = (Array::read(grad_c)?, Array::optional(phases)?);
        let call = ApplyCall::of(&u, &h, tau.is_some(), transpose, method, shape)?;
        call.columns.require_tau(&u, tau.as_ref())?;
        let operands = named(OPERANDS, [Some(&u), tau.as_ref(), Some(&h), Some(&grad_c), phases.as_ref()]);
        let [grad_u, grad_h, grad_phases, grad_tau] = &Array::each(&gradients)?;
        let results = [grad_u, grad_tau, grad_h, grad_phases].map(Option::as_ref);
        let arrays = Arrays::new(operands, named(GRADIENTS, results))?;
        gradients_of(&arrays, &call, held(kept))
    })
}

/// The gradient of `W h`, in `grad`, becomes that of `h`.
#[pyfunction]
pub fn backward_in_place(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    grad: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    kept: Option<&Bound<'_, PyKept>>,
) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let (u, h, grad, grad_u) = (Array::read(u)?, Array::read(h)?, Array::read(grad)?, Array::read(grad_u)?);
        let (call, dtype) = (ApplyCall::of(&u, &h, false, false, "wy", "trapezoidal")?, h.dtype);
        let operands = named(OPERANDS, [Some(&u), None, Some(&h)]);
        let arrays = Arrays::new(operands, [("grad", Some(&grad)), ("grad_u", Some(&grad_u))])?;
        by_dtype!(dtype, |T| {
            let (w, h) = (call.operator::<T>(&arrays)?, arrays.needed(H, "h", &call.vectors())?);
            let grad = arrays.write(0, &call.vectors())?.unwrap_or_default();
            let gradients = Gradients { u: arrays.write(1, &call.columns.shape())?, ..Gradients::default() };
            let fits = |saved: &Saved<T>| !saved.is_matrix() && saved.check(&w, call.rows).is_ok();
            let saved = fitting(held(kept), fits);
            arrays.run(|context| apply::backward_in_place(context, &w, h, grad, gradients, saved))
        })
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
        let (call, dtype) = (ApplyCall::of(&u, &h, false, transpose, "auto", "trapezoidal")?, h.dtype);
        let operands = named(OPERANDS, [Some(&u), None, Some(&h), None, phases.as_ref()]);
        let arrays = Arrays::new(operands, [("tape", Some(&tape))])?;
        by_dtype!(dtype, |T| {
            let (w, h) = (call.operator::<T>(&arrays)?, arrays.needed(H, "h", &call.vectors())?);
            let tape = arrays.write(0, &[call.rows, call.columns.m + 1, call.columns.n])?.unwrap_or_default();
            arrays.run(|context| apply::forward_tape(context, &w, h, tape))
        })
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
        let (call, dtype) = (ApplyCall::of(&u, &grad_c, false, transpose, "auto", "trapezoidal")?, grad_c.dtype);
        let gradients = Array::each(&gradients)?;
        let names = ["u", "tau", "grad_c", "tape", "phases"];
        let operands = named(names, [Some(&u), None, Some(&grad_c), Some(&tape), phases.as_ref()]);
        let results = each(["grad_u", "grad_h", "grad_phases"], &gradients);
        let arrays = Arrays::new(operands, results)?;
        by_dtype!(dtype, |T| {
            let (w, n) = (call.operator::<T>(&arrays)?, call.columns.n);
            let g = arrays.needed(H, "grad_c", &call.vectors())?;
            let tape = arrays.needed(GRAD, "tape", &[call.rows, call.columns.m + 1, n])?;
            let gradients = Gradients {
                u: arrays.write(0, &call.columns.shape())?,
                h: arrays.write(1, &call.vectors())?,
                tau: None,
                phases: arrays.write(2, &[n])?,
            };
            arrays.run(|context| apply::backward_tape(context, &w, tape, g, gradients))
        })
    })
}
