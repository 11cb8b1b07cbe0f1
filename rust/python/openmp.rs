//! The OpenMP runtime that torch has loaded.

use pyo3::prelude::*;

/// Lets the threads of the OpenMP runtime that a library of the process uses help; tells whether there is one.
///
/// It considers only libraries that are already loaded, so a wrong path finds nothing.
#[pyfunction]
pub fn share_openmp(library: &str) -> bool {
    #[cfg(target_os = "linux")]
    if let Ok(path) = std::ffi::CString::new(library) {
        use householder::threads::{MaxThreads, OpenMp, Parallel};
        // SAFETY: the library stays loaded, for its handle is not closed, and the two functions have these types.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                return false;
            }
            let [parallel, max_threads] =
                [c"GOMP_parallel", c"omp_get_max_threads"].map(|name| libc::dlsym(handle, name.as_ptr()));
            if !parallel.is_null() && !max_threads.is_null() {
                // Names and types say that they are what is needed.
                householder::threads::share_openmp(OpenMp {
                    parallel: std::mem::transmute::<*mut libc::c_void, Parallel>(parallel),
                    max_threads: std::mem::transmute::<*mut libc::c_void, MaxThreads>(max_threads),
                });
                return true;
            }
        }
    }
    let _ = library;
    false
}
