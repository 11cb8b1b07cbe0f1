//! Where the forward pass writes.

use super::number::Exponential;
use super::problem::{Lengths, Problem, expect};
use crate::error::{Error, Result};
use crate::view::Shared;

/// What the forward pass may write.
#[derive(Default)]
pub struct Results<'a, T> {
    /// `(tokens, value_heads, value_width)`.
    pub out: Option<&'a mut [T]>,
    /// `(sequences, value_heads, key_width, value_width)`, the states in which sequences end.
    pub last: Option<&'a mut [T]>,
    /// `(kept, value_heads, key_width, value_width)`, for the backward pass. It may be longer than [`Lengths::kept`].
    pub kept: Option<&'a mut [T]>,
}

impl<T: Exponential> Results<'_, T> {
    /// Checks their lengths.
    pub(super) fn check(&self, problem: &Problem<'_, T>) -> Result<()> {
        let Lengths { out, last, kept } = problem.lengths();
        expect("out", self.out.as_deref(), out)?;
        expect("last", self.last.as_deref(), last)?;
        check_kept(self.kept.as_deref(), kept)
    }
}

/// Checks that there is room for all kept states.
pub fn check_kept<T>(array: Option<&[T]>, needed: usize) -> Result<()> {
    match array {
        Some(array) if array.len() < needed => {
            Err(Error::InvalidArgument(format!("kept: expected at least {needed} numbers, got {}", array.len())))
        }
        _ => Ok(()),
    }
}

/// Where tasks write, each its own heads and columns.
#[derive(Clone, Copy)]
pub struct Places<T> {
    /// As in [`Results`].
    pub out: Option<Shared<T>>,
    /// As in [`Results`].
    pub last: Option<Shared<T>>,
    /// As in [`Results`].
    pub kept: Option<Shared<T>>,
}

impl<T> Places<T> {
    /// The arrays live as long as tasks run.
    pub fn of(results: Results<'_, T>) -> Self {
        let share = |array: Option<&mut [T]>| array.map(|array| Shared(array.as_mut_ptr()));
        Self { out: share(results.out), last: share(results.last), kept: share(results.kept) }
    }
}
