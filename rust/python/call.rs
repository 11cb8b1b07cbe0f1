//! One call of the core: without the interpreter lock, with Python's signals and exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use householder::error::{Error, Result};
use householder::threads::Context;
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{IntoPyObject, IntoPyObjectExt};

/// Why there is no result.
pub enum Refusal {
    /// The arguments are for torch's dispatcher to handle.
    Foreign,
    /// One has the wrong type.
    Type(String),
    /// The core refuses them.
    Core(Error),
    /// Python raised an exception.
    Raised(PyErr),
}

/// What comes of arguments.
pub type Reading<T> = std::result::Result<T, Refusal>;

impl Refusal {
    /// An argument that cannot be computed with.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::Core(Error::InvalidArgument(text.into()))
    }
}

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Foreign => PyTypeError::new_err("expected arrays or tensors that lie in memory of the CPU"),
            Refusal::Type(text) => PyTypeError::new_err(text),
            Refusal::Core(error) => to_python(error),
            Refusal::Raised(error) => error,
        }
    }
}

/// Returns the result of a call, or `NotImplemented` if torch's dispatcher must handle its tensors.
pub fn attempt<'py, R: IntoPyObject<'py>>(py: Python<'py>, reading: Reading<R>) -> PyResult<Py<PyAny>> {
    match reading {
        Ok(result) => result.into_py_any(py),
        Err(Refusal::Foreign) => Ok(py.NotImplemented()),
        Err(refusal) => Err(refusal.into()),
    }
}

/// Runs `work` without the interpreter lock. Checks for signals now and then; panics become errors.
pub fn run<R: Send>(py: Python<'_>, work: impl FnOnce(&mut Context<'_>) -> Result<R> + Send) -> Reading<R> {
    let mut signal = None;
    let outcome = py.detach(|| {
        #[allow(clippy::redundant_closure_for_method_calls)] // the method's path is not general over 'py
        let mut poll = || {
            // An interpreter that is shutting down refuses to attach; then the work is not wanted either.
            if signal.is_none() {
                match Python::try_attach(|py| py.check_signals()) {
                    Some(outcome) => signal = outcome.err(),
                    None => return true,
                }
            }
            signal.is_some()
        };
        catch_panic(|| work(&mut Context::new(&mut poll)))
    });
    match signal {
        Some(raised) => Err(raised.into()),
        None => Ok(outcome?),
    }
}

/// The outcome of `work`; a panic is an error with the panic's text.
pub fn catch_panic<R, E: From<Error>>(work: impl FnOnce() -> std::result::Result<R, E>) -> std::result::Result<R, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::Internal(text.unwrap_or_else(|| "a kernel panicked".to_owned())).into())
    })
}

/// The exception for an error of the core.
fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        Error::InvalidArgument(_) => PyValueError::new_err(text),
        Error::Internal(_) => PyRuntimeError::new_err(text),
    }
}
