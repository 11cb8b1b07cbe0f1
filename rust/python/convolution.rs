//! The causal convolution of Python's arrays.

use householder::convolution::{self, Gradients, Operands, Sizes};
use householder::exponential::Exponential;
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, attempt, run};
use crate::dtype::{DType, Number};
use crate::operands::{Arrays, Operands as _, given, named};

/// Slots of operands, and of their gradients: `x`, the weights and the bias.
const INPUTS: usize = 3;
const NAMES: [&str; INPUTS] = ["x", "weight", "bias"];
const GRADIENTS: [&str; INPUTS] = ["grad_x", "grad_weight", "grad_bias"];

type Given<'py> = [Option<Bound<'py, PyAny>>; INPUTS];

/// Sizes of a call: sequences, vectors of a sequence, numbers of a vector, taps.
type Shape = [usize; 4];

fn sizes([batch, tokens, channels, taps]: Shape) -> Sizes {
    Sizes { batch, tokens, channels, taps }
}

/// The type that is computed in: that of the weights.
fn dtype(operands: &[Option<Array<'_, '_>>; INPUTS]) -> DType {
    operands[1].as_ref().map_or(DType::Other, |weight| weight.dtype)
}

fn operands<T: Number + Exponential, const IN: usize, const OUT: usize>(
    arrays: &Arrays<'_, '_, IN, OUT>,
    shape: Shape,
    silu: bool,
) -> Reading<Operands<'static, T>> {
    let [_, _, channels, taps] = shape;
    Ok(Operands {
        sizes: sizes(shape),
        x: given("x", arrays.tokens(0, "x", &shape[..3])?)?,
        weight: arrays.needed(1, "weight", &[channels, taps])?,
        bias: arrays.read(2, "bias", &[channels])?,
        silu,
    })
}

#[pyfunction]
pub fn convolution_forward(
    py: Python<'_>,
    inputs: Given<'_>,
    shape: Shape,
    silu: bool,
    out: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number + Exponential>(
        py: Python<'_>,
        arrays: &Arrays<'_, '_, INPUTS, 1>,
        shape: Shape,
        silu: bool,
    ) -> Reading<()> {
        let operands = operands::<T, _, _>(arrays, shape, silu)?;
        let out = given("out", arrays.numbers_mut(0, &shape[..3])?)?;
        run(py, |context| convolution::forward(context, operands, out))
    }
    let reading = || -> Reading<_> {
        let (inputs, out) = (Array::each(&inputs)?, Array::read(out)?);
        let dtype = dtype(&inputs);
        let arrays = Arrays::new(named(NAMES, inputs), [("out", Some(out))])?;
        by_dtype!(real dtype, go(py, &arrays, shape, silu))
    };
    attempt(py, reading())
}

#[pyfunction]
pub fn convolution_backward(
    py: Python<'_>,
    inputs: Given<'_>,
    shape: Shape,
    silu: bool,
    grad_out: &Bound<'_, PyAny>,
    gradients: Given<'_>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number + Exponential>(
        py: Python<'_>,
        arrays: &Arrays<'_, '_, { INPUTS + 1 }, INPUTS>,
        shape: Shape,
        silu: bool,
    ) -> Reading<()> {
        let (operands, [_, _, channels, taps]) = (operands::<T, _, _>(arrays, shape, silu)?, shape);
        let grad_out = given("grad_out", arrays.tokens(INPUTS, "grad_out", &shape[..3])?)?;
        let gradients = Gradients {
            x: arrays.numbers_mut(0, &shape[..3])?,
            weight: arrays.write(1, &[channels, taps])?,
            bias: arrays.write(2, &[channels])?,
        };
        run(py, |context| convolution::backward(context, operands, grad_out, gradients))
    }
    let reading = || -> Reading<_> {
        let (inputs, grad_out) = (Array::each(&inputs)?, Array::read(grad_out)?);
        let dtype = dtype(&inputs);
        let [x, weight, bias] = named(NAMES, inputs);
        let results = named(GRADIENTS, Array::each(&gradients)?);
        let arrays = Arrays::new([x, weight, bias, ("grad_out", Some(grad_out))], results)?;
        by_dtype!(real dtype, go(py, &arrays, shape, silu))
    };
    attempt(py, reading())
}
