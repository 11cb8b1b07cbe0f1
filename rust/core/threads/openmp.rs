//! The threads of an OpenMP runtime that is in the process already: torch's.
//!
//! Its workers spin for milliseconds after each parallel region, so threads of our own would share processors with them.
//! In a parallel region of the same size torch's workers begin at once. A smaller region would make libgomp destroy threads
//! that torch's next loop must create again. Regions therefore have at least torch's size; surplus threads return at once.

use std::ffi::{c_int, c_uint, c_void};

use super::invitation::{Closing, Invitation, WaitPoll};

/// `GOMP_parallel`: calls a function with an argument once on each of so many threads, of which the caller is one, and
/// returns when all calls have. The last argument holds flags, 0 for none.
pub type Parallel = unsafe extern "C" fn(extern "C" fn(*mut c_void), *mut c_void, c_uint, c_uint);

/// `omp_get_max_threads`: how many threads the caller's regions have by default.
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
    work: &'a dyn Fn(),
    meanwhile: WaitPoll<'a>,
    invitation: &'a Invitation,
}

/// Runs `work` here and `help`, which must not panic, on up to `helpers` more threads.
pub fn join(openmp: OpenMp, helpers: usize, help: &(dyn Fn() + Sync), work: &dyn Fn(), meanwhile: WaitPoll<'_>) {
    // SAFETY: the region ends before `help` does, and all threads have left it then.
    let invitation = &unsafe { Invitation::new(helpers, help) };
    let mut region = Region { caller: this_thread(), work, meanwhile, invitation };
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
        // The runtime's own wait for helpers would not poll for interruption.
        let _closing = Closing(region.invitation, region.meanwhile);
        (region.work)();
    } else {
        region.invitation.accept();
    }
}

/// An address that no other thread has.
fn this_thread() -> *const u8 {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| &raw const *here)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
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
        let all_here = Barrier::new(4);
        let [help, work] = [&helps, &works].map(|count| {
            let (add, all_here) = (&add, &all_here);
            move || {
                add(count);
                all_here.wait();
            }
        });
        join(OpenMp { parallel, max_threads: seven }, 3, &help, &work, (Duration::from_millis(1), &|| {}));
        assert_eq!((works.into_inner(), helps.into_inner()), (1, 3));
    }
}
