//! Whole sequences and their gradients. For each problem: `u (n, m)`, `x (T, B, d)` or, with `batch_sizes`, packed rows
//! `(rows, d)`, `h0 (B, n)`, `input_weight (n, d)`, `bias (n)`, `phases (n)`, the bias of modReLU, and `tau (m)`.

use householder::rnn::{
    self, Activation, Cotangents, Saved, Sequence, SequenceGradients, Series, States, Steps, Trace,
};

use crate::arguments::Arguments;
use crate::call::{Kind, Reading, Refusal};
use crate::columns::Columns;
use crate::dtype::{DType, Number, by_dtype};
use crate::kept;
use crate::kernel::{Results, run};
use crate::options;
use crate::tensor::{Tensor, gradient, optional, optional_numbers, tuple, wanted};

/// The tensors that may be absent, by their places.
const H0: usize = 0;
const INPUT_WEIGHT: usize = 1;
const BIAS: usize = 2;
const PHASES: usize = 3;
const NONLINEARITY_BIAS: usize = 4;
const TAU: usize = 5;
const NAMES: [&str; 6] = ["h0", "input_weight", "bias", "phases", "nonlinearity_bias", "tau"];

/// The operands of both passes, laid out.
struct Inputs {
    u: Tensor,
    x: Tensor,
    others: [Option<Tensor>; 6],
    batch_sizes: Option<Tensor>,
}

impl Inputs {
    fn laid_out((u, x): (Tensor, Tensor), others: [Option<Tensor>; 6], batch_sizes: Option<Tensor>) -> Reading<Self> {
        let [h0, input_weight, bias, phases, nonlinearity_bias, tau] = others;
        Ok(Self {
            u: u.laid_out()?,
            x: x.laid_out()?,
            others: [
                optional(h0)?,
                optional(input_weight)?,
                optional(bias)?,
                optional(phases)?,
                optional(nonlinearity_bias)?,
                optional(tau)?,
            ],
            batch_sizes: optional(batch_sizes)?,
        })
    }
}

/// How a recurrence computes.
struct Options {
    nonlinearity: String,
    slope: f64,
    transpose: bool,
    reverse: bool,
    shape: String,
    method: String,
}

impl Options {
    fn take(arguments: &mut Arguments) -> Reading<Self> {
        let (nonlinearity, slope) = (arguments.text(), arguments.real());
        let (transpose, reverse) = (arguments.flag(), arguments.flag());
        let (shape, method) = (arguments.text(), arguments.text());
        Ok(Self { nonlinearity: nonlinearity?, slope, transpose, reverse, shape: shape?, method: method? })
    }
}

/// The sequences of a call, and their sizes.
struct Call<'a> {
    inputs: &'a Inputs,
    options: &'a Options,
    columns: Columns<'a>,
    d: usize,
    /// How many rows each problem has, and the axes that enumerate them: steps and sequences, or the rows.
    rows: usize,
    axes: Vec<usize>,
    batch: usize,
    batch_sizes: Option<&'a [i64]>,
    steps: usize,
    moduli: usize,
}

impl<'a> Call<'a> {
    fn of(inputs: &'a Inputs, options: &'a Options) -> Reading<Self> {
        let Inputs { u, x, others, batch_sizes } = inputs;
        let columns = Columns::of(u, &options.shape, others[TAU].as_ref())?;
        let batch_sizes = batch_sizes.as_ref().map(|sizes| sizes.integers("batch_sizes")).transpose()?;
        if options.reverse && batch_sizes.is_some() {
            let text = "reverse is for sequences of one length, but batch_sizes is given: leave one of them out";
            return Err(Refusal::invalid(text));
        }
        let of_x = x.shape()?;
        let own = of_x.strip_prefix(&columns.lead[..]).unwrap_or(&[]);
        let total = |sizes: &[i64]| sizes.iter().try_fold(0_usize, |sum, &size| sum.checked_add(size.try_into().ok()?));
        let (rows, batch, steps, d) = match (own, batch_sizes) {
            (&[steps, batch, d], None) => (steps * batch, batch, steps, d),
            (&[rows, d], Some(sizes)) if total(sizes) == Some(rows) => {
                let first = sizes.first().map_or(0, |&size| size as usize);
                let h0 = others[H0].as_ref().map(Tensor::shape).transpose()?;
                let batch = h0.and_then(|h0| h0.iter().rev().nth(1).copied()).unwrap_or(first);
                (rows, batch, sizes.len(), d)
            }
            _ => {
                return Err(Refusal::invalid(format!(
                    "expected u (.., n, m) and x (.., T, B, d), or rows as batch_sizes say, got u {} and x {}",
                    u.describe()?,
                    x.describe()?
                )));
            }
        };
        let moduli = options::moduli(&options.nonlinearity, columns.n, u.dtype()?.is_complex())?;
        let axes = own[..own.len() - 1].to_vec();
        Ok(Self { inputs, options, columns, d, rows, axes, batch, batch_sizes, steps, moduli })
    }

    /// The shape that an operand of these places has for each problem, and its type.
    fn expected(&self, place: usize) -> Reading<(Vec<usize>, DType)> {
        let (n, dtype) = (self.columns.n, self.inputs.u.dtype()?);
        Ok(match place {
            H0 => (vec![self.batch, n], dtype),
            INPUT_WEIGHT => (vec![n, self.d], dtype),
            BIAS => (vec![n], dtype),
            PHASES => (vec![n], dtype.real()),
            NONLINEARITY_BIAS => (vec![self.moduli], dtype.real()),
            _ => (vec![self.columns.m], dtype),
        })
    }

    /// Requires the shapes of the operands that may be absent.
    fn require(&self) -> Reading<()> {
        for (place, tensor) in self.inputs.others.iter().enumerate() {
            let (Some(tensor), (shape, _)) = (tensor, self.expected(place)?) else { continue };
            if tensor.shape()? != self.columns.each(&shape) {
                let (name, given) = (NAMES[place], tensor.describe()?);
                let lead = if self.columns.lead.is_empty() { "" } else { "(.., ) + " };
                return Err(Refusal::invalid(format!("{name}: expected shape {lead}{shape:?}, got {given}")));
            }
        }
        Ok(())
    }

    /// The shape of an array with so many numbers for each state.
    fn states(&self, width: usize) -> Vec<usize> {
        [&self.columns.lead[..], &self.axes, &[width]].concat()
    }

    fn len(&self, width: usize) -> usize {
        self.columns.count * self.rows * width
    }

    /// An operand that may be absent.
    fn other<T: Number>(&self, place: usize) -> Reading<Option<&'a [T]>> {
        let len = self.columns.count * self.expected(place)?.0.iter().product::<usize>();
        optional_numbers(self.inputs.others[place].as_ref(), NAMES[place], len)
    }

    fn sequence<T: Number<Real: Number>>(&self) -> Reading<Sequence<'a, T>> {
        let Self { inputs, options, columns, d, .. } = self;
        let input_weight = self.other(INPUT_WEIGHT)?;
        if input_weight.is_none() && *d != columns.n {
            return Err(Refusal::invalid(format!("x: expected width n = {}, got {d}", columns.n)));
        }
        let steps = self.batch_sizes.map_or_else(|| Steps::uniform(self.steps, self.batch), Steps::ragged)?;
        let operator = columns.operator(self.other(PHASES)?)?;
        Ok(Sequence {
            operator: operator.adjoint(options.transpose).by(options::method(&options.method)?),
            activation: options::activation(&options.nonlinearity, options.slope, self.other(NONLINEARITY_BIAS)?)?,
            steps: if options.reverse { steps.reversed()? } else { steps },
            d: *d,
            x: Series::new(inputs.x.numbers("x", self.len(*d))?),
            input_weight,
            bias: self.other(BIAS)?,
            h0: self.other(H0)?,
        })
    }
}

/// All states, the last ones, and what is kept.
pub fn forward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number<Real: Number>>(call: &Call<'_>, h: &mut Tensor, last: &mut Tensor, keep: bool) -> Reading<Tensor> {
        let sequence = call.sequence::<T>()?;
        let h = h.numbers_mut(call.len(call.columns.n))?;
        let last = Some(last.numbers_mut(call.columns.count * call.batch * call.columns.n)?);
        let states = States { h, last, tape: None };
        let kept = run(|context| {
            if keep {
                return rnn::forward_and_save(context, &sequence, states).map(Some);
            }
            rnn::forward(context, &sequence, states).map(|()| None)
        })?;
        kept::keep(keep, kept)
    }
    let (u, x, others) = (arguments.tensor(), arguments.tensor(), arguments.optionals());
    let (batch_sizes, keep) = (arguments.optional(), arguments.flag());
    let options = Options::take(arguments)?;
    let inputs = Inputs::laid_out((u, x), others, batch_sizes)?;
    let call = Call::of(&inputs, &options)?;
    call.require()?;
    let (Inputs { u, x, .. }, n) = (&inputs, call.columns.n);
    let mut h = Tensor::empty(&call.states(n), x)?;
    let mut last = Tensor::empty(&call.columns.each(&[call.batch, n]), u)?;
    let kept = by_dtype!(x.dtype()?, go(&call, &mut h, &mut last, keep && kept::is_possible()))?;
    Ok(vec![Some(h), Some(last), Some(kept)])
}

/// The gradients of the operands but `batch_sizes`, those that are wanted.
pub fn backward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number<Real: Number>>(
        call: &Call<'_>,
        h: &Tensor,
        kept: Option<&Tensor>,
        [grad_h, grad_last]: [Option<&Tensor>; 2],
        gradients: &mut [Option<Tensor>; 8],
    ) -> Reading<()> {
        let (sequence, n) = (call.sequence::<T>()?, call.columns.n);
        let (len, of_last) = (call.len(n), call.columns.count * call.batch * n);
        let h = h.numbers("h", len)?;
        let cotangents = Cotangents {
            h: optional_numbers(grad_h, "grad_h", len)?.map(Series::new),
            last: optional_numbers(grad_last, "grad_last", of_last)?,
        };
        let [u, x, h0, input_weight, bias, phases, activation_bias, tau] = gradients.each_mut().map(Option::as_mut);
        let gradients = SequenceGradients {
            u: wanted(u)?,
            x: wanted(x)?,
            h0: wanted(h0)?,
            input_weight: wanted(input_weight)?,
            bias: wanted(bias)?,
            tau: wanted(tau)?,
            phases: wanted(phases)?,
            activation_bias: wanted(activation_bias)?,
        };
        let saved = kept::find(kept, |saved: &Saved<T>| saved.check(&sequence).is_ok());
        // Its derivative is not a function of the states: without what is kept, the forward pass runs again.
        let runs_again = saved.is_none() && matches!(sequence.activation, Activation::Oplu);
        let mut again = if runs_again { Some(Tensor::empty(&call.states(n), &call.inputs.x)?) } else { None };
        let again = wanted(again.as_mut())?;
        run(|context| {
            let again = again.map(|h| rnn::forward_and_save(context, &sequence, States::new(h))).transpose()?;
            let trace = Trace { saved: saved.as_deref().or(again.as_ref()), ..Trace::new(h) };
            rnn::backward(context, &sequence, trace, cotangents, gradients)
        })
    }
    let (u, x, others) = (arguments.tensor(), arguments.tensor(), arguments.optionals());
    let (batch_sizes, h, kept) = (arguments.optional(), arguments.tensor(), arguments.optional());
    let (grads, wants) = (arguments.optionals::<2>(), arguments.flags::<8>());
    let options = Options::take(arguments)?;
    let (inputs, h, kept) = (Inputs::laid_out((u, x), others, batch_sizes)?, h.laid_out()?, optional(kept)?);
    let [grad_h, grad_last] = grads;
    let grads = [optional(grad_h)?, optional(grad_last)?];
    let call = Call::of(&inputs, &options)?;
    call.require_unchanged(&h, grads.each_ref().map(Option::as_ref))?;
    let (Inputs { u, x, others, .. }, wants) = (&inputs, wants?);
    let operands = [Some(u), Some(x)].into_iter().chain(others.iter().map(Option::as_ref));
    let gradients = operands.zip(wants).map(|(tensor, is_wanted)| gradient(tensor, is_wanted));
    let Ok(mut gradients) = <[_; 8]>::try_from(gradients.collect::<Reading<Vec<_>>>()?) else { unreachable!("2 + 6") };
    by_dtype!(x.dtype()?, go(&call, &h, kept.as_ref(), grads.each_ref().map(Option::as_ref), &mut gradients))?;
    Ok(gradients.into())
}

impl Call<'_> {
    /// Refuses tensors that were replaced or converted since the forward pass.
    fn require_unchanged(&self, h: &Tensor, grads: [Option<&Tensor>; 2]) -> Reading<()> {
        for (place, tensor) in self.inputs.others.iter().enumerate() {
            let (Some(tensor), (shape, dtype)) = (tensor, self.expected(place)?) else { continue };
            let (given, expected, of) = (tensor.shape()?, self.columns.each(&shape), tensor.dtype()?);
            if given != expected || of != dtype {
                let (given, expected, of, dtype) = (tuple(&given), tuple(&expected), of.name(), dtype.name());
                let text = format!(
                    "a tensor is {of} of shape {given} on cpu, but in the forward pass it was {dtype} of shape {expected} on \
                     cpu: change parameters after the backward pass"
                );
                return Err(Refusal::new(Kind::Runtime, text));
            }
        }
        let dtype = self.inputs.u.dtype()?;
        for tensor in [Some(&self.inputs.x), Some(h)].into_iter().chain(grads).flatten() {
            if tensor.dtype()? != dtype {
                let text = format!("states or their gradients were not {} on cpu in the forward pass", dtype.name());
                return Err(Refusal::new(Kind::Runtime, text));
            }
        }
        Ok(())
    }
}
