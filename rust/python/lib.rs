//! The Python door: converts arguments, releases the interpreter lock, calls the core. No mathematics here.

mod application;
mod cuda;
mod delta;
mod factor;
mod kept;
mod matrix;
mod memory;
mod operand;
mod sequence;
mod sequence_tensors;
mod tensor;
mod xla;

use householder::method::Costs;
use householder::threads::{MaxThreads, OpenMp, Parallel};
use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::application::{
        backward, backward_in_place, backward_tape, backward_tensors, forward, forward_tape, forward_tensors,
    };
    #[pymodule_export]
    use super::cuda::cuda_sources;
    #[pymodule_export]
    use super::delta::{delta_backward, delta_forward, delta_interval};
    #[pymodule_export]
    use super::factor::{departure, factor, wy};
    #[pymodule_export]
    use super::kept::Kept;
    #[pymodule_export]
    use super::matrix::{matrix, matrix_backward};
    #[pymodule_export]
    use super::memory::release_memory;
    #[pymodule_export]
    use super::sequence::{rnn_backward, rnn_forward, rnn_tape_width};
    #[pymodule_export]
    use super::sequence_tensors::{plain_rnn_tape_width, rnn_backward_tensors, rnn_forward_tensors};
    #[pymodule_export]
    use super::tensor::{are_plain, is_plain_application, share_tensor_types};
    #[pymodule_export]
    use super::xla::xla_handlers;
    #[pymodule_export]
    use super::{get_num_threads, instruction_set, plan, set_num_threads, share_openmp};
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

/// Name of the instruction set in use.
#[pyfunction]
fn instruction_set() -> &'static str {
    householder::kernel::dispatch::InstructionSet::current().name()
}

/// The method for a shape, and what `reflections`, `wy` and `dense` are expected to take, in microseconds.
#[pyfunction]
fn plan(n: usize, m: usize, rows: usize, sequence: bool, is_complex: bool) -> (&'static str, [f64; 3]) {
    let costs = if sequence {
        Costs::of_sequence(n, m, rows)
    } else {
        Costs::of_application(n, m.min(n - 1), rows, is_complex)
    };
    (costs.best().name(), [costs.reflections, costs.wy, costs.dense])
}

/// Uses `k` threads from now on.
#[pyfunction]
fn set_num_threads(k: usize) -> PyResult<()> {
    householder::threads::set_num_threads(k).map_err(operand::to_python)
}

/// Threads in use.
#[pyfunction]
fn get_num_threads() -> usize {
    householder::threads::num_threads()
}

/// Lets an OpenMP runtime's threads help, `GOMP_parallel` and `omp_get_max_threads` being at these addresses.
#[pyfunction]
fn share_openmp(parallel: usize, max_threads: usize) {
    if parallel != 0 && max_threads != 0 {
        // SAFETY: the addresses of functions of these types.
        let openmp = unsafe {
            OpenMp {
                parallel: std::mem::transmute::<usize, Parallel>(parallel),
                max_threads: std::mem::transmute::<usize, MaxThreads>(max_threads),
            }
        };
        householder::threads::share_openmp(openmp);
    }
}
