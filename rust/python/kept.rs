//! What a forward pass keeps for its backward pass, as an opaque object of Python.

use householder_binding::kept::{self, Held};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// A value that only the core reads.
#[pyclass(name = "Kept", frozen, weakref, module = "householder._core")]
pub struct PyKept(kept::Kept);

#[pymethods]
impl PyKept {
    /// Whether it is the formed `W` rather than its factors.
    #[getter]
    fn is_matrix(&self) -> bool {
        self.0.is_matrix
    }

    /// Pickles as None: if tensors are saved to files between forward and backward, the backward pass recomputes it.
    #[allow(clippy::unused_self)] // Python calls it so
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, Bound<'py, PyTuple>) {
        (py.None().into_bound(py).get_type(), PyTuple::empty(py))
    }
}

impl From<kept::Kept> for PyKept {
    fn from(kept: kept::Kept) -> Self {
        Self(kept)
    }
}

/// What an object holds.
pub fn held<'a>(kept: Option<&'a Bound<'_, PyKept>>) -> Option<&'a Held> {
    kept.map(|kept| &*kept.get().0.held)
}
