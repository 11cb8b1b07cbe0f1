//! Workers that help with calls.
//!
//! A call leaves a ticket for each worker that may join it and begins at once; what nobody has taken up by the time the
//! caller has no work left is withdrawn, so that a call never waits for a thread that has not begun. Workers stay awake for
//! a moment after each call: the next one, of a training step, then does not pay for waking them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::call::{Call, Meanwhile, stay_awake};
use crate::error::{Error, Result};

/// A number of threads; they end when it is dropped.
pub struct Pool {
    shared: Arc<Shared>,
    workers: usize,
}

struct Shared {
    queue: Mutex<Queue>,
    /// As many as there are in the queue: what those awake look at.
    tickets: AtomicUsize,
    wake: Condvar,
}

struct Queue {
    tickets: VecDeque<Ticket>,
    sleeping: usize,
    closed: bool,
}

/// A call to join; valid while it is in the queue or entered.
#[derive(Clone, Copy, PartialEq)]
struct Ticket(*const Call<'static>);

// SAFETY: what it points to is shared between threads.
unsafe impl Send for Ticket {}

impl Pool {
    pub fn new(workers: usize) -> Result<Self> {
        let queue = Queue { tickets: VecDeque::new(), sleeping: 0, closed: false };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), tickets: AtomicUsize::new(0), wake: Condvar::new() });
        let pool = Self { shared, workers };
        for i in 0..workers {
            let shared = pool.shared.clone();
            let spawned = thread::Builder::new().name(format!("householder-{i}")).spawn(move || shared.serve());
            spawned.map_err(|e| Error::Internal(format!("cannot start {workers} threads: {e}")))?;
        }
        Ok(pool)
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Runs `work` here and `help`, which must not panic, on up to `helpers` workers that have time. Returns once all
    /// that began have ended.
    pub fn join(&self, helpers: usize, help: &(dyn Fn() + Sync), work: &dyn Fn(), meanwhile: Meanwhile<'_>) {
        let call = Call::new(help);
        let ticket = Ticket((&raw const call).cast());
        let invited = Invited { shared: &self.shared, call: &call, ticket, meanwhile };
        self.shared.offer(ticket, helpers);
        work();
        drop(invited);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

/// Withdraws what nobody took up and waits for the others, whatever becomes of the caller's own work.
struct Invited<'a> {
    shared: &'a Shared,
    call: &'a Call<'a>,
    ticket: Ticket,
    meanwhile: Meanwhile<'a>,
}

impl Drop for Invited<'_> {
    fn drop(&mut self) {
        self.shared.withdraw(self.ticket);
        self.call.wait(self.meanwhile);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Without memory for tickets nobody helps.
    fn offer(&self, ticket: Ticket, helpers: usize) {
        let mut queue = self.lock();
        if queue.tickets.try_reserve(helpers).is_err() {
            return;
        }
        queue.tickets.extend(std::iter::repeat_n(ticket, helpers));
        self.tickets.store(queue.tickets.len(), Ordering::Release);
        let wake = queue.sleeping.min(helpers);
        drop(queue);
        (0..wake).for_each(|_| self.wake.notify_one());
    }

    fn withdraw(&self, ticket: Ticket) {
        let mut queue = self.lock();
        queue.tickets.retain(|other| *other != ticket);
        self.tickets.store(queue.tickets.len(), Ordering::Release);
    }

    /// What a worker does.
    fn serve(&self) {
        while let Some(ticket) = self.take() {
            // SAFETY: entered, so the caller waits.
            unsafe { &*ticket.0 }.help_and_leave();
        }
    }

    /// Waits for the next ticket; `None` at the end.
    fn take(&self) -> Option<Ticket> {
        loop {
            let offered = stay_awake(&|| self.tickets.load(Ordering::Acquire) > 0);
            let mut queue = self.lock();
            if let Some(ticket) = queue.tickets.pop_front() {
                self.tickets.store(queue.tickets.len(), Ordering::Release);
                // SAFETY: in the queue, which is locked, until here.
                unsafe { &*ticket.0 }.enter();
                return Some(ticket);
            }
            if queue.closed {
                return None;
            }
            if !offered {
                queue.sleeping += 1;
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.sleeping -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::super::call::AWAKE;
    use super::*;

    const PATIENCE: Meanwhile<'_> = (Duration::from_millis(1), &|| {});

    fn until(happened: &AtomicBool) {
        while !happened.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    #[test]
    fn a_worker_helps() {
        let pool = Pool::new(1).unwrap();
        for pause in [Duration::ZERO, 5 * AWAKE] {
            thread::sleep(pause);
            let helped = AtomicBool::new(false);
            pool.join(1, &|| helped.store(true, Ordering::Release), &|| until(&helped), PATIENCE);
        }
    }

    #[test]
    fn a_call_waits_for_helpers_that_have_begun() {
        let pool = Pool::new(1).unwrap();
        let (begun, ended, waited) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        let help = || {
            begun.store(true, Ordering::Release);
            thread::sleep(Duration::from_millis(20));
            ended.store(true, Ordering::Release);
        };
        let count = || {
            waited.fetch_add(1, Ordering::Relaxed);
        };
        pool.join(1, &help, &|| until(&begun), (Duration::from_millis(1), &count));
        assert!(ended.load(Ordering::Acquire) && waited.load(Ordering::Relaxed) > 1);
    }

    #[test]
    fn a_call_does_not_wait_for_helpers_that_have_not_begun() {
        let pool = Pool::new(1).unwrap();
        let (begun, release, helped) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let occupy = || {
            begun.store(true, Ordering::Release);
            until(&release);
        };
        let other_call = || {
            until(&begun);
            pool.join(1, &|| helped.store(true, Ordering::Release), &|| {}, PATIENCE);
            release.store(true, Ordering::Release);
        };
        pool.join(1, &occupy, &other_call, PATIENCE);
        assert!(!helped.load(Ordering::Acquire));
    }
}
