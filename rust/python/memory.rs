//! Memory that is kept for the next calls.

use householder::recycle;
use pyo3::prelude::*;

/// Gives the memory that is kept for the next calls back to the system.
#[pyfunction]
pub fn release_memory() {
    recycle::release();
}
