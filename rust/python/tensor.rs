//! torch's tensors, read where they are: by DLPack's table of C functions where torch has one (2.10 and later), which
//! takes a hundredth of the time, by their Python attributes elsewhere.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi::PyType_IsSubtype;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyTuple, PyType};

use crate::operand::{Operand, Vectors, size};

/// A tensor's memory and what of its shape a problem consists of.
pub struct Tensor<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    data: *mut c_void,
    pub dtype: &'static str,
    /// Its last three sizes, 1 where there is none.
    pub last: [usize; 3],
    /// By how many numbers the memory of neighbours along them is apart.
    strides: [i64; 3],
    pub dims: usize,
    pub len: usize,
    is_cpu: bool,
    is_contiguous: bool,
}

impl<'a, 'py> Tensor<'a, 'py> {
    /// Reads a tensor's header; wrappers, which have none, are an error.
    pub fn read(object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let torch = TORCH.get(py).ok_or_else(|| PyRuntimeError::new_err("torch's types are not known"))?;
        // SAFETY: both are types.
        if unsafe { PyType_IsSubtype(object.get_type_ptr(), torch.types[0].as_ptr().cast()) } == 0 {
            return Err(PyTypeError::new_err(format!("expected a tensor, got {}", object.get_type())));
        }
        torch.exchange.map_or_else(|| Self::of_attributes(object), |exchange| Self::by_exchange(exchange, object))
    }

    fn by_exchange(exchange: Exchange, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let mut header = std::mem::MaybeUninit::<DlTensor>::uninit();
        // SAFETY: a tensor, and room for its header.
        if unsafe { exchange(object.as_ptr().cast(), header.as_mut_ptr()) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: just filled; its shape and strides live as long as the tensor does unchanged.
        unsafe {
            let header = header.assume_init();
            let array = |x: *const i64| {
                if header.dims == 0 { &[] } else { std::slice::from_raw_parts(x, header.dims as usize) }
            };
            let (shape, strides) = (array(header.shape), array(header.strides));
            let dtype = match (header.dtype.code, header.dtype.bits, header.dtype.lanes) {
                (2, 32, 1) => "float32",
                (2, 64, 1) => "float64",
                (5, 64, 1) => "complex64",
                (5, 128, 1) => "complex128",
                (0, 64, 1) => "int64",
                _ => "another type",
            };
            let data = header.data.wrapping_byte_add(header.byte_offset as usize);
            Ok(Self::new(object, data, dtype, shape, strides, header.device == CPU))
        }
    }

    fn of_attributes(object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let dtype = match object.getattr(intern!(py, "dtype"))?.str()?.to_str()? {
            "torch.float32" => "float32",
            "torch.float64" => "float64",
            "torch.complex64" => "complex64",
            "torch.complex128" => "complex128",
            "torch.int64" => "int64",
            _ => "another type",
        };
        let data: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let shape: Vec<i64> = object.getattr(intern!(py, "shape"))?.extract()?;
        let strides: Vec<i64> = object.call_method0(intern!(py, "stride"))?.extract()?;
        let is_cpu = object.getattr(intern!(py, "is_cpu"))?.extract()?;
        Ok(Self::new(object, data as *mut c_void, dtype, &shape, &strides, is_cpu))
    }

    fn new(
        object: &'a Bound<'py, PyAny>,
        data: *mut c_void,
        dtype: &'static str,
        shape: &[i64],
        strides: &[i64],
        is_cpu: bool,
    ) -> Self {
        let last = |of: &[i64]| [3, 2, 1].map(|k| of.len().checked_sub(k).map_or(1, |i| of[i]));
        Self {
            object,
            data,
            dtype,
            last: last(shape).map(|size| size as usize),
            strides: last(strides),
            dims: shape.len(),
            len: shape.iter().map(|&size| size as usize).product(),
            is_cpu,
            is_contiguous: is_contiguous(shape, strides),
        }
    }

    /// As an operand of the core: `len` contiguous numbers of this type on the CPU.
    pub fn operand(&self, name: &str, dtype: &str, len: usize) -> PyResult<Operand<'static>> {
        self.require(name, dtype, len)?;
        if !self.is_contiguous {
            return Err(self.refusal(name, len)?);
        }
        Ok(Operand::Address(self.data as usize))
    }

    fn require(&self, name: &str, dtype: &str, len: usize) -> PyResult<()> {
        if self.dtype != dtype {
            return Err(PyRuntimeError::new_err(format!(
                "{name} is {}, expected torch.{dtype}: convert modules before the forward or after the backward pass",
                self.object.getattr(intern!(self.object.py(), "dtype"))?
            )));
        }
        if self.len != len || !self.is_cpu || !self.has_memory() {
            return Err(self.refusal(name, len)?);
        }
        Ok(())
    }

    fn refusal(&self, name: &str, len: usize) -> PyResult<PyErr> {
        let given = self.describe()?;
        Ok(PyValueError::new_err(format!("{name}: expected {len} contiguous numbers on the CPU, got {given}")))
    }

    /// As an operand of as many arrays of this shape as `stack` says: their number, and the number of axes that tell them.
    pub fn shaped(
        &self,
        name: &str,
        dtype: &str,
        stack: (usize, usize),
        shape: &[usize],
    ) -> PyResult<Operand<'static>> {
        let len = self.require_shape(name, stack, shape)?;
        self.operand(name, dtype, len)
    }

    fn require_shape(&self, name: &str, (count, axes): (usize, usize), shape: &[usize]) -> PyResult<usize> {
        let len = size(&[&[count], shape].concat())?;
        if self.dims == axes + shape.len() && self.last[3 - shape.len()..] == *shape && self.len == len {
            return Ok(len);
        }
        let lead = if axes == 0 { "" } else { "(.., ) + " };
        Err(PyValueError::new_err(format!("{name}: expected shape {lead}{shape:?}, got {}", self.describe()?)))
    }

    /// As vectors of this shape: rows or, one batch `(steps, batch, width)`, at even distances.
    pub fn vectors(
        &self,
        name: &str,
        dtype: &str,
        stack: (usize, usize),
        shape: &[usize],
    ) -> PyResult<Vectors<'static>> {
        let len = self.require_shape(name, stack, shape)?;
        let [step, sequence, one] = self.strides;
        if self.is_contiguous || self.dims != 3 || shape.len() != 3 || one != 1 {
            return self.operand(name, dtype, len).map(Vectors::Rows);
        }
        self.require(name, dtype, len)?;
        Ok(Vectors::Strided(self.data as usize, step as usize, sequence as usize))
    }

    /// Numbers of sequences that take part in each step.
    pub fn batch_sizes(&self) -> PyResult<&'a [i64]> {
        self.operand("batch_sizes", "int64", self.len)?;
        // SAFETY: as many numbers of this type; the tensor lives as long as the reference to it does.
        Ok(if self.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), self.len) } })
    }

    /// Refuses a `u` of another type than `h`.
    pub fn require_type_of(&self, h: &Self) -> PyResult<()> {
        if self.dtype == h.dtype {
            return Ok(());
        }
        Err(PyTypeError::new_err(format!(
            "expected u and h of one type, got u {} and h {}",
            self.describe()?,
            h.describe()?
        )))
    }

    /// Whether there is memory for its numbers; lazy zeros have none.
    fn has_memory(&self) -> bool {
        !self.data.is_null() || self.len == 0
    }

    fn describe(&self) -> PyResult<String> {
        let [dtype, shape, device] = ["dtype", "shape", "device"].map(|name| self.object.getattr(name));
        let strides = self.object.call_method0("stride")?;
        Ok(format!("{} {} with strides {strides} on {}", dtype?, shape?, device?))
    }
}

/// Remembers torch's types of ordinary tensors, the general one first, and how they are read.
#[pyfunction]
pub fn share_tensor_types(tensor: Bound<'_, PyType>, parameter: Bound<'_, PyType>) {
    let capsule = tensor.getattr(intern!(tensor.py(), "__dlpack_c_exchange_api__")).ok();
    let exchange = capsule.and_then(|capsule| exchange_of(capsule.cast::<PyCapsule>().ok()?));
    let _ = TORCH.set(tensor.py(), Torch { types: [tensor.unbind(), parameter.unbind()], exchange });
}

/// Whether all are ordinary tensors in memory of the CPU that say what they hold: no wrapper, no subclass with a will of its
/// own, no lazy negation, no complex numbers, which may be conjugated lazily. What is None is passed over.
#[pyfunction]
#[pyo3(signature = (*tensors))]
pub fn are_plain(tensors: &Bound<'_, PyTuple>) -> bool {
    tensors.iter_borrowed().all(|tensor| tensor.is_none() || plain(&tensor).is_some())
}

/// Whether `W h` of these is an ordinary call about which nothing is left to check: plain `u (n, m)` and `h (.., n)` of one
/// type.
#[pyfunction]
pub fn is_plain_application(u: &Bound<'_, PyAny>, h: &Bound<'_, PyAny>) -> bool {
    let (Some(u), Some(h)) = (plain(u), plain(h)) else { return false };
    let is_real = matches!(u.dtype, "float32" | "float64");
    is_real && u.dtype == h.dtype && u.dims == 2 && sizes(&u, &h).is_some()
}

/// A tensor about which there is nothing to check but its shape, as [`are_plain`] tells.
pub fn plain<'a, 'py>(tensor: &'a Bound<'py, PyAny>) -> Option<Tensor<'a, 'py>> {
    let py = tensor.py();
    let kind = tensor.get_type_ptr();
    if !TORCH.get(py)?.types.iter().any(|known| known.as_ptr().cast() == kind) {
        return None;
    }
    let read = Tensor::read(tensor).ok()?;
    let is_complex = matches!(read.dtype, "complex64" | "complex128");
    let is_negated = || tensor.call_method0(intern!(py, "is_neg")).and_then(|x| x.extract()).unwrap_or(true);
    (read.is_cpu && !is_complex && read.has_memory() && !is_negated()).then_some(read)
}

/// `count`, `n`, `m` and `rows` of `u (.., n, m)` and `h (.., n)`.
pub fn problem(u: &Tensor<'_, '_>, h: &Tensor<'_, '_>) -> PyResult<[usize; 4]> {
    match sizes(u, h) {
        Some(sizes) => Ok(sizes),
        None => Err(PyValueError::new_err(format!(
            "expected u (.., n, m) with 1 <= m <= n and h (.., n), got u {} and h {}",
            u.describe()?,
            h.describe()?
        ))),
    }
}

fn sizes(u: &Tensor<'_, '_>, h: &Tensor<'_, '_>) -> Option<[usize; 4]> {
    let [_, n, m] = u.last;
    let count = u.len.checked_div(n * m)?;
    let rows = h.len.checked_div(count * n).unwrap_or(0);
    let fits = u.dims >= 2 && m <= n && h.dims > 0 && h.last[2] == n && count * rows * n == h.len;
    fits.then_some([count, n, m, rows])
}

struct Torch {
    types: [Py<PyType>; 2],
    exchange: Option<Exchange>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// Fills the header of a tensor, whose reference remains the caller's; not 0 where an exception is set.
type Exchange = unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int;

/// The function, of a table whose layout is known.
fn exchange_of(capsule: &Bound<'_, PyCapsule>) -> Option<Exchange> {
    let mut table =
        capsule.pointer_checked(Some(c"dlpack_exchange_api")).ok()?.cast::<ExchangeTable>().as_ptr().cast_const();
    // SAFETY: tables live as long as the process; all begin with version and predecessor, those of version 1 are as below.
    unsafe {
        while !table.is_null() && (*table).version[0] != 1 {
            table = (*table).previous;
        }
        if table.is_null() { None } else { (*table).tensor_from_object }
    }
}

/// DLPack's `DLPackExchangeAPI`.
#[repr(C)]
struct ExchangeTable {
    version: [u32; 2],
    previous: *const ExchangeTable,
    others: [*const c_void; 3],
    tensor_from_object: Option<Exchange>,
}

/// DLPack's `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    dims: i32,
    dtype: DlDataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// DLPack's device of ordinary memory.
const CPU: [i32; 2] = [1, 0];

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
}
