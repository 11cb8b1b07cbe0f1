//! Libraries that the process has loaded, and their functions.

use std::ffi::{CStr, c_void};
#[cfg(unix)]
use std::{
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// A loaded library, which stays loaded.
pub struct Library(*mut c_void);

#[cfg(unix)]
impl Library {
    /// That of this path, or of the name that it was loaded by.
    pub fn find(name: &str) -> Option<Self> {
        let name = CString::new(name).ok()?;
        // SAFETY: a text that ends with a zero; handles are never closed.
        let found = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        (!found.is_null()).then_some(Self(found))
    }

    /// Loads the library in this file for this caller alone.
    pub fn load(file: &Path) -> Result<Self, String> {
        let name = CString::new(file.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: texts that end with a zero; a message lives until the next call, and handles are never closed.
        unsafe {
            let found = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if found.is_null() {
                return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned());
            }
            Ok(Self(found))
        }
    }

    /// The file of the library that has this byte.
    pub fn file_of(byte: &'static u8) -> Option<PathBuf> {
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: memory for the answer, which is filled, with a text that lives as long as the library, if there is one.
        unsafe {
            (libc::dladdr((&raw const *byte).cast(), found.as_mut_ptr()) != 0)
                .then(|| CStr::from_ptr(found.assume_init().dli_fname))
                .map(|name| OsStr::from_bytes(name.to_bytes()).into())
        }
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
