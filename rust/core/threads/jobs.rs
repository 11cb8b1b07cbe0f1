//! Threads that run jobs: rayon's.

pub use rayon::{ThreadPool, current_num_threads, current_thread_index, spawn};

use crate::error::{Error, Result};

/// A pool of so many threads.
pub fn start(count: usize) -> Result<ThreadPool> {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(|i| format!("householder-{i}"));
    builder.build().map_err(|e| Error::Internal(format!("cannot start {count} threads: {e}")))
}
