//! Layers that were trained in Python, from the file of their `state_dict`.
//!
//! ```no_run
//! use householder::Context;
//! use householder::layers::{Options, OrthogonalRnn, SafeTensors};
//! use householder::rnn::Activation;
//!
//! let bytes = std::fs::read("layer.safetensors")?;
//! let file = SafeTensors::deserialize(&bytes)?;
//! let options = Options { num_layers: 2, ..Options::new(Activation::Tanh) }; // those of Python
//! let layer = OrthogonalRnn::<f32>::read(&file, "", options)?;
//! let context = &mut Context::default();
//! let states = layer.forward(context, 100, 1, &vec![0.5; 100 * layer.input_size()])?; // a sequence of 100 steps
//! let mut stream = layer.stream(context, 1)?;
//! let state = stream.step(&vec![0.5; layer.input_size()])?; // the first step alone
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::borrow::Cow;
use std::fmt;
use std::mem::swap;
use std::sync::Arc;

use safetensors::Dtype;
pub use safetensors::SafeTensors;

use crate::arrays::lengths::{product, require};
use crate::error::{Error, Result};
use crate::memory::{collected, filled};
use crate::numbers::number::Real;
use crate::numbers::scalar::Scalar;
use crate::operator::Form;
use crate::operator::{Operator, check_shape};
use crate::rnn::{self, Activation, Recurrence, Sequence, Series, States, Steps, check_activation};
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
#[non_exhaustive]
pub enum Constraint {
    /// 1 if that is positive, else -1.
    Hard,
    /// The nearest number in [-1, 1].
    Soft,
}

/// What the file does not say: the options that the layer was made with in Python.
#[derive(Clone, Copy, Debug)]
pub struct Options<T: Stored> {
    /// `nonlinearity` and `negative_slope`. The biases of a modReLU come from the file: pass none, `ModRelu(&[])`.
    pub activation: Activation<'static, T>,
    /// `constraint`, which layers with as many reflections as states need.
    pub constraint: Option<Constraint>,
    /// `num_layers`. A file of two layers looks like that of one layer that runs in both directions.
    pub num_layers: usize,
}

impl<T: Stored> Options<T> {
    /// Those of one layer. No file tells its nonlinearity, so there is no default: another one would compute other numbers.
    pub fn new(activation: Activation<'static, T>) -> Self {
        Self { activation, constraint: None, num_layers: 1 }
    }
}

/// A trained `householder.torch.OrthogonalRNN` that runs in one direction. Results have the same bits as in Python on the CPU.
pub struct OrthogonalRnn<T: Stored> {
    cells: Vec<Cell<T>>,
    activation: Activation<'static, T>,
}

/// The sizes of one layer: states, reflections, and inputs.
#[derive(Clone, Copy)]
struct Sizes {
    n: usize,
    m: usize,
    d: usize,
}

/// One layer: `h_t = phi(W h_{t-1} + V x_t + b)`.
struct Cell<T> {
    sizes: Sizes,
    u: Vec<T>,
    input_weight: Vec<T>,
    bias: Option<Vec<T>>,
    h0: Option<Vec<T>>,
    activation_bias: Option<Vec<T>>,
}

/// All parameters that a layer can have.
const PARAMETERS: [&str; 5] = ["reflections", "weight_ih", "bias", "h0", "nonlinearity_bias"];

impl<T: Stored> OrthogonalRnn<T> {
    /// The layer whose parameters have names that begin with `prefix`, which ends with a point unless it is empty. All arrays
    /// with such names must be parameters of the layer.
    pub fn read(file: &SafeTensors<'_>, prefix: &str, options: Options<T>) -> Result<Self> {
        let Options { activation, constraint, num_layers } = options;
        if num_layers == 0 {
            return Err(refused("num_layers", "expected at least 1, got 0"));
        }
        if activation.bias().is_some_and(|bias| !bias.is_empty()) {
            return Err(refused("activation", "expected no biases, because they come from the file"));
        }
        let cell = |i: usize| format!("{prefix}cells.{i}.");
        let mut sizes: Vec<Sizes> = Vec::new();
        for i in 0..num_layers {
            sizes.push(Sizes::read(file, &cell(i), sizes.first(), &activation)?);
        }
        let names = file.names();
        let others =
            names.iter().filter_map(|name| name.strip_prefix(prefix)).filter(|name| !is_read(name, num_layers));
        if let Some(name) = others.min() {
            let text = format!("no parameter of a layer in one direction with num_layers = {num_layers}");
            return Err(refused(&format!("{prefix}{name}"), &text));
        }
        let cells = sizes.into_iter().zip(0..).map(|(sizes, i)| Cell::read(file, &cell(i), sizes, constraint));
        Ok(Self { cells: cells.collect::<Result<_>>()?, activation })
    }

    /// How many numbers an input has.
    pub fn input_size(&self) -> usize {
        self.cells[0].sizes.d
    }

    /// How many numbers a state has.
    pub fn hidden_size(&self) -> usize {
        self.cells[0].sizes.n
    }

    /// How many layers there are, each of which runs over the states of the one before.
    pub fn num_layers(&self) -> usize {
        self.cells.len()
    }

    /// All states of the last layer, `(steps, batch, n)`, of whole sequences `x (steps, batch, d)`.
    pub fn forward(&self, context: &mut Context<'_>, steps: usize, batch: usize, x: &[T]) -> Result<Vec<T>> {
        self.run(context, [steps, batch], x, None, None)
    }

    /// [`OrthogonalRnn::forward`] from the states `h0 (num_layers, batch, n)`. Returns also the states in which the sequences
    /// end, of the same shape, from which they can go on.
    pub fn forward_from(
        &self,
        context: &mut Context<'_>,
        steps: usize,
        batch: usize,
        x: &[T],
        h0: &[T],
    ) -> Result<(Vec<T>, Vec<T>)> {
        let mut last = filled(h0.len(), T::ZERO)?;
        let states = self.run(context, [steps, batch], x, Some(h0), Some(&mut last))?;
        Ok((states, last))
    }

    /// So many sequences whose inputs arrive one step at a time. Their weights are packed once.
    pub fn stream(&self, context: &mut Context<'_>, batch: usize) -> Result<Stream<T>> {
        let mut layers = Vec::with_capacity(self.cells.len());
        for cell in &self.cells {
            let sequence = cell.sequence(Steps::uniform(0, 1)?, Series::new(&[]), self.activation)?;
            let next = filled(cell.numbers(batch), T::ZERO)?;
            let h = cell.initial(batch)?.unwrap_or_else(|| next.clone());
            layers.push(Running { recurrence: Arc::new(Recurrence::new(context, &sequence)?), h, next });
        }
        Ok(Stream { layers, n: self.hidden_size(), batch })
    }

    fn run(
        &self,
        context: &mut Context<'_>,
        [steps, batch]: [usize; 2],
        x: &[T],
        h0: Option<&[T]>,
        mut last: Option<&mut [T]>,
    ) -> Result<Vec<T>> {
        let (layers, n) = (self.num_layers(), self.hidden_size());
        require(1, &[("x", Some(x.len()), &[steps, batch, self.input_size()])])?;
        require(1, &[("h0", h0.map(<[T]>::len), &[layers, batch, n])])?;
        let each = h0.map_or(0, |h0| h0.len() / layers);
        let mut states = Cow::Borrowed(x);
        for (i, cell) in self.cells.iter().enumerate() {
            let of = Steps::uniform(steps, batch)?;
            let mut h = filled(cell.numbers(of.rows()), T::ZERO)?;
            let own = if h0.is_none() && steps > 0 { cell.initial(batch)? } else { None };
            let part = i * each..(i + 1) * each;
            let h0 = h0.map(|h0| &h0[part.clone()]).or(own.as_deref());
            let sequence = Sequence { h0, ..cell.sequence(of, Series::new(&states), self.activation)? };
            let last = last.as_deref_mut().map(|last| &mut last[part]);
            rnn::forward(context, &sequence, States { last, ..States::new(&mut h) })?;
            states = Cow::Owned(h);
        }
        Ok(states.into_owned())
    }
}

impl<T: Stored> fmt::Debug for OrthogonalRnn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrthogonalRnn")
            .field("input_size", &self.input_size())
            .field("hidden_size", &self.hidden_size())
            .field("num_layers", &self.num_layers())
            .field("activation", &self.activation)
            .finish_non_exhaustive()
    }
}

/// Sequences of an [`OrthogonalRnn`] up to some step. A clone shares the weights and goes on by itself.
#[derive(Clone)]
pub struct Stream<T: Stored> {
    layers: Vec<Running<T>>,
    n: usize,
    batch: usize,
}

/// One of its layers.
#[derive(Clone)]
struct Running<T: Stored> {
    recurrence: Arc<Recurrence<T>>,
    h: Vec<T>,
    /// Memory for the state that follows.
    next: Vec<T>,
}

impl<T: Stored> Stream<T> {
    /// Takes one step with the inputs `x (batch, d)` and returns the states of the last layer, `(batch, n)`. If it fails, all
    /// states are as before.
    pub fn step(&mut self, x: &[T]) -> Result<&[T]> {
        let mut x = x;
        for Running { recurrence, h, next } in &mut self.layers {
            recurrence.step(x, h, next)?;
            x = next;
        }
        self.layers.iter_mut().for_each(|layer| swap(&mut layer.h, &mut layer.next));
        Ok(&self.layers[self.layers.len() - 1].h)
    }

    /// The states of all layers, `(num_layers, batch, n)`.
    pub fn states(&self) -> Result<Vec<T>> {
        let mut states = filled(self.layers.len() * self.batch * self.n, T::ZERO)?;
        for (part, layer) in states.chunks_mut((self.batch * self.n).max(1)).zip(&self.layers) {
            part.copy_from_slice(&layer.h);
        }
        Ok(states)
    }

    /// Goes on from these states of all layers, `(num_layers, batch, n)`.
    pub fn set_states(&mut self, states: &[T]) -> Result<()> {
        require(1, &[("states", Some(states.len()), &[self.layers.len(), self.batch, self.n])])?;
        for (part, layer) in states.chunks((self.batch * self.n).max(1)).zip(&mut self.layers) {
            layer.h.copy_from_slice(part);
        }
        Ok(())
    }
}

impl<T: Stored> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("num_layers", &self.layers.len())
            .field("batch", &self.batch)
            .field("hidden_size", &self.n)
            .finish_non_exhaustive()
    }
}

impl Sizes {
    /// Read the sizes of the layer with this prefix. Refuse arrays of other sizes. All layers have states of one size.
    fn read<T: Stored>(
        file: &SafeTensors<'_>,
        prefix: &str,
        first: Option<&Self>,
        activation: &Activation<'_, T>,
    ) -> Result<Self> {
        let named = |name: &str| format!("{prefix}{name}");
        let expect = |name: &str, what: &str, expected: usize, got: usize| {
            let text = || format!("expected {expected} {what}, got {got}");
            if expected == got { Ok(()) } else { Err(refused(&named(name), &text())) }
        };
        let needed = |name: &str| {
            let shape = shape::<T, 2>(file, &named(name))?;
            shape.ok_or_else(|| refused(&named(name), "the file does not have it"))
        };
        let ([n, m], [rows, d]) = (needed("reflections")?, needed("weight_ih")?);
        check_shape::<T>((n, m), Form::Trapezoidal)
            .map_err(|error| refused(&named("reflections"), &error.to_string()))?;
        expect("weight_ih", "rows, as reflections has", n, rows)?;
        if let Some(first) = first {
            expect("reflections", "rows, as in the first layer", first.n, n)?;
            expect("weight_ih", "columns, as the layer before has states", first.n, d)?;
        } else if d == 0 {
            return Err(refused(&named("weight_ih"), "expected at least one column"));
        }
        check_activation(activation, n)?;
        let activation_bias = shape::<T, 1>(file, &named("nonlinearity_bias"))?;
        if activation_bias.is_some() != activation.bias().is_some() {
            return Err(refused(
                &named("nonlinearity_bias"),
                "expected it with a modReLU as activation, and only there",
            ));
        }
        let vectors = [("bias", n), ("h0", n), ("nonlinearity_bias", activation.moduli(n))];
        for (name, len) in vectors {
            if let Some([got]) = shape::<T, 1>(file, &named(name))? {
                expect(name, &format!("numbers for n = {n} rows of reflections"), len, got)?;
            }
        }
        Ok(Self { n, m, d })
    }
}

impl<T: Stored> Cell<T> {
    /// That with this prefix, whose arrays have these sizes.
    fn read(file: &SafeTensors<'_>, prefix: &str, sizes: Sizes, constraint: Option<Constraint>) -> Result<Self> {
        let read = |name: &str| {
            let Ok(tensor) = file.tensor(&format!("{prefix}{name}")) else { return Ok(None) };
            collected(tensor.data().chunks_exact(size_of::<T>()).map(T::of_bytes)).map(Some)
        };
        let [u, input_weight, bias, h0, activation_bias] = PARAMETERS.map(read);
        let (mut u, input_weight) = (u?.unwrap_or_default(), input_weight?.unwrap_or_default());
        if sizes.m == sizes.n
            && let Some(last) = u.last_mut()
        {
            let square = || {
                let text = "the layer has as many reflections as states: pass the constraint that it was made with";
                refused(&format!("{prefix}reflections"), text)
            };
            *last = match constraint.ok_or_else(square)? {
                Constraint::Hard if *last > T::ZERO => T::ONE,
                Constraint::Hard => -T::ONE,
                Constraint::Soft if *last > T::ONE => T::ONE,
                Constraint::Soft if *last < -T::ONE => -T::ONE,
                Constraint::Soft => *last,
            };
        }
        Ok(Self { sizes, u, input_weight, bias: bias?, h0: h0?, activation_bias: activation_bias? })
    }

    /// The recurrence over these inputs, from zero.
    fn sequence<'a>(
        &'a self,
        steps: Steps,
        x: Series<'a, T>,
        activation: Activation<'static, T>,
    ) -> Result<Sequence<'a, T>> {
        let Sizes { n, m, d } = self.sizes;
        Ok(Sequence {
            activation: activation.with_bias(self.activation_bias.as_deref().unwrap_or(&[])),
            d,
            input_weight: Some(&self.input_weight),
            bias: self.bias.as_deref(),
            ..Sequence::new(Operator::new([1, n, m], &self.u)?, steps, x)
        })
    }

    /// How many numbers so many states have.
    fn numbers(&self, states: usize) -> usize {
        product(&[states, self.sizes.n]).unwrap_or(usize::MAX) // for which there is no memory
    }

    /// Return the first states of `batch` sequences; `None` if the file has no `h0`.
    fn initial(&self, batch: usize) -> Result<Option<Vec<T>>> {
        let h0 = self.h0.as_ref();
        h0.map(|h0| collected((0..self.numbers(batch)).map(|i| h0[i % self.sizes.n]))).transpose()
    }
}

/// Whether a layer has a parameter of this name.
fn is_read(name: &str, num_layers: usize) -> bool {
    let parts = name.strip_prefix("cells.").and_then(|name| name.split_once('.'));
    parts.is_some_and(|(i, name)| {
        let of_layer = i.parse().is_ok_and(|layer: usize| layer < num_layers && layer.to_string() == i);
        of_layer && PARAMETERS.contains(&name)
    })
}

/// The shape of the array of that name, if the file has it.
fn shape<T: Stored, const AXES: usize>(file: &SafeTensors<'_>, name: &str) -> Result<Option<[usize; AXES]>> {
    let Ok(tensor) = file.tensor(name) else { return Ok(None) };
    if tensor.dtype() != T::DTYPE {
        return Err(refused(name, &format!("expected numbers of type {:?}, got {:?}", T::DTYPE, tensor.dtype())));
    }
    let expected = || refused(name, &format!("expected {AXES} axes, got the shape {:?}", tensor.shape()));
    tensor.shape().try_into().map(Some).map_err(|_| expected())
}

fn refused(name: &str, text: &str) -> Error {
    Error::InvalidArgument(format!("{name}: {text}"))
}
