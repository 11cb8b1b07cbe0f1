//! The library that has the kernels, whose functions the modules here call.

use householder_binding::interface::Interface;
#[cfg(unix)]
use householder_binding::loaded::Library;
#[cfg(unix)]
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

#[cfg(unix)]
static LOADED: std::sync::OnceLock<&Interface> = std::sync::OnceLock::new();

/// A place in this module.
#[cfg(unix)]
static HERE: u8 = 0;

/// Loads the library, which lies in the folder `lib` beside this module.
#[cfg(unix)]
pub fn load() -> PyResult<()> {
    let name = if cfg!(target_vendor = "apple") { "libhouseholder_torch.dylib" } else { "libhouseholder_torch.so" };
    let file = Library::file_of(&HERE).unwrap_or_default().with_file_name("lib").join(name);
    let _ = LOADED.set(Interface::load(&file).map_err(PyImportError::new_err)?);
    Ok(())
}

/// Its functions.
#[cfg(unix)]
pub fn library() -> &'static Interface {
    LOADED.get().expect("no function of the module is called before it is loaded")
}

/// There is no library on this system: the module has the kernels itself.
#[cfg(not(unix))]
pub fn load() -> PyResult<()> {
    Ok(())
}

/// The functions.
#[cfg(not(unix))]
pub fn library() -> &'static Interface {
    static HERE: Interface = Interface::HERE;
    &HERE
}
