//! What a forward pass saves for its backward pass.

use std::any::Any;

/// A value that only the core reads.
pub type Held = dyn Any + Send + Sync;

/// What is saved.
pub struct AnySaved {
    pub held: Box<Held>,
    /// Whether it has the factors of the compact WY form.
    pub has_factors: bool,
}

impl AnySaved {
    pub fn new(has_factors: bool, saved: impl Any + Send + Sync) -> Self {
        Self { held: Box::new(saved), has_factors }
    }
}

/// What is saved, if it is of this type and fits the problem.
pub fn fitting<K: Any>(held: Option<&Held>, fits: impl Fn(&K) -> bool) -> Option<&K> {
    held?.downcast_ref().filter(|saved| fits(saved))
}
