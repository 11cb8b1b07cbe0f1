//! The threads of an OpenMP runtime that is in the process already: torch's.
//!
//! Its workers spin for milliseconds after each parallel region. Threads of our own would share processors with them; in a
//! region of the same size they are at hand at once. A smaller region would end the surplus ones, for the next to create
//! again: regions are at least as large as torch's, and who is not needed leaves at once.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::call::{Call, Meanwhile};

/// `GOMP_parallel`: runs a function with an argument on so many threads, of which the caller is one, and returns when all
/// have.
pub type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// `omp_get_max_threads`: how many threads the caller's regions have unless they say it.
pub type MaxThreads = unsafe extern "C" fn() -> c_int;

/// What is needed of a runtime.
#[derive(Clone, Copy)]
pub struct OpenMp {
    /// Begins a parallel region and ends it.
    pub parallel: Parallel,
    /// Its usual size.
    pub max_threads: MaxThreads,
}

struct Region<'a> {
    caller: *const u8,
    call: Call<'a>,
    work: &'a dyn Fn(),
    meanwhile: Meanwhile<'a>,
    helpers: usize,
    arrived: AtomicUsize,
}

/// Runs `work` here and `help`, which must not panic, on `helpers` more threads.
pub fn join(openmp: OpenMp, helpers: usize, help: &(dyn Fn() + Sync), work: &dyn Fn(), meanwhile: Meanwhile<'_>) {
    let call = Call::new(help);
    let mut region = Region { caller: this_thread(), call, work, meanwhile, helpers, arrived: AtomicUsize::new(0) };
    // SAFETY: the region outlives the call, which ends when all threads have left it; `work` runs on this thread alone.
    unsafe {
        let threads = (helpers as c_uint + 1).max((openmp.max_threads)() as c_uint);
        (openmp.parallel)(member, (&raw mut region).cast(), threads, 0);
    }
}

extern "C" fn member(region: *mut c_void) {
    // SAFETY: `join` waits; all threads only read, and the caller alone calls `work` and `meanwhile`.
    let region = unsafe { &*region.cast_const().cast::<Region<'_>>() };
    if this_thread() == region.caller {
        (region.work)();
        region.call.wait(region.meanwhile); // the runtime's own way to wait would not ask whether to go on
    } else if region.arrived.fetch_add(1, Ordering::Relaxed) < region.helpers {
        region.call.enter();
        region.call.help_and_leave();
    }
}

/// An address that no other thread has.
fn this_thread() -> *const u8 {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| &raw const *here)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// As an OpenMP runtime does it.
    unsafe extern "C" fn parallel(function: extern "C" fn(*mut c_void), data: *mut c_void, threads: c_uint, _: c_uint) {
        let data = data as usize;
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(move || function(data as *mut c_void));
            }
            function(data as *mut c_void);
        });
    }

    unsafe extern "C" fn seven() -> c_int {
        7
    }

    #[test]
    fn the_caller_works_and_as_many_others_help_as_are_wanted() {
        let (works, helps) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let add = |to: &AtomicUsize| {
            to.fetch_add(1, Ordering::Relaxed);
        };
        join(
            OpenMp { parallel, max_threads: seven },
            3,
            &|| add(&helps),
            &|| add(&works),
            (Duration::from_millis(1), &|| {}),
        );
        assert_eq!((works.into_inner(), helps.into_inner()), (1, 3));
    }
}
