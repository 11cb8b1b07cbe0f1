//! One call's tasks, in stages, and the threads that work on them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Cancel;
use crate::error::{Error, Result, catch_panic};
use crate::memory::collected;

/// Threads that run the stages in lockstep. Each starts on its own range of tasks, then steals from the others. Its range is
/// the same in every stage and call, because its cache holds the data. A late thread joins the current stage, and none waits
/// for it.
pub struct Team<'a> {
    task: &'a (dyn Fn(usize, usize, &Cancel<'_>) -> Result<()> + Sync),
    stages: Vec<Stage>,
    /// `next[stage * workers + share]`: the share's next task.
    next: Vec<AtomicUsize>,
    workers: usize,
    helpers: AtomicUsize,
    cancelled: &'a AtomicBool,
    /// The error to report, and which task's it is.
    failure: Mutex<Option<((usize, usize), Error)>>,
}

struct Stage {
    count: usize,
    done: AtomicUsize,
}

impl<'a> Team<'a> {
    pub fn new(
        counts: &[usize],
        workers: usize,
        task: &'a (dyn Fn(usize, usize, &Cancel<'_>) -> Result<()> + Sync),
        cancelled: &'a AtomicBool,
    ) -> Result<Self> {
        let share = |i: usize| AtomicUsize::new(i % workers * counts[i / workers] / workers);
        Ok(Self {
            task,
            stages: collected(counts.iter().map(|&count| Stage { count, done: AtomicUsize::new(0) }))?,
            next: collected((0..counts.len() * workers).map(share))?,
            workers,
            helpers: AtomicUsize::new(0),
            cancelled,
            failure: Mutex::new(None),
        })
    }

    /// Takes part until no task is left.
    pub fn work(&self, cancel: &Cancel<'_>) {
        let cancelled = || cancel.check().is_err();
        let first = if cancel.poll.is_some() { 0 } else { 1 + self.helpers.fetch_add(1, Ordering::Relaxed) };
        for (number, stage) in self.stages.iter().enumerate() {
            for share in (0..self.workers).map(|k| (first + k) % self.workers) {
                let (next, end) = (&self.next[number * self.workers + share], (share + 1) * stage.count / self.workers);
                // Read first, because a write would take the cache line away from the other threads.
                while next.load(Ordering::Relaxed) < end && !cancelled() {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= end {
                        break;
                    }
                    if let Err(error) = catch_panic(|| (self.task)(number, i, cancel)) {
                        self.fail((number, i), error);
                    }
                    stage.done.fetch_add(1, Ordering::Release);
                }
            }
            let last = number + 1 == self.stages.len();
            let mut spins = 0_u32;
            while !last && stage.done.load(Ordering::Acquire) < stage.count && !cancelled() {
                // The last tasks of a stage are about to end, so sleeping would take longer. Yielding gives the processor
                // to a thread that has lost it.
                spins += 1;
                if spins.is_multiple_of(1 << 10) { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
    }

    /// Keeps the error of the first failing task and stops the others; their interruption is not reported.
    fn fail(&self, at: (usize, usize), error: Error) {
        self.cancelled.store(true, Ordering::Relaxed);
        let rank = |at, error: &Error| (*error == Error::Interrupted, at);
        let mut kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(before, other)| rank(at, &error) < rank(*before, other)) {
            *kept = Some((at, error));
        }
    }

    /// The error of the first failing task, once all have left.
    pub fn outcome(self) -> Result<()> {
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            // Threads that see the cancellation between tasks leave without an error.
            None if self.stages.iter().any(|stage| stage.done.load(Ordering::Acquire) < stage.count) => {
                Err(Error::Interrupted)
            }
            None => Ok(()),
        }
    }
}
