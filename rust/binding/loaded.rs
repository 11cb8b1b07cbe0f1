//! Libraries that the process has loaded, and their functions. Nothing here loads one.

use std::ffi::{CStr, CString, c_void};

/// A loaded library, by its path or by the name that it was loaded by.
#[cfg(unix)]
pub fn library(name: &str) -> Option<*mut c_void> {
    let name = CString::new(name).ok()?;
    // SAFETY: a text that ends with a zero; handles are never closed.
    let found = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    (!found.is_null()).then_some(found)
}

/// A function of a library or of what it needs.
#[cfg(unix)]
pub fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of a library that stays loaded, and a text that ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

#[cfg(windows)]
#[link(name = "kernel32")]
unsafe extern "system" {
    fn GetModuleHandleW(name: *const u16) -> *mut c_void;
    fn GetProcAddress(library: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void;
}

/// A loaded library, by its path or by its name.
#[cfg(windows)]
pub fn library(name: &str) -> Option<*mut c_void> {
    let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
    // SAFETY: a text that ends with a zero; the number of its users does not change.
    let found = unsafe { GetModuleHandleW(name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A function of a library.
#[cfg(windows)]
pub fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of a library that stays loaded, and a text that ends with a zero.
    let found = unsafe { GetProcAddress(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
