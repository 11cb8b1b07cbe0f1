//! Whole sequences.

use householder::diagonal::Diagonal;
use householder::error::Error;
use householder::kernel::activation::Activation;
use householder::memory::filled_with;
use householder::method::Method;
use householder::number::Real;
use householder::recurrence::{self, Prepared, Sequence, SequenceGradients, Series, Steps};
use householder::reflections::Reflections;
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::by_dtype;
use crate::kept::Kept;
use crate::operand::{Number, Operand, Parts, Vectors, optional, optional_mut, outputs, part, run, size, to_python};

/// The arguments that forward and backward share: `count` batches of sequences, each with a matrix and parameters of its
/// own. Arrays have a leading axis of `count`.
pub struct Arguments<'a> {
    pub count: usize,
    /// n, m, d, steps and batch.
    pub sizes: [usize; 5],
    pub u: Operand<'a>,
    pub x: Vectors<'a>,
    pub h0: Option<Operand<'a>>,
    pub input_weight: Option<Operand<'a>>,
    pub bias: Option<Operand<'a>>,
    pub phases: Option<Operand<'a>>,
    pub batch_sizes: Option<&'a [i64]>,
    pub nonlinearity: &'a str,
    pub negative_slope: f64,
    pub nonlinearity_bias: Option<Operand<'a>>,
    pub transpose: bool,
    pub reverse: bool,
    pub method: &'a str,
}

impl Arguments<'_> {
    fn sequences<T: Number<Real: Number>>(&self) -> PyResult<Vec<Sequence<'static, T>>> {
        (0..self.count).map(|i| self.sequence(i)).collect()
    }

    fn sequence<T: Number<Real: Number>>(&self, i: usize) -> PyResult<Sequence<'static, T>> {
        let (count, [n, m, d, steps, batch]) = (self.count, self.sizes);
        if self.reverse && self.batch_sizes.is_some() {
            return Err(PyValueError::new_err("reverse: sequences of different lengths have ends of their own"));
        }
        let steps = match self.batch_sizes {
            Some(sizes) => Steps::ragged(sizes),
            None => Steps::uniform(steps, batch),
        }
        .map_err(to_python)?;
        let steps = if self.reverse { steps.reversed() } else { steps };
        let u = self.u.slice::<T>("u", size(&[count, n, m])?)?;
        let u = Reflections::new(n, m, share(u, i, count)).map_err(to_python)?;
        if self.input_weight.is_none() && d != n {
            return Err(to_python(Error::InvalidArgument(format!("x: expected width n = {n}, got {d}"))));
        }
        let given = |operand: Option<&Operand<'_>>, name, len: &[usize]| -> PyResult<Option<&'static [T]>> {
            let array = optional(operand, name, size(&[&[count], len].concat())?)?;
            Ok(array.map(|array| share(array, i, count)))
        };
        let phases = optional(self.phases.as_ref(), "phases", size(&[count, n])?)?.map(|array| share(array, i, count));
        Ok(Sequence {
            u,
            diagonal: Diagonal::new(u, phases).map_err(to_python)?,
            adjoint: self.transpose,
            activation: self.activation(i)?,
            method: Method::parse(self.method).map_err(to_python)?,
            d,
            x: self.series(&self.x, "x", d, &steps, i)?,
            input_weight: given(self.input_weight.as_ref(), "input_weight", &[n, d])?,
            bias: given(self.bias.as_ref(), "bias", &[n])?,
            h0: given(self.h0.as_ref(), "h0", &[batch, n])?,
            steps,
        })
    }

    /// Vectors of all steps of batch `i`, which is the only one where they have strides.
    fn series<T: Number>(
        &self,
        vectors: &Vectors<'_>,
        name: &str,
        width: usize,
        steps: &Steps,
        i: usize,
    ) -> PyResult<Series<'static, T>> {
        let (address, strides) = match vectors {
            Vectors::Rows(rows) => {
                let rows = rows.slice(name, size(&[self.count, steps.rows(), width])?)?;
                return Ok(Series::new(share(rows, i, self.count)));
            }
            &Vectors::Strided(address, step, sequence) => (address, [step, sequence]),
        };
        if self.count != 1 || self.batch_sizes.is_some() {
            return Err(PyValueError::new_err(format!("{name}: strides are for one batch of sequences of one length")));
        }
        let span = Series::<T>::span([steps.count(), steps.batch(), width], strides);
        Ok(Series::strided(Operand::Address(address).slice(name, span)?, strides))
    }

    fn activation<T: Number<Real: Number>>(&self, i: usize) -> PyResult<Activation<'static, T>> {
        let invalid = |what: String| Err(to_python(Error::InvalidArgument(what)));
        let (name, n) = (self.nonlinearity, self.sizes[0]);
        if T::COMPLEX && matches!(name, "oplu" | "real_modrelu") {
            return invalid(format!("nonlinearity: '{name}' acts on real numbers, got a complex u"));
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
            "modrelu" | "real_modrelu" => {
                let moduli = moduli(name, n, T::COMPLEX);
                let bias =
                    optional(self.nonlinearity_bias.as_ref(), "nonlinearity_bias", size(&[self.count, moduli])?)?;
                match bias.map(|bias| share(bias, i, self.count)) {
                    Some(bias) if name == "modrelu" => Ok(Activation::ModRelu(bias)),
                    Some(bias) => Ok(Activation::RealModRelu(bias)),
                    None => invalid(format!("nonlinearity_bias: expected {moduli} numbers for '{name}', got None")),
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
                "nonlinearity: expected 'identity', 'tanh', 'relu', 'leaky_relu', 'oplu', 'modrelu' or 'real_modrelu', \
                 got '{name}'"
            )),
        }
    }
}

/// How many numbers the bias of a nonlinearity has: one for each modulus.
pub fn moduli(nonlinearity: &str, n: usize, is_complex: bool) -> usize {
    if is_complex || nonlinearity == "real_modrelu" { n } else { n / 2 }
}

/// Batch `i` of an input that has `count`.
fn share<T>(array: &'static [T], i: usize, count: usize) -> &'static [T] {
    part(array, i, array.len() / count)
}

/// Rows and width of the tape of one of equally large problems, and the flops of all.
fn extent<T: Number>(sequences: &[Sequence<'_, T>]) -> PyResult<(usize, usize, usize)> {
    let Some(first) = sequences.first() else { return Ok((0, 0, 0)) };
    let flops = first.flops().saturating_mul(sequences.len());
    Ok((first.steps.rows(), first.tape_width().map_err(to_python)?, flops))
}

/// Width of what the forward pass may leave to the backward pass of each of so many states; 0: nothing.
#[pyfunction]
pub fn rnn_tape_width(
    dtype: &str,
    n: usize,
    m: usize,
    rows: usize,
    has_phases: bool,
    nonlinearity: &str,
    method: &str,
) -> PyResult<usize> {
    fn go<T: Number>(
        sizes: (usize, usize),
        rows: usize,
        has_phases: bool,
        oplu: bool,
        method: &str,
    ) -> PyResult<usize> {
        let method = Method::parse(method).map_err(to_python)?;
        let activation = if oplu { Activation::<T>::Oplu } else { Activation::Identity };
        recurrence::tape_width(method, sizes, rows, has_phases, &activation).map_err(to_python)
    }
    by_dtype!(dtype, go((n, m), rows, has_phases, nonlinearity == "oplu", method))
}

#[pyfunction]
#[pyo3(signature = (
    dtype, n, m, d, steps, batch, u, x, h0, input_weight, bias, phases, batch_sizes, nonlinearity, negative_slope,
    nonlinearity_bias, transpose, reverse, method, h, tape
))]
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
    reverse: bool,
    method: &str,
    h: Operand<'_>,
    tape: Option<Operand<'_>>,
) -> PyResult<()> {
    let batch_sizes = batch_sizes.as_ref().map(|sizes| sizes.as_slice()).transpose()?;
    let arguments = Arguments {
        count: 1,
        sizes: [n, m, d, steps, batch],
        u,
        x: Vectors::Rows(x),
        h0,
        input_weight,
        bias,
        phases,
        batch_sizes,
        nonlinearity,
        negative_slope,
        nonlinearity_bias,
        transpose,
        reverse,
        method,
    };
    by_dtype!(dtype, forward_problems(py, &arguments, &h, [tape.as_ref(), None], false)).map(drop)
}

/// Runs all batches; `keep`: what the backward pass need not form again.
pub fn forward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    arguments: &Arguments<'_>,
    h: &Operand<'_>,
    [tape, last]: [Option<&Operand<'_>>; 2],
    keep: bool,
) -> PyResult<Option<Kept>> {
    let sequences = arguments.sequences::<T>()?;
    let (count, [n, _, _, _, batch]) = (arguments.count, arguments.sizes);
    let (rows, width, flops) = extent(&sequences)?;
    let h = Parts::new(h.slice_mut("h", size(&[count, rows, n])?)?, count);
    let tape = optional_mut(tape, "tape", size(&[count, rows, width])?)?.map(|tape| Parts::new(tape, count));
    let last = optional_mut(last, "last", size(&[count, batch, n])?)?.map(|last| Parts::new(last, count));
    let mut kept = filled_with(if keep { count } else { 0 }, || None).map_err(to_python)?;
    let each = Parts::<Option<Prepared<T>>>::new(&mut kept, count);
    run(py, |context| {
        context.for_each(count, flops, &|i, context| {
            // SAFETY: each problem writes its own parts.
            let (h, tape, kept) = unsafe { (h.at(i), tape.as_ref().map(|tape| tape.at(i)), each.at(i)) };
            let prepared = recurrence::forward(context, &sequences[i], h, tape)?;
            if let Some(last) = &last {
                // SAFETY: as above.
                sequences[i].copy_last(h, unsafe { last.at(i) });
            }
            kept.first_mut().map(|kept| kept.insert(prepared));
            Ok(())
        })
    })?;
    Ok(keep.then(|| Kept::factors(kept)))
}

#[pyfunction]
#[pyo3(signature = (
    dtype, n, m, d, steps, batch, u, x, h0, input_weight, bias, phases, batch_sizes, nonlinearity, negative_slope,
    nonlinearity_bias, transpose, reverse, method, h, tape, grad_h, grad_last, grad_u, grad_x, grad_h0, grad_input_weight,
    grad_bias, grad_phases, grad_nonlinearity_bias
))]
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
    reverse: bool,
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
    let batch_sizes = batch_sizes.as_ref().map(|sizes| sizes.as_slice()).transpose()?;
    let arguments = Arguments {
        count: 1,
        sizes: [n, m, d, steps, batch],
        u,
        x: Vectors::Rows(x),
        h0,
        input_weight,
        bias,
        phases,
        batch_sizes,
        nonlinearity,
        negative_slope,
        nonlinearity_bias,
        transpose,
        reverse,
        method,
    };
    let (states, grad_h) = ([Some(&h), tape.as_ref(), grad_last.as_ref()], grad_h.map(Vectors::Rows));
    let gradients = [&grad_u, &grad_x, &grad_h0, &grad_input_weight, &grad_bias, &grad_phases, &grad_nonlinearity_bias]
        .map(Option::as_ref);
    by_dtype!(dtype, backward_problems(py, &arguments, states, grad_h.as_ref(), gradients, None))
}

/// The gradients of all batches that are wanted.
pub fn backward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    arguments: &Arguments<'_>,
    [h, tape, grad_last]: [Option<&Operand<'_>>; 3],
    grad_h: Option<&Vectors<'_>>,
    [grad_u, grad_x, grad_h0, grad_input_weight, grad_bias, grad_phases, grad_nonlinearity_bias]: [Option<&Operand<'_>>;
        7],
    kept: Option<&Kept>,
) -> PyResult<()> {
    let sequences = arguments.sequences::<T>()?;
    let (count, [n, m, d, _, batch]) = (arguments.count, arguments.sizes);
    let (rows, width, flops) = extent(&sequences)?;
    let given =
        |operand, name, len: usize| -> PyResult<Option<&'static [T]>> { optional(operand, name, size(&[count, len])?) };
    let h = given(h, "h", rows * n)?.unwrap_or_default();
    let tape = given(tape, "tape", rows * width)?;
    let series = |(i, sequence): (usize, &Sequence<'_, T>)| {
        grad_h.map(|grad_h| arguments.series(grad_h, "grad_h", n, &sequence.steps, i)).transpose()
    };
    let grad_h = sequences.iter().enumerate().map(series).collect::<PyResult<Vec<_>>>()?;
    let grad_last = given(grad_last, "grad_last", batch * n)?;
    let grad_u = outputs::<T>(grad_u, "grad_u", count, n * m)?;
    let grad_x = outputs::<T>(grad_x, "grad_x", count, rows * d)?;
    let grad_h0 = outputs::<T>(grad_h0, "grad_h0", count, batch * n)?;
    let grad_input_weight = outputs::<T>(grad_input_weight, "grad_input_weight", count, n * d)?;
    let grad_bias = outputs::<T>(grad_bias, "grad_bias", count, n)?;
    let grad_phases = outputs::<T::Real>(grad_phases, "grad_phases", count, n)?;
    let moduli = moduli(arguments.nonlinearity, n, T::COMPLEX);
    let grad_nonlinearity_bias = outputs::<T::Real>(grad_nonlinearity_bias, "grad_nonlinearity_bias", count, moduli)?;
    let kept = kept.and_then(Kept::get::<Vec<Option<Prepared<T>>>>);
    run(py, |context| {
        context.for_each(count, flops.saturating_mul(2), &|i, context| {
            let of = |array: &'static [T]| share(array, i, count);
            // SAFETY: each problem writes its own parts.
            let gradients = unsafe {
                SequenceGradients {
                    u: grad_u.as_ref().map(|x| x.at(i)),
                    x: grad_x.as_ref().map(|x| x.at(i)),
                    h0: grad_h0.as_ref().map(|x| x.at(i)),
                    input_weight: grad_input_weight.as_ref().map(|x| x.at(i)),
                    bias: grad_bias.as_ref().map(|x| x.at(i)),
                    phases: grad_phases.as_ref().map(|x| x.at(i)),
                    activation_bias: grad_nonlinearity_bias.as_ref().map(|x| x.at(i)),
                }
            };
            let sequence = &sequences[i];
            recurrence::backward(
                context,
                sequence,
                kept.and_then(|kept| kept.get(i)?.as_ref()).filter(|prepared| prepared.fits(sequence)),
                of(h),
                tape.map(of),
                grad_h[i],
                grad_last.map(of),
                gradients,
            )
        })
    })
}
