//! Whole sequences.

use householder::apply::Diagonal;
use householder::error::Error;
use householder::kernel::activation::Activation;
use householder::plan::{self, Method};
use householder::recurrence::{self, Sequence, SequenceGradients, Steps};
use householder::reflections::Reflections;
use householder::scalar::Real;
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
    nonlinearity_bias: Option<&'a Operand<'py>>,
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
            activation: self.activation()?,
            method: Method::parse(self.method).map_err(to_python)?,
            d,
            x: self.x.slice("x", size(&[steps.rows(), d])?)?,
            input_weight: optional(self.input_weight, "input_weight", size(&[n, d])?)?,
            bias: optional(self.bias, "bias", n)?,
            h0: optional(self.h0, "h0", size(&[batch, n])?)?,
            steps,
        })
    }

    fn activation<T: Number<Real: Number>>(&self) -> PyResult<Activation<'static, T>> {
        let invalid = |what: String| Err(to_python(Error::InvalidArgument(what)));
        let (name, n) = (self.nonlinearity, self.sizes[0]);
        if T::COMPLEX && name == "oplu" {
            return invalid("nonlinearity: 'oplu' orders real numbers, got a complex u".to_owned());
        }
        if matches!(name, "oplu" | "modrelu") && !T::COMPLEX && n % 2 == 1 {
            return invalid(format!("nonlinearity: '{name}' pairs i with i + n/2 and needs an even n, got {n}"));
        }
        let slope = self.negative_slope;
        match name {
            "identity" => Ok(Activation::Identity),
            "relu" => Ok(Activation::Relu),
            "tanh" => Ok(Activation::Tanh),
            "oplu" => Ok(Activation::Oplu),
            "modrelu" => {
                let pairs = if T::COMPLEX { n } else { n / 2 };
                match optional(self.nonlinearity_bias, "nonlinearity_bias", pairs)? {
                    Some(bias) => Ok(Activation::ModRelu(bias)),
                    None => invalid(format!("nonlinearity_bias: expected {pairs} numbers for modReLU, got None")),
                }
            }
            "leaky_relu" if slope == 0.0 => Ok(Activation::Relu),
            "leaky_relu" if slope == 1.0 => Ok(Activation::Identity),
            "leaky_relu" if slope > 0.0 => {
                // Both parts: the slope multiplies real and imaginary parts alike.
                Ok(Activation::LeakyRelu(T::from_parts(T::Real::of(slope), T::Real::of(slope))))
            }
            "leaky_relu" => invalid(format!("negative_slope: expected a number >= 0, got {slope}")),
            _ => invalid(format!(
                "nonlinearity: expected 'identity', 'tanh', 'relu', 'leaky_relu', 'oplu' or 'modrelu', got '{name}'"
            )),
        }
    }
}

#[pyfunction]
#[pyo3(signature = (dtype, n, m, rows, has_phases, nonlinearity, method))]
pub fn rnn_tape_width(
    dtype: &str,
    n: usize,
    m: usize,
    rows: usize,
    has_phases: bool,
    nonlinearity: &str,
    method: &str,
) -> PyResult<usize> {
    let method = Method::parse(method).map_err(to_python)?;
    let method = method.unwrap_or_else(|| plan::for_sequence(n, m, rows));
    let rank = if method == Method::Dense || has_phases { 0 } else { m };
    let flags = match (nonlinearity, dtype) {
        ("oplu", "float32") => Activation::<f32>::Oplu.flag_width(n),
        ("oplu", "float64") => Activation::<f64>::Oplu.flag_width(n),
        _ => 0,
    };
    Ok(rank + flags)
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
        nonlinearity_bias: nonlinearity_bias.as_ref(),
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
        [grad_u, grad_x, grad_h0, grad_input_weight, grad_bias, grad_phases, grad_nonlinearity_bias]: [Option<&Operand<'_>>;
            7],
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
            activation_bias: optional_mut(
                grad_nonlinearity_bias,
                "grad_nonlinearity_bias",
                if T::COMPLEX { n } else { n / 2 },
            )?,
        };
        run(py, |context| recurrence::backward(context, &sequence, h, tape, grad_h, grad_last, gradients))
    }
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
        nonlinearity_bias: nonlinearity_bias.as_ref(),
        transpose,
        method,
    };
    let states = [Some(&h), tape.as_ref(), grad_h.as_ref(), grad_last.as_ref()];
    let gradients = [&grad_u, &grad_x, &grad_h0, &grad_input_weight, &grad_bias, &grad_phases, &grad_nonlinearity_bias]
        .map(Option::as_ref);
    by_dtype!(dtype, go(py, &arguments, states, gradients))
}
