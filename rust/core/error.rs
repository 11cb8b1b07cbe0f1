//! The errors of this crate.

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The reason a call did not produce a result. Operands are never modified. Results, and arrays that are updated in place, are
/// unspecified, except where lengths are wrong: such calls write nothing.
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
    /// An array has another length than its sizes say.
    Length {
        /// The array.
        name: &'static str,
        /// Sizes whose product it should have.
        expected: Vec<usize>,
        /// The numbers that it has.
        found: usize,
    },
    /// An array that may be longer than needed is too short.
    Short {
        /// The array.
        name: &'static str,
        /// The numbers that are needed.
        needed: usize,
        /// The numbers that it has.
        found: usize,
    },
    /// No array in memory has this shape.
    Shape {
        /// The array.
        name: &'static str,
        /// Its sizes.
        shape: Vec<usize>,
    },
    /// Rows lie beyond the numbers that they are to be part of.
    Reach {
        /// The sizes of the rows' array.
        shape: Vec<usize>,
        /// The distances along its axes.
        strides: Vec<usize>,
        /// The numbers.
        found: usize,
    },
    /// Rows that are to be written share numbers.
    Overlap {
        /// Rows and their width.
        shape: [usize; 2],
        /// From row to row, and from number to number.
        strides: [usize; 2],
    },
    /// Rows have another width.
    Width {
        /// The rows' array.
        name: &'static str,
        /// The numbers that a row should have.
        expected: usize,
        /// The numbers that it has.
        found: usize,
    },
    /// The rows of one sequence are at several distances from each other.
    Uneven {
        /// The rows' array.
        name: &'static str,
    },
    /// Another argument has a value that it must not have.
    Value {
        /// Its name; empty where `expected` names the arguments.
        name: &'static str,
        /// What it should be.
        expected: Cow<'static, str>,
        /// Its value, unless `expected` already implies it.
        found: Option<String>,
    },
    /// Arguments that cannot be computed with. The text says why.
    InvalidArgument(String),
    /// A bug: a task panicked. The text is the panic's message.
    Internal(String),
}

/// Result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the arguments are to blame.
    pub fn is_invalid_argument(&self) -> bool {
        !matches!(self, Self::OutOfMemory { .. } | Self::Interrupted | Self::Internal(_))
    }

    /// [`Error::Value`] with what was found.
    pub(crate) fn value(name: &'static str, expected: impl Into<Cow<'static, str>>, found: impl ToString) -> Self {
        Self::Value { name, expected: expected.into(), found: Some(found.to_string()) }
    }

    /// [`Error::Value`] that is the opposite of what was expected.
    pub(crate) fn unlike(name: &'static str, expected: &'static str) -> Self {
        Self::Value { name, expected: expected.into(), found: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { bytes } => write!(f, "cannot allocate a workspace of {bytes} bytes"),
            Self::Interrupted => write!(f, "interrupted"),
            Self::Length { name, expected, found } => {
                let sizes: Vec<_> = expected.iter().map(ToString::to_string).collect();
                write!(f, "{name}: expected {} numbers, got {found}", sizes.join(" x "))
            }
            Self::Short { name, needed, found } => write!(f, "{name}: expected at least {needed} numbers, got {found}"),
            Self::Shape { name, shape } => write!(f, "{name}: no array has the shape {shape:?}"),
            Self::Reach { shape, strides, found } => {
                write!(f, "rows: expected {shape:?} numbers at distances {strides:?} among {found}")
            }
            Self::Overlap { shape, strides } => {
                write!(f, "rows: expected {shape:?} numbers apart from each other, got distances {strides:?}")
            }
            Self::Width { name, expected, found } => {
                write!(f, "{name}: expected rows of {expected} numbers, got {found}")
            }
            Self::Uneven { name } => {
                write!(f, "{name}: expected the rows of a sequence at one distance from each other")
            }
            Self::Value { name, expected, found } => {
                let colon = if name.is_empty() { "" } else { ": " };
                write!(f, "{name}{colon}expected {expected}")?;
                found.iter().try_for_each(|found| write!(f, ", got {found}"))
            }
            Self::InvalidArgument(text) => write!(f, "{text}"),
            Self::Internal(text) => write!(f, "internal error: {text}"),
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
