//! The delta rule.

use householder::delta::{self, Cotangents, Exponential, Gate, Gradients, Operands, Problem, Results, Sizes};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::array::{Array, Number, Reading, Refusal, optional, optional_mut, size};
use crate::call::{attempt, run, to_python};

/// `q`, `k`, `v`, `beta`, `g` and the initial state; gradients in the same order.
type Given<'py> = [Option<Bound<'py, PyAny>>; 6];
type Arrays<'a, 'py> = [Option<Array<'a, 'py>>; 6];

/// The type of the queries, which all have.
fn dtype(operands: &Arrays<'_, '_>) -> &'static str {
    operands[0].as_ref().map_or("nothing", |q| q.dtype)
}

/// Sizes, offsets of the sequences, whether gates are by channel, the scale, and whether queries and keys are normalised.
type Options = ([usize; 5], Vec<usize>, bool, f64, bool);

fn sizes([heads, value_heads, key_width, value_width, reflections]: [usize; 5]) -> Sizes {
    Sizes { heads, value_heads, key_width, value_width, reflections }
}

/// Lengths of the arrays of tokens, of steps and of states.
struct Lengths {
    q: usize,
    k: usize,
    v: usize,
    beta: usize,
    g: usize,
    states: usize,
    out: usize,
    kept: usize,
}

impl Lengths {
    fn of(sizes: &Sizes, offsets: &[usize], by_channel: bool) -> PyResult<Self> {
        let Sizes { heads, value_heads, key_width, value_width, reflections } = *sizes;
        let tokens = offsets.last().copied().unwrap_or(0);
        let steps = size(&[tokens, reflections])?;
        Ok(Self {
            q: size(&[tokens, heads, key_width])?,
            k: size(&[steps, heads, key_width])?,
            v: size(&[steps, value_heads, value_width])?,
            beta: size(&[steps, value_heads])?,
            g: size(&[tokens, value_heads, if by_channel { key_width } else { 1 }])?,
            states: size(&[offsets.len().saturating_sub(1), value_heads, key_width, value_width])?,
            out: size(&[tokens, value_heads, value_width])?,
            kept: size(&[
                steps / delta::interval(key_width, value_width).map_err(to_python)?,
                value_heads,
                key_width,
                value_width,
            ])?,
        })
    }
}

fn problem<T: Number + Exponential>(
    operands: &Arrays<'_, '_>,
    options: &Options,
) -> Reading<(Problem<'static, T>, Lengths)> {
    let (sizes, offsets, by_channel, scale, normalize) =
        (sizes(options.0), &options.1, options.2, options.3, options.4);
    let lengths = Lengths::of(&sizes, offsets, by_channel)?;
    let given = |i: usize, name: &str, len: usize| optional::<T>(operands[i].as_ref(), name, len);
    let needed = |i, name: &str, len| {
        let missing = || PyValueError::new_err(format!("{name}: expected an array, got None"));
        given(i, name, len)?.ok_or_else(|| Refusal::Wrong(missing()))
    };
    let gate = match given(4, "g", lengths.g)? {
        None => Gate::None,
        Some(g) if by_channel => Gate::Channel(g),
        Some(g) => Gate::Head(g),
    };
    let problem = Problem::new(Operands {
        sizes,
        sequences: offsets.windows(2).map(|pair| pair[0]..pair[1]).collect(),
        q: needed(0, "q", lengths.q)?,
        k: needed(1, "k", lengths.k)?,
        v: needed(2, "v", lengths.v)?,
        beta: needed(3, "beta", lengths.beta)?,
        gate,
        initial: given(5, "initial_state", lengths.states)?,
        scale: T::of(scale),
        normalize,
    });
    Ok((problem.map_err(to_python)?, lengths))
}

macro_rules! by_real {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            "float32" => $function::<f32>($($argument),*),
            "float64" => $function::<f64>($($argument),*),
            other => Err(PyTypeError::new_err(format!("dtype: expected float32 or float64, got {other}")).into()),
        }
    };
}

/// Steps between two states that the forward pass keeps.
#[pyfunction]
pub fn delta_interval(key_width: usize, value_width: usize) -> PyResult<usize> {
    delta::interval(key_width, value_width).map_err(to_python)
}

#[pyfunction]
pub fn delta_forward(
    py: Python<'_>,
    operands: Given<'_>,
    options: Options,
    out: &Bound<'_, PyAny>,
    last: Option<&Bound<'_, PyAny>>,
    kept: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number + Exponential>(
        py: Python<'_>,
        operands: &Arrays<'_, '_>,
        options: &Options,
        out: &Array<'_, '_>,
        last: Option<&Array<'_, '_>>,
        kept: Option<&Array<'_, '_>>,
    ) -> Reading<()> {
        let (problem, lengths) = problem::<T>(operands, options)?;
        let results = Results {
            out: Some(out.slice_mut("out", lengths.out)?),
            last: optional_mut(last, "last", lengths.states)?,
            kept: optional_mut(kept, "kept", lengths.kept)?,
        };
        Ok(run(py, |context| delta::forward(context, &problem, results))?)
    }
    let reading = || -> Reading<_> {
        let (operands, out) = (Array::each(&operands)?, Array::read(out)?);
        let (last, kept) = (Array::optional(last)?, Array::optional(kept)?);
        by_real!(dtype(&operands), go(py, &operands, &options, &out, last.as_ref(), kept.as_ref()))
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
        operands: &Arrays<'_, '_>,
        options: &Options,
        [kept, grad_out, grad_last]: [Option<&Array<'_, '_>>; 3],
        gradients: &Arrays<'_, '_>,
    ) -> Reading<()> {
        let (problem, lengths) = problem::<T>(operands, options)?;
        let kept = optional(kept, "kept", lengths.kept)?;
        let cotangents = Cotangents {
            out: optional(grad_out, "grad_out", lengths.out)?,
            last: optional(grad_last, "grad_last", lengths.states)?,
        };
        let wanted = |i: usize, name: &str, len: usize| optional_mut(gradients[i].as_ref(), name, len);
        let gradients = Gradients {
            q: wanted(0, "grad_q", lengths.q)?,
            k: wanted(1, "grad_k", lengths.k)?,
            v: wanted(2, "grad_v", lengths.v)?,
            beta: wanted(3, "grad_beta", lengths.beta)?,
            gate: wanted(4, "grad_g", lengths.g)?,
            initial: wanted(5, "grad_initial_state", lengths.states)?,
        };
        Ok(run(py, |context| delta::backward(context, &problem, kept, cotangents, gradients))?)
    }
    let reading = || -> Reading<_> {
        let (operands, gradients) = (Array::each(&operands)?, Array::each(&gradients)?);
        let (kept, grad_out, grad_last) =
            (Array::optional(kept)?, Array::optional(grad_out)?, Array::optional(grad_last)?);
        let given = [kept.as_ref(), grad_out.as_ref(), grad_last.as_ref()];
        by_real!(dtype(&operands), go(py, &operands, &options, given, &gradients))
    };
    attempt(py, reading())
}
