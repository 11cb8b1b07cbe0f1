//! What all handlers do: agree on the interface's version, run a kernel, report errors.

use std::ffi::{CString, c_int};

use householder::error::Error;
use householder_binding::refusal::{Reading, Refusal, catch_panic};

use super::c_api::{
    Api, CallFrame, ErrorCreateArguments, INTERNAL, INVALID_ARGUMENT, METADATA, MetadataExtension, RESOURCE_EXHAUSTED,
    XlaError,
};
use super::frame::Frame;

/// The interface's major version, with which structs change.
const MAJOR: c_int = 0;
/// Minor versions that have been read, of which later ones keep what earlier ones have.
const MINORS: [c_int; 2] = [1, 3];

/// A kernel behind a handler.
pub type FrameKernel = fn(&Frame<'_>) -> Reading<()>;

/// Answers one call of XLA: its question for the version, or a run of the kernel. XLA owns `frame` and all it leads to for
/// the time of the call.
pub unsafe fn handle(frame: *mut CallFrame, kernel: FrameKernel) -> *mut XlaError {
    // SAFETY: XLA passes a frame, and an API with it. Their sizes say which fields there are.
    let (frame, api) = unsafe { (&*frame, (*frame).api.as_ref()) };
    if answer_metadata(frame, api) {
        return std::ptr::null_mut();
    }
    let Some(api) = api else { std::process::abort() }; // there is nothing to make an error with
    let outcome = refusal(frame, api).and_then(|()| catch_panic(|| kernel(&Frame::new(frame))));
    match outcome {
        Ok(()) => std::ptr::null_mut(),
        Err(refusal) => report(api, refusal),
    }
}

/// If XLA asks for the version, fills in XLA's own if this module supports it, else the nearest supported one.
fn answer_metadata(frame: &CallFrame, api: Option<&Api>) -> bool {
    // SAFETY: null, or the first of a list of extensions; one of this kind has metadata to be written.
    let metadata = unsafe {
        let Some(extension) = frame.extension.as_ref().filter(|extension| extension.kind == METADATA) else {
            return false;
        };
        &mut *(*std::ptr::from_ref(extension).cast::<MetadataExtension>()).metadata
    };
    // An early XLA passes no API and so does not give its version.
    let theirs = api.map_or(MINORS[0], |api| if api.version.major == MAJOR { api.version.minor } else { MINORS[1] });
    metadata.api_version.major = MAJOR;
    metadata.api_version.minor = theirs.clamp(MINORS[0], MINORS[1]);
    true
}

/// An error if the fields of the frame's version are not known.
fn refusal(frame: &CallFrame, api: &Api) -> Reading<()> {
    let (major, minor) = (api.version.major, api.version.minor);
    let complete = frame.struct_size >= size_of::<CallFrame>() && api.struct_size >= size_of::<Api>();
    if major == MAJOR && minor >= MINORS[0] && complete {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "householder reads version {MAJOR}.{} of XLA's foreign function interface and later ones of {MAJOR}, but this jaxlib \
         has version {major}.{minor}; install a version of householder that is made for it",
        MINORS[0]
    )))
}

fn report(api: &Api, refusal: Refusal) -> *mut XlaError {
    let error = match refusal {
        Refusal::Core(error) => error,
        Refusal::Type(text) | Refusal::Runtime(text) => Error::InvalidArgument(text),
        Refusal::Foreign | Refusal::Raised(_) => {
            Error::Internal("an error of Python, which handlers do not call".to_owned())
        }
    };
    let code = match error {
        Error::OutOfMemory { .. } => RESOURCE_EXHAUSTED,
        Error::Interrupted | Error::Internal(_) => INTERNAL,
        _ => INVALID_ARGUMENT,
    };
    let message = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
    let arguments = ErrorCreateArguments {
        struct_size: size_of::<ErrorCreateArguments>(),
        extension: std::ptr::null_mut(),
        message: message.as_ptr(),
        code,
    };
    // SAFETY: XLA's own function; it copies the message.
    unsafe { (api.create_error)(&raw const arguments) }
}
