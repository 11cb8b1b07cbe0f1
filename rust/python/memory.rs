//! Memory for large results, which the next call gets again once they are gone.

use std::alloc::Layout;
use std::ffi::c_int;

use householder::error::Error;
use householder::memory::ALIGNMENT;
use householder::recycle;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::operand::to_python;

/// Uninitialised bytes behind the buffer protocol.
#[pyclass(frozen, module = "householder._core")]
pub struct Memory {
    address: usize,
    layout: Layout,
    len: isize,
}

#[pymethods]
impl Memory {
    #[new]
    fn new(size: usize) -> PyResult<Self> {
        let layout = Layout::from_size_align(size.max(ALIGNMENT), ALIGNMENT).map(recycle::rounded);
        let layout = layout.map_err(|_| PyValueError::new_err("an array of that size cannot exist"))?;
        let block = recycle::take(layout);
        if block.is_null() {
            return Err(to_python(Error::OutOfMemory { bytes: size }));
        }
        Ok(Self { address: block as usize, layout, len: size as isize })
    }

    /// # Safety
    /// Called by the interpreter, with a view to fill in.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let memory = slf.get();
        match ffi::PyBuffer_FillInfo(view, slf.as_ptr(), memory.address as *mut _, memory.len, 0, flags) {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: taken with this layout; every buffer view holds a reference to this object.
        unsafe { recycle::give(self.address as *mut u8, self.layout) }
    }
}

/// Gives the memory that is kept for the next calls back to the system.
#[pyfunction]
pub fn release_memory() {
    recycle::release();
}
