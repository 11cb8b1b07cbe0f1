//! A call that other threads help with.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a worker without work, or a caller whose helpers still work, stays awake.
pub const AWAKE: Duration = Duration::from_micros(200);

/// What a caller does every so often while it waits for its helpers.
pub type Meanwhile<'a> = (Duration, &'a dyn Fn());

pub struct Call<'a> {
    help: &'a (dyn Fn() + Sync),
    running: AtomicUsize,
    caller: Thread,
}

impl<'a> Call<'a> {
    /// Of this thread.
    pub fn new(help: &'a (dyn Fn() + Sync)) -> Self {
        Self { help, running: AtomicUsize::new(0), caller: thread::current() }
    }

    /// The caller waits for whoever has entered.
    pub fn enter(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Afterwards the call may be gone.
    pub fn help_and_leave(&self) {
        (self.help)();
        let caller = self.caller.clone();
        if self.running.fetch_sub(1, Ordering::Release) == 1 {
            caller.unpark();
        }
    }

    /// Waits for all that have entered.
    pub fn wait(&self, (every, meanwhile): Meanwhile<'_>) {
        let ended = || self.running.load(Ordering::Acquire) == 0;
        if !stay_awake(&ended) {
            while !ended() {
                thread::park_timeout(every);
                meanwhile();
            }
        }
    }
}

/// Waits for a moment without sleeping; whether it `happened`. Whoever else wants the processor gets it.
pub fn stay_awake(happened: &dyn Fn() -> bool) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < AWAKE {
        for _ in 0..64 {
            if happened() {
                return true;
            }
            std::hint::spin_loop();
        }
        thread::yield_now();
    }
    false
}
