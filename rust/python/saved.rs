//! What a forward pass saves for its backward pass, as an opaque object of Python.

use householder_binding::saved::{self, Held};
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// A value that only the core reads.
#[pyclass(name = "Saved", frozen, weakref, module = "householder._core")]
pub struct PySaved(saved::AnySaved);

#[pymethods]
impl PySaved {
    /// Whether it has the factors of the compact WY form.
    #[getter]
    fn has_factors(&self) -> bool {
        self.0.has_factors
    }

    /// Pickles as None: if tensors are saved to files between forward and backward, the backward pass recomputes it.
    #[allow(clippy::unused_self)] // Python calls it so
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, Bound<'py, PyTuple>) {
        (py.None().into_bound(py).get_type(), PyTuple::empty(py))
    }
}

impl From<saved::AnySaved> for PySaved {
    fn from(saved: saved::AnySaved) -> Self {
        Self(saved)
    }
}

/// What an object holds.
pub fn held<'a>(saved: Option<&'a Bound<'_, PySaved>>) -> Option<&'a Held> {
    saved.map(|saved| &*saved.get().0.held)
}
