//! Whole sequences.

use householder::apply::Diagonal;
use householder::error::Error;
use householder::kernel::activation::Activation;
use householder::plan::Method;
use householder::recurrence::{self, Sequence, SequenceGradients, Steps};
use householder::reflections::Reflections;
use householder::scalar::{Real, Scalar};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::by_dtype;
use crate::operand::{Number, Operand, optional, optional_mut, run, size, to_python};

/// The arguments that forward and backward share.
struct Arguments<'a, 'py> {
    sizes: [usize; 5],
    u: &'a Operand<'py>,
    x: &'a Operand<'py>,
    h0: Option<&'a Operand<'py>>,
    input_weight: Option<&'a Operand<'py>>,
    bias: Option<&'a Operand<'py>>,
    phases: Option<&'a Operand<'py>>,
    batch_sizes: Option<&'a PyReadonlyArray1<'py, i64>>,
    nonlinearity: &'a str,
    negative_slope: f64,
    transpose: bool,
    method: &'a str,
}

impl Arguments<'_, '_> {
    fn sequence<T: Number<Real: Number>>(&self) -> PyResult<Sequence<'static, T>> {
        let [n, m, d, steps, batch] = self.sizes;
        let steps = match self.batch_sizes {
            Some(sizes) => Steps::ragged(sizes.as_slice()?),
            None => Steps::uniform(steps, batch),
        }
        .map_err(to_python)?;
        let u = Reflections::new(n, m, self.u.slice::<T>("u", size(&[n, m])?)?).map_err(to_python)?;
        if self.input_weight.is_none() && d != n {
            return Err(to_python(Error::InvalidArgument(format!("x: expected width n = {n}, got {d}"))));
        }
        Ok(Sequence {
            u,
            diagonal: Diagonal::new(u, optional(self.phases, "phases", n)?).map_err(to_python)?,
            adjoint: self.transpose,
            activation: activation(self.nonlinearity, self.negative_slope)?,
            method: Method::parse(self.method).map_err(to_python)?,
            d,
            x: self.x.slice("x", size(&[steps.rows(), d])?)?,
            input_weight: optional(self.input_weight, "input_weight", size(&[n, d])?)?,
            bias: optional(self.bias, "bias", n)?,
            h0: optional(self.h0, "h0", size(&[batch, n])?)?,
            steps,
        })
    }
}

fn activation<T: Scalar>(name: &str, negative_slope: f64) -> PyResult<Activation<T>> {
    let invalid = |what: String| Err(to_python(Error::InvalidArgument(what)));
    if T::COMPLEX && name != "identity" {
        return invalid(format!("nonlinearity: '{name}' is not defined for complex numbers"));
    }
    match name {
        "identity" => Ok(Activation::Identity),
        "relu" => Ok(Activation::Relu),
        "tanh" => Ok(Activation::Tanh),
        "leaky_relu" if negative_slope == 0.0 => Ok(Activation::Relu),
        "leaky_relu" if negative_slope == 1.0 => Ok(Activation::Identity),
        "leaky_relu" if negative_slope > 0.0 => Ok(Activation::LeakyRelu(T::from_real(T::Real::of(negative_slope)))),
        "leaky_relu" => invalid(format!("negative_slope: expected a number >= 0, got {negative_slope}")),
        _ => invalid(format!("nonlinearity: expected 'identity', 'tanh', 'relu' or 'leaky_relu', got '{name}'")),
    }
}

#[pyfunction]
pub fn rnn_tape_width(dtype: &str, n: usize, m: usize, steps: usize, batch: usize, method: &str) -> PyResult<usize> {
    let complex = dtype.starts_with("complex");
    let method = Method::parse(method).map_err(to_python)?;
    let method = method.unwrap_or_else(|| householder::plan::for_sequence(n, m, steps.saturating_mul(batch)));
    Ok(if method == Method::Dense || complex { 0 } else { m })
}

#[pyfunction]
pub fn rnn_forward(
    py: Python<'_>,
    dtype: &str,
    n: usize,
    m: usize,
    d: usize,
    steps: usize,
    batch: usize,
    u: Operand<'_>,
    x: Operand<'_>,
    h0: Option<Operand<'_>>,
    input_weight: Option<Operand<'_>>,
    bias: Option<Operand<'_>>,
    phases: Option<Operand<'_>>,
    batch_sizes: Option<PyReadonlyArray1<'_, i64>>,
    nonlinearity: &str,
    negative_slope: f64,
    nonlinearity_bias: Option<Operand<'_>>,
    transpose: bool,
    method: &str,
    h: Operand<'_>,
    tape: Option<Operand<'_>>,
) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        arguments: &Arguments<'_, '_>,
        h: &Operand<'_>,
        tape: Option<&Operand<'_>>,
    ) -> PyResult<()> {
        let sequence = arguments.sequence::<T>()?;
        let rows = sequence.steps.rows();
        let h = h.slice_mut("h", size(&[rows, sequence.u.n()])?)?;
        let tape = optional_mut(tape, "tape", size(&[rows, sequence.tape_width().map_err(to_python)?])?)?;
        run(py, |context| recurrence::forward(context, &sequence, h, tape))
    }
    let _ = nonlinearity_bias;
    let arguments = Arguments {
        sizes: [n, m, d, steps, batch],
        u: &u,
        x: &x,
        h0: h0.as_ref(),
        input_weight: input_weight.as_ref(),
        bias: bias.as_ref(),
        phases: phases.as_ref(),
        batch_sizes: batch_sizes.as_ref(),
        nonlinearity,
        negative_slope,
        transpose,
        method,
    };
    by_dtype!(dtype, go(py, &arguments, &h, tape.as_ref()))
}

#[pyfunction]
pub fn rnn_backward(
    py: Python<'_>,
    dtype: &str,
    n: usize,
    m: usize,
    d: usize,
    steps: usize,
    batch: usize,
    u: Operand<'_>,
    x: Operand<'_>,
    h0: Option<Operand<'_>>,
    input_weight: Option<Operand<'_>>,
    bias: Option<Operand<'_>>,
    phases: Option<Operand<'_>>,
    batch_sizes: Option<PyReadonlyArray1<'_, i64>>,
    nonlinearity: &str,
    negative_slope: f64,
    nonlinearity_bias: Option<Operand<'_>>,
    transpose: bool,
    method: &str,
    h: Operand<'_>,
    tape: Option<Operand<'_>>,
    grad_h: Option<Operand<'_>>,
    grad_last: Option<Operand<'_>>,
    grad_u: Option<Operand<'_>>,
    grad_x: Option<Operand<'_>>,
    grad_h0: Option<Operand<'_>>,
    grad_input_weight: Option<Operand<'_>>,
    grad_bias: Option<Operand<'_>>,
    grad_phases: Option<Operand<'_>>,
    grad_nonlinearity_bias: Option<Operand<'_>>,
) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        arguments: &Arguments<'_, '_>,
        [h, tape, grad_h, grad_last]: [Option<&Operand<'_>>; 4],
        [grad_u, grad_x, grad_h0, grad_input_weight, grad_bias, grad_phases]: [Option<&Operand<'_>>; 6],
    ) -> PyResult<()> {
        let sequence = arguments.sequence::<T>()?;
        let [n, m, d, _, batch] = arguments.sizes;
        let rows = sequence.steps.rows();
        let h = optional(h, "h", rows * n)?.unwrap_or_default();
        let tape = optional(tape, "tape", rows * sequence.tape_width().map_err(to_python)?)?;
        let grad_h = optional(grad_h, "grad_h", rows * n)?;
        let grad_last = optional(grad_last, "grad_last", batch * n)?;
        let gradients = SequenceGradients {
            u: optional_mut(grad_u, "grad_u", n * m)?,
            x: optional_mut(grad_x, "grad_x", rows * d)?,
            h0: optional_mut(grad_h0, "grad_h0", batch * n)?,
            input_weight: optional_mut(grad_input_weight, "grad_input_weight", n * d)?,
            bias: optional_mut(grad_bias, "grad_bias", n)?,
            phases: optional_mut(grad_phases, "grad_phases", n)?,
        };
        run(py, |context| recurrence::backward(context, &sequence, h, tape, grad_h, grad_last, gradients))
    }
    let _ = (nonlinearity_bias, grad_nonlinearity_bias);
    let arguments = Arguments {
        sizes: [n, m, d, steps, batch],
        u: &u,
        x: &x,
        h0: h0.as_ref(),
        input_weight: input_weight.as_ref(),
        bias: bias.as_ref(),
        phases: phases.as_ref(),
        batch_sizes: batch_sizes.as_ref(),
        nonlinearity,
        negative_slope,
        transpose,
        method,
    };
    let states = [Some(&h), tape.as_ref(), grad_h.as_ref(), grad_last.as_ref()];
    let gradients = [&grad_u, &grad_x, &grad_h0, &grad_input_weight, &grad_bias, &grad_phases].map(Option::as_ref);
    by_dtype!(dtype, go(py, &arguments, states, gradients))
}
