//! A call that other threads may help with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a helper without work, or a caller whose helpers still work, spins before it sleeps.
pub const AWAKE: Duration = Duration::from_micros(200);

/// What a caller does, and how often, while it waits for its helpers.
pub type WaitPoll<'a> = (Duration, &'a dyn Fn());

/// The bit of [`Invitation::inside`] that says that no helper may enter any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Latch: helpers may join until the caller closes it, and the caller waits only for those inside. A call therefore never waits
/// for a thread that has not begun.
pub struct Invitation {
    /// Lives until the caller has closed the invitation and all helpers have left.
    help: *const (dyn Fn() + Sync),
    /// Helpers that may still enter.
    places: AtomicUsize,
    /// Helpers at work, and [`CLOSED`].
    inside: AtomicUsize,
    caller: Thread,
}

// SAFETY: `help` may be called on any thread, and is called by those inside alone.
unsafe impl Send for Invitation {}
// SAFETY: as above.
unsafe impl Sync for Invitation {}

impl Invitation {
    /// For up to `places` threads that run `help`, which must not panic.
    ///
    /// # Safety
    /// `help` lives until no thread can call [`Invitation::accept`] any more: until a [`Closing`] is dropped, or until a loop
    /// ends that all threads have left.
    pub unsafe fn new(places: usize, help: &(dyn Fn() + Sync)) -> Arc<Self> {
        // SAFETY: only the lifetime changes; the caller vouches for it.
        let help: *const _ = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(help) };
        let (places, inside) = (AtomicUsize::new(places), AtomicUsize::new(0));
        Arc::new(Self { help, places, inside, caller: thread::current() })
    }

    /// Helps if there is a place and the invitation is open. Returns whether it did.
    pub fn accept(&self) -> bool {
        let less = |places: usize| places.checked_sub(1);
        let more = |inside: usize| (inside & CLOSED == 0).then_some(inside + 1);
        let entered = self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
            && self.inside.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok();
        if entered {
            // SAFETY: the caller waits for those inside.
            unsafe { (*self.help)() };
            if self.inside.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
                self.caller.unpark();
            }
        }
        entered
    }
}

/// When dropped, closes the invitation and waits for the helpers inside, even if the caller's own work panicked.
pub struct Closing<'a>(pub &'a Invitation, pub WaitPoll<'a>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let Self(invitation, (every, meanwhile)) = self;
        invitation.inside.fetch_or(CLOSED, Ordering::Relaxed);
        let ended = || invitation.inside.load(Ordering::Acquire) == CLOSED;
        if !stay_awake(&ended) {
            while !ended() {
                thread::park_timeout(*every);
                meanwhile();
            }
        }
    }
}

/// Waits for a moment without sleeping and returns whether it `happened`. Yields the processor to other threads.
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
