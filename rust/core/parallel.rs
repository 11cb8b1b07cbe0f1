//! Threads: one pool for the process, tasks fixed by the shape of the problem, interruption.
//!
//! What a task computes never depends on the number of threads, so results are bitwise equal for any number of them.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rayon::ThreadPool;

use crate::error::{Error, Result};
use crate::kernel::dispatch::InstructionSet;

/// Work below this many flops runs on the calling thread: waking another one costs about as much time.
const WORTH_A_THREAD: usize = 8_000_000;
/// How often the caller is asked whether to stop.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// What long tasks look at once per block of work: whether they are still wanted.
pub struct Cancel<'a> {
    cancelled: &'a AtomicBool,
    /// On the calling thread alone: the way to ask, and when that was done last.
    poll: Option<RefCell<Poll<'a>>>,
}

struct Poll<'a> {
    ask: &'a mut dyn FnMut() -> bool,
    last: Instant,
}

impl Cancel<'_> {
    /// `Err(Interrupted)` once the caller asked to stop.
    pub fn check(&self) -> Result<()> {
        if let Some(poll) = &self.poll {
            let mut poll = poll.borrow_mut();
            if poll.last.elapsed() >= POLL_EVERY {
                poll.last = Instant::now();
                if (poll.ask)() {
                    self.cancelled.store(true, Ordering::Relaxed);
                }
            }
        }
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// What a call carries down: the instruction set and the way to ask its caller whether to stop.
pub struct Context<'a> {
    poll: &'a mut dyn FnMut() -> bool,
    /// Already on a thread of the pool: run everything here.
    nested: bool,
    /// The instruction set of this call's kernels.
    pub isa: InstructionSet,
}

impl<'a> Context<'a> {
    /// `poll` is called on the calling thread now and then during long work; `true` stops it.
    pub fn new(poll: &'a mut dyn FnMut() -> bool) -> Self {
        Self { poll, nested: false, isa: InstructionSet::current() }
    }

    /// Runs `task` for each of `count` independent problems, together `flops` of work: many problems side by side, or few
    /// problems one after the other with all threads on each. The result is the same.
    pub fn for_each(
        &mut self,
        count: usize,
        flops: usize,
        task: &(dyn Fn(usize, &mut Context<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        if count < num_threads() {
            return (0..count).try_for_each(|i| task(i, self));
        }
        let isa = self.isa;
        let groups = slices(count, 1, 256);
        self.run(groups.len() - 1, flops, &|group, cancel| {
            for i in groups[group]..groups[group + 1] {
                cancel.check()?;
                task(i, &mut Context { poll: &mut || cancel.check().is_err(), nested: true, isa })?;
            }
            Ok(())
        })
    }

    /// Runs `task(0), .., task(count - 1)`, together `flops` of work, on as many threads as are worth it. Returns the
    /// error of the first failing task.
    pub fn run(
        &mut self,
        count: usize,
        flops: usize,
        task: &(dyn Fn(usize, &Cancel<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        self.run_phases(&[count], flops, &|_, i, cancel| task(i, cancel))
    }

    /// Runs `task(phase, 0), .., task(phase, counts[phase] - 1)` for one phase after the other: every task of a phase has
    /// ended before the next phase begins. Threads join once, not once a phase.
    pub fn run_phases(
        &mut self,
        counts: &[usize],
        flops: usize,
        task: &(dyn Fn(usize, usize, &Cancel<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        let widest = counts.iter().copied().max().unwrap_or(0);
        let workers = if self.nested || flops < WORTH_A_THREAD { 1 } else { num_threads().min(widest).max(1) };
        let cancelled = AtomicBool::new(false);
        let poll = Poll { ask: &mut *self.poll, last: Instant::now() };
        let cancel = Cancel { cancelled: &cancelled, poll: Some(RefCell::new(poll)) };
        if workers == 1 {
            let tasks = counts.iter().enumerate().flat_map(|(phase, &count)| (0..count).map(move |i| (phase, i)));
            return tasks.into_iter().try_for_each(|(phase, i)| task(phase, i, &cancel));
        }
        let team = Team::new(counts, workers, task, &cancelled)?;
        pool()?.in_place_scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|_| team.work(&Cancel { cancelled: &cancelled, poll: None }));
            }
            team.work(&cancel);
            while !team.wait(POLL_EVERY) {
                let _ = cancel.check(); // the others look at what it finds
            }
        });
        team.outcome()
    }
}

/// Threads that go through phases of tasks together. Whoever is free takes the next task; a thread that comes late joins
/// in wherever the others are, and nobody waits for it.
struct Team<'a> {
    task: &'a (dyn Fn(usize, usize, &Cancel<'_>) -> Result<()> + Sync),
    phases: Vec<Phase>,
    cancelled: &'a AtomicBool,
    /// The error to report, and which task's it is.
    failure: Mutex<Option<((usize, usize), Error)>>,
    /// Threads that have not left yet.
    running: (Mutex<usize>, Condvar),
}

struct Phase {
    count: usize,
    next: AtomicUsize,
    done: AtomicUsize,
}

impl<'a> Team<'a> {
    fn new(
        counts: &[usize],
        workers: usize,
        task: &'a (dyn Fn(usize, usize, &Cancel<'_>) -> Result<()> + Sync),
        cancelled: &'a AtomicBool,
    ) -> Result<Self> {
        let mut phases = Vec::new();
        phases.try_reserve_exact(counts.len()).map_err(|_| Error::OutOfMemory { bytes: size_of_val(counts) })?;
        phases.extend(counts.iter().map(|&count| Phase {
            count,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }));
        Ok(Self { task, phases, cancelled, failure: Mutex::new(None), running: (Mutex::new(workers), Condvar::new()) })
    }

    fn work(&self, cancel: &Cancel<'_>) {
        let cancelled = || cancel.check().is_err();
        for (number, phase) in self.phases.iter().enumerate() {
            while !cancelled() {
                let i = phase.next.fetch_add(1, Ordering::Relaxed);
                if i >= phase.count {
                    break;
                }
                let outcome = catch_unwind(AssertUnwindSafe(|| (self.task)(number, i, cancel)))
                    .unwrap_or_else(|panic| Err(Error::Internal(message(panic.as_ref()))));
                if let Err(error) = outcome {
                    self.fail((number, i), error);
                }
                phase.done.fetch_add(1, Ordering::Release);
            }
            let last = number + 1 == self.phases.len();
            let mut spins = 0_u32;
            while !last && phase.done.load(Ordering::Acquire) < phase.count && !cancelled() {
                // The last tasks of a phase are about to end: to sleep would take longer. A thread that has lost its
                // processor gets it back.
                spins += 1;
                if spins.is_multiple_of(1 << 10) { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
        *self.running.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.running.1.notify_one();
    }

    /// Keeps the error of the first failing task and stops the others, whose interruption is no news.
    fn fail(&self, at: (usize, usize), error: Error) {
        self.cancelled.store(true, Ordering::Relaxed);
        let rank = |at, error: &Error| (*error == Error::Interrupted, at);
        let mut kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(before, other)| rank(at, &error) < rank(*before, other)) {
            *kept = Some((at, error));
        }
    }

    /// Whether all threads have left, after waiting for at most `time`.
    fn wait(&self, time: Duration) -> bool {
        let running = self.running.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *running == 0 {
            return true;
        }
        *self.running.1.wait_timeout(running, time).unwrap_or_else(PoisonError::into_inner).0 == 0
    }

    fn outcome(self) -> Result<()> {
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic".to_owned())
}

/// The state of one process. A forked child has its parent's memory but none of its threads: it makes a new state and
/// never touches the old one, whose lock may have been held at the moment of the fork.
struct Process {
    id: u32,
    threads: AtomicUsize,
    pool: Mutex<Option<Arc<ThreadPool>>>,
}

fn process() -> &'static Process {
    static PROCESS: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
    loop {
        let current = PROCESS.load(Ordering::Acquire);
        // SAFETY: null, or leaked below and so valid for ever.
        let state = unsafe { current.as_ref() };
        if let Some(state) = state
            && state.id == std::process::id()
        {
            return state;
        }
        let threads = state.map_or(0, |parent| parent.threads.load(Ordering::Relaxed));
        let fresh = Box::into_raw(Box::new(Process {
            id: std::process::id(),
            threads: AtomicUsize::new(threads),
            pool: Mutex::new(None),
        }));
        if PROCESS.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was faster; nobody has seen `fresh`.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Threads used for large work.
pub fn num_threads() -> usize {
    match process().threads.load(Ordering::Relaxed) {
        0 => available(),
        k => k,
    }
}

/// Processors this process may use, asked for once: the answer costs several system calls.
fn available() -> usize {
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    *AVAILABLE.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Uses `threads` threads from now on; running calls finish on those they have.
pub fn set_num_threads(threads: usize) -> Result<()> {
    if threads == 0 {
        return Err(Error::InvalidArgument("expected at least 1 thread, got 0".to_owned()));
    }
    process().threads.store(threads, Ordering::Relaxed);
    Ok(())
}

fn pool() -> Result<Arc<ThreadPool>> {
    let threads = num_threads();
    let mut pool = process().pool.lock().unwrap_or_else(PoisonError::into_inner);
    match &*pool {
        Some(pool) if pool.current_num_threads() == (threads - 1).max(1) => Ok(pool.clone()),
        _ => {
            let fresh = rayon::ThreadPoolBuilder::new()
                .num_threads((threads - 1).max(1)) // the calling thread is one of them
                .thread_name(|i| format!("householder-{i}"))
                .build()
                .map_err(|e| Error::Internal(format!("cannot start {threads} threads: {e}")))?;
            Ok(pool.insert(Arc::new(fresh)).clone())
        }
    }
}

/// Splits `0..len` into at most `most` parts of at least `least`, a power of two of them, as even as can be: part `i` of
/// the result is `bounds[i]..bounds[i + 1]`. Depends on the shape alone.
pub fn slices(len: usize, least: usize, most: usize) -> Vec<usize> {
    let mut parts = 1;
    while 2 * parts <= most && len / (2 * parts) >= least {
        parts *= 2;
    }
    (0..=parts).map(|i| i * len / parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_task_is_an_error() {
        let mut poll = || false;
        let outcome = Context::new(&mut poll).run(4, usize::MAX, &|i, _| {
            assert!(i != 2, "task {i} broke");
            Ok(())
        });
        assert_eq!(outcome, Err(Error::Internal("task 2 broke".to_owned())));
    }

    #[test]
    fn the_poll_interrupts() {
        let mut poll = || true;
        let outcome = Context::new(&mut poll).run(2, usize::MAX, &|_, cancel| {
            loop {
                cancel.check()?;
                std::thread::yield_now();
            }
        });
        assert_eq!(outcome, Err(Error::Interrupted));
    }

    #[test]
    fn the_poll_interrupts_problems_side_by_side() {
        let mut poll = || true;
        let outcome = Context::new(&mut poll).for_each(num_threads(), usize::MAX, &|_, context| {
            context.run(1, 0, &|_, cancel| {
                loop {
                    cancel.check()?;
                    std::thread::yield_now();
                }
            })
        });
        assert_eq!(outcome, Err(Error::Interrupted));
    }

    #[test]
    fn every_task_runs_once() {
        let runs: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
        let mut poll = || false;
        let mut context = Context::new(&mut poll);
        for flops in [0, usize::MAX] {
            context
                .run(100, flops, &|i, _| {
                    runs[i].fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
                .unwrap();
        }
        assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 2));
    }

    #[test]
    fn slices_cover_and_depend_on_shape_alone() {
        assert_eq!(slices(50, 8, 16), [0, 12, 25, 37, 50]);
        assert_eq!(slices(3, 8, 16), [0, 3]);
        assert_eq!(slices(64, 8, 4), [0, 16, 32, 48, 64]);
    }
}
