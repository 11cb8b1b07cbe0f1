//! The causal convolution.

use householder::convolution::Sizes;
use householder_binding::convolution::{GRADIENTS, OPERANDS};
use householder_binding::operands::{Arrays, each};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::attempt;
use crate::library::library;

/// Operands `x`, the weights and the bias, or their gradients.
type ConvolutionArrays<'py> = [Option<Bound<'py, PyAny>>; 3];

/// Sizes of a call: sequences, vectors of a sequence, numbers of a vector, taps.
type ConvolutionShape = [usize; 4];

fn sizes([batch, tokens, channels, taps]: ConvolutionShape) -> Sizes {
    Sizes { batch, tokens, channels, taps }
}

#[pyfunction]
pub fn convolution_forward(
    py: Python<'_>,
    inputs: ConvolutionArrays<'_>,
    shape: ConvolutionShape,
    silu: bool,
    out: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (inputs, out) = (Array::each(&inputs)?, Array::read(out)?);
        (library().convolution)(&Arrays::new(&each(OPERANDS, &inputs), &[("out", Some(&out))])?, sizes(shape), silu)
    })
}

#[pyfunction]
pub fn convolution_backward(
    py: Python<'_>,
    inputs: ConvolutionArrays<'_>,
    shape: ConvolutionShape,
    silu: bool,
    grad_out: &Bound<'_, PyAny>,
    gradients: ConvolutionArrays<'_>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let [x, weight, bias] = Array::each(&inputs)?;
        let (operands, gradients) = ([x, weight, bias, Some(Array::read(grad_out)?)], Array::each(&gradients)?);
        (library().convolution_backward)(
            &Arrays::new(&each(OPERANDS, &operands), &each(GRADIENTS, &gradients))?,
            sizes(shape),
            silu,
        )
    })
}
