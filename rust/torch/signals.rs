//! Python's signals, where there is a Python in the process: Ctrl-C stops a long call.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use householder_binding::loaded::symbol;

type Object = *mut c_void;

/// Functions of Python's stable ABI.
struct Python {
    is_initialized: unsafe extern "C" fn() -> c_int,
    ensure: unsafe extern "C" fn() -> c_int,
    release: unsafe extern "C" fn(c_int),
    check_signals: unsafe extern "C" fn() -> c_int,
    fetch: unsafe extern "C" fn(*mut Object, *mut Object, *mut Object),
    restore: unsafe extern "C" fn(Object, Object, Object),
    add_pending_call: unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int,
}

fn python() -> Option<&'static Python> {
    static PYTHON: OnceLock<Option<Python>> = OnceLock::new();
    let find = || {
        let find = |name| symbol(libc::RTLD_DEFAULT, name);
        // SAFETY: the functions of these names have these types.
        unsafe {
            Some(Python {
                is_initialized: std::mem::transmute::<Object, unsafe extern "C" fn() -> c_int>(find(
                    c"Py_IsInitialized",
                )?),
                ensure: std::mem::transmute::<Object, unsafe extern "C" fn() -> c_int>(find(c"PyGILState_Ensure")?),
                release: std::mem::transmute::<Object, unsafe extern "C" fn(c_int)>(find(c"PyGILState_Release")?),
                check_signals: std::mem::transmute::<Object, unsafe extern "C" fn() -> c_int>(find(
                    c"PyErr_CheckSignals",
                )?),
                fetch: std::mem::transmute::<Object, unsafe extern "C" fn(*mut Object, *mut Object, *mut Object)>(
                    find(c"PyErr_Fetch")?,
                ),
                restore: std::mem::transmute::<Object, unsafe extern "C" fn(Object, Object, Object)>(find(
                    c"PyErr_Restore",
                )?),
                add_pending_call: std::mem::transmute::<
                    Object,
                    unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int,
                >(find(c"Py_AddPendingCall")?),
            })
        }
    };
    PYTHON.get_or_init(find).as_ref()
}

/// Whether a handler of a signal has raised an exception, which then stops the call. Python raises it again as soon as its code
/// runs on the main thread: a kernel's own exception has another type.
pub fn poll() -> bool {
    let Some(python) = python() else { return false };
    // SAFETY: the interpreter lock is held between the two calls, by a thread that may already hold it.
    unsafe {
        if (python.is_initialized)() == 0 {
            return false;
        }
        let state = (python.ensure)();
        let is_raised = (python.check_signals)() != 0;
        if is_raised {
            let mut raised = Box::new([std::ptr::null_mut(); 3]);
            let [kind, value, trace] = raised.each_mut();
            (python.fetch)(kind, value, trace);
            (python.add_pending_call)(raise, Box::into_raw(raised).cast());
        }
        (python.release)(state);
        is_raised
    }
}

/// Sets the exception, which Python's main loop then raises.
unsafe extern "C" fn raise(raised: *mut c_void) -> c_int {
    // SAFETY: a box of `poll`, used once.
    let [kind, value, trace] = unsafe { *Box::from_raw(raised.cast::<[Object; 3]>()) };
    if let Some(python) = python() {
        // SAFETY: the three objects are the exception's, and Python calls with the interpreter lock.
        unsafe { (python.restore)(kind, value, trace) };
    }
    -1
}
