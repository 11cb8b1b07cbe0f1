//! The extension module: reads arguments, releases the interpreter lock, calls the library that has the kernels. No
//! mathematics here.

mod application;
mod array;
mod call;
mod constrain;
mod convolution;
mod cuda;
mod delta;
mod factor;
mod gated_norm;
mod library;
mod matrix;
mod recurrence;
mod saved;
mod sequence;
mod xla;

use library::library;
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
        matrix::{matrix, matrix_backward},
        plan,
        recurrence::PyRecurrence,
        release_memory,
        saved::PySaved,
        sequence::{rnn_backward, rnn_forward, rnn_tape_width},
        set_num_threads, share_torch_threads,
        xla::xla_handlers,
    };
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn load(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        super::library::load()
    }
}

/// Name of the instruction set in use.
#[pyfunction]
fn instruction_set() -> &'static str {
    (library().instruction_set)()
}

/// The method for a shape, and what `reflections`, `wy` and `dense` are expected to take, in microseconds.
#[pyfunction]
fn plan(n: usize, m: usize, rows: usize, sequence: bool, is_complex: bool) -> (&'static str, [f64; 3]) {
    (library().plan)(n, m, rows, sequence, is_complex)
}

/// Uses `k` threads from now on.
#[pyfunction]
fn set_num_threads(k: usize) -> PyResult<()> {
    call::returned(|| (library().set_num_threads)(k))
}

/// Threads in use.
#[pyfunction]
fn get_num_threads() -> usize {
    (library().num_threads)()
}

/// Lets torch's threads help from now on. Returns whether the library at this path is loaded and has torch's functions.
#[pyfunction]
fn share_torch_threads(path: &str) -> bool {
    (library().share_torch_threads)(path)
}

/// Gives the memory that is kept for the next calls back to the system.
#[pyfunction]
fn release_memory() {
    (library().release_memory)();
}
