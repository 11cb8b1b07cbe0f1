//! Layers that were trained in Python, from the file of their `state_dict`.
//!
//! ```no_run
//! use householder::Context;
//! use householder::layers::{Options, OrthogonalRnn, SafeTensors};
//!
//! let bytes = std::fs::read("layer.safetensors")?;
//! let file = SafeTensors::deserialize(&bytes)?;
//! let layer = OrthogonalRnn::<f32>::read(&file, "", Options::default())?;
//! let context = &mut Context::default();
//! let states = layer.forward(context, 100, 1, &vec![0.5; 100 * layer.input_size()])?; // a sequence of 100 steps
//! let mut stream = layer.stream(context, 1)?;
//! let state = stream.step(&vec![0.5; layer.input_size()])?; // the first step alone
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::borrow::Cow;
use std::mem::swap;

use safetensors::Dtype;
pub use safetensors::SafeTensors;

use crate::error::{Error, Result};
use crate::lengths::product;
use crate::memory::{collected, filled};
use crate::number::Real;
use crate::operator::Operator;
use crate::rnn::{self, Activation, Recurrence, Sequence, Series, States, Steps};
use crate::scalar::Scalar;
use crate::threads::Context;

/// A real number that files have.
pub trait Stored: Scalar + Real {
    /// Its type in the file.
    const DTYPE: Dtype;
    /// The number of these bytes, as many as its size.
    fn of_bytes(bytes: &[u8]) -> Self;
}

macro_rules! stored {
    ($t:ident, $dtype:ident) => {
        impl Stored for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            fn of_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("as many bytes as a number has"))
            }
        }
    };
}
stored!(f32, F32);
stored!(f64, F64);

/// Which `u_1` a layer with as many reflections as states has, given the number that it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// 1 if that is positive, else -1.
    Hard,
    /// The nearest number in [-1, 1].
    Soft,
}

/// What the file does not say: the options that the layer was made with in Python. The defaults are the same.
#[derive(Clone, Copy, Debug)]
pub struct Options<T: Stored> {
    /// `nonlinearity` and `negative_slope`. The biases of modReLUs are in the file: give none, `ModRelu(&[])`.
    pub activation: Activation<'static, T>,
    /// `constraint`.
    pub constraint: Constraint,
}

impl<T: Stored> Default for Options<T> {
    fn default() -> Self {
        Self { activation: Activation::LeakyRelu(T::of(0.1)), constraint: Constraint::Hard }
    }
}

/// A trained `householder.torch.OrthogonalRNN` that runs in one direction. Results have the same bits as in Python on the CPU.
pub struct OrthogonalRnn<T: Stored> {
    cells: Vec<Cell<T>>,
    activation: Activation<'static, T>,
}

/// One layer of it: `h_t = phi(W h_{t-1} + V x_t + b)`.
struct Cell<T> {
    n: usize,
    m: usize,
    d: usize,
    u: Vec<T>,
    input_weight: Vec<T>,
    bias: Option<Vec<T>>,
    h0: Option<Vec<T>>,
    activation_bias: Option<Vec<T>>,
}

impl<T: Stored> OrthogonalRnn<T> {
    /// The layer whose parameters have names that begin with `prefix`, which ends with a point unless it is empty.
    pub fn read(file: &SafeTensors<'_>, prefix: &str, options: Options<T>) -> Result<Self> {
        let Options { activation, constraint } = options;
        let cell = |i: usize| format!("{prefix}cells.{i}.");
        let mut cells = vec![Cell::read(file, &cell(0), constraint)?];
        while file.tensor(&format!("{}reflections", cell(cells.len()))).is_ok() {
            cells.push(Cell::read(file, &cell(cells.len()), constraint)?);
        }
        let layer = Self { cells, activation: activation.with_bias(&[]) };
        for (i, of) in layer.cells.iter().enumerate() {
            let expected = if i == 0 { of.d } else { layer.cells[i - 1].n };
            if of.d != expected {
                let text = format!("expected {expected} columns, as the layer before has states, got {}", of.d);
                return Err(refused(&format!("{}weight_ih", cell(i)), &text));
            }
            if of.activation_bias.is_some() != activation.bias().is_some() {
                let text = "expected it with a modReLU as activation, and only there";
                return Err(refused(&format!("{}nonlinearity_bias", cell(i)), text));
            }
        }
        Ok(layer)
    }

    /// How many numbers an input has.
    pub fn input_size(&self) -> usize {
        self.cells[0].d
    }

    /// How many numbers a state has.
    pub fn hidden_size(&self) -> usize {
        self.cells[self.cells.len() - 1].n
    }

    /// All states of the last layer, `(steps, batch, n)`, of whole sequences `x (steps, batch, d)`.
    pub fn forward(&self, context: &mut Context<'_>, steps: usize, batch: usize, x: &[T]) -> Result<Vec<T>> {
        let mut states = Cow::Borrowed(x);
        for cell in &self.cells {
            let of = Steps::uniform(steps, batch)?;
            let mut h = filled(cell.numbers(of.rows()), T::ZERO)?;
            let h0 = cell.initial(batch)?;
            let sequence = cell.sequence(of, Series::new(&states), self.activation)?;
            rnn::forward(context, &Sequence { h0: h0.as_deref(), ..sequence }, States::new(&mut h))?;
            states = Cow::Owned(h);
        }
        Ok(states.into_owned())
    }

    /// So many sequences whose inputs arrive one step at a time. Their weights are packed once.
    pub fn stream(&self, context: &mut Context<'_>, batch: usize) -> Result<Stream<T>> {
        let mut running = Vec::with_capacity(self.cells.len());
        for cell in &self.cells {
            let sequence = cell.sequence(Steps::uniform(0, 1)?, Series::new(&[]), self.activation)?;
            let next = filled(cell.numbers(batch), T::ZERO)?;
            let h = cell.initial(batch)?.unwrap_or_else(|| next.clone());
            running.push(Running { recurrence: Recurrence::new(context, &sequence)?, h, next });
        }
        Ok(Stream(running))
    }
}

/// Sequences of an [`OrthogonalRnn`] up to some step.
pub struct Stream<T: Stored>(Vec<Running<T>>);

/// One of its layers.
struct Running<T: Stored> {
    recurrence: Recurrence<T>,
    h: Vec<T>,
    /// Memory for the state that follows.
    next: Vec<T>,
}

impl<T: Stored> Stream<T> {
    /// Takes one step with the inputs `x (batch, d)` and returns the states of the last layer, `(batch, n)`. If it fails, the
    /// sequences cannot go on.
    pub fn step(&mut self, x: &[T]) -> Result<&[T]> {
        let mut x = x;
        for Running { recurrence, h, next } in &mut self.0 {
            recurrence.step(x, h, next)?;
            swap(h, next);
            x = h;
        }
        Ok(&self.0[self.0.len() - 1].h)
    }
}

impl<T: Stored> Cell<T> {
    fn read(file: &SafeTensors<'_>, prefix: &str, constraint: Constraint) -> Result<Self> {
        let named = |name: &str| format!("{prefix}{name}");
        let ([n, m], mut u) = needed(file, &named("reflections"))?;
        let ([rows, d], input_weight) = needed(file, &named("weight_ih"))?;
        if rows != n {
            return Err(refused(&named("weight_ih"), &format!("expected {n} rows, as reflections has, got {rows}")));
        }
        Operator::new([1, n, m], &u).map_err(|error| refused(&named("reflections"), &error.to_string()))?;
        if m == n
            && let Some(last) = u.last_mut()
        {
            *last = match constraint {
                Constraint::Hard if *last > T::ZERO => T::ONE,
                Constraint::Hard => -T::ONE,
                Constraint::Soft if *last > T::ONE => T::ONE,
                Constraint::Soft if *last < -T::ONE => -T::ONE,
                Constraint::Soft => *last,
            };
        }
        let vector = |name: &str, lengths: &[usize]| match array::<T, 1>(file, &named(name))? {
            Some(([len], _)) if !lengths.contains(&len) => {
                Err(refused(&named(name), &format!("expected {n} numbers, as reflections has rows, got {len}")))
            }
            found => Ok(found.map(|(_, numbers)| numbers)),
        };
        let (bias, h0) = (vector("bias", &[n])?, vector("h0", &[n])?);
        Ok(Self { n, m, d, u, input_weight, bias, h0, activation_bias: vector("nonlinearity_bias", &[n, n / 2])? })
    }

    /// The recurrence over these inputs, from zero.
    fn sequence<'a>(
        &'a self,
        steps: Steps,
        x: Series<'a, T>,
        activation: Activation<'static, T>,
    ) -> Result<Sequence<'a, T>> {
        Ok(Sequence {
            activation: activation.with_bias(self.activation_bias.as_deref().unwrap_or(&[])),
            d: self.d,
            input_weight: Some(&self.input_weight),
            bias: self.bias.as_deref(),
            ..Sequence::new(Operator::new([1, self.n, self.m], &self.u)?, steps, x)
        })
    }

    /// How many numbers so many states have.
    fn numbers(&self, states: usize) -> usize {
        product(&[states, self.n]).unwrap_or(usize::MAX) // for which there is no memory
    }

    /// The first states of so many sequences, unless they are zero.
    fn initial(&self, batch: usize) -> Result<Option<Vec<T>>> {
        let h0 = self.h0.as_ref();
        h0.map(|h0| collected((0..self.numbers(batch)).map(|i| h0[i % self.n]))).transpose()
    }
}

/// The array of that name, if the file has it.
fn array<T: Stored, const AXES: usize>(file: &SafeTensors<'_>, name: &str) -> Result<Option<([usize; AXES], Vec<T>)>> {
    let Ok(tensor) = file.tensor(name) else { return Ok(None) };
    let Ok(shape) = tensor.shape().try_into() else {
        return Err(refused(name, &format!("expected {AXES} axes, got the shape {:?}", tensor.shape())));
    };
    if tensor.dtype() != T::DTYPE {
        return Err(refused(name, &format!("expected numbers of type {:?}, got {:?}", T::DTYPE, tensor.dtype())));
    }
    Ok(Some((shape, collected(tensor.data().chunks_exact(size_of::<T>()).map(T::of_bytes))?)))
}

fn needed<T: Stored, const AXES: usize>(file: &SafeTensors<'_>, name: &str) -> Result<([usize; AXES], Vec<T>)> {
    array(file, name)?.ok_or_else(|| refused(name, "the file does not have it"))
}

fn refused(name: &str, text: &str) -> Error {
    Error::InvalidArgument(format!("{name}: {text}"))
}
