//! Threads: the rayon pool that the caller is in, a pool of the library's own, or torch's threads where torch is; and
//! interruption. Without the feature `rayon`, the caller is alone.
//!
//! How a sum is split depends on the shape of the problem alone. Only work that no split changes is split by the number of
//! threads. Results are therefore bitwise equal for any number of them.

mod invitation;
#[cfg(feature = "rayon")]
mod jobs;
#[cfg(not(feature = "rayon"))]
#[path = "alone.rs"]
mod jobs;
mod pool;
mod process;
mod team;
mod torch;

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use process::{MOST_THREADS, num_threads, set_num_threads, share_torch_threads};
use team::Team;
pub use torch::{Chunk, CountThreads, ParallelFor, TorchThreads};

use crate::error::{Error, Result, catch_panic};
pub use crate::simd::isa::InstructionSet;

/// Work below this many flops runs on the calling thread: waking another one costs about as much time.
const WORTH_A_THREAD: usize = 3_000_000;
/// How often the caller is asked whether to stop.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Tells long tasks, which check it once per block of work, whether to stop.
pub(crate) struct Cancel<'a> {
    cancelled: &'a AtomicBool,
    /// On the calling thread only: the poll, and when it was called last.
    poll: Option<RefCell<Poll<'a>>>,
}

struct Poll<'a> {
    ask: &'a mut dyn FnMut() -> bool,
    last: &'a mut Instant,
    /// The error that says that it panicked.
    failed: Option<Error>,
}

impl Cancel<'_> {
    /// `Err(Interrupted)` once the caller asked to stop.
    pub fn check(&self) -> Result<()> {
        if let Some(poll) = &self.poll {
            let mut poll = poll.borrow_mut();
            if poll.last.elapsed() >= POLL_EVERY {
                *poll.last = Instant::now();
                // A panic must not leave a team whose helpers still work, nor pass through torch.
                let stop = catch_panic(|| Ok((poll.ask)())).unwrap_or_else(|error| {
                    poll.failed = Some(error);
                    true
                });
                if stop {
                    self.cancelled.store(true, Ordering::Relaxed);
                }
            }
        }
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// The outcome of a run, or the error that says that the poll panicked.
    fn outcome<R>(self, outcome: Result<R>) -> Result<R> {
        self.poll.and_then(|poll| poll.into_inner().failed).map_or(outcome, Err)
    }
}

/// What a call passes to the functions that it uses: the instruction set, and a poll that tells whether to stop.
pub struct Context<'a> {
    poll: &'a mut dyn FnMut() -> bool,
    /// When `poll` was called last, because calls may consist of many short runs.
    last: Instant,
    /// Already on a thread of the pool: run everything here.
    nested: bool,
    /// The instruction set of this call's kernels.
    pub isa: InstructionSet,
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("isa", &self.isa).finish_non_exhaustive()
    }
}

impl Default for Context<'_> {
    /// A context of calls that nothing interrupts.
    fn default() -> Self {
        Self::new(Box::leak(Box::new(|| false))) // no memory: the closure has no size
    }
}

impl<'a> Context<'a> {
    /// `poll` is called on the calling thread now and then during long work; `true` stops it.
    pub fn new(poll: &'a mut dyn FnMut() -> bool) -> Self {
        Self { poll, last: Instant::now(), nested: false, isa: InstructionSet::current() }
    }

    /// What a task passes to the functions that it uses, which then run on its thread alone.
    pub(crate) fn of_task(isa: InstructionSet, poll: &'a mut dyn FnMut() -> bool) -> Self {
        Self { nested: true, isa, ..Self::new(poll) }
    }

    /// Whether `count` problems, together `flops` of work, are computed one after the other by several threads each.
    pub(crate) fn shares(&self, count: usize, flops: usize) -> bool {
        !self.nested && count < num_threads() && flops / count.max(1) >= WORTH_A_THREAD
    }

    /// Runs `task` for each of `count` independent problems, together `flops` of work: many problems side by side, or few
    /// problems one after the other with all threads on each. The result is the same.
    pub(crate) fn for_each(
        &mut self,
        count: usize,
        flops: usize,
        task: &(dyn Fn(usize, &mut Context<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        if count < num_threads() {
            return (0..count).try_for_each(|i| task(i, self));
        }
        let isa = self.isa;
        let groups = groups(count, 1, 256);
        self.run(groups.len() - 1, flops, &|group, cancel| {
            for i in groups[group]..groups[group + 1] {
                cancel.check()?;
                task(i, &mut Context::of_task(isa, &mut || cancel.check().is_err()))?;
            }
            Ok(())
        })
    }

    /// Runs `work` for each of `count` small problems, together `flops` of work, on as many threads as pay off. `workspace`
    /// makes a workspace, which one problem after the other uses.
    pub(crate) fn for_each_with<R: Send>(
        &mut self,
        count: usize,
        flops: usize,
        workspace: &(dyn Fn() -> Result<R> + Sync),
        work: &(dyn Fn(usize, &mut R, &Cancel<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        const TASK: usize = 1 << 21;
        const TASKS: usize = 256;
        let each = (flops / count.max(1)).max(1);
        let bounds = groups(count, (TASK / each).max(1), TASKS);
        let often = 1 + 1_000_000 / each;
        let workspaces = Mutex::new(Vec::new());
        self.run(bounds.len() - 1, flops, &|task, cancel| {
            let free = workspaces.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut workspace = free.map_or_else(workspace, Ok)?;
            for i in bounds[task]..bounds[task + 1] {
                if (i - bounds[task]).is_multiple_of(often) {
                    cancel.check()?;
                }
                work(i, &mut workspace, cancel)?;
            }
            workspaces.lock().unwrap_or_else(PoisonError::into_inner).push(workspace);
            Ok(())
        })
    }

    /// Runs `work` on this thread.
    pub(crate) fn here<R>(&mut self, work: impl FnOnce(&Cancel<'_>) -> Result<R>) -> Result<R> {
        let cancelled = AtomicBool::new(false);
        let cancel = self.cancel(&cancelled);
        let outcome = work(&cancel);
        cancel.outcome(outcome)
    }

    /// What the calling thread checks during a run.
    fn cancel<'b>(&'b mut self, cancelled: &'b AtomicBool) -> Cancel<'b> {
        let poll = Poll { ask: &mut *self.poll, last: &mut self.last, failed: None };
        Cancel { cancelled, poll: Some(RefCell::new(poll)) }
    }

    /// Runs `task(0), .., task(count - 1)`, together `flops` of work, on as many threads as are worth it. Returns the
    /// error of the first failing task.
    pub(crate) fn run(
        &mut self,
        count: usize,
        flops: usize,
        task: &(dyn Fn(usize, &Cancel<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        self.run_stages(&[count], flops, &|_, i, cancel| task(i, cancel))
    }

    /// Runs `task(stage, 0), .., task(stage, counts[stage] - 1)` for one stage after the other: every task of a stage has
    /// ended before the next stage begins. Threads join once, not once a stage.
    ///
    /// Within a stage tasks run in any order and at the same time: what one of them writes, no other may read.
    pub(crate) fn run_stages(
        &mut self,
        counts: &[usize],
        flops: usize,
        task: &(dyn Fn(usize, usize, &Cancel<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        let widest = counts.iter().copied().max().unwrap_or(0);
        let workers = if self.nested || flops < WORTH_A_THREAD { 1 } else { num_threads().min(widest).max(1) };
        let cancelled = AtomicBool::new(false);
        let cancel = self.cancel(&cancelled);
        if workers == 1 {
            let tasks = counts.iter().enumerate().flat_map(|(stage, &count)| (0..count).map(move |i| (stage, i)));
            let outcome = tasks.into_iter().try_for_each(|(stage, i)| catch_panic(|| task(stage, i, &cancel)));
            return cancel.outcome(outcome);
        }
        let team = Team::new(counts, workers, task, &cancelled)?;
        let help = || team.work(&Cancel { cancelled: &cancelled, poll: None });
        // The caller keeps polling while helpers finish their work, so that they learn of an interruption.
        let meanwhile: (_, &dyn Fn()) = (POLL_EVERY, &|| drop(cancel.check()));
        let work = || team.work(&cancel);
        if pool::is_callers() {
            pool::join_callers(workers - 1, &help, &work, meanwhile);
        } else if let Some(torch) = process::torch_threads(workers) {
            torch.join(workers - 1, &help, &work, meanwhile)?;
        } else {
            process::workers()?.join(workers - 1, &help, &work, meanwhile);
        }
        let outcome = team.outcome();
        cancel.outcome(outcome)
    }
}

/// Splits `0..len` as evenly as possible into at most `most` parts of at least `least`, and at least one. Part `i` is
/// `bounds[i]..bounds[i + 1]`. For items that are computed each alone, whose results no grouping changes.
pub(crate) fn groups(len: usize, least: usize, most: usize) -> Vec<usize> {
    let parts = (len / least).clamp(1, most);
    (0..=parts).map(|i| i * len / parts).collect()
}

/// [`groups`] whose number is a power of two. For rows whose sums depend on how they are split: by the shape alone.
pub(crate) fn slices(len: usize, least: usize, most: usize) -> Vec<usize> {
    let mut parts = 1;
    while 2 * parts <= most && len / (2 * parts) >= least {
        parts *= 2;
    }
    (0..=parts).map(|i| i * len / parts).collect()
}

#[cfg(feature = "rayon")]
#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_panicking_task_is_an_error() {
        set_num_threads(2).unwrap();
        let outcome = Context::default().run(4, usize::MAX, &|i, _| {
            assert!(i != 2, "task {i} broke");
            Ok(())
        });
        assert_eq!(outcome, Err(Error::Internal("task 2 broke".to_owned())));
    }

    /// A task that ends when it is stopped.
    fn wait(cancel: &Cancel<'_>) -> Result<()> {
        loop {
            cancel.check()?;
            std::thread::yield_now();
        }
    }

    /// A task that ends before the next poll.
    fn be_short() {
        std::thread::sleep(POLL_EVERY / 10);
    }

    const BROKEN: &str = "the poll broke";

    /// The outcome of a run with a poll that panics.
    fn with_broken_poll(run: impl FnOnce(&mut Context<'_>) -> Result<()>) -> Result<()> {
        set_num_threads(2).unwrap();
        let mut poll = || panic!("{BROKEN}");
        run(&mut Context::new(&mut poll))
    }

    #[test]
    fn a_poll_that_panics_inside_a_task_or_between_tasks_is_an_error() {
        let broken = Err(Error::Internal(BROKEN.to_owned()));
        for flops in [0, usize::MAX] {
            assert_eq!(with_broken_poll(|context| context.run(2, flops, &|_, cancel| wait(cancel))), broken);
            let nested = |_, context: &mut Context<'_>| context.run(1, 0, &|_, cancel| wait(cancel));
            assert_eq!(with_broken_poll(|context| context.for_each(4, flops, &nested)), broken);
        }
        assert_eq!(with_broken_poll(|context| context.here(wait)), broken);
        let between = |_, _: &Cancel<'_>| {
            be_short();
            Ok(())
        };
        assert_eq!(with_broken_poll(|context| context.run(64, usize::MAX, &between)), broken);
    }

    #[test]
    fn a_panic_of_the_poll_that_panics_again_when_it_is_dropped_is_an_error() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        set_num_threads(2).unwrap();
        let mut poll = || std::panic::panic_any(Bomb);
        for flops in [0, usize::MAX] {
            let outcome = Context::new(&mut poll).run(2, flops, &|_, cancel| wait(cancel));
            assert_eq!(outcome, Err(Error::Internal("panic".to_owned())));
        }
    }

    #[test]
    fn a_poll_that_panics_while_the_caller_waits_is_an_error() {
        let (caller, begun) = (std::thread::current().id(), AtomicUsize::new(0));
        let outcome = with_broken_poll(|context| {
            context.run(2, usize::MAX, &|_, _| {
                begun.fetch_add(1, Ordering::Relaxed);
                while begun.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
                if std::thread::current().id() != caller {
                    std::thread::sleep(4 * POLL_EVERY);
                }
                Ok(())
            })
        });
        assert_eq!(outcome, Err(Error::Internal(BROKEN.to_owned())));
    }

    #[test]
    fn the_poll_interrupts() {
        let mut poll = || true;
        let outcome = Context::new(&mut poll).run(2, usize::MAX, &|_, cancel| wait(cancel));
        assert_eq!(outcome, Err(Error::Interrupted));
    }

    #[test]
    fn the_poll_interrupts_problems_side_by_side() {
        let mut poll = || true;
        let outcome = Context::new(&mut poll)
            .for_each(num_threads(), usize::MAX, &|_, context| context.run(1, 0, &|_, cancel| wait(cancel)));
        assert_eq!(outcome, Err(Error::Interrupted));
    }

    #[test]
    fn an_interruption_between_tasks_is_an_error() {
        set_num_threads(2).unwrap();
        let mut poll = || true;
        let outcome = Context::new(&mut poll).run(64, usize::MAX, &|_, _| {
            be_short();
            Ok(())
        });
        assert_eq!(outcome, Err(Error::Interrupted));
    }

    #[test]
    fn many_short_runs_are_interrupted() {
        let mut poll = || true;
        let mut context = Context::new(&mut poll);
        let outcome = (0..64).try_for_each(|_| {
            context.run(1, 0, &|_, cancel| {
                be_short();
                cancel.check()
            })
        });
        assert_eq!(outcome, Err(Error::Interrupted));
    }

    #[test]
    fn every_task_runs_once() {
        let runs: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
        let mut context = Context::default();
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
    fn tasks_run_on_the_threads_of_the_callers_pool() {
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(3).thread_name(|i| format!("caller-{i}")).build().unwrap();
        let begun = AtomicUsize::new(0);
        let names = Mutex::new(Vec::new());
        let count = pool.install(|| {
            Context::default()
                .run(3, usize::MAX, &|_, _| {
                    names.lock().unwrap().extend(std::thread::current().name().map(str::to_owned));
                    begun.fetch_add(1, Ordering::Relaxed);
                    while begun.load(Ordering::Relaxed) < 3 {
                        std::thread::yield_now(); // a thread for each task
                    }
                    Ok(())
                })
                .unwrap();
            num_threads()
        });
        let mut names = names.into_inner().unwrap();
        names.sort_unstable();
        assert_eq!((count, names), (3, ["caller-0", "caller-1", "caller-2"].map(str::to_owned).to_vec()));
    }

    #[test]
    fn as_many_groups_as_pay() {
        assert_eq!(groups(3, 1, 256), [0, 1, 2, 3]);
        assert_eq!(groups(12, 1, 256).len() - 1, 12);
        assert_eq!(groups(50, 8, 256), [0, 8, 16, 25, 33, 41, 50]);
        assert_eq!(groups(1000, 1, 4), [0, 250, 500, 750, 1000]);
        assert_eq!(groups(0, 1, 4), [0, 0]);
    }

    #[test]
    fn slices_cover_and_depend_on_shape_alone() {
        assert_eq!(slices(50, 8, 16), [0, 12, 25, 37, 50]);
        assert_eq!(slices(3, 8, 16), [0, 3]);
        assert_eq!(slices(64, 8, 4), [0, 16, 32, 48, 64]);
    }
}
