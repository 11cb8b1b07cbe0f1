//! The gated norm.

use householder_binding::gated_norm::{GRADIENTS, NormOptions, OPERANDS};
use householder_binding::operands::{Arrays, each};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::attempt;
use crate::library::library;

/// Operands `x`, the gates and the weights, or their gradients.
type NormArrays<'py> = [Option<Bound<'py, PyAny>>; 3];

#[pyfunction]
pub fn gated_norm_forward(
    py: Python<'_>,
    inputs: NormArrays<'_>,
    options: NormOptions,
    out: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (inputs, out) = (Array::each(&inputs)?, Array::read(out)?);
        (library().gated_norm)(&Arrays::new(&each(OPERANDS, &inputs), &[("out", Some(&out))])?, options)
    })
}

#[pyfunction]
pub fn gated_norm_backward(
    py: Python<'_>,
    inputs: NormArrays<'_>,
    options: NormOptions,
    grad_out: &Bound<'_, PyAny>,
    gradients: NormArrays<'_>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let [x, z, weight] = Array::each(&inputs)?;
        let (operands, gradients) = ([x, z, weight, Some(Array::read(grad_out)?)], Array::each(&gradients)?);
        (library().gated_norm_backward)(
            &Arrays::new(&each(OPERANDS, &operands), &each(GRADIENTS, &gradients))?,
            options,
        )
    })
}
