//! Whole sequences.

use householder_binding::dtype::DType;
use householder_binding::operands::{Arrays, each, named};
use householder_binding::refusal::Reading;
use householder_binding::rnn::{Call, Described, GRADIENTS, Inputs, operands};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::array::Array;
use crate::call::{attempt, returned};
use crate::library::library;
use crate::saved::{PySaved, held};

/// `u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau` and `batch_sizes`.
pub type PyInputs<'py> = [Option<Bound<'py, PyAny>>; 9];

/// How a recurrence computes.
pub type PyDescribed = Described<PyBackedStr>;

/// The operands of a call, checked, and the call.
pub fn read<'a, 'b, 'py>(
    inputs: &'b PyInputs<'py>,
    described: &'a PyDescribed,
) -> Reading<(Inputs<Array<'b, 'py>>, Call<'a>)> {
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
        (library().rnn_tape_width)(DType::named(dtype), (n, m), rows, [has_phases, has_tau], [nonlinearity, method])
    })
}

/// All states, and in `last` those in which sequences end. What is saved serves the backward pass: factors, and the tape.
#[pyfunction]
pub fn rnn_forward(
    py: Python<'_>,
    inputs: PyInputs<'_>,
    options: PyDescribed,
    h: &Bound<'_, PyAny>,
    last: Option<&Bound<'_, PyAny>>,
    save: bool,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (inputs, call) = read(&inputs, &options)?;
        let (h, last) = (Array::read(h)?, Array::optional(last)?);
        let results = named(["h", "last", "tape"], [Some(&h), last.as_ref(), None]);
        Ok((library().rnn)(&Arrays::new(&operands(&inputs, [None; 4]), &results)?, call, save)?.map(PySaved::from))
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
    saved: Option<&Bound<'_, PySaved>>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (inputs, call) = read(&inputs, &options)?;
        let (h, grad_h, grad_last) = (Array::read(h)?, Array::optional(grad_h)?, Array::optional(grad_last)?);
        let operands = operands(&inputs, [Some(&h), None, grad_h.as_ref(), grad_last.as_ref()]);
        let gradients = Array::each(&gradients)?;
        (library().rnn_backward)(&Arrays::new(&operands, &each(GRADIENTS, &gradients))?, call, held(saved), false)
    })
}
