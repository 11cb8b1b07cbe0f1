//! torch's threads, where torch is in the process.
//!
//! Workers of OpenMP spin for milliseconds after each parallel loop of torch, so threads of our own would share processors with
//! them. torch's workers begin at once. torch's parallel loops all have the same size; a smaller one would end some workers.

use std::ffi::c_void;

use super::invitation::{Closing, Invitation, WaitPoll};
use crate::error::{Error, Result};

/// `torch_parallel_for(begin, end, grain_size, function, data)`: splits the numbers from `begin` to `end` among torch's threads,
/// of which the caller is one, and calls the function on each that has a share. It returns when all calls have, 0 for success.
/// Within another parallel loop of torch's, the caller has all.
pub type ParallelFor = unsafe extern "C-unwind" fn(i64, i64, i64, Chunk, *mut c_void) -> i32;

/// What a parallel loop calls with the numbers of a chunk and the data.
pub type Chunk = unsafe extern "C" fn(i64, i64, *mut c_void);

/// `torch_get_num_threads`: writes how many threads a parallel loop has, and returns 0 for success.
pub type CountThreads = unsafe extern "C-unwind" fn(*mut u32) -> i32;

/// The two functions of torch's stable C interface that its threads need.
#[derive(Clone, Copy, Debug)]
pub struct TorchThreads {
    /// Begins a parallel loop and ends it.
    pub parallel_for: ParallelFor,
    /// Counts the threads of such a loop.
    pub num_threads: CountThreads,
}

impl TorchThreads {
    /// The number of threads, the caller among them.
    pub(super) fn count(self) -> usize {
        let mut count = 1;
        // SAFETY: a place for the number.
        let code = unsafe { (self.num_threads)(&raw mut count) };
        if code == 0 { count as usize } else { 1 }
    }

    /// Runs `work` here and `help`, which must not panic, on up to `helpers` more threads.
    pub(super) fn join(
        self,
        helpers: usize,
        help: &(dyn Fn() + Sync),
        work: &dyn Fn(),
        meanwhile: WaitPoll<'_>,
    ) -> Result<()> {
        // SAFETY: the loop ends before `help` does, and all threads have left it then.
        let invitation = &unsafe { Invitation::new(helpers, help) };
        let mut team = TorchTeam { caller: this_thread(), work, meanwhile, invitation };
        // SAFETY: the team outlives the call, which ends when all threads have left it; `work` runs on this thread alone.
        let code = unsafe { (self.parallel_for)(0, helpers as i64 + 1, 1, member, (&raw mut team).cast()) };
        if code == 0 { Ok(()) } else { Err(Error::Internal("torch could not run a parallel loop".to_owned())) }
    }
}

struct TorchTeam<'a> {
    caller: *const u8,
    work: &'a dyn Fn(),
    meanwhile: WaitPoll<'a>,
    invitation: &'a Invitation,
}

unsafe extern "C" fn member(_: i64, _: i64, team: *mut c_void) {
    // SAFETY: `join` waits; all threads only read, and the caller alone calls `work` and `meanwhile`.
    let team = unsafe { &*team.cast_const().cast::<TorchTeam<'_>>() };
    if this_thread() == team.caller {
        // torch's own wait for helpers would not poll for interruption.
        let _closing = Closing(team.invitation, team.meanwhile);
        (team.work)();
    } else {
        team.invitation.accept();
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

    /// As torch does it with enough threads.
    unsafe extern "C-unwind" fn parallel_for(begin: i64, end: i64, _: i64, chunk: Chunk, data: *mut c_void) -> i32 {
        let data = data as usize;
        std::thread::scope(|scope| {
            for i in begin + 1..end {
                // SAFETY: the caller waits for all.
                scope.spawn(move || unsafe { chunk(i, i + 1, data as *mut c_void) });
            }
            // SAFETY: as above.
            unsafe { chunk(begin, begin + 1, data as *mut c_void) };
        });
        0
    }

    unsafe extern "C-unwind" fn four(count: *mut u32) -> i32 {
        // SAFETY: a place for the number.
        unsafe { *count = 4 };
        0
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
        let torch = TorchThreads { parallel_for, num_threads: four };
        torch.join(torch.count() - 1, &help, &work, (Duration::from_millis(1), &|| {})).unwrap();
        assert_eq!((works.into_inner(), helps.into_inner()), (1, 3));
    }
}
