//! Helpers from a rayon pool: the one that the caller is in, or one of the library's own.
//!
//! A call spawns one job a helper and begins at once. It never waits for a job that has not begun, as `scope` and
//! `broadcast` would: another call may hold the worker for long. A job that has helped watches for the next call for a
//! moment, because a training step makes many calls and waking a sleeping thread takes as long as a small one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::invitation::{Closing, Invitation, WaitPoll, stay_awake};
use super::jobs;
use crate::error::Result;

/// A rayon pool and the newest call.
pub struct Workers {
    pool: jobs::ThreadPool,
    latest: Arc<LatestCall>,
}

/// The newest invitation, for jobs that have just helped with another one.
#[derive(Default)]
struct LatestCall {
    /// Counts invitations.
    number: AtomicUsize,
    invitation: Mutex<Option<Arc<Invitation>>>,
}

impl Workers {
    /// A pool of so many threads, which end when it is dropped.
    pub fn new(count: usize) -> Result<Self> {
        Ok(Self { pool: jobs::start(count)?, latest: Arc::default() })
    }

    /// Threads of the pool.
    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `work` here and `help`, which must not panic, on up to `helpers` idle threads.
    pub fn join(&self, helpers: usize, help: &(dyn Fn() + Sync), work: &dyn Fn(), meanwhile: WaitPoll<'_>) {
        debug_assert!(self.pool.current_thread_index().is_none(), "tasks run everything on their own thread");
        // SAFETY: closed on return.
        let invitation = unsafe { Invitation::new(helpers, help) };
        let _closing = Closing(&invitation, meanwhile);
        self.latest.set(&invitation);
        for _ in 0..helpers {
            let (latest, invitation) = (self.latest.clone(), invitation.clone());
            self.pool.spawn(move || latest.serve(invitation));
        }
        work();
    }
}

/// Whether the calling thread is in a rayon pool, as within `ThreadPool::install` and parallel iterators.
pub fn is_callers() -> bool {
    jobs::current_thread_index().is_some()
}

/// Runs `work` here and `help`, which must not panic, on up to `helpers` idle threads of the pool that this thread is in. They
/// do not watch for the next call, because they have other work.
pub fn join_callers(helpers: usize, help: &(dyn Fn() + Sync), work: &dyn Fn(), meanwhile: WaitPoll<'_>) {
    // SAFETY: closed on return.
    let invitation = unsafe { Invitation::new(helpers, help) };
    let _closing = Closing(&invitation, meanwhile);
    for _ in 0..helpers {
        let invitation = invitation.clone();
        jobs::spawn(move || {
            invitation.accept();
        });
    }
    work();
}

impl LatestCall {
    fn set(&self, invitation: &Arc<Invitation>) {
        *self.invitation.lock().unwrap_or_else(PoisonError::into_inner) = Some(invitation.clone());
        self.number.fetch_add(1, Ordering::Release);
    }

    /// Helps with one call after the other, as long as each comes soon after the last.
    fn serve(&self, mut invitation: Arc<Invitation>) {
        loop {
            let seen = self.number.load(Ordering::Acquire);
            if !invitation.accept() {
                return;
            }
            if !stay_awake(&|| self.number.load(Ordering::Acquire) != seen) {
                return;
            }
            match &*self.invitation.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(latest) => invitation = latest.clone(),
                None => return,
            }
        }
    }
}

#[cfg(feature = "rayon")]
#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use super::super::invitation::AWAKE;
    use super::*;

    const PATIENCE: WaitPoll<'_> = (Duration::from_millis(1), &|| {});

    fn until(happened: &AtomicBool) {
        while !happened.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    #[test]
    fn a_worker_helps() {
        let workers = Workers::new(1).unwrap();
        for pause in [Duration::ZERO, Duration::ZERO, 5 * AWAKE] {
            thread::sleep(pause);
            let helped = AtomicBool::new(false);
            workers.join(1, &|| helped.store(true, Ordering::Release), &|| until(&helped), PATIENCE);
        }
    }

    #[test]
    fn a_call_waits_for_helpers_that_have_begun() {
        let workers = Workers::new(1).unwrap();
        let (begun, ended, waited) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        let help = || {
            begun.store(true, Ordering::Release);
            thread::sleep(Duration::from_millis(20));
            ended.store(true, Ordering::Release);
        };
        let count = || {
            waited.fetch_add(1, Ordering::Relaxed);
        };
        workers.join(1, &help, &|| until(&begun), (Duration::from_millis(1), &count));
        assert!(ended.load(Ordering::Acquire) && waited.load(Ordering::Relaxed) > 1);
    }

    #[test]
    fn a_call_does_not_wait_for_helpers_that_have_not_begun() {
        let workers = Workers::new(1).unwrap();
        let (begun, release, helped) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let occupy = || {
            begun.store(true, Ordering::Release);
            until(&release);
        };
        let other_call = || {
            until(&begun);
            workers.join(1, &|| helped.store(true, Ordering::Release), &|| {}, PATIENCE);
            release.store(true, Ordering::Release);
        };
        workers.join(1, &occupy, &other_call, PATIENCE);
        assert!(!helped.load(Ordering::Acquire));
    }

    #[test]
    fn threads_of_the_callers_pool_help() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let helpers = Mutex::new(Vec::new());
        let begun = AtomicUsize::new(0);
        let both = || {
            while begun.load(Ordering::Acquire) < 2 {
                thread::yield_now();
            }
        };
        let help = || {
            helpers.lock().unwrap().push((rayon::current_thread_index(), rayon::current_num_threads()));
            begun.fetch_add(1, Ordering::Release);
            both();
        };
        let caller = pool.install(|| {
            assert!(is_callers());
            join_callers(2, &help, &both, PATIENCE);
            rayon::current_thread_index()
        });
        assert!(!is_callers());
        let mut all = helpers.into_inner().unwrap();
        all.push((caller, 3));
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2].map(|index| (Some(index), 3)));
    }

    #[test]
    fn no_more_help_than_are_invited() {
        let workers = Workers::new(3).unwrap();
        for _ in 0..100 {
            let helps = AtomicUsize::new(0);
            let help = || {
                helps.fetch_add(1, Ordering::Relaxed);
            };
            workers.join(2, &help, &thread::yield_now, PATIENCE);
            assert!(helps.load(Ordering::Relaxed) <= 2);
        }
    }
}
