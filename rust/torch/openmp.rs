//! torch's OpenMP threads help, on Linux.

/// Lets them help from now on. Threads of our own would share processors with them: they spin after each parallel loop.
pub fn share() {
    #[cfg(target_os = "linux")]
    {
        use std::ffi::c_void;

        use householder::threads::{MaxThreads, OpenMp, Parallel, share_openmp};

        use crate::abi::{library, symbol};

        let library = library();
        let find = |name| symbol(library, name);
        if let (Some(parallel), Some(max_threads)) = (find("GOMP_parallel\0"), find("omp_get_max_threads\0")) {
            // SAFETY: torch's library stays loaded; names and types say that the functions are what is needed.
            unsafe {
                share_openmp(OpenMp {
                    parallel: std::mem::transmute::<*mut c_void, Parallel>(parallel),
                    max_threads: std::mem::transmute::<*mut c_void, MaxThreads>(max_threads),
                });
            }
        }
    }
}
