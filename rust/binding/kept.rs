//! What a forward pass keeps for its backward pass.

use std::any::Any;

/// A value that only the core reads.
pub type Held = dyn Any + Send + Sync;

/// What is kept.
pub struct Kept {
    pub held: Box<Held>,
    /// Whether it is the formed `W` rather than its factors.
    pub is_matrix: bool,
}

impl Kept {
    pub fn new(is_matrix: bool, kept: impl Any + Send + Sync) -> Self {
        Self { held: Box::new(kept), is_matrix }
    }
}

/// What is kept, if it is of this type and fits the problem.
pub fn fitting<K: Any>(held: Option<&Held>, fits: impl Fn(&K) -> bool) -> Option<&K> {
    held?.downcast_ref().filter(|kept| fits(kept))
}
