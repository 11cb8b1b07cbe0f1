//! One call of the library: without the interpreter lock, with Python's signals and exceptions.

use householder::error::Error;
use householder_binding::array::Work;
use householder_binding::refusal::{Reading, Refusal};
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{IntoPyObject, IntoPyObjectExt};

/// An exception of Python, which has no result.
pub fn raised(error: PyErr) -> Refusal {
    Refusal::Raised(Box::new(error))
}

/// The exception for a refusal.
pub fn to_python(refusal: Refusal) -> PyErr {
    match refusal {
        Refusal::Foreign => PyTypeError::new_err("expected arrays or tensors that lie in memory of the CPU"),
        Refusal::Type(text) => PyTypeError::new_err(text),
        Refusal::Runtime(text) => PyRuntimeError::new_err(text),
        Refusal::Core(error) if error.is_invalid_argument() => PyValueError::new_err(error.to_string()),
        Refusal::Core(Error::Interrupted) => PyKeyboardInterrupt::new_err(()),
        Refusal::Core(error @ Error::OutOfMemory { .. }) => PyMemoryError::new_err(error.to_string()),
        Refusal::Core(error) => PyRuntimeError::new_err(error.to_string()),
        Refusal::Raised(error) => *error.downcast().expect("an exception of Python"),
    }
}

/// Returns the result of a call, or raises an exception.
pub fn returned<R>(call: impl FnOnce() -> Reading<R>) -> PyResult<R> {
    call().map_err(to_python)
}

/// Returns the result of a call, or `NotImplemented` if torch's dispatcher must handle its tensors.
pub fn attempt<'py, R: IntoPyObject<'py>>(py: Python<'py>, call: impl FnOnce() -> Reading<R>) -> PyResult<Py<PyAny>> {
    match call() {
        Ok(result) => result.into_py_any(py),
        Err(Refusal::Foreign) => Ok(py.NotImplemented()),
        Err(refusal) => Err(to_python(refusal)),
    }
}

/// Runs `work` without the interpreter lock. Checks for signals now and then.
pub fn run(py: Python<'_>, work: &mut Work<'_>) -> Reading<()> {
    let mut signal = None;
    let outcome = py.detach(|| {
        #[allow(clippy::redundant_closure_for_method_calls)] // the method's path is not general over 'py
        work(&mut || {
            // An interpreter that is shutting down refuses to attach; then the work is not wanted either.
            if signal.is_none() {
                match Python::try_attach(|py| py.check_signals()) {
                    Some(outcome) => signal = outcome.err(),
                    None => return true,
                }
            }
            signal.is_some()
        })
    });
    match signal {
        Some(error) => Err(raised(error)),
        None => Ok(outcome?),
    }
}
