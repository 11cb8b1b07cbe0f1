//! The operations as foreign functions of XLA on CPU, for JAX.
//!
//! XLA hands a handler memory and attributes, on threads of its own and without the interpreter. [`frame`] checks them, the
//! core computes, [`handler`] turns errors into XLA's.

mod c_api;
mod frame;
mod handler;
mod operations;

use std::ffi::c_void;
use std::ptr::NonNull;

use c_api::{CallFrame, Handler, XlaError};
use operations::{apply, apply_backward, delta_rule, delta_rule_backward, matrix, matrix_backward, rnn, rnn_backward};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

macro_rules! handlers {
    ($($name:literal: $kernel:path),* $(,)?) => {
        [$(($name, {
            unsafe extern "C" fn entry(frame: *mut CallFrame) -> *mut XlaError {
                // SAFETY: XLA calls with a frame that is valid for the call.
                unsafe { handler::handle(frame, $kernel) }
            }
            entry as Handler
        })),*]
    };
}

/// A capsule for each handler, by the name to register it under.
#[pyfunction]
pub fn xla_handlers(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let handlers = handlers! {
        "householder_apply": apply,
        "householder_apply_backward": apply_backward,
        "householder_matrix": matrix,
        "householder_matrix_backward": matrix_backward,
        "householder_rnn": rnn,
        "householder_rnn_backward": rnn_backward,
        "householder_delta_rule": delta_rule,
        "householder_delta_rule_backward": delta_rule_backward,
    };
    let capsules = PyDict::new(py);
    for (name, handler) in handlers {
        let address = NonNull::new(handler as *mut c_void).expect("a function has an address");
        // SAFETY: a function lives as long as the process.
        let capsule = unsafe { PyCapsule::new_with_pointer(py, address, c"xla._CUSTOM_CALL_TARGET")? };
        capsules.set_item(name, capsule)?;
    }
    Ok(capsules)
}
