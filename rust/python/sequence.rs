//! Whole sequences.

use householder::diagonal::Diagonal;
use householder::error::Error;
use householder::many::{ManyReflections, ManySequenceGradients, ManySequences, Stack, StackMut};
use householder::method::Method;
use householder::recurrence::{self, Activation, Prepared, Sequence, Series, Steps, moduli};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::array::{Array, Named, Number, Reading, disjoint, optional, outputs, size};
use crate::by_dtype;
use crate::call::{attempt, run, to_python};
use crate::columns::Headers;
use crate::kept::Kept;

/// `u (.., n, m)`, `x (.., steps, batch, d)` or, with `batch_sizes`, `(.., rows, d)`, then `h0, input_weight, bias, phases,
/// nonlinearity_bias, tau` and `batch_sizes`. Leading axes tell the matrices, each with sequences and parameters of its own.
type Inputs<'py> = [Option<Bound<'py, PyAny>>; 9];

/// Nonlinearity, negative slope, whether W is transposed, whether time runs backwards, the shape of u, and the method.
type Options = (PyBackedStr, f64, bool, bool, PyBackedStr, PyBackedStr);

/// The arguments that forward and backward share.
struct Problem<'a, 'py> {
    options: &'a Options,
    /// The number of matrices, and of the axes that tell them.
    stack: (usize, usize),
    /// n, m, d, steps and batch.
    sizes: [usize; 5],
    u: Headers<'a, 'py>,
    x: Array<'a, 'py>,
    h0: Option<Array<'a, 'py>>,
    input_weight: Option<Array<'a, 'py>>,
    bias: Option<Array<'a, 'py>>,
    phases: Option<Array<'a, 'py>>,
    nonlinearity_bias: Option<Array<'a, 'py>>,
    batch_sizes: Option<&'static [i64]>,
}

impl<'a, 'py> Problem<'a, 'py> {
    fn read(inputs: &'a Inputs<'py>, options: &'a Options) -> Reading<Self> {
        let [u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, batch_sizes] = Array::each(inputs)?;
        let (Some(u), Some(x)) = (u, x) else {
            return Err(PyValueError::new_err("expected u and x, got None").into());
        };
        let batch_sizes = batch_sizes.map(|sizes| sizes.batch_sizes()).transpose()?;
        let u = Headers::of(u, &options.4, tau)?;
        let (count, axes, n, m) = (u.count, u.u.dims - 2, u.n, u.m);
        let [steps, batch, d] = match (batch_sizes, &h0) {
            (Some(sizes), Some(h0)) => [sizes.len(), h0.last[1], x.last[2]],
            (Some(sizes), None) => [sizes.len(), sizes.first().map_or(0, |&size| size.max(0) as usize), x.last[2]],
            (None, _) => x.last,
        };
        let whole = |sizes: &[i64]| sizes.iter().try_fold(0_usize, |sum, &size| sum.checked_add(size.try_into().ok()?));
        let rows = match batch_sizes {
            Some(sizes) => whole(sizes).filter(|&rows| rows == x.last[1]),
            None => steps.checked_mul(batch),
        };
        if rows.is_none() || x.dims != axes + 2 + usize::from(batch_sizes.is_none()) {
            let text = format!(
                "expected u (.., n, m) and x (.., T, B, d), or rows as batch_sizes say, got u {} and x {}",
                u.u.describe()?,
                x.describe()?
            );
            return Err(PyValueError::new_err(text).into());
        }
        let problem = Self {
            options,
            stack: (count, axes),
            sizes: [n, m, d, steps, batch],
            u,
            x,
            h0,
            input_weight,
            bias,
            phases,
            nonlinearity_bias,
            batch_sizes,
        };
        problem.require_shapes()?;
        Ok(problem)
    }

    fn require_shapes(&self) -> Reading<()> {
        let [n, _, d, _, batch] = self.sizes;
        let moduli = moduli(&self.options.0, n, self.x.dtype.starts_with("complex"));
        let given: [(&str, &Option<Array<'_, '_>>, &[usize]); 5] = [
            ("h0", &self.h0, &[batch, n]),
            ("input_weight", &self.input_weight, &[n, d]),
            ("bias", &self.bias, &[n]),
            ("phases", &self.phases, &[n]),
            ("nonlinearity_bias", &self.nonlinearity_bias, &[moduli]),
        ];
        for (name, array, shape) in given {
            if let Some(array) = array {
                array.require_shape(name, self.stack, shape)?;
            }
        }
        Ok(())
    }

    /// What a call reads, but `batch_sizes`.
    fn arrays(&self) -> Vec<Named<'_, 'a, 'py>> {
        let given = [
            ("x", Some(&self.x)),
            ("h0", self.h0.as_ref()),
            ("input_weight", self.input_weight.as_ref()),
            ("bias", self.bias.as_ref()),
            ("phases", self.phases.as_ref()),
            ("nonlinearity_bias", self.nonlinearity_bias.as_ref()),
        ];
        self.u.arrays().into_iter().chain(given).collect()
    }

    fn sequences<T: Number<Real: Number>>(&self) -> Reading<ManySequences<'static, T>> {
        let u = self.u.reflections::<T>()?;
        Ok(ManySequences((0..self.stack.0).map(|i| self.sequence(&u, i)).collect::<Reading<_>>()?))
    }

    fn sequence<T: Number<Real: Number>>(
        &self,
        u: &ManyReflections<'static, T>,
        i: usize,
    ) -> Reading<Sequence<'static, T>> {
        let [n, _, d, steps, batch] = self.sizes;
        let &(_, _, transpose, reverse, _, ref method) = self.options;
        if reverse && self.batch_sizes.is_some() {
            let text = "reverse: sequences of different lengths have ends of their own";
            return Err(PyValueError::new_err(text).into());
        }
        let steps = match self.batch_sizes {
            Some(sizes) => Steps::ragged(sizes),
            None => Steps::uniform(steps, batch),
        }
        .map_err(to_python)?;
        let steps = if reverse { steps.reversed().map_err(to_python)? } else { steps };
        let u = u.at(i).map_err(to_python)?;
        if self.input_weight.is_none() && d != n {
            return Err(to_python(Error::InvalidArgument(format!("x: expected width n = {n}, got {d}"))).into());
        }
        let (nonlinearity, slope) = (&*self.options.0, self.options.1);
        let bias = self.given(self.nonlinearity_bias.as_ref(), "nonlinearity_bias", i)?;
        Ok(Sequence {
            u,
            diagonal: Diagonal::new(u, self.given(self.phases.as_ref(), "phases", i)?).map_err(to_python)?,
            adjoint: transpose,
            activation: Activation::parse(nonlinearity, slope, n, bias).map_err(to_python)?,
            method: Method::parse(method).map_err(to_python)?,
            d,
            x: self.series(&self.x, "x", d, &steps, i)?,
            input_weight: self.given(self.input_weight.as_ref(), "input_weight", i)?,
            bias: self.given(self.bias.as_ref(), "bias", i)?,
            h0: self.given(self.h0.as_ref(), "h0", i)?,
            steps,
        })
    }

    /// Problem `i`'s part of an input, whose shape is checked already.
    fn given<N: Number>(&self, array: Option<&Array<'_, '_>>, name: &str, i: usize) -> Reading<Option<&'static [N]>> {
        let array = array.map(|array| array.slice(name, array.len)).transpose()?;
        Ok(array.map(|array| Stack::new(array, self.stack.0).at(i)))
    }

    /// Vectors of all steps of batch `i`: contiguous rows or, for one matrix and sequences of one length, at fixed strides.
    fn series<T: Number>(
        &self,
        array: &Array<'_, '_>,
        name: &str,
        width: usize,
        steps: &Steps,
        i: usize,
    ) -> Reading<Series<'static, T>> {
        let len = size(&[self.stack.0, steps.rows(), width])?;
        if self.batch_sizes.is_none() && self.stack.1 == 0 {
            let [_, _, _, count, batch] = self.sizes;
            array.require_shape(name, self.stack, &[count, batch, width])?;
            let span = |strides| Series::<T>::span([count, batch, width], strides);
            if let Some((memory, strides)) = array.strided::<T>(name, len, span)? {
                return Ok(Series::strided(memory, strides));
            }
        }
        Ok(Series::new(Stack::new(array.slice(name, len)?, self.stack.0).at(i)))
    }
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
    fn go<T: Number>(
        sizes: (usize, usize),
        rows: usize,
        has_phases: bool,
        has_tau: bool,
        oplu: bool,
        method: &str,
    ) -> PyResult<usize> {
        let method = Method::parse(method).map_err(to_python)?;
        let activation = if oplu { Activation::<T>::Oplu } else { Activation::Identity };
        recurrence::tape_width(method, sizes, rows, has_phases, has_tau, &activation).map_err(to_python)
    }
    by_dtype!(dtype, go((n, m), rows, has_phases, has_tau, nonlinearity == "oplu", method))
}

/// All states, and in `last` those in which sequences end. The tape and what is kept serve the backward pass; without an
/// array for it, the tape is kept as well.
#[pyfunction]
pub fn rnn_forward(
    py: Python<'_>,
    inputs: Inputs<'_>,
    options: Options,
    h: &Bound<'_, PyAny>,
    tape: Option<&Bound<'_, PyAny>>,
    last: Option<&Bound<'_, PyAny>>,
    keep: bool,
) -> PyResult<Py<PyAny>> {
    let reading = || -> Reading<_> {
        let problem = Problem::read(&inputs, &options)?;
        let (h, tape, last) = (Array::read(h)?, Array::optional(tape)?, Array::optional(last)?);
        by_dtype!(problem.x.dtype, forward_problems(py, &problem, &h, [tape.as_ref(), last.as_ref()], keep))
    };
    attempt(py, reading())
}

/// Gradients of the inputs but `batch_sizes`, where there is an array for them.
#[pyfunction]
pub fn rnn_backward(
    py: Python<'_>,
    inputs: Inputs<'_>,
    options: Options,
    h: &Bound<'_, PyAny>,
    tape: Option<&Bound<'_, PyAny>>,
    grad_h: Option<&Bound<'_, PyAny>>,
    grad_last: Option<&Bound<'_, PyAny>>,
    gradients: [Option<Bound<'_, PyAny>>; 8],
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<Py<PyAny>> {
    let reading = || -> Reading<_> {
        let problem = Problem::read(&inputs, &options)?;
        let (h, tape) = (Array::read(h)?, Array::optional(tape)?);
        let (grad_h, grad_last) = (Array::optional(grad_h)?, Array::optional(grad_last)?);
        let gradients = Array::each(&gradients)?;
        let gradients = gradients.each_ref().map(Option::as_ref);
        let states = [Some(&h), tape.as_ref(), grad_h.as_ref(), grad_last.as_ref()];
        by_dtype!(problem.x.dtype, backward_problems(py, &problem, states, gradients, kept.map(Bound::get)))
    };
    attempt(py, reading())
}

/// Runs all batches; `keep`: what the backward pass need not form again.
fn forward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    problem: &Problem<'_, '_>,
    h: &Array<'_, '_>,
    [tape, last]: [Option<&Array<'_, '_>>; 2],
    keep: bool,
) -> Reading<Option<Kept>> {
    disjoint(&problem.arrays(), &[("h", Some(h)), ("tape", tape), ("last", last)])?;
    let sequences = problem.sequences::<T>()?;
    let (count, [n, _, _, _, batch]) = (problem.stack.0, problem.sizes);
    let [rows, width] = sequences.tape_shape().map_err(to_python)?;
    let h = StackMut::new(h.slice_mut("h", size(&[count, rows, n])?)?, count);
    let tape = outputs(tape, "tape", count, size(&[rows, width])?)?;
    let last = outputs(last, "last", count, size(&[batch, n])?)?;
    Ok(run(py, |context| sequences.forward(context, h, last, tape, keep))?.map(|kept| Kept::new(kept, false)))
}

/// The gradients of all batches that are wanted.
fn backward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    problem: &Problem<'_, '_>,
    [h, tape, grad_h, grad_last]: [Option<&Array<'_, '_>>; 4],
    gradients: [Option<&Array<'_, '_>>; 8],
    kept: Option<&Kept>,
) -> Reading<()> {
    let [grad_u, grad_x, grad_h0, grad_input_weight, grad_bias, grad_phases, grad_nonlinearity_bias, grad_tau] =
        gradients;
    let mut read = problem.arrays();
    read.extend([("h", h), ("tape", tape), ("grad_h", grad_h), ("grad_last", grad_last)]);
    let written = [
        ("grad_u", grad_u),
        ("grad_x", grad_x),
        ("grad_h0", grad_h0),
        ("grad_input_weight", grad_input_weight),
        ("grad_bias", grad_bias),
        ("grad_phases", grad_phases),
        ("grad_nonlinearity_bias", grad_nonlinearity_bias),
        ("grad_tau", grad_tau),
    ];
    disjoint(&read, &written)?;
    let sequences = problem.sequences::<T>()?;
    let (count, [n, m, d, _, batch]) = (problem.stack.0, problem.sizes);
    let [rows, width] = sequences.tape_shape().map_err(to_python)?;
    let given = |array, name, len: usize| -> Reading<Option<Stack<'static, T>>> {
        Ok(optional(array, name, size(&[count, len])?)?.map(|array| Stack::new(array, count)))
    };
    let h = given(h, "h", rows * n)?.unwrap_or(Stack::new(&[], count));
    let tape = given(tape, "tape", rows * width)?;
    let series = |(i, sequence): (usize, &Sequence<'_, T>)| {
        grad_h.map(|grad_h| problem.series(grad_h, "grad_h", n, &sequence.steps, i)).transpose()
    };
    let grad_h = sequences.0.iter().enumerate().map(series).collect::<Reading<Vec<_>>>()?;
    let grad_last = given(grad_last, "grad_last", batch * n)?;
    let moduli = moduli(&problem.options.0, n, T::COMPLEX);
    let gradients = ManySequenceGradients {
        u: outputs::<T>(grad_u, "grad_u", count, n * m)?,
        x: outputs::<T>(grad_x, "grad_x", count, rows * d)?,
        h0: outputs::<T>(grad_h0, "grad_h0", count, batch * n)?,
        input_weight: outputs::<T>(grad_input_weight, "grad_input_weight", count, n * d)?,
        bias: outputs::<T>(grad_bias, "grad_bias", count, n)?,
        tau: outputs::<T>(grad_tau, "grad_tau", count, m)?,
        phases: outputs::<T::Real>(grad_phases, "grad_phases", count, n)?,
        activation_bias: outputs::<T::Real>(grad_nonlinearity_bias, "grad_nonlinearity_bias", count, moduli)?,
    };
    let kept = kept.and_then(Kept::get::<Vec<Option<Prepared<T>>>>).map(Vec::as_slice);
    Ok(run(py, |context| sequences.backward(context, (h, tape), &grad_h, grad_last, &gradients, kept))?)
}
