//! Where the forward pass writes.

use crate::view::Shared;

/// What the forward pass may write.
#[derive(Default)]
pub struct Results<'a, T> {
    /// `(tokens, value_heads, value_width)`.
    pub out: Option<&'a mut [T]>,
    /// `(sequences, value_heads, key_width, value_width)`, the states in which sequences end.
    pub last: Option<&'a mut [T]>,
    /// `(kept, value_heads, key_width, value_width)`, see [`super::Sizes::kept`], for the backward pass.
    pub kept: Option<&'a mut [T]>,
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
