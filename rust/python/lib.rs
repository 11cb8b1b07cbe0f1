//! The extension module: reads arguments, releases the interpreter lock, calls the core. No mathematics here.

mod application;
mod array;
mod call;
mod constrain;
mod convolution;
mod cuda;
mod delta;
mod factor;
mod gated_norm;
mod kept;
mod matrix;
mod recurrence;
mod sequence;
mod torch_threads;
mod xla;

use householder::method::Costs;
use householder::operator::Form;
use householder_binding::options;
use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::{
        application::{backward, backward_in_place, backward_tape, forward, forward_tape},
        array::share_tensor_types,
        constrain::constrain,
        convolution::{convolution_backward, convolution_forward},
        cuda::cuda_sources,
        delta::{delta_backward, delta_forward, delta_interval},
        factor::{departure, factor, wy},
        gated_norm::{gated_norm_backward, gated_norm_forward},
        get_num_threads, instruction_set,
        kept::PyKept,
        matrix::{matrix, matrix_backward},
        plan,
        recurrence::PyRecurrence,
        release_memory,
        sequence::{rnn_backward, rnn_forward, rnn_tape_width},
        set_num_threads,
        torch_threads::share_torch_threads,
        xla::xla_handlers,
    };
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

/// Name of the instruction set in use.
#[pyfunction]
fn instruction_set() -> &'static str {
    householder::threads::InstructionSet::current().name()
}

/// The method for a shape, and what `reflections`, `wy` and `dense` are expected to take, in microseconds.
#[pyfunction]
fn plan(n: usize, m: usize, rows: usize, sequence: bool, is_complex: bool) -> (&'static str, [f64; 3]) {
    let form = Form::Trapezoidal;
    let costs = if sequence {
        Costs::of_sequence(n, m, rows)
    } else {
        Costs::of_application(form, (n, form.reflections(n, m)), rows, is_complex, true)
    };
    (options::name(costs.best()), [costs.reflections, costs.wy, costs.dense])
}

/// Uses `k` threads from now on.
#[pyfunction]
fn set_num_threads(k: usize) -> PyResult<()> {
    call::returned(|| Ok(householder::threads::set_num_threads(k)?))
}

/// Threads in use.
#[pyfunction]
fn get_num_threads() -> usize {
    householder::threads::num_threads()
}

/// Gives the memory that is kept for the next calls back to the system.
#[pyfunction]
fn release_memory() {
    householder::release_memory();
}
