//! The gated norm.

use householder_binding::gated_norm::{self as operation, GRADIENTS, OPERANDS, Options};
use householder_binding::operands::{Arrays, named};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::attempt;

/// Operands `x`, the gates and the weights, or their gradients.
type Given<'py> = [Option<Bound<'py, PyAny>>; 3];

#[pyfunction]
pub fn gated_norm_forward(
    py: Python<'_>,
    inputs: Given<'_>,
    options: Options,
    out: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let arrays = Arrays::new(named(OPERANDS, Array::each(&inputs)?), [("out", Some(Array::read(out)?))])?;
        operation::forward(&arrays, options)
    })
}

#[pyfunction]
pub fn gated_norm_backward(
    py: Python<'_>,
    inputs: Given<'_>,
    options: Options,
    grad_out: &Bound<'_, PyAny>,
    gradients: Given<'_>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let operands = Array::each(&inputs)?.into_iter().chain([Some(Array::read(grad_out)?)]);
        let arrays = Arrays::new(named(OPERANDS, operands), named(GRADIENTS, Array::each(&gradients)?))?;
        operation::backward(&arrays, options)
    })
}
