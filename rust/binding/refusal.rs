//! Why a call has no result.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use householder::error::Error;

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

/// The outcome of `work`; a panic is an error with the panic's text.
pub fn catch_panic<R, E: From<Error>>(work: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Error::Internal(text.unwrap_or_else(|| "a kernel panicked".to_owned())).into())
    })
}
