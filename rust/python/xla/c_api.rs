//! XLA's C interface for foreign functions, `xla/ffi/api/c_api.h`: the part that handlers on CPU read.
//!
//! Versions 0.1 to 0.3 have these same fields at the same places. Later minor versions add fields behind them.

use std::ffi::{c_char, c_int, c_void};

/// An extension of a struct: the first of a list.
#[repr(C)]
pub struct Extension {
    pub struct_size: usize,
    pub kind: c_int,
    pub next: *mut Extension,
}

/// Kind of [`MetadataExtension`].
pub const METADATA: c_int = 1;

#[repr(C)]
pub struct ApiVersion {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub major: c_int,
    pub minor: c_int,
}

/// What XLA asks of a handler when it is registered.
#[repr(C)]
pub struct Metadata {
    pub struct_size: usize,
    pub api_version: ApiVersion,
    pub traits: u32,
}

#[repr(C)]
pub struct MetadataExtension {
    pub base: Extension,
    pub metadata: *mut Metadata,
}

/// An error that XLA made and owns.
#[repr(C)]
pub struct XlaError {
    private: [u8; 0],
}

#[repr(C)]
pub struct ErrorCreateArguments {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub message: *const c_char,
    pub code: c_int,
}

pub const INVALID_ARGUMENT: c_int = 3;
pub const RESOURCE_EXHAUSTED: c_int = 8;
pub const INTERNAL: c_int = 13;

#[repr(C)]
pub struct XlaBuffer {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub dtype: c_int,
    pub data: *mut c_void,
    pub rank: i64,
    pub dims: *const i64,
}

/// Type of a boolean attribute.
pub const PRED: c_int = 1;
/// Type of an integer attribute.
pub const S64: c_int = 5;
pub const F16: c_int = 10;
pub const F32: c_int = 11;
pub const F64: c_int = 12;
pub const C64: c_int = 15;
pub const BF16: c_int = 16;
pub const C128: c_int = 18;

#[repr(C)]
pub struct ByteSpan {
    pub start: *const u8,
    pub len: usize,
}

/// An attribute that is an array of numbers.
#[repr(C)]
pub struct ArrayAttribute {
    pub dtype: c_int,
    pub len: usize,
    pub data: *const c_void,
}

/// An attribute that is a number.
#[repr(C)]
pub struct ScalarAttribute {
    pub dtype: c_int,
    pub value: *const c_void,
}

/// Arguments, or results.
#[repr(C)]
pub struct Buffers {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub count: i64,
    pub kinds: *const c_int,
    pub values: *const *const XlaBuffer,
}

/// The only kind of [`Buffers`].
pub const BUFFER: c_int = 1;

/// Attributes, sorted by name.
#[repr(C)]
pub struct Attributes {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub count: i64,
    pub kinds: *const c_int,
    pub names: *const *const ByteSpan,
    pub values: *const *const c_void,
}

/// Kind of an attribute that is an [`ArrayAttribute`].
pub const ARRAY: c_int = 1;
/// Kind of an attribute that is a [`ScalarAttribute`].
pub const NUMBER: c_int = 3;
/// Kind of an attribute that is a [`ByteSpan`].
pub const TEXT: c_int = 4;

/// One call of a handler.
#[repr(C)]
pub struct CallFrame {
    pub struct_size: usize,
    pub extension: *const Extension,
    pub api: *const Api,
    pub context: *mut c_void,
    pub stage: c_int,
    pub arguments: Buffers,
    pub results: Buffers,
    pub attributes: Attributes,
}

/// XLA's functions, those that handlers here call.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub extension: *mut Extension,
    pub version: ApiVersion,
    pub internal: *const c_void,
    pub create_error: unsafe extern "C" fn(*const ErrorCreateArguments) -> *mut XlaError,
}

/// A handler: null for success, or an error, which then belongs to XLA.
pub type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut XlaError;
