//! One call of the core: without the interpreter lock, with Python's signals and exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use householder::error::{Error, Result};
use householder::threads::Context;
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::{IntoPyObject, IntoPyObjectExt};

use crate::array::{Reading, Refusal};

/// Returns the result of a call, or `NotImplemented` if torch's dispatcher must handle its tensors.
pub fn attempt<'py, R: IntoPyObject<'py>>(py: Python<'py>, reading: Reading<R>) -> PyResult<Py<PyAny>> {
    match reading {
        Ok(result) => result.into_py_any(py),
        Err(Refusal::Foreign) => Ok(py.NotImplemented()),
        Err(Refusal::Wrong(error)) => Err(error),
    }
}

impl From<Refusal> for PyErr {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Foreign => PyTypeError::new_err("expected arrays or tensors that lie in memory of the CPU"),
            Refusal::Wrong(error) => error,
        }
    }
}

/// Runs `work` without the interpreter lock. Checks for signals now and then; panics become exceptions.
pub fn run<R: Send>(py: Python<'_>, work: impl FnOnce(&mut Context<'_>) -> Result<R> + Send) -> PyResult<R> {
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
    match (signal, outcome) {
        (Some(raised), _) => Err(raised),
        (None, outcome) => outcome.map_err(to_python),
    }
}

/// The outcome of `work`; a panic is an error with the panic's text.
pub fn catch_panic<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::Internal(text.unwrap_or_else(|| "a kernel panicked".to_owned())))
    })
}

/// The exception for an error of the core.
pub fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        Error::InvalidArgument(_) => PyValueError::new_err(text),
        Error::Internal(_) => PyRuntimeError::new_err(text),
    }
}
