//! The state of a process: its instruction set, threads and memory, and what the core plans with them.

use std::ffi::c_void;

use householder::method::Costs;
use householder::operator::Form;
use householder::threads::{self, CountThreads, InstructionSet, ParallelFor, TorchThreads};

use crate::loaded::Library;
use crate::options;
use crate::refusal::Reading;

/// Name of the instruction set in use.
pub fn instruction_set() -> &'static str {
    InstructionSet::current().name()
}

/// The method for a shape, and what `reflections`, `wy` and `dense` are expected to take, in microseconds.
pub fn plan(n: usize, m: usize, rows: usize, sequence: bool, is_complex: bool) -> (&'static str, [f64; 3]) {
    let form = Form::Trapezoidal;
    let costs = if sequence {
        Costs::of_sequence(n, m, rows)
    } else {
        let shape = (n, form.reflections(n, m));
        Costs::of_application(InstructionSet::current(), form, shape, rows, is_complex, true)
    };
    (options::name(costs.best()), [costs.reflections, costs.wy, costs.dense])
}

/// Uses `k` threads from now on.
pub fn set_num_threads(k: usize) -> Reading<()> {
    Ok(threads::set_num_threads(k)?)
}

/// Lets torch's threads help from now on. Returns whether the library at this path is loaded and has torch's functions.
pub fn share_torch_threads(path: &str) -> bool {
    let Some(library) = Library::find(path) else { return false };
    let functions = [c"torch_parallel_for", c"torch_get_num_threads"].map(|name| library.symbol(name));
    let [Some(parallel_for), Some(num_threads)] = functions else { return false };
    // SAFETY: torch's library stays loaded. tests/torch/ops/test_native.py compares both types with torch's headers.
    unsafe {
        threads::share_torch_threads(TorchThreads {
            parallel_for: std::mem::transmute::<*mut c_void, ParallelFor>(parallel_for),
            num_threads: std::mem::transmute::<*mut c_void, CountThreads>(num_threads),
        });
    }
    true
}
