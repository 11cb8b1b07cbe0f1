//! Libraries that the process has loaded, and their functions. Nothing here loads one.

use std::ffi::{CStr, c_void};

/// A loaded library, which stays loaded.
pub struct Library(*mut c_void);

#[cfg(unix)]
impl Library {
    /// That of this path, or of the name that it was loaded by.
    pub fn find(name: &str) -> Option<Self> {
        let name = std::ffi::CString::new(name).ok()?;
        // SAFETY: a text that ends with a zero; handles are never closed.
        let found = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!found.is_null()).then_some(Self(found))
    }

    /// All that the default scope shows.
    pub fn any() -> Self {
        Self(libc::RTLD_DEFAULT)
    }

    /// A function of it or of what it needs.
    pub fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: a handle of a library that stays loaded, and a text that ends with a zero.
        let found = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}

#[cfg(windows)]
#[link(name = "kernel32")]
unsafe extern "system" {
    fn GetModuleHandleW(name: *const u16) -> *mut c_void;
    fn GetProcAddress(library: *mut c_void, name: *const std::ffi::c_char) -> *mut c_void;
}

#[cfg(windows)]
impl Library {
    /// That of this path or name.
    pub fn find(name: &str) -> Option<Self> {
        let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
        // SAFETY: a text that ends with a zero; the number of its users does not change.
        let found = unsafe { GetModuleHandleW(name.as_ptr()) };
        (!found.is_null()).then_some(Self(found))
    }

    /// A function of it.
    pub fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: as above, and a text that ends with a zero.
        let found = unsafe { GetProcAddress(self.0, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    }
}
