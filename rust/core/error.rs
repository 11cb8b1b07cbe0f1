//! The errors of this crate.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The reason a call did not produce a result. Inputs are never modified; outputs are unspecified.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A workspace of this many bytes could not be allocated.
    OutOfMemory {
        /// Size of the refused allocation.
        bytes: usize,
    },
    /// The caller's poll asked the call to stop.
    Interrupted,
    /// An argument that cannot be computed with. The text names the argument, its value and what was expected.
    InvalidArgument(String),
    /// A bug: a task panicked. The text is the panic's message.
    Internal(String),
}

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::OutOfMemory { bytes } => write!(f, "cannot allocate a workspace of {bytes} bytes"),
            Error::Interrupted => write!(f, "interrupted"),
            Error::InvalidArgument(what) => write!(f, "{what}"),
            Error::Internal(what) => write!(f, "internal error: {what}"),
        }
    }
}

impl std::error::Error for Error {}

/// The outcome of `work`; a panic is an error with the panic's text.
#[doc(hidden)]
pub fn catch_panic<R, E: From<Error>>(work: impl FnOnce() -> std::result::Result<R, E>) -> std::result::Result<R, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast::<String>().map(|text| *text);
        let text = text.or_else(|panic| panic.downcast::<&str>().map(|text| (*text).to_owned()));
        // Any other payload is leaked, because dropping it may panic.
        let text = text.map_err(std::mem::forget).unwrap_or_else(|()| "panic".to_owned());
        Err(Error::Internal(text).into())
    })
}
