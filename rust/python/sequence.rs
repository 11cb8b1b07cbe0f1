//! Whole sequences, of Python's arrays and of XLA's.

use householder::error::Result;
use householder::rnn::{self, Cotangents, Saved, Sequence, SequenceGradients, Series, States, Steps, Trace};
use householder::scalar::Scalar;
use householder::threads::Context;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::array::{Array, size};
use crate::by_dtype;
use crate::call::{Reading, Refusal, attempt, run};
use crate::columns::Columns;
use crate::dtype::{DType, Number};
use crate::kept::Kept;
use crate::operands::{Arrays, Operands, Shape, named};
use crate::options;

/// Slots of operands, and of their gradients.
pub const X: usize = 1;
pub const H0: usize = 2;
const INPUT_WEIGHT: usize = 3;
const BIAS: usize = 4;
const PHASES: usize = 5;
const NONLINEARITY_BIAS: usize = 6;
const TAU: usize = 7;

/// How a recurrence computes.
pub struct Options<'a> {
    pub nonlinearity: &'a str,
    pub slope: f64,
    pub transpose: bool,
    pub method: &'a str,
}

/// The sizes of a call.
pub struct Sizes {
    pub columns: Columns,
    pub d: usize,
    /// Steps and sequences, or all rows and none, which enumerate the vectors of a problem.
    pub vectors: (usize, Option<usize>),
    pub batch: usize,
    pub moduli: usize,
}

impl Sizes {
    /// The shape of an operand, and of its gradient.
    fn shape(&self, slot: usize) -> Shape {
        let Columns { count, n, m, .. } = self.columns;
        match slot {
            X => self.states(self.d),
            H0 => Shape::new([count, self.batch, n]),
            INPUT_WEIGHT => Shape::new([count, n, self.d]),
            BIAS | PHASES => Shape::new([count, n]),
            NONLINEARITY_BIAS => Shape::new([count, self.moduli]),
            TAU => Shape::new([count, m]),
            _ => Shape::new([count, n, m]),
        }
    }

    /// How many numbers an operand has.
    pub fn len(&self, slot: usize) -> Reading<usize> {
        size(&self.shape(slot))
    }

    /// The shape of an array with so many numbers for each state.
    pub fn states(&self, width: usize) -> Shape {
        match self.vectors {
            (steps, Some(batch)) => Shape::new([self.columns.count, steps, batch, width]),
            (rows, None) => Shape::new([self.columns.count, rows, width]),
        }
    }
}

/// The sequences of all problems, over the vectors `x`.
pub fn sequences<'a, T: Number<Real: Number>>(
    operands: &impl Operands<'a>,
    sizes: &Sizes,
    options: &Options<'_>,
    steps: Steps,
    x: Series<'a, T>,
) -> Reading<Sequence<'a, T>> {
    let shape = |slot: usize| sizes.shape(slot);
    let phases = operands.read::<T::Real>(PHASES, "phases", &shape(PHASES))?;
    let operator = sizes.columns.operator(operands, TAU, phases)?;
    let bias = operands.read(NONLINEARITY_BIAS, "nonlinearity_bias", &shape(NONLINEARITY_BIAS))?;
    let input_weight = operands.read(INPUT_WEIGHT, "input_weight", &shape(INPUT_WEIGHT))?;
    if input_weight.is_none() && sizes.d != sizes.columns.n {
        return Err(Refusal::invalid(format!("x: expected width n = {}, got {}", sizes.columns.n, sizes.d)));
    }
    Ok(Sequence {
        operator: operator.adjoint(options.transpose).by(options::method(options.method)?),
        activation: options::activation(options.nonlinearity, options.slope, bias)?,
        steps,
        d: sizes.d,
        x,
        input_weight,
        bias: operands.read(BIAS, "bias", &shape(BIAS))?,
        h0: operands.read(H0, "h0", &shape(H0))?,
    })
}

/// A forward pass.
pub struct Forward<'a, T: Scalar> {
    sequence: Sequence<'a, T>,
    states: States<'a, T>,
}

impl<'a, T: Number<Real: Number>> Forward<'a, T> {
    /// Results are all states, the last ones and the tape; none if states are not wanted.
    pub fn read(
        operands: &impl Operands<'a>,
        sizes: &Sizes,
        options: &Options<'_>,
        steps: Steps,
        x: Series<'a, T>,
    ) -> Reading<Option<Self>> {
        let sequence = sequences(operands, sizes, options, steps, x)?;
        let Some(h) = operands.write(0, &sizes.states(sizes.columns.n))? else { return Ok(None) };
        let (last, width) = (operands.write(1, &sizes.shape(H0))?, sequence.tape_width()?);
        let states = States { h, last, tape: operands.write(2, &sizes.states(width))? };
        Ok(Some(Self { sequence, states }))
    }

    pub fn run(self, context: &mut Context<'_>, save: bool) -> Result<Option<Saved<T>>> {
        let Self { sequence, states } = self;
        if save {
            return rnn::forward_and_save(context, &sequence, states).map(Some);
        }
        rnn::forward(context, &sequence, states).map(|()| None)
    }
}

/// A backward pass.
pub struct Backward<'a, T: Scalar> {
    sequence: Sequence<'a, T>,
    trace: Trace<'a, T>,
    cotangents: Cotangents<'a, T>,
    gradients: SequenceGradients<'a, T>,
}

impl<'a, T: Number<Real: Number>> Backward<'a, T> {
    /// Operands from slot `first` on are all states, the tape, and the gradients of all states and of the last ones. Those of
    /// all states may be read elsewhere. Results are gradients of the operands.
    pub fn read(
        operands: &impl Operands<'a>,
        first: usize,
        sizes: &Sizes,
        options: &Options<'_>,
        steps: Steps,
        x: Series<'a, T>,
        grad_h: Option<Series<'a, T>>,
    ) -> Reading<Self> {
        let sequence = sequences(operands, sizes, options, steps, x)?;
        let (of_states, width) = (sizes.states(sizes.columns.n), sequence.tape_width()?);
        let wanted = |slot: usize| operands.write::<T>(slot, &sizes.shape(slot));
        Ok(Self {
            trace: Trace {
                h: operands.needed(first, "h", &of_states)?,
                saved: None,
                tape: operands.read(first + 1, "tape", &sizes.states(width))?,
            },
            cotangents: Cotangents { h: grad_h, last: operands.read(first + 3, "grad_last", &sizes.shape(H0))? },
            gradients: SequenceGradients {
                u: wanted(0)?,
                x: wanted(X)?,
                h0: wanted(H0)?,
                input_weight: wanted(INPUT_WEIGHT)?,
                bias: wanted(BIAS)?,
                tau: wanted(TAU)?,
                phases: operands.write(PHASES, &sizes.shape(PHASES))?,
                activation_bias: operands.write(NONLINEARITY_BIAS, &sizes.shape(NONLINEARITY_BIAS))?,
            },
            sequence,
        })
    }

    /// What was saved serves if it is of these sequences.
    pub fn run(self, context: &mut Context<'_>, saved: Option<&Saved<T>>) -> Result<()> {
        let Self { sequence, trace, cotangents, gradients } = self;
        let saved = saved.filter(|saved| saved.check(&sequence).is_ok());
        rnn::backward(context, &sequence, Trace { saved, ..trace }, cotangents, gradients)
    }
}

/// `u (.., n, m)`, `x (.., steps, batch, d)` or, with `batch_sizes`, `(.., rows, d)`, then `h0, input_weight, bias, phases,
/// nonlinearity_bias, tau` and `batch_sizes`. Leading axes tell the matrices, each with sequences and parameters of its own.
pub type Inputs<'py> = [Option<Bound<'py, PyAny>>; 9];

/// Nonlinearity, negative slope, whether W is transposed, whether time runs backwards, the shape of u, and the method.
pub type Described = (PyBackedStr, f64, bool, bool, PyBackedStr, PyBackedStr);

/// Arrays of both passes: the operands, then those of the backward pass.
type Both<'a, 'py, const OUT: usize> = Arrays<'a, 'py, 12, OUT>;

/// A call of Python.
pub struct Call<'a> {
    pub sizes: Sizes,
    options: Options<'a>,
    steps: Steps,
    pub dtype: DType,
    /// Whether vectors may lie at fixed strides: those of one matrix.
    may_be_strided: bool,
}

impl<'a> Call<'a> {
    /// The call, and its operands.
    pub fn read<'b, 'py>(
        inputs: &'b Inputs<'py>,
        described: &'a Described,
    ) -> Reading<(Self, [Option<Array<'b, 'py>>; 8])> {
        let (nonlinearity, slope, transpose, reverse, shape, method) = described;
        let [u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, batch_sizes] = Array::each(inputs)?;
        let (Some(u), Some(x)) = (u, x) else {
            return Err(Refusal::invalid("expected u and x, got None"));
        };
        let batch_sizes = batch_sizes.map(|sizes| sizes.batch_sizes()).transpose()?;
        let columns = Columns::of(&u, shape, tau.as_ref())?;
        let (stack, n) = ((columns.count, columns.axes), columns.n);
        let [steps, batch, d] = match (batch_sizes, &h0) {
            (Some(sizes), Some(h0)) => [sizes.len(), h0.last[1], x.last[2]],
            (Some(sizes), None) => [sizes.len(), sizes.first().map_or(0, |&size| size.max(0) as usize), x.last[2]],
            (None, _) => x.last,
        };
        let is_packed = batch_sizes.is_some();
        let steps_of_rows =
            |sizes: &[i64]| sizes.iter().try_fold(0_usize, |sum, &size| sum.checked_add(size.try_into().ok()?));
        let rows = match batch_sizes {
            Some(sizes) => steps_of_rows(sizes).filter(|&rows| rows == x.last[1]),
            None => steps.checked_mul(batch),
        };
        let Some(rows) = rows.filter(|_| x.dims == stack.1 + 3 - usize::from(is_packed)) else {
            return Err(Refusal::invalid(format!(
                "expected u (.., n, m) and x (.., T, B, d), or rows as batch_sizes say, got u {} and x {}",
                u.describe()?,
                x.describe()?
            )));
        };
        let moduli = options::moduli(nonlinearity, n, x.dtype.is_complex())?;
        let shapes: [(&str, &Option<Array<'_, '_>>, &[usize]); 5] = [
            ("h0", &h0, &[batch, n]),
            ("input_weight", &input_weight, &[n, d]),
            ("bias", &bias, &[n]),
            ("phases", &phases, &[n]),
            ("nonlinearity_bias", &nonlinearity_bias, &[moduli]),
        ];
        for (name, array, shape) in shapes {
            array.as_ref().map_or(Ok(()), |array| array.require_shape(name, stack, shape))?;
        }
        if *reverse && is_packed {
            return Err(Refusal::invalid("reverse: sequences of different lengths have ends of their own"));
        }
        let steps = batch_sizes.map_or_else(|| Steps::uniform(steps, batch), Steps::ragged)?;
        let call = Self {
            sizes: Sizes {
                columns,
                d,
                vectors: if is_packed { (rows, None) } else { (x.last[0], Some(batch)) },
                batch,
                moduli,
            },
            options: Options { nonlinearity, slope: *slope, transpose: *transpose, method },
            steps: if *reverse { steps.reversed()? } else { steps },
            dtype: x.dtype,
            may_be_strided: stack.1 == 0,
        };
        Ok((call, [Some(u), Some(x), h0, input_weight, bias, phases, nonlinearity_bias, tau]))
    }

    /// Vectors of all steps: contiguous rows, or at fixed strides.
    fn series<T: Number, const OUT: usize>(
        &self,
        arrays: &Both<'_, '_, OUT>,
        slot: usize,
        width: usize,
    ) -> Reading<Option<Series<'static, T>>> {
        let (name, array) = &arrays.operands[slot];
        let Some(array) = array else { return Ok(None) };
        let len = size(&self.sizes.states(width))?;
        if let (true, (steps, Some(batch))) = (self.may_be_strided, self.sizes.vectors) {
            array.require_shape(name, (1, 0), &[steps, batch, width])?;
            let span = |strides| Series::<T>::span([steps, batch, width], strides);
            if let Some((memory, strides)) = array.strided::<T>(name, len, span)? {
                return Ok(Some(Series::strided(memory, strides)));
            }
        }
        Ok(Some(Series::new(array.slice(name, len)?)))
    }

    /// The vectors `x`.
    fn x<T: Number, const OUT: usize>(&self, arrays: &Both<'_, '_, OUT>) -> Reading<Series<'static, T>> {
        Ok(self.series(arrays, X, self.sizes.d)?.unwrap_or(Series::new(&[])))
    }
}

/// The names of the operands, and of those of the backward pass.
pub const OPERANDS: [&str; 12] =
    ["u", "x", "h0", "input_weight", "bias", "phases", "nonlinearity_bias", "tau", "h", "tape", "grad_h", "grad_last"];
const GRADIENTS: [&str; 8] = [
    "grad_u",
    "grad_x",
    "grad_h0",
    "grad_input_weight",
    "grad_bias",
    "grad_phases",
    "grad_nonlinearity_bias",
    "grad_tau",
];

/// The arrays of a pass.
fn arrays<'a, 'py, const OUT: usize>(
    operands: [Option<Array<'a, 'py>>; 8],
    others: [Option<Array<'a, 'py>>; 4],
    results: [(&'static str, Option<Array<'a, 'py>>); OUT],
) -> Reading<Both<'a, 'py, OUT>> {
    let mut all = operands.into_iter().chain(others);
    Arrays::new(named(OPERANDS, std::array::from_fn(|_| all.next().flatten())), results)
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
        given: [bool; 2],
        nonlinearity: &str,
        method: &str,
    ) -> Reading<usize> {
        let activation = options::activation::<T>(nonlinearity, 0.0, Some(&[]))?;
        let method = options::method(method)?;
        Ok(rnn::tape_width(method, sizes, rows, given[0], given[1], &activation)?)
    }
    Ok(by_dtype!(DType::named(dtype), go((n, m), rows, [has_phases, has_tau], nonlinearity, method))?)
}

/// All states, and in `last` those in which sequences end. What is kept serves the backward pass: factors, and the tape.
#[pyfunction]
pub fn rnn_forward(
    py: Python<'_>,
    inputs: Inputs<'_>,
    options: Described,
    h: &Bound<'_, PyAny>,
    last: Option<&Bound<'_, PyAny>>,
    keep: bool,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        call: Call<'_>,
        arrays: &Both<'_, '_, 3>,
        keep: bool,
    ) -> Reading<Option<Kept>> {
        let x = call.x::<T, 3>(arrays)?;
        let Some(pass) = Forward::read(arrays, &call.sizes, &call.options, call.steps, x)? else { return Ok(None) };
        Ok(run(py, |context| pass.run(context, keep))?.map(|saved| Kept::new(false, saved)))
    }
    let reading = || -> Reading<_> {
        let (call, operands) = Call::read(&inputs, &options)?;
        let (h, last) = (Array::read(h)?, Array::optional(last)?);
        let arrays = arrays(operands, [const { None }; 4], [("h", Some(h)), ("last", last), ("tape", None)])?;
        by_dtype!(call.dtype, go(py, call, &arrays, keep))
    };
    attempt(py, reading())
}

/// Gradients of the inputs but `batch_sizes`, where there is an array for them.
#[pyfunction]
pub fn rnn_backward(
    py: Python<'_>,
    inputs: Inputs<'_>,
    options: Described,
    h: &Bound<'_, PyAny>,
    grad_h: Option<&Bound<'_, PyAny>>,
    grad_last: Option<&Bound<'_, PyAny>>,
    gradients: [Option<Bound<'_, PyAny>>; 8],
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        call: Call<'_>,
        arrays: &Both<'_, '_, 8>,
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let first = TAU + 1;
        let (x, grad_h) = (call.x::<T, 8>(arrays)?, call.series(arrays, first + 2, call.sizes.columns.n)?);
        let pass = Backward::read(arrays, first, &call.sizes, &call.options, call.steps, x, grad_h)?;
        run(py, |context| pass.run(context, kept.and_then(Kept::get)))
    }
    let reading = || -> Reading<_> {
        let (call, operands) = Call::read(&inputs, &options)?;
        let others = [Some(Array::read(h)?), None, Array::optional(grad_h)?, Array::optional(grad_last)?];
        let arrays = arrays(operands, others, named(GRADIENTS, Array::each(&gradients)?))?;
        by_dtype!(call.dtype, go(py, call, &arrays, kept.map(Bound::get)))
    };
    attempt(py, reading())
}
