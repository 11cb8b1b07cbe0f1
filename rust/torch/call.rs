//! What comes of a call: a result, or an error.

use std::ffi::CString;

use householder::error::Error;

/// The exception of Python that an error means. torch itself raises a `RuntimeError` for each.
#[derive(Clone, Copy, Default)]
pub enum Kind {
    #[default]
    Runtime = 0,
    Value = 1,
    Type = 2,
    Memory = 3,
}

/// Why there is no result.
pub struct Refusal {
    text: String,
    pub kind: Kind,
}

/// What comes of arguments.
pub type Reading<T> = Result<T, Refusal>;

impl Refusal {
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { text: text.into(), kind }
    }

    /// An argument that cannot be computed with.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(Kind::Value, text)
    }

    /// The text for C.
    pub fn into_text(self) -> CString {
        CString::new(self.text.replace('\0', "?")).unwrap_or_default()
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let kind = match error {
            Error::InvalidArgument(_) => Kind::Value,
            Error::OutOfMemory { .. } => Kind::Memory,
            Error::Interrupted | Error::Internal(_) => Kind::Runtime,
        };
        Self::new(kind, error.to_string())
    }
}
