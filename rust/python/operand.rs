//! From Python objects to slices, and back to Python exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use householder::error::{Error, Result};
use householder::number::{c32, c64};
use householder::scalar::Scalar;
use householder::threads::Context;
use householder::view::Shared;
use numpy::npyffi::flags::{NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::npyffi::{NPY_TYPES, PyArrayObject};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// C-contiguous memory: a NumPy array, checked, or an address, trusted.
#[derive(FromPyObject)]
pub enum Operand<'py> {
    Address(usize),
    Array(Bound<'py, PyUntypedArray>),
}

/// A vector for each step of each sequence: row after row, or from an address on at even distances, first that from a step
/// to the next one, then that from a sequence to the next one.
pub enum Vectors<'py> {
    Rows(Operand<'py>),
    Strided(usize, usize, usize),
}

/// A number type with a NumPy type number.
pub trait Number: Scalar {
    const TYPE: NPY_TYPES;
    const NAME: &'static str;
}

macro_rules! number {
    ($t:ty, $npy:ident, $name:literal) => {
        impl Number for $t {
            const TYPE: NPY_TYPES = NPY_TYPES::$npy;
            const NAME: &'static str = $name;
        }
    };
}
number!(f32, NPY_FLOAT, "float32");
number!(f64, NPY_DOUBLE, "float64");
number!(c32, NPY_CFLOAT, "complex64");
number!(c64, NPY_CDOUBLE, "complex128");

impl Operand<'_> {
    /// `len` numbers. They must stay valid and unmoved for the call, which holds a reference to the array.
    pub fn slice<T: Number>(&self, name: &str, len: usize) -> PyResult<&'static [T]> {
        let ptr = self.pointer::<T>(name, len, false)?;
        // SAFETY: checked for arrays, promised for addresses.
        Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ptr, len) } })
    }

    /// `len` numbers to be overwritten.
    pub fn slice_mut<T: Number>(&self, name: &str, len: usize) -> PyResult<&'static mut [T]> {
        let ptr = self.pointer::<T>(name, len, true)?;
        // SAFETY: as above; outputs are distinct arrays that nobody else uses during the call.
        Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(ptr, len) } })
    }

    fn pointer<T: Number>(&self, name: &str, len: usize, write: bool) -> PyResult<*mut T> {
        let array = match self {
            Self::Address(address) => return Ok(*address as *mut T),
            Self::Array(array) => array,
        };
        let object: *mut PyArrayObject = array.as_array_ptr();
        // SAFETY: a live NumPy array; its header is read under the interpreter lock.
        let (flags, data) = unsafe { ((*object).fields.flags, (*object).fields.data.cast::<T>()) };
        let dtype = array.dtype();
        if dtype.num() != T::TYPE as i32 || dtype.byteorder() == b'>' {
            return Err(PyTypeError::new_err(format!("{name}: expected a native {} array, got {dtype}", T::NAME)));
        }
        let aligned = data.is_aligned() || len == 0; // NumPy calls an empty array aligned, wherever it lies
        if flags & NPY_ARRAY_C_CONTIGUOUS == 0 || !aligned || array.len() != len {
            return Err(PyValueError::new_err(format!(
                "{name}: expected {len} contiguous, aligned numbers, got shape {:?}",
                array.shape()
            )));
        }
        if write && flags & NPY_ARRAY_WRITEABLE == 0 {
            return Err(PyValueError::new_err(format!("{name}: the array is read-only")));
        }
        Ok(data)
    }
}

/// An optional operand's slice.
pub fn optional<T: Number>(operand: Option<&Operand<'_>>, name: &str, len: usize) -> PyResult<Option<&'static [T]>> {
    operand.map(|x| x.slice(name, len)).transpose()
}

/// An optional output's slice.
pub fn optional_mut<T: Number>(
    operand: Option<&Operand<'_>>,
    name: &str,
    len: usize,
) -> PyResult<Option<&'static mut [T]>> {
    operand.map(|x| x.slice_mut(name, len)).transpose()
}

/// The part of an input that belongs to problem `i`, `len` numbers each.
pub fn part<T>(array: &'static [T], i: usize, len: usize) -> &'static [T] {
    &array[i * len..(i + 1) * len]
}

/// An output of which each problem writes a part of its own.
pub struct Parts<T> {
    array: Shared<T>,
    len: usize,
}

impl<T: 'static> Parts<T> {
    pub fn new(array: &mut [T], count: usize) -> Self {
        Self { array: Shared(array.as_mut_ptr()), len: array.len() / count.max(1) }
    }

    /// The part of problem `i`.
    ///
    /// # Safety
    /// It is asked for once, and while the array lives.
    pub unsafe fn at(&self, i: usize) -> &'static mut [T] {
        std::slice::from_raw_parts_mut(self.array.get().add(i * self.len), self.len)
    }
}

/// An optional output of `len` numbers for each of `count` problems.
pub fn outputs<T: Number>(
    operand: Option<&Operand<'_>>,
    name: &str,
    count: usize,
    len: usize,
) -> PyResult<Option<Parts<T>>> {
    Ok(optional_mut(operand, name, size(&[count, len])?)?.map(|array| Parts::new(array, count)))
}

/// `a * b * ..`, refused where it leaves the address space.
pub fn size(factors: &[usize]) -> PyResult<usize> {
    let product = factors.iter().try_fold(1_usize, |product, &x| product.checked_mul(x));
    product
        .filter(|&x| isize::try_from(x).is_ok())
        .ok_or_else(|| PyValueError::new_err("an array of that size cannot exist"))
}

/// Runs `work` without the interpreter lock. Signals are looked at now and then; panics become exceptions.
pub fn run<R: Send>(py: Python<'_>, work: impl FnOnce(&mut Context<'_>) -> Result<R> + Send) -> PyResult<R> {
    let mut signal = None;
    let outcome = py.detach(|| {
        #[allow(clippy::redundant_closure_for_method_calls)] // the method's path is not general over 'py
        let mut poll = || {
            // An interpreter that is shutting down lets nobody in: then the work is not wanted either.
            if signal.is_none() {
                match Python::try_attach(|py| py.check_signals()) {
                    Some(outcome) => signal = outcome.err(),
                    None => return true,
                }
            }
            signal.is_some()
        };
        catch_unwind(AssertUnwindSafe(|| work(&mut Context::new(&mut poll))))
    });
    match (signal, outcome) {
        (Some(raised), _) => Err(raised),
        (None, Ok(Ok(result))) => Ok(result),
        (None, Ok(Err(error))) => Err(to_python(error)),
        (None, Err(_)) => Err(PyRuntimeError::new_err("internal error: a kernel panicked")),
    }
}

/// The exception for an error of the core.
pub fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    match error {
        Error::OutOfMemory { .. } => PyMemoryError::new_err(text),
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        Error::InvalidArgument(_) => PyValueError::new_err(text),
        Error::Internal(_) => PyRuntimeError::new_err(text),
    }
}

/// Calls a function generic over the number type, by dtype name.
#[macro_export]
macro_rules! by_dtype {
    ($dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            "float32" => $function::<f32>($($argument),*),
            "float64" => $function::<f64>($($argument),*),
            "complex64" => $function::<householder::number::c32>($($argument),*),
            "complex128" => $function::<householder::number::c64>($($argument),*),
            other => Err(pyo3::exceptions::PyTypeError::new_err(format!(
                "dtype: expected float32, float64, complex64 or complex128, got {other}"
            ))),
        }
    };
}
