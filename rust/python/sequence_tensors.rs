//! Whole sequences in torch's tensors.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::by_dtype;
use crate::kept::Kept;
use crate::operand::Operand;
use crate::sequence::{Arguments, backward_problems, forward_problems, moduli, rnn_tape_width};
use crate::tensor::{Tensor, plain};

/// `u, x, h0, input_weight, bias, phases, nonlinearity_bias` and `batch_sizes`.
type Inputs<'py> = [Option<Bound<'py, PyAny>>; 8];

/// Nonlinearity, negative slope, whether W is transposed, whether time runs backwards, and the method.
type Options = (PyBackedStr, f64, bool, bool, PyBackedStr);

/// What a sequence's tensors make up.
struct Problem<'a> {
    dtype: &'static str,
    /// Of the bias of modReLU and of phases.
    real: &'static str,
    rows: usize,
    /// The number of matrices, and of the axes that tell them.
    stack: (usize, usize),
    /// Of `x` for one matrix, but for the width.
    of_vectors: Vec<usize>,
    arguments: Arguments<'a>,
}

impl<'a> Problem<'a> {
    /// Reads `u (.., n, m)`, `x (.., steps, batch, d)`, or `(.., rows, d)` beside `batch_sizes`, and what goes with them.
    fn read(inputs: &'a Inputs<'_>, options: &'a Options) -> PyResult<Self> {
        let [u, x, h0, input_weight, bias, phases, nonlinearity_bias, batch_sizes] = inputs;
        let read = |tensor: &'a Option<Bound<'_, PyAny>>| tensor.as_ref().map(Tensor::read).transpose();
        let (Some(u), Some(x), h0) = (read(u)?, read(x)?, read(h0)?) else {
            return Err(PyValueError::new_err("expected u and x, got None"));
        };
        let (dtype, [_, n, m]) = (x.dtype, u.last);
        let real = match dtype {
            "complex64" => "float32",
            "complex128" => "float64",
            other => other,
        };
        let Some(count) = u.len.checked_div(n * m) else {
            return Err(PyValueError::new_err("u: expected shape (.., n, m) with 1 <= m <= n"));
        };
        let batch_sizes = read(batch_sizes)?.map(|sizes| sizes.batch_sizes()).transpose()?;
        let [steps, batch, d] = match (batch_sizes, &h0) {
            (Some(sizes), Some(h0)) => [sizes.len(), h0.last[1], x.last[2]],
            (Some(_), None) => {
                return Err(PyValueError::new_err("h0: expected a state for each packed sequence, got None"));
            }
            (None, _) => x.last,
        };
        let whole = |sizes: &[i64]| sizes.iter().try_fold(0_usize, |sum, &size| sum.checked_add(size.try_into().ok()?));
        let rows = match batch_sizes {
            Some(sizes) => whole(sizes).filter(|&rows| rows == x.last[1]),
            None => steps.checked_mul(batch),
        };
        let fits = u.dims >= 2 && x.dims == u.dims + usize::from(batch_sizes.is_none());
        let Some(rows) = rows.filter(|_| fits) else {
            return Err(PyValueError::new_err("expected u (.., n, m) and x (.., T, B, d), or rows as batch_sizes say"));
        };
        let stack = (count, u.dims - 2);
        let of_vectors = if batch_sizes.is_some() { vec![rows] } else { vec![steps, batch] };
        let (nonlinearity, negative_slope, transpose, reverse, method) = options;
        let given = |name, tensor, dtype, shape: &[usize]| -> PyResult<Option<Operand<'static>>> {
            read(tensor)?.map(|tensor| tensor.shaped(name, dtype, stack, shape)).transpose()
        };
        let moduli = moduli(nonlinearity, n, real != dtype);
        let arguments = Arguments {
            count,
            sizes: [n, m, d, steps, batch],
            u: u.shaped("u", dtype, stack, &[n, m])?,
            x: x.vectors("x", dtype, stack, &[&of_vectors[..], &[d]].concat())?,
            h0: h0.map(|h0| h0.shaped("h0", dtype, stack, &[batch, n])).transpose()?,
            input_weight: given("input_weight", input_weight, dtype, &[n, d])?,
            bias: given("bias", bias, dtype, &[n])?,
            phases: given("phases", phases, real, &[n])?,
            batch_sizes,
            nonlinearity,
            negative_slope: *negative_slope,
            nonlinearity_bias: given("nonlinearity_bias", nonlinearity_bias, real, &[moduli])?,
            transpose: *transpose,
            reverse: *reverse,
            method,
        };
        Ok(Self { dtype, real, rows, stack, of_vectors, arguments })
    }

    fn tape_width(&self) -> PyResult<usize> {
        let Arguments { sizes: [n, m, ..], ref phases, nonlinearity, method, .. } = self.arguments;
        rnn_tape_width(self.dtype, n, m, self.rows, phases.is_some(), nonlinearity, method)
    }

    fn tape(&self, tape: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Operand<'static>>> {
        let shape = [self.rows, self.tape_width()?];
        tape.map(|tape| self.operand("tape", tape, self.dtype, &shape)).transpose()
    }

    /// The shape of all states of one matrix.
    fn of_states(&self) -> Vec<usize> {
        [&self.of_vectors[..], &self.arguments.sizes[..1]].concat()
    }

    /// An array of this shape for each matrix.
    fn operand(
        &self,
        name: &str,
        tensor: &Bound<'_, PyAny>,
        dtype: &str,
        shape: &[usize],
    ) -> PyResult<Operand<'static>> {
        Tensor::read(tensor)?.shaped(name, dtype, self.stack, shape)
    }
}

/// The width of the tape where this is an ordinary call about whose tensors nothing is left to check: plain, of one real
/// type, not packed, in memory that can be read as it is. None where it is not.
#[pyfunction]
pub fn plain_rnn_tape_width(inputs: Inputs<'_>, options: Options) -> Option<usize> {
    let [_, _, _, _, _, phases, nonlinearity_bias, batch_sizes] = &inputs;
    let all = inputs.iter().flatten().all(|tensor| plain(tensor).is_some());
    if !all || phases.is_some() || batch_sizes.is_some() {
        return None;
    }
    let problem = Problem::read(&inputs, &options).ok()?;
    let Arguments { sizes: [n, m, d, ..], ref input_weight, nonlinearity, .. } = problem.arguments;
    let fits = problem.stack.1 == 0 && problem.rows > 0 && m > 0 && m <= n && (d == n || input_weight.is_some());
    let of_pairs = matches!(nonlinearity, "oplu" | "modrelu");
    let knows_its_bias = nonlinearity_bias.is_some() == matches!(nonlinearity, "modrelu" | "real_modrelu");
    let width = problem.tape_width().ok()?;
    (fits && knows_its_bias && (n % 2 == 0 || !of_pairs)).then_some(width)
}

/// All states, and in `last` those in which sequences end; `tape` and what is kept serve the backward pass.
#[pyfunction]
pub fn rnn_forward_tensors(
    py: Python<'_>,
    inputs: Inputs<'_>,
    options: Options,
    h: &Bound<'_, PyAny>,
    tape: Option<&Bound<'_, PyAny>>,
    last: &Bound<'_, PyAny>,
    keep: bool,
) -> PyResult<Option<Kept>> {
    let problem = Problem::read(&inputs, &options)?;
    let Problem { dtype, ref arguments, .. } = problem;
    let [n, _, _, _, batch] = arguments.sizes;
    let h = problem.operand("h", h, dtype, &problem.of_states())?;
    let tape = problem.tape(tape)?;
    let last = problem.operand("last", last, dtype, &[batch, n])?;
    by_dtype!(dtype, forward_problems(py, arguments, &h, [tape.as_ref(), Some(&last)], keep))
}

/// Gradients of `u, x, h0, input_weight, bias, phases` and `nonlinearity_bias`, where there is room for them.
#[pyfunction]
pub fn rnn_backward_tensors(
    py: Python<'_>,
    inputs: Inputs<'_>,
    options: Options,
    h: &Bound<'_, PyAny>,
    tape: Option<&Bound<'_, PyAny>>,
    grad_h: Option<&Bound<'_, PyAny>>,
    grad_last: Option<&Bound<'_, PyAny>>,
    gradients: [Option<Bound<'_, PyAny>>; 7],
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<()> {
    let problem = Problem::read(&inputs, &options)?;
    let Problem { dtype, real, ref arguments, .. } = problem;
    let [n, m, d, _, batch] = arguments.sizes;
    let h = problem.operand("h", h, dtype, &problem.of_states())?;
    let tape = problem.tape(tape)?;
    let grad_h = grad_h
        .map(|grad_h| Tensor::read(grad_h)?.vectors("grad_h", dtype, problem.stack, &problem.of_states()))
        .transpose()?;
    let grad_last = grad_last.map(|last| problem.operand("grad_last", last, dtype, &[batch, n])).transpose()?;
    let moduli = moduli(arguments.nonlinearity, n, real != dtype);
    let of_x = [&problem.of_vectors[..], &[d]].concat();
    let shapes: [&[usize]; 7] = [&[n, m], &of_x, &[batch, n], &[n, d], &[n], &[n], &[moduli]];
    let room = |i: usize| {
        let (dtype, room) = (if i < 5 { dtype } else { real }, gradients[i].as_ref());
        room.map(|room| problem.operand("gradient", room, dtype, shapes[i])).transpose()
    };
    let gradients = [room(0)?, room(1)?, room(2)?, room(3)?, room(4)?, room(5)?, room(6)?];
    let states = [Some(&h), tape.as_ref(), grad_last.as_ref()];
    let gradients = gradients.each_ref().map(Option::as_ref);
    by_dtype!(dtype, backward_problems(py, arguments, states, grad_h.as_ref(), gradients, kept.map(Bound::get)))
}
