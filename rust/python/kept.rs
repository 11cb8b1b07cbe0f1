//! What a forward pass keeps for its backward pass, as an opaque object of Python.

use std::any::Any;

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// A value that only the core reads.
#[pyclass(frozen, weakref, module = "householder._core")]
pub struct Kept {
    kept: Box<dyn Any + Send + Sync>,
    /// Whether it is the formed `W` rather than its factors.
    #[pyo3(get)]
    is_matrix: bool,
}

#[pymethods]
impl Kept {
    /// Pickles as None: if tensors are saved to files between forward and backward, the backward pass recomputes it.
    #[allow(clippy::unused_self)] // Python calls it so
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, Bound<'py, PyTuple>) {
        (py.None().into_bound(py).get_type(), PyTuple::empty(py))
    }
}

impl Kept {
    pub fn new(is_matrix: bool, kept: impl Any + Send + Sync) -> Self {
        Self { kept: Box::new(kept), is_matrix }
    }
    /// What is kept, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.kept.downcast_ref()
    }
}
