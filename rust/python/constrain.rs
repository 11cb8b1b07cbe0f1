//! A sign or a number in [-1, 1] in the place of a latent `u_1`.

use pyo3::prelude::*;

use crate::array::Array;
use crate::call::attempt;
use crate::library::library;

/// Replaces a latent `u_1` of each problem of a real `u (.., n, n)` in place: by 1 if it is positive and else by -1, or, if
/// `soft`, by the nearest number in [-1, 1].
#[pyfunction]
pub fn constrain(u: &Bound<'_, PyAny>, soft: bool) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || (library().constrain)(&Array::read(u)?, soft))
}
