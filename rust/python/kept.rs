//! What a forward pass keeps for its backward pass, as an opaque object of Python.

use std::any::Any;

use pyo3::prelude::*;

/// Anything.
#[pyclass(frozen, module = "householder._core")]
pub struct Kept(Box<dyn Any + Send + Sync>);

impl Kept {
    pub fn new(kept: impl Any + Send + Sync) -> Self {
        Self(Box::new(kept))
    }
    /// What is kept, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}
