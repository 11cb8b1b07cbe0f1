//! torch's threads, for calls that do not go through torch's dispatcher.

use std::ffi::c_void;

use householder::threads::{CountThreads, ParallelFor, TorchThreads};
use householder_binding::loaded::Library;
use pyo3::prelude::*;

/// Lets torch's threads help from now on. Returns whether the library at this path is loaded and has torch's functions.
#[pyfunction]
pub fn share_torch_threads(path: &str) -> bool {
    let Some(library) = Library::find(path) else { return false };
    let functions = [c"torch_parallel_for", c"torch_get_num_threads"].map(|name| library.symbol(name));
    let [Some(parallel_for), Some(num_threads)] = functions else { return false };
    // SAFETY: torch's library stays loaded. tests/torch/ops/test_native.py compares both types with torch's headers.
    unsafe {
        householder::threads::share_torch_threads(TorchThreads {
            parallel_for: std::mem::transmute::<*mut c_void, ParallelFor>(parallel_for),
            num_threads: std::mem::transmute::<*mut c_void, CountThreads>(num_threads),
        });
    }
    true
}
