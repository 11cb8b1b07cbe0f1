//! The delta rule, and linear attention, which is the same without betas, of Python's arrays and of XLA's.

use householder::delta::{self, Cotangents, Gate, Gradients, Problem, Results};
use householder::exponential::Exponential;
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, Refusal, attempt, run};
use crate::dtype::{DType, Number};
use crate::operands::{Arrays, Named, Operands, Shape, given, named};

/// Slots of operands, and of their gradients: `q`, `k`, `v`, `beta`, `g` and the initial states.
pub const INPUTS: usize = 6;
/// The slot of `skip`, after what a backward pass takes, and that of its gradient. XLA has none.
const SKIP: [usize; 2] = [INPUTS + 3, INPUTS];

/// A call.
pub struct Call {
    pub sizes: delta::Sizes,
    pub sequences: Vec<std::ops::Range<usize>>,
    /// The axes of tokens, of steps and of kept states: those of a batch, and in it.
    pub tokens: [usize; 2],
    pub steps: [usize; 2],
    pub kept: [usize; 2],
    pub by_channel: bool,
    pub scale: f64,
    pub normalize: bool,
}

impl Call {
    /// The shape of an operand, and of its gradient.
    fn shape(&self, slot: usize) -> Shape {
        let delta::Sizes { heads, value_heads, key_width, value_width, .. } = self.sizes;
        let ([batch, tokens], [_, steps]) = (self.tokens, self.steps);
        match slot {
            0 => Shape::new([batch, tokens, heads, key_width]),
            1 => Shape::new([batch, steps, heads, key_width]),
            2 => Shape::new([batch, steps, value_heads, value_width]),
            3 => Shape::new([batch, steps, value_heads]),
            4 if self.by_channel => Shape::new([batch, tokens, value_heads, key_width]),
            4 => Shape::new([batch, tokens, value_heads]),
            _ => Shape::new([self.sequences.len(), value_heads, key_width, value_width]),
        }
    }

    /// The shape of the outputs.
    fn out(&self) -> [usize; 4] {
        [self.tokens[0], self.tokens[1], self.sizes.value_heads, self.sizes.value_width]
    }

    /// The shape of the states that are kept.
    fn kept(&self) -> [usize; 5] {
        let delta::Sizes { value_heads, key_width, value_width, .. } = self.sizes;
        [self.kept[0], self.kept[1], value_heads, key_width, value_width]
    }

    fn problem<'a, T: Number + Exponential>(&self, operands: &impl Operands<'a>) -> Reading<Problem<'a, T>> {
        let gate = match operands.read(4, "g", &self.shape(4))? {
            None => Gate::None,
            Some(g) if self.by_channel => Gate::Channel(g),
            Some(g) => Gate::Head(g),
        };
        Ok(Problem::new(delta::Operands {
            sizes: self.sizes,
            sequences: self.sequences.clone(),
            q: given("q", operands.tokens(0, "q", &self.shape(0))?)?,
            k: given("k", operands.tokens(1, "k", &self.shape(1))?)?,
            v: given("v", operands.tokens(2, "v", &self.shape(2))?)?,
            beta: operands.read(3, "beta", &self.shape(3))?,
            skip: operands.read(SKIP[0], "skip", &Shape::new([self.sizes.value_heads]))?,
            gate,
            initial: operands.read(5, "initial_state", &self.shape(5))?,
            scale: T::of(self.scale),
            normalize: self.normalize,
        })?)
    }

    /// Results are outputs, final states and the states for the backward pass. `in_place`: the final states hold the initial
    /// ones.
    pub fn forward<'a, T: Number + Exponential>(
        &self,
        operands: &impl Operands<'a>,
        in_place: bool,
    ) -> Reading<(Problem<'a, T>, Results<'a, T>)> {
        let results = Results {
            out: operands.numbers_mut(0, &self.out())?,
            last: operands.write(1, &self.shape(5))?,
            in_place,
            kept: operands.write(2, &self.kept())?,
        };
        Ok((self.problem(operands)?, results))
    }

    /// Further operands are the states that the forward pass kept, and the gradients of outputs and of final states.
    #[allow(clippy::type_complexity)] // what a backward pass takes
    pub fn backward<'a, T: Number + Exponential>(
        &self,
        operands: &impl Operands<'a>,
    ) -> Reading<(Problem<'a, T>, Option<&'a [T]>, Cotangents<'a, T>, Gradients<'a, T>)> {
        let cotangents = Cotangents {
            out: operands.tokens(INPUTS + 1, "grad_out", &self.out())?,
            last: operands.read(INPUTS + 2, "grad_last", &self.shape(5))?,
        };
        let wanted = |slot: usize| operands.write(slot, &self.shape(slot));
        let gradients = Gradients {
            q: wanted(0)?,
            k: wanted(1)?,
            v: operands.numbers_mut(2, &self.shape(2))?,
            beta: wanted(3)?,
            gate: wanted(4)?,
            initial: wanted(5)?,
            skip: operands.write(SKIP[1], &Shape::new([self.sizes.value_heads]))?,
        };
        let kept = operands.read(INPUTS, "kept", &self.kept())?;
        Ok((self.problem(operands)?, kept, cotangents, gradients))
    }
}

/// Operands and gradients, with those of `skip`.
type Given<'py> = [Option<Bound<'py, PyAny>>; INPUTS + 1];

/// Sizes, offsets of the sequences, whether gates are by channel, the scale, and whether queries and keys are normalised.
type Options = ([usize; 5], Vec<usize>, bool, f64, bool);

impl Call {
    fn of((sizes, offsets, by_channel, scale, normalize): Options) -> Reading<Self> {
        let [heads, value_heads, key_width, value_width, reflections] = sizes;
        let tokens = offsets.last().copied().unwrap_or(0);
        let text = || format!("sizes: {tokens} tokens of {reflections} steps each are too many");
        let steps = tokens.checked_mul(reflections).ok_or_else(|| Refusal::invalid(text()))?;
        Ok(Self {
            sizes: delta::Sizes { heads, value_heads, key_width, value_width, reflections },
            sequences: offsets.windows(2).map(|pair| pair[0]..pair[1]).collect(),
            tokens: [1, tokens],
            steps: [1, steps],
            kept: [1, steps / delta::interval(key_width, value_width)?],
            by_channel,
            scale,
            normalize,
        })
    }
}

const NAMES: [&str; INPUTS + 1] = ["q", "k", "v", "beta", "g", "initial_state", "skip"];
const GRADIENTS: [&str; INPUTS + 1] =
    ["grad_q", "grad_k", "grad_v", "grad_beta", "grad_g", "grad_initial_state", "grad_skip"];

/// The type that is computed in. Queries, keys, values and outputs may have half types.
fn dtype(operands: &[Option<Array<'_, '_>>]) -> DType {
    operands[0].as_ref().map_or(DType::Other, |q| q.dtype.computed())
}

/// Operands in their slots, with what a backward pass takes.
fn slots<'a, 'py>(
    operands: [Option<Array<'a, 'py>>; INPUTS + 1],
    others: [Option<Array<'a, 'py>>; 3],
) -> [Named<'a, 'py>; INPUTS + 4] {
    let [q, k, v, beta, g, initial, skip] = named(NAMES, operands);
    let [kept, out, last] = named(["kept", "grad_out", "grad_last"], others);
    [q, k, v, beta, g, initial, kept, out, last, skip]
}

/// Steps between two states that the forward pass keeps.
#[pyfunction]
pub fn delta_interval(key_width: usize, value_width: usize) -> PyResult<usize> {
    Ok(delta::interval(key_width, value_width).map_err(Refusal::from)?)
}

#[pyfunction]
pub fn delta_forward(
    py: Python<'_>,
    operands: Given<'_>,
    options: Options,
    out: &Bound<'_, PyAny>,
    last: Option<&Bound<'_, PyAny>>,
    kept: Option<&Bound<'_, PyAny>>,
    in_place: bool,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number + Exponential>(
        py: Python<'_>,
        call: &Call,
        arrays: &Arrays<'_, '_, { INPUTS + 4 }, 3>,
        in_place: bool,
    ) -> Reading<()> {
        let (problem, results) = call.forward::<T>(arrays, in_place)?;
        run(py, |context| delta::forward(context, &problem, results))
    }
    let reading = || -> Reading<_> {
        let (operands, call) = (Array::each(&operands)?, Call::of(options)?);
        let (out, last, kept) = (Array::read(out)?, Array::optional(last)?, Array::optional(kept)?);
        let dtype = dtype(&operands);
        let results = [("out", Some(out)), ("last", last), ("kept", kept)];
        let arrays = Arrays::new(slots(operands, [None, None, None]), results)?;
        by_dtype!(real dtype, go(py, &call, &arrays, in_place))
    };
    attempt(py, reading())
}

#[pyfunction]
pub fn delta_backward(
    py: Python<'_>,
    operands: Given<'_>,
    options: Options,
    kept: Option<&Bound<'_, PyAny>>,
    grad_out: Option<&Bound<'_, PyAny>>,
    grad_last: Option<&Bound<'_, PyAny>>,
    gradients: Given<'_>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number + Exponential>(
        py: Python<'_>,
        call: &Call,
        arrays: &Arrays<'_, '_, { INPUTS + 4 }, { INPUTS + 1 }>,
    ) -> Reading<()> {
        let (problem, kept, cotangents, gradients) = call.backward::<T>(arrays)?;
        run(py, |context| delta::backward(context, &problem, kept, cotangents, gradients))
    }
    let reading = || -> Reading<_> {
        let (operands, call) = (Array::each(&operands)?, Call::of(options)?);
        let others = [Array::optional(kept)?, Array::optional(grad_out)?, Array::optional(grad_last)?];
        let dtype = dtype(&operands);
        let results = named(GRADIENTS, Array::each(&gradients)?);
        let arrays = Arrays::new(slots(operands, others), results)?;
        by_dtype!(real dtype, go(py, &call, &arrays))
    };
    attempt(py, reading())
}
