//! Python's signals, where there is a Python in the process: Ctrl-C stops a long call.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use householder_binding::loaded::Library;

use crate::abi::functions;

type Object = *mut c_void;

functions! {
    Python, required {
        PyErr_CheckSignals: fn() -> c_int;
        PyErr_Fetch: fn(*mut Object, *mut Object, *mut Object);
        PyErr_Restore: fn(Object, Object, Object);
        PyGILState_Ensure: fn() -> c_int;
        PyGILState_Release: fn(c_int);
        Py_AddPendingCall: fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
        Py_IsInitialized: fn() -> c_int;
    }
    optional {}
}

fn python() -> Option<&'static Python> {
    static PYTHON: OnceLock<Option<Python>> = OnceLock::new();
    PYTHON.get_or_init(|| Python::find(&Library::any()).ok()).as_ref()
}

/// Whether a handler of a signal has raised an exception, which then stops the call. Python raises it again as soon as its code
/// runs on the main thread: a kernel's own exception has another type.
pub fn poll() -> bool {
    let Some(python) = python() else { return false };
    // SAFETY: the interpreter lock is held between the two calls, by a thread that may already hold it.
    unsafe {
        if (python.Py_IsInitialized)() == 0 {
            return false;
        }
        let state = (python.PyGILState_Ensure)();
        let is_raised = (python.PyErr_CheckSignals)() != 0;
        if is_raised {
            let mut raised = Box::new([std::ptr::null_mut(); 3]);
            let [kind, value, trace] = raised.each_mut();
            (python.PyErr_Fetch)(kind, value, trace);
            (python.Py_AddPendingCall)(raise, Box::into_raw(raised).cast());
        }
        (python.PyGILState_Release)(state);
        is_raised
    }
}

/// Sets the exception, which Python's main loop then raises.
unsafe extern "C" fn raise(raised: *mut c_void) -> c_int {
    // SAFETY: a box of `poll`, used once.
    let [kind, value, trace] = unsafe { *Box::from_raw(raised.cast::<[Object; 3]>()) };
    if let Some(python) = python() {
        // SAFETY: the three objects are the exception's, and Python calls with the interpreter lock.
        unsafe { (python.PyErr_Restore)(kind, value, trace) };
    }
    -1
}
