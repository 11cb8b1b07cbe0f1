//! The threads of a process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::jobs;
use super::pool::{self, Workers};
use super::torch::TorchThreads;
use crate::error::{Error, Result};
use crate::memory::once::Once;

/// The most threads that [`set_num_threads`] takes. More of them, which start at once, only cost memory.
pub const MOST_THREADS: usize = 1024;

/// The state of one process. A forked child has its parent's memory but none of its threads: it makes a new state and
/// never touches the old one, whose lock may have been held at the moment of the fork.
struct Process {
    id: u32,
    threads: AtomicUsize,
    workers: Mutex<Option<Arc<Workers>>>,
    torch: OnceLock<TorchThreads>,
}

fn process() -> &'static Process {
    static PROCESS: Once<Process> = Once::new();
    let id = std::process::id();
    PROCESS.get_if(
        |state| state.id == id,
        |parent| Process {
            id,
            threads: AtomicUsize::new(parent.map_or(0, |parent| parent.threads.load(Ordering::Relaxed))),
            workers: Mutex::new(None),
            torch: OnceLock::new(), // a parent's threads are not there
        },
    )
}

/// Threads that large work of the calling thread uses: those of the rayon pool that it is in, or else as many as
/// [`set_num_threads`] says, at first one a processor. Without the feature `rayon` that is 1, whatever was set.
pub fn num_threads() -> usize {
    if pool::is_callers() { jobs::current_num_threads() } else { own_threads() }
}

fn own_threads() -> usize {
    match process().threads.load(Ordering::Relaxed) {
        0 => available(),
        k => k,
    }
}

/// Processors this process may use, asked for once: the answer costs several system calls.
fn available() -> usize {
    static AVAILABLE: Once<usize> = Once::new();
    *AVAILABLE.get(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Uses `threads` threads from now on, at most [`MOST_THREADS`], outside of rayon pools. Running calls finish on those they
/// have.
pub fn set_num_threads(threads: usize) -> Result<()> {
    if threads == 0 || threads > MOST_THREADS {
        return Err(Error::value("threads", format!("1 to {MOST_THREADS}"), threads));
    }
    process().threads.store(threads, Ordering::Relaxed);
    Ok(())
}

/// Lets torch's threads help from now on, in this process.
///
/// # Safety
/// Both functions do what [`TorchThreads`] says of them, as long as the process lives.
pub unsafe fn share_torch_threads(torch: TorchThreads) {
    let _ = process().torch.set(torch); // the first stays
}

/// torch's threads, if there are at least so many.
pub fn torch_threads(workers: usize) -> Option<TorchThreads> {
    process().torch.get().copied().filter(|torch| torch.count() >= workers)
}

/// The workers, one fewer than there are threads: the calling thread is one of them.
pub fn workers() -> Result<Arc<Workers>> {
    let count = own_threads().saturating_sub(1).max(1);
    let mut workers = process().workers.lock().unwrap_or_else(PoisonError::into_inner);
    match &*workers {
        Some(workers) if workers.count() == count => Ok(workers.clone()),
        _ => Ok(workers.insert(Arc::new(Workers::new(count)?)).clone()),
    }
}
