//! NumPy arrays and torch's tensors, read in place: one header for both, checked once.
//!
//! torch's headers come from DLPack's table of C functions where torch has one (2.10 and later), which takes a hundredth of
//! the time, and from Python attributes elsewhere. Only ordinary tensors are read: wrappers, subclasses, lazily negated or
//! conjugated tensors and those of other devices are [`Refusal::Foreign`], and the caller takes torch's dispatcher.

use std::ffi::{c_int, c_void};

use householder::advise_huge_pages;
use householder::many::StackMut;
use householder::number::{c32, c64};
use householder::scalar::Scalar;
use numpy::npyffi::flags::{NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::npyffi::{NPY_TYPES, PyArrayObject};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi::PyType_IsSubtype;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyType};

use crate::xla::c_api;

/// Why arguments were not read.
pub enum Refusal {
    /// They are for torch's dispatcher to handle.
    Foreign,
    Wrong(PyErr),
}

pub type Reading<T> = Result<T, Refusal>;

impl From<PyErr> for Refusal {
    fn from(error: PyErr) -> Self {
        Self::Wrong(error)
    }
}

/// A number type with a name and the numbers that NumPy and XLA have for it.
pub trait Number: Scalar {
    const TYPE: NPY_TYPES;
    const XLA: c_int;
    const NAME: &'static str;
}

macro_rules! number {
    ($t:ty, $npy:ident, $xla:ident, $name:literal) => {
        impl Number for $t {
            const TYPE: NPY_TYPES = NPY_TYPES::$npy;
            const XLA: c_int = c_api::$xla;
            const NAME: &'static str = $name;
        }
    };
}
number!(f32, NPY_FLOAT, F32, "float32");
number!(f64, NPY_DOUBLE, F64, "float64");
number!(c32, NPY_CFLOAT, C64, "complex64");
number!(c64, NPY_CDOUBLE, C128, "complex128");

/// An array's memory and the part of its shape that describes a problem.
pub struct Array<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    data: *mut c_void,
    pub dtype: &'static str,
    /// Its last three sizes, 1 where there is none.
    pub last: [usize; 3],
    /// The strides of these three axes, in numbers.
    strides: [i64; 3],
    pub dims: usize,
    pub len: usize,
    is_tensor: bool,
    is_contiguous: bool,
    is_writable: bool,
}

impl<'a, 'py> Array<'a, 'py> {
    /// Reads the header of a NumPy array or of an ordinary tensor.
    pub fn read(object: &'a Bound<'py, PyAny>) -> Reading<Self> {
        let kind = object.get_type_ptr();
        let torch = TORCH.get(object.py());
        if let Some(torch) = torch.filter(|torch| torch.types.iter().any(|known| known.as_ptr().cast() == kind)) {
            return Self::of_tensor(torch, object);
        }
        if let Ok(array) = object.cast::<PyUntypedArray>() {
            return Ok(Self::of_numpy(object, array));
        }
        // SAFETY: both are types.
        if torch.is_some_and(|torch| unsafe { PyType_IsSubtype(kind, torch.types[0].as_ptr().cast()) } != 0) {
            return Err(Refusal::Foreign);
        }
        let text = format!("expected a NumPy array or a tensor, got {}", object.get_type());
        Err(PyTypeError::new_err(text).into())
    }

    /// Reads an argument that may be None.
    pub fn optional(object: Option<&'a Bound<'py, PyAny>>) -> Reading<Option<Self>> {
        object.filter(|object| !object.is_none()).map(Self::read).transpose()
    }

    /// Reads several of them.
    pub fn each<const N: usize>(objects: &'a [Option<Bound<'py, PyAny>>; N]) -> Reading<[Option<Self>; N]> {
        let mut found = [const { None }; N];
        for (found, object) in found.iter_mut().zip(objects) {
            *found = Self::optional(object.as_ref())?;
        }
        Ok(found)
    }

    fn of_numpy(object: &'a Bound<'py, PyAny>, array: &Bound<'py, PyUntypedArray>) -> Self {
        let descriptor = array.dtype();
        let (kind, bytes) = (descriptor.num(), descriptor.itemsize());
        let dtype = match kind {
            _ if descriptor.byteorder() == b'>' => OTHER,
            _ if kind == f32::TYPE as i32 => f32::NAME,
            _ if kind == f64::TYPE as i32 => f64::NAME,
            _ if kind == c32::TYPE as i32 => c32::NAME,
            _ if kind == c64::TYPE as i32 => c64::NAME,
            _ if descriptor.kind() == b'i' && bytes == size_of::<i64>() => "int64",
            _ => OTHER,
        };
        let header: *mut PyArrayObject = array.as_array_ptr();
        // SAFETY: a live NumPy array; its header is read under the interpreter lock.
        let (flags, data) = unsafe { ((*header).fields.flags, (*header).fields.data.cast()) };
        let whole = |of: &[usize]| of.iter().map(|&size| size as i64).collect::<Vec<_>>();
        let strides: Vec<i64> = array.strides().iter().map(|&stride| stride as i64 / bytes.max(1) as i64).collect();
        Self {
            is_contiguous: flags & NPY_ARRAY_C_CONTIGUOUS != 0,
            is_writable: flags & NPY_ARRAY_WRITEABLE != 0,
            is_tensor: false,
            ..Self::new(object, data, dtype, &whole(array.shape()), &strides)
        }
    }

    fn of_tensor(torch: &Torch, object: &'a Bound<'py, PyAny>) -> Reading<Self> {
        let (array, is_on_cpu) = match torch.exchange {
            Some(exchange) => Self::by_exchange(exchange, object)?,
            None => Self::of_attributes(object)?,
        };
        let is_lazy = |asks| object.call_method0(asks).and_then(|answer| answer.is_truthy()).unwrap_or(true);
        let (is_neg, is_conj) = (intern!(object.py(), "is_neg"), intern!(object.py(), "is_conj"));
        let has_memory = !array.data.is_null() || array.len == 0; // zeros that autograd makes up have none
        let is_complex = matches!(array.dtype, "complex64" | "complex128");
        if !is_on_cpu || !has_memory || is_lazy(is_neg) || is_complex && is_lazy(is_conj) {
            return Err(Refusal::Foreign);
        }
        Ok(array)
    }

    fn by_exchange(exchange: Exchange, object: &'a Bound<'py, PyAny>) -> Reading<(Self, bool)> {
        let mut header = std::mem::MaybeUninit::<DlTensor>::uninit();
        // SAFETY: a tensor, and memory for its header.
        if unsafe { exchange(object.as_ptr().cast(), header.as_mut_ptr()) } != 0 {
            drop(PyErr::take(object.py())); // sparse ones and others without strides
            return Err(Refusal::Foreign);
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
                _ => OTHER,
            };
            let data = header.data.wrapping_byte_add(header.byte_offset as usize);
            Ok((Self::new(object, data, dtype, shape, strides), header.device == CPU))
        }
    }

    fn of_attributes(object: &'a Bound<'py, PyAny>) -> Reading<(Self, bool)> {
        let py = object.py();
        let is_on_cpu = object.getattr(intern!(py, "is_cpu"))?.is_truthy()?;
        let is_strided = object.getattr(intern!(py, "layout"))?.str()? == "torch.strided";
        if !is_on_cpu || !is_strided {
            return Err(Refusal::Foreign);
        }
        let dtype = match object.getattr(intern!(py, "dtype"))?.str()?.to_str()? {
            "torch.float32" => "float32",
            "torch.float64" => "float64",
            "torch.complex64" => "complex64",
            "torch.complex128" => "complex128",
            "torch.int64" => "int64",
            _ => OTHER,
        };
        let data: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let shape: Vec<i64> = object.getattr(intern!(py, "shape"))?.extract()?;
        let strides: Vec<i64> = object.call_method0(intern!(py, "stride"))?.extract()?;
        Ok((Self::new(object, data as *mut c_void, dtype, &shape, &strides), is_on_cpu))
    }

    fn new(
        object: &'a Bound<'py, PyAny>,
        data: *mut c_void,
        dtype: &'static str,
        shape: &[i64],
        strides: &[i64],
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
            is_tensor: true,
            is_contiguous: is_contiguous(shape, strides),
            is_writable: true,
        }
    }

    /// `len` numbers. They must stay valid and unmoved for the call, which holds a reference to the array.
    pub fn slice<T: Number>(&self, name: &str, len: usize) -> Reading<&'static [T]> {
        self.require(name, T::NAME, len)?;
        self.require_layout(name, self.is_contiguous && self.is_aligned::<T>())?;
        // SAFETY: as many numbers of this type, aligned.
        Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), len) } })
    }

    /// `len` numbers to be overwritten.
    pub fn slice_mut<T: Number>(&self, name: &str, len: usize) -> Reading<&'static mut [T]> {
        self.require(name, T::NAME, len)?;
        self.require_layout(name, self.is_contiguous && self.is_aligned::<T>())?;
        if !self.is_writable {
            return Err(PyValueError::new_err(format!("{name}: the array is read-only")).into());
        }
        // SAFETY: as above; outputs are distinct arrays that nobody else uses during the call.
        let numbers = if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(self.data.cast(), len) } };
        advise_huge_pages(numbers);
        Ok(numbers)
    }

    /// The vectors `(steps, batch, width)` at fixed strides: the memory that they span and the strides of steps and
    /// sequences. `span` gives its length from the strides. None where the vectors are contiguous rows.
    pub fn strided<T: Number>(
        &self,
        name: &str,
        len: usize,
        span: impl FnOnce([usize; 2]) -> usize,
    ) -> Reading<Option<(&'static [T], [usize; 2])>> {
        let [step, sequence, one] = self.strides;
        if self.is_contiguous || self.dims != 3 || one != 1 || step < 0 || sequence < 0 {
            return Ok(None);
        }
        self.require(name, T::NAME, len)?;
        self.require_layout(name, self.is_aligned::<T>())?;
        let strides = [step as usize, sequence as usize];
        let span = if len == 0 { 0 } else { span(strides) };
        // SAFETY: all of it lies between the first and the last number of the array.
        Ok(Some((if span == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), span) } }, strides)))
    }

    /// Numbers of sequences that take part in each step.
    pub fn batch_sizes(&self) -> Reading<&'static [i64]> {
        if self.dtype != "int64" || self.dims != 1 || !self.is_contiguous {
            let given = self.describe()?;
            let text = format!("batch_sizes: expected int64 numbers along one axis, got {given}");
            return Err(PyTypeError::new_err(text).into());
        }
        // SAFETY: as many numbers of this type.
        Ok(if self.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), self.len) } })
    }

    /// Requires `count` arrays of this shape, which `axes` leading axes enumerate.
    pub fn require_shape(&self, name: &str, (count, axes): (usize, usize), shape: &[usize]) -> Reading<()> {
        let len = size(&[&[count], shape].concat())?;
        if self.dims == axes + shape.len() && self.last[3 - shape.len()..] == *shape && self.len == len {
            return Ok(());
        }
        let lead = if axes == 0 { "" } else { "(.., ) + " };
        let text = format!("{name}: expected shape {lead}{shape:?}, got {}", self.describe()?);
        Err(PyValueError::new_err(text).into())
    }

    fn require(&self, name: &str, dtype: &str, len: usize) -> Reading<()> {
        if self.dtype != dtype {
            let given = self.object.getattr(intern!(self.object.py(), "dtype"))?;
            return Err(if self.is_tensor {
                let remedy = "convert modules before the forward or after the backward pass";
                PyRuntimeError::new_err(format!("{name} is {given}, expected torch.{dtype}: {remedy}"))
            } else {
                PyTypeError::new_err(format!("{name}: expected a native {dtype} array, got {given}"))
            }
            .into());
        }
        if self.len == len { Ok(()) } else { Err(self.refusal(name, len)?.into()) }
    }

    /// Requires a layout that the core reads. The dispatcher lays out tensors.
    fn require_layout(&self, name: &str, fits: bool) -> Reading<()> {
        match (fits, self.is_tensor) {
            (true, _) => Ok(()),
            (false, true) => Err(Refusal::Foreign),
            (false, false) => Err(self.refusal(name, self.len)?.into()),
        }
    }

    /// The addresses of its numbers, and of what lies between them.
    fn memory(&self) -> std::ops::Range<usize> {
        let bytes = match self.dtype {
            "float32" => 4,
            "complex128" => 16,
            _ => 8,
        };
        let ends = self.last.iter().zip(self.strides).map(|(&size, stride)| (size.max(1) - 1) as i64 * stride);
        let reach = if self.is_contiguous { self.len } else { 1 + ends.sum::<i64>().unsigned_abs() as usize };
        let begin = self.data as usize;
        begin..begin.saturating_add(if self.len == 0 { 0 } else { reach.saturating_mul(bytes) })
    }

    fn is_aligned<T>(&self) -> bool {
        self.len == 0 || self.data.cast::<T>().is_aligned() // NumPy calls an empty array aligned, wherever it lies
    }

    fn refusal(&self, name: &str, len: usize) -> PyResult<PyErr> {
        let given = self.describe()?;
        Ok(PyValueError::new_err(format!("{name}: expected {len} contiguous, aligned numbers, got {given}")))
    }

    /// Says what was given, for messages.
    pub fn describe(&self) -> PyResult<String> {
        let [dtype, shape] = ["dtype", "shape"].map(|name| self.object.getattr(name));
        let strides = match self.object.call_method0("stride") {
            Ok(strides) => strides,
            Err(_) => self.object.getattr("strides")?,
        };
        Ok(format!("{} {} with strides {strides}", dtype?, shape?))
    }
}

/// An array of a call and its name.
pub type Named<'b, 'a, 'py> = (&'static str, Option<&'b Array<'a, 'py>>);

/// Requires that each array that is written shares no memory with another one of the call.
pub fn disjoint(read: &[Named<'_, '_, '_>], written: &[Named<'_, '_, '_>]) -> PyResult<()> {
    for (i, &(name, array)) in written.iter().enumerate() {
        let Some(own) = array.map(Array::memory) else { continue };
        for &(other, array) in read.iter().chain(&written[..i]) {
            let meets = |memory: std::ops::Range<usize>| memory.start < own.end && own.start < memory.end;
            if array.is_some_and(|array| meets(array.memory())) {
                let text = format!("{name}: expected memory of its own, got an array that overlaps {other}");
                return Err(PyValueError::new_err(text));
            }
        }
    }
    Ok(())
}

/// An optional input's slice.
pub fn optional<T: Number>(array: Option<&Array<'_, '_>>, name: &str, len: usize) -> Reading<Option<&'static [T]>> {
    array.map(|x| x.slice(name, len)).transpose()
}

/// An optional output's slice.
pub fn optional_mut<T: Number>(
    array: Option<&Array<'_, '_>>,
    name: &str,
    len: usize,
) -> Reading<Option<&'static mut [T]>> {
    array.map(|x| x.slice_mut(name, len)).transpose()
}

/// An optional output of `len` numbers for each of `count` problems.
pub fn outputs<T: Number>(
    array: Option<&Array<'_, '_>>,
    name: &str,
    count: usize,
    len: usize,
) -> Reading<Option<StackMut<'static, T>>> {
    Ok(optional_mut(array, name, size(&[count, len])?)?.map(|array| StackMut::new(array, count)))
}

/// `a * b * ..`, refused where it leaves the address space.
pub fn size(factors: &[usize]) -> PyResult<usize> {
    let product = factors.iter().try_fold(1_usize, |product, &x| product.checked_mul(x));
    product
        .filter(|&x| isize::try_from(x).is_ok())
        .ok_or_else(|| PyValueError::new_err("an array of that size cannot exist"))
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
            ))
            .into()),
        }
    };
}

/// Remembers torch's types of ordinary tensors, the general one first, and how they are read.
#[pyfunction]
pub fn share_tensor_types(tensor: Bound<'_, PyType>, parameter: Bound<'_, PyType>) {
    let capsule = tensor.getattr(intern!(tensor.py(), "__dlpack_c_exchange_api__")).ok();
    let exchange = capsule.and_then(|capsule| exchange_of(capsule.cast::<PyCapsule>().ok()?));
    let _ = TORCH.set(tensor.py(), Torch { types: [tensor.unbind(), parameter.unbind()], exchange });
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

/// DLPack's device for CPU memory.
const CPU: [i32; 2] = [1, 0];

/// The dtype name of arrays that this module does not compute with.
const OTHER: &str = "another type";

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
}
