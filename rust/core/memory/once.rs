//! Values that are made once in a process, without a lock.
//!
//! `std::sync::OnceLock` lets threads wait for the one that makes the value. A child that was forked meanwhile does not have
//! that thread, and would wait for ever.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value made at first use. Threads that come at the same time make one each, and all take the first.
pub struct Once<T>(AtomicPtr<T>);

impl<T: Send + Sync> Once<T> {
    /// No value yet.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// The value, made by `make` if there is none.
    pub fn get(&'static self, make: impl FnOnce() -> T) -> &'static T {
        // SAFETY: null, or leaked by `replace` and so valid for ever.
        let present = unsafe { self.0.load(Ordering::Acquire).as_ref() };
        present.unwrap_or_else(|| self.replace(null_mut(), make()))
    }

    /// The value, made anew by `make` from one that is not `good`. That one is never dropped.
    pub fn get_if(&'static self, good: impl Fn(&T) -> bool, make: impl Fn(Option<&T>) -> T) -> &'static T {
        loop {
            let present = self.0.load(Ordering::Acquire);
            // SAFETY: as above.
            match unsafe { present.as_ref() } {
                Some(value) if good(value) => return value,
                value => {
                    let made = self.replace(present, make(value));
                    if good(made) {
                        return made;
                    }
                }
            }
        }
    }

    /// Puts `value` in the place of `present`, unless another thread was faster; returns what is there.
    fn replace(&'static self, present: *mut T, value: T) -> &'static T {
        let fresh = Box::into_raw(Box::new(value));
        match self.0.compare_exchange(present, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked from here on.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: nobody has seen `fresh`, and the other one was leaked likewise.
                unsafe {
                    drop(Box::from_raw(fresh));
                    &*other
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_come_at_the_same_time_take_the_same_value() {
        static ONCE: Once<u64> = Once::new();
        let values: Vec<&u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || ONCE.get(|| i))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(values.iter().all(|value| std::ptr::eq(*value, values[0])));
        let anew = ONCE.get_if(|&value| value == 99, |_| 99);
        assert_eq!((*anew, *ONCE.get(|| 0)), (99, 99));
    }
}
