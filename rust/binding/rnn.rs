//! Whole sequences and their gradients: `u (.., n, m)`, `x (.., T, B, d)` or, with `batch_sizes`, packed rows `(.., rows, d)`,
//! `h0 (.., B, n)`, `input_weight (.., n, d)`, `bias (.., n)`, `phases (.., n)`, the bias of modReLU, and `tau (.., m)`.
//! Leading axes tell the matrices, each with sequences and parameters of its own.

use std::ops::Deref;

use householder::error::Error;
use householder::rnn::{
    self, Activation, Cotangents, Saved, Sequence, SequenceGradients, Series, States, Steps, Trace,
};

use crate::array::{AnyArray, size};
use crate::by_dtype;
use crate::columns::Columns;
use crate::dtype::{ArrayNumber, DType};
use crate::operands::{Arrays, Axes, Named, Operands, given, named};
use crate::options;
use crate::refusal::{Reading, Refusal};
use crate::saved::{AnySaved, Held, fitting};

/// Slots of operands: those of both passes, then those of the backward pass.
pub const OPERANDS: [&str; 12] =
    ["u", "x", "h0", "input_weight", "bias", "phases", "nonlinearity_bias", "tau", "h", "tape", "grad_h", "grad_last"];
pub const X: usize = 1;
pub const H0: usize = 2;
const INPUT_WEIGHT: usize = 3;
const BIAS: usize = 4;
pub const PHASES: usize = 5;
pub const NONLINEARITY_BIAS: usize = 6;
pub const TAU: usize = 7;
pub const H: usize = 8;
const TAPE: usize = 9;
const GRAD_H: usize = 10;
const GRAD_LAST: usize = 11;

/// Slots of gradients, which are those of the operands.
pub const GRADIENTS: [&str; 8] = [
    "grad_u",
    "grad_x",
    "grad_h0",
    "grad_input_weight",
    "grad_bias",
    "grad_phases",
    "grad_nonlinearity_bias",
    "grad_tau",
];

/// The operands that have gradients, in their order, and `batch_sizes`.
pub type Inputs<A> = [Option<A>; 9];

/// The operands in their slots: inputs, and those of the backward pass.
pub fn operands<'x, A: AnyArray>(inputs: &'x Inputs<A>, others: [Option<&'x A>; 4]) -> [Named<'x>; 12] {
    let [u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, _] = inputs.each_ref().map(Option::as_ref);
    let [h, tape, grad_h, grad_last] = others;
    let inputs = [u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, h, tape, grad_h, grad_last];
    named(OPERANDS, inputs)
}

/// How a recurrence computes.
#[derive(Clone, Copy)]
pub struct RecurrenceOptions<'a> {
    pub nonlinearity: &'a str,
    pub slope: f64,
    pub transpose: bool,
    pub reverse: bool,
    pub form: &'a str,
    pub method: &'a str,
}

/// Nonlinearity, negative slope, whether W is transposed, whether time runs backwards, the shape of u, and the method.
pub type Described<S> = (S, f64, bool, bool, S, S);

impl<'a, S: Deref<Target = str>> From<&'a Described<S>> for RecurrenceOptions<'a> {
    fn from((nonlinearity, slope, transpose, reverse, form, method): &'a Described<S>) -> Self {
        Self { nonlinearity, slope: *slope, transpose: *transpose, reverse: *reverse, form, method }
    }
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
    pub fn shape(&self, slot: usize) -> Axes {
        let Columns { count, n, m, .. } = self.columns;
        match slot {
            X => self.states(self.d),
            H0 => Axes::new([count, self.batch, n]),
            INPUT_WEIGHT => Axes::new([count, n, self.d]),
            BIAS | PHASES => Axes::new([count, n]),
            NONLINEARITY_BIAS => Axes::new([count, self.moduli]),
            TAU => Axes::new([count, m]),
            _ => Axes::new([count, n, m]),
        }
    }

    /// How many numbers an operand has.
    pub fn len(&self, slot: usize) -> Reading<usize> {
        size(&self.shape(slot))
    }

    /// The shape of an array with so many numbers for each state.
    pub fn states(&self, width: usize) -> Axes {
        match self.vectors {
            (steps, Some(batch)) => Axes::new([self.columns.count, steps, batch, width]),
            (rows, None) => Axes::new([self.columns.count, rows, width]),
        }
    }

    /// Vectors of all steps, if they are given.
    pub fn series<'a, T: ArrayNumber>(
        &self,
        operands: &impl Operands<'a>,
        slot: usize,
        width: usize,
    ) -> Reading<Option<Series<'a, T>>> {
        let (steps, batch) = self.vectors;
        let of_one = batch.filter(|_| self.columns.axes == 0).map(|batch| [steps, batch, width]);
        operands.series(slot, OPERANDS[slot], &self.states(width), of_one)
    }
}

/// A call.
pub struct Call<'a> {
    pub sizes: Sizes,
    pub options: RecurrenceOptions<'a>,
    pub steps: Steps,
}

impl<'a> Call<'a> {
    /// That of these operands, without a look at those that may be absent.
    pub fn of<A: AnyArray>(
        [u, x, h0, .., tau, batch_sizes]: &Inputs<A>,
        options: RecurrenceOptions<'a>,
    ) -> Reading<Self> {
        let (Some(u), Some(x)) = (u, x) else {
            return Err(Refusal::invalid("expected u and x, got None"));
        };
        let (u, x): (&dyn AnyArray, &dyn AnyArray) = (u, x);
        let integers = |sizes: &A| (sizes as &dyn AnyArray).integers("batch_sizes");
        let batch_sizes = batch_sizes.as_ref().map(integers).transpose()?;
        if options.reverse && batch_sizes.is_some() {
            let text = "reverse is for sequences of one length, but batch_sizes is given: leave one of them out";
            return Err(Refusal::invalid(text));
        }
        let columns = Columns::of(u, options.form, tau.is_some())?;
        let [steps, batch, d] = match (batch_sizes, h0) {
            (Some(sizes), Some(h0)) => [sizes.len(), h0.last[1], x.last[2]],
            (Some(sizes), None) => [sizes.len(), sizes.first().map_or(0, |&size| size.max(0) as usize), x.last[2]],
            (None, _) => x.last,
        };
        let total = |sizes: &[i64]| sizes.iter().try_fold(0_usize, |sum, &size| sum.checked_add(size.try_into().ok()?));
        let rows = match batch_sizes {
            Some(sizes) => total(sizes).filter(|&rows| rows == x.last[1]),
            None => steps.checked_mul(batch),
        };
        let fits = x.dims == columns.axes + if batch_sizes.is_some() { 2 } else { 3 } && x.is_led_by(u, columns.axes);
        let Some(rows) = rows.filter(|_| fits) else {
            return Err(Refusal::invalid(format!(
                "expected u (.., n, m) and x (.., T, B, d), or rows as batch_sizes say, got u {} and x {}",
                u.describe()?,
                x.describe()?
            )));
        };
        let moduli = options::moduli(options.nonlinearity, columns.n, x.dtype.is_complex())?;
        let vectors = if batch_sizes.is_some() { (rows, None) } else { (steps, Some(batch)) };
        let steps = batch_sizes.map_or_else(|| Steps::uniform(steps, batch), Steps::ragged)?;
        Ok(Self::new(Sizes { columns, d, vectors, batch, moduli }, options, steps)?)
    }

    /// That of sequences in this order, or the other one where time runs backwards.
    pub fn new(sizes: Sizes, options: RecurrenceOptions<'a>, steps: Steps) -> Result<Self, Error> {
        Ok(Self { sizes, options, steps: if options.reverse { steps.reversed()? } else { steps } })
    }

    /// Requires the shapes of the operands that may be absent.
    pub fn require<A: AnyArray>(&self, inputs: &Inputs<A>) -> Reading<()> {
        let Some(u) = &inputs[0] else { return Ok(()) };
        let columns = &self.sizes.columns;
        for (slot, array) in inputs.iter().enumerate().take(H).skip(H0) {
            let (Some(array), shape) = (array, self.sizes.shape(slot)) else { continue };
            (array as &dyn AnyArray).require_shape(OPERANDS[slot], u, (columns.count, columns.axes), &shape[1..])?;
        }
        Ok(())
    }
}

/// Width of what the forward pass may leave to the backward pass of each of so many states; 0: nothing.
pub fn tape_width(
    dtype: DType,
    (n, m): (usize, usize),
    rows: usize,
    [has_phases, has_tau]: [bool; 2],
    [nonlinearity, method]: [&str; 2],
) -> Reading<usize> {
    by_dtype!(dtype, |T| {
        let activation = options::activation::<T>(nonlinearity, 0.0, Some(&[]))?;
        Ok(rnn::tape_width(options::method(method)?, (n, m), rows, has_phases, has_tau, &activation)?)
    })
}

/// The sequences of all problems, over the vectors `x`.
pub fn sequence<'a, T: ArrayNumber<Real: ArrayNumber>>(
    operands: &impl Operands<'a>,
    sizes: &Sizes,
    options: &RecurrenceOptions<'_>,
    steps: Steps,
    x: Series<'a, T>,
) -> Reading<Sequence<'a, T>> {
    let operator = sizes.columns.operator(operands, TAU, Some((PHASES, &sizes.shape(PHASES))))?;
    let bias = operands.read(NONLINEARITY_BIAS, "nonlinearity_bias", &sizes.shape(NONLINEARITY_BIAS))?;
    let input_weight = operands.read(INPUT_WEIGHT, "input_weight", &sizes.shape(INPUT_WEIGHT))?;
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
        bias: operands.read(BIAS, "bias", &sizes.shape(BIAS))?,
        h0: operands.read(H0, "h0", &sizes.shape(H0))?,
    })
}

impl Call<'_> {
    fn sequence<T: ArrayNumber<Real: ArrayNumber>>(
        self,
        arrays: &Arrays<'_>,
    ) -> Reading<(Sizes, Sequence<'static, T>)> {
        let Self { sizes, options, steps } = self;
        let x = given("x", sizes.series(arrays, X, sizes.d)?)?;
        let sequence = sequence(arrays, &sizes, &options, steps, x)?;
        Ok((sizes, sequence))
    }
}

/// Results are all states, the last ones and the tape. What is saved serves the backward pass: factors, and the tape.
pub fn forward(arrays: &Arrays<'_>, call: Call<'_>, save: bool) -> Reading<Option<AnySaved>> {
    by_dtype!(arrays.dtype(X), |T| {
        let (sizes, sequence) = call.sequence::<T>(arrays)?;
        let Some(h) = arrays.write(0, &sizes.states(sizes.columns.n))? else { return Ok(None) };
        let last = arrays.write(1, &sizes.shape(H0))?;
        let states = States { h, last, tape: arrays.write(2, &sizes.states(sequence.tape_width()?))? };
        let saved = arrays.run(|context| {
            if save {
                return rnn::forward_and_save(context, &sequence, states).map(Some);
            }
            rnn::forward(context, &sequence, states).map(|()| None)
        })?;
        Ok(saved.map(|saved| AnySaved::new(false, saved)))
    })
}

/// The gradients of the operands, those that are needed. `may_repeat` the forward pass, where these need what it saved.
pub fn backward(arrays: &Arrays<'_>, call: Call<'_>, saved: Option<&Held>, may_repeat: bool) -> Reading<()> {
    by_dtype!(arrays.dtype(X), |T| {
        let (sizes, sequence) = call.sequence::<T>(arrays)?;
        let (n, width) = (sizes.columns.n, sequence.tape_width()?);
        let h = arrays.needed(H, "h", &sizes.states(n))?;
        let tape = arrays.read(TAPE, "tape", &sizes.states(width))?;
        let cotangents = Cotangents {
            h: sizes.series(arrays, GRAD_H, n)?,
            last: arrays.read(GRAD_LAST, "grad_last", &sizes.shape(H0))?,
        };
        let place = |slot: usize| arrays.write::<T>(slot, &sizes.shape(slot));
        let gradients = SequenceGradients {
            u: place(0)?,
            x: place(X)?,
            h0: place(H0)?,
            input_weight: place(INPUT_WEIGHT)?,
            bias: place(BIAS)?,
            tau: arrays.write(TAU, &sizes.shape(TAU))?,
            phases: arrays.write(PHASES, &sizes.shape(PHASES))?,
            activation_bias: arrays.write(NONLINEARITY_BIAS, &sizes.shape(NONLINEARITY_BIAS))?,
        };
        let saved = fitting(saved, |saved: &Saved<T>| saved.check(&sequence).is_ok());
        // Its derivative is not a function of the states.
        let repeats = may_repeat && saved.is_none() && matches!(sequence.activation, Activation::Oplu);
        arrays.run(|context| {
            let mut memory = Vec::new();
            let again = if repeats {
                let bytes = size_of_val(h);
                memory.try_reserve_exact(h.len()).map_err(|_| Error::OutOfMemory { bytes })?;
                memory.resize(h.len(), T::default());
                Some(rnn::forward_and_save(context, &sequence, States::new(&mut memory))?)
            } else {
                None
            };
            let trace = Trace { h, tape, saved: saved.or(again.as_ref()) };
            rnn::backward(context, &sequence, trace, cotangents, gradients)
        })
    })
}
