//! Whole sequences.

use householder::rnn;
use householder_binding::by_dtype;
use householder_binding::dtype::DType;
use householder_binding::operands::{Arrays, each};
use householder_binding::options;
use householder_binding::refusal::Reading;
use householder_binding::rnn::{self as operation, Call, GRADIENTS, operands};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::array::Array;
use crate::call::{attempt, returned};
use crate::kept::{PyKept, held};

/// `u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau` and `batch_sizes`.
pub type PyInputs<'py> = [Option<Bound<'py, PyAny>>; 9];

/// How a recurrence computes.
pub type PyDescribed = operation::Described<PyBackedStr>;

/// The operands of a call, checked, and the call.
pub fn read<'a, 'b, 'py>(
    inputs: &'b PyInputs<'py>,
    described: &'a PyDescribed,
) -> Reading<(operation::Inputs<Array<'b, 'py>>, Call<'a>)> {
    let inputs = Array::each(inputs)?;
    let call = Call::of(&inputs, described.into())?;
    call.require(&inputs)?;
    Ok((inputs, call))
}

/// Width of what the forward pass may leave to the backward pass of each of so many states; 0: nothing.
#[pyfunction]
pub fn rnn_tape_width(
    dtype: &str,
    n: usize,
    m: usize,
    rows: usize,
    has_phases: bool,
    has_tau: bool,
    nonlinearity: &str,
    method: &str,
) -> PyResult<usize> {
    returned(|| {
        by_dtype!(DType::named(dtype), |T| {
            let activation = options::activation::<T>(nonlinearity, 0.0, Some(&[]))?;
            let method = options::method(method)?;
            Ok(rnn::tape_width(method, (n, m), rows, has_phases, has_tau, &activation)?)
        })
    })
}

/// All states, and in `last` those in which sequences end. What is kept serves the backward pass: factors, and the tape.
#[pyfunction]
pub fn rnn_forward(
    py: Python<'_>,
    inputs: PyInputs<'_>,
    options: PyDescribed,
    h: &Bound<'_, PyAny>,
    last: Option<&Bound<'_, PyAny>>,
    keep: bool,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (inputs, call) = read(&inputs, &options)?;
        let (h, last) = (Array::read(h)?, Array::optional(last)?);
        let results = [("h", Some(&h)), ("last", last.as_ref()), ("tape", None)];
        let arrays = Arrays::new(operands(&inputs, [None; 4]), results)?;
        Ok(operation::forward(&arrays, call, keep)?.map(PyKept::from))
    })
}

/// Gradients of the inputs but `batch_sizes`, where there is an array for them.
#[pyfunction]
pub fn rnn_backward(
    py: Python<'_>,
    inputs: PyInputs<'_>,
    options: PyDescribed,
    h: &Bound<'_, PyAny>,
    grad_h: Option<&Bound<'_, PyAny>>,
    grad_last: Option<&Bound<'_, PyAny>>,
    gradients: [Option<Bound<'_, PyAny>>; 8],
    kept: Option<&Bound<'_, PyKept>>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (inputs, call) = read(&inputs, &options)?;
        let (h, grad_h, grad_last) = (Array::read(h)?, Array::optional(grad_h)?, Array::optional(grad_last)?);
        let operands = operands(&inputs, [Some(&h), None, grad_h.as_ref(), grad_last.as_ref()]);
        let gradients = Array::each(&gradients)?;
        let arrays = Arrays::new(operands, each(GRADIENTS, &gradients))?;
        operation::backward(&arrays, call, held(kept), false)
    })
}
