//! Why a call has no result.

use std::any::Any;

use householder::error::Error;
pub use householder::error::catch_panic;

/// Why there is no result.
pub enum Refusal {
    /// The arguments are for torch's dispatcher to handle.
    Foreign,
    /// One has the wrong type.
    Type(String),
    /// One changed between two passes, or torch has failed.
    Runtime(String),
    /// The core refuses them.
    Core(Error),
    /// The caller's own language raised an exception.
    Raised(Box<dyn Any + Send>),
}

/// What comes of arguments.
pub type Reading<T> = Result<T, Refusal>;

impl Refusal {
    /// An argument that cannot be computed with.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::Core(Error::InvalidArgument(text.into()))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}
