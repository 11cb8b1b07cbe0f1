//! The gated norm of Python's arrays.

use householder::exponential::Exponential;
use householder::gated_norm::{self, Gradients, Operands};
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, attempt, run};
use crate::dtype::{DType, Number};
use crate::operands::{Arrays, Operands as _, given, named};

/// Slots of operands, and of their gradients: `x`, the gates and the weights.
const INPUTS: usize = 3;
const NAMES: [&str; INPUTS] = ["x", "z", "weight"];
const GRADIENTS: [&str; INPUTS] = ["grad_x", "grad_z", "grad_weight"];

type Given<'py> = [Option<Bound<'py, PyAny>>; INPUTS];

/// Rows and their width, epsilon, and whether gates pass through `SiLU`.
type Options = ([usize; 2], f64, bool);

/// The type that is computed in: that of the weights.
fn dtype(operands: &[Option<Array<'_, '_>>; INPUTS]) -> DType {
    operands[2].as_ref().map_or(DType::Other, |weight| weight.dtype)
}

fn operands<T: Number + Exponential, const IN: usize, const OUT: usize>(
    arrays: &Arrays<'_, '_, IN, OUT>,
    (shape, epsilon, silu): Options,
) -> Reading<Operands<'static, T>> {
    Ok(Operands {
        rows: shape[0],
        x: given("x", arrays.tokens(0, "x", &shape)?)?,
        z: given("z", arrays.tokens(1, "z", &shape)?)?,
        weight: arrays.needed(2, "weight", &shape[1..])?,
        epsilon: T::of(epsilon),
        silu,
    })
}

#[pyfunction]
pub fn gated_norm_forward(
    py: Python<'_>,
    inputs: Given<'_>,
    options: Options,
    out: &Bound<'_, PyAny>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number + Exponential>(
        py: Python<'_>,
        arrays: &Arrays<'_, '_, INPUTS, 1>,
        options: Options,
    ) -> Reading<()> {
        let operands = operands::<T, _, _>(arrays, options)?;
        let out = given("out", arrays.numbers_mut(0, &options.0)?)?;
        run(py, |context| gated_norm::forward(context, operands, out))
    }
    let reading = || -> Reading<_> {
        let (inputs, out) = (Array::each(&inputs)?, Array::read(out)?);
        let dtype = dtype(&inputs);
        let arrays = Arrays::new(named(NAMES, inputs), [("out", Some(out))])?;
        by_dtype!(real dtype, go(py, &arrays, options))
    };
    attempt(py, reading())
}

#[pyfunction]
pub fn gated_norm_backward(
    py: Python<'_>,
    inputs: Given<'_>,
    options: Options,
    grad_out: &Bound<'_, PyAny>,
    gradients: Given<'_>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number + Exponential>(
        py: Python<'_>,
        arrays: &Arrays<'_, '_, { INPUTS + 1 }, INPUTS>,
        options: Options,
    ) -> Reading<()> {
        let (operands, shape) = (operands::<T, _, _>(arrays, options)?, options.0);
        let grad_out = given("grad_out", arrays.tokens(INPUTS, "grad_out", &shape)?)?;
        let gradients = Gradients {
            x: arrays.numbers_mut(0, &shape)?,
            z: arrays.numbers_mut(1, &shape)?,
            weight: arrays.write(2, &shape[1..])?,
        };
        run(py, |context| gated_norm::backward(context, operands, grad_out, gradients))
    }
    let reading = || -> Reading<_> {
        let (inputs, grad_out) = (Array::each(&inputs)?, Array::read(grad_out)?);
        let dtype = dtype(&inputs);
        let [x, z, weight] = named(NAMES, inputs);
        let results = named(GRADIENTS, Array::each(&gradients)?);
        let arrays = Arrays::new([x, z, weight, ("grad_out", Some(grad_out))], results)?;
        by_dtype!(real dtype, go(py, &arrays, options))
    };
    attempt(py, reading())
}
