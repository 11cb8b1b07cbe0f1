//! NumPy arrays and torch's tensors, read in place: one header for both, checked once.
//!
//! torch's headers come from DLPack's table of C functions, which takes a hundredth of the time that Python attributes take.
//! Only ordinary tensors are read: wrappers, subclasses, lazily negated or conjugated tensors and those of other devices are
//! [`Refusal::Foreign`], and the caller takes torch's dispatcher.

use std::ffi::{c_int, c_void};

use householder::advise_huge_pages;
use householder::stored::{Numbers, NumbersMut, Tokens};
use numpy::npyffi::PyArrayObject;
use numpy::npyffi::flags::{NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::ffi::PyType_IsSubtype;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyType};

use crate::call::{Reading, Refusal};
use crate::dtype::{DType, Number};

/// An array's memory and the part of its shape that describes a problem.
pub struct Array<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    data: *mut c_void,
    pub dtype: DType,
    /// Its last three sizes, 1 where there is none.
    pub last: [usize; 3],
    /// The sizes of its last four axes and their strides, in numbers.
    axes: [(usize, i64); 4],
    pub dims: usize,
    pub len: usize,
    is_tensor: bool,
    /// Numbers from the first to the last in memory.
    reach: usize,
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
        Err(Refusal::Type(format!("expected a NumPy array or a tensor, got {}", object.get_type())))
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
        let (dtype, bytes) = (DType::of_numpy(&descriptor), descriptor.itemsize());
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
        let (array, is_on_cpu) = Self::by_exchange(torch.exchange, object)?;
        let is_lazy = |asks| object.call_method0(asks).and_then(|answer| answer.is_truthy()).unwrap_or(true);
        let (is_neg, is_conj) = (intern!(object.py(), "is_neg"), intern!(object.py(), "is_conj"));
        let has_memory = !array.data.is_null() || array.len == 0; // zeros that autograd makes up have none
        if !is_on_cpu || !has_memory || is_lazy(is_neg) || array.dtype.is_complex() && is_lazy(is_conj) {
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
            let dtype = DType::of_dlpack(header.dtype.code, header.dtype.bits, header.dtype.lanes);
            let data = header.data.wrapping_byte_add(header.byte_offset as usize);
            Ok((Self::new(object, data, dtype, shape, strides), header.device == CPU))
        }
    }

    fn new(object: &'a Bound<'py, PyAny>, data: *mut c_void, dtype: DType, shape: &[i64], strides: &[i64]) -> Self {
        let axes = [4, 3, 2, 1].map(|k| shape.len().checked_sub(k).map_or((1, 1), |i| (shape[i] as usize, strides[i])));
        let ends =
            shape.iter().zip(strides).map(|(&size, &stride)| ((size.max(1) - 1) * stride).unsigned_abs() as usize);
        Self {
            object,
            data,
            dtype,
            last: [1, 2, 3].map(|i: usize| axes[i].0),
            axes,
            dims: shape.len(),
            len: shape.iter().map(|&size| size as usize).product(),
            reach: 1 + ends.sum::<usize>(),
            is_tensor: true,
            is_contiguous: is_contiguous(shape, strides),
            is_writable: true,
        }
    }

    /// `len` numbers. They must stay valid and unmoved for the call, which holds a reference to the array.
    pub fn slice<T: Number>(&self, name: &str, len: usize) -> Reading<&'static [T]> {
        self.require(name, T::DTYPE, len)?;
        self.require_layout(name, self.is_contiguous && self.is_aligned::<T>())?;
        // SAFETY: as many numbers of this type, aligned.
        Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), len) } })
    }

    /// `len` numbers to be overwritten.
    pub fn slice_mut<T: Number>(&self, name: &str, len: usize) -> Reading<&'static mut [T]> {
        self.require(name, T::DTYPE, len)?;
        self.require_layout(name, self.is_contiguous && self.is_aligned::<T>())?;
        self.overwritten(name)
    }

    /// The vectors `(steps, batch, width)` at fixed strides: the memory that they span and the strides of steps and
    /// sequences. `span` gives its length from the strides. None where the vectors are contiguous rows.
    pub fn strided<T: Number>(
        &self,
        name: &str,
        len: usize,
        span: impl FnOnce([usize; 2]) -> usize,
    ) -> Reading<Option<(&'static [T], [usize; 2])>> {
        let [_, (_, step), (_, sequence), (_, one)] = self.axes;
        if self.is_contiguous || self.dims != 3 || one != 1 || step < 0 || sequence < 0 {
            return Ok(None);
        }
        self.require(name, T::DTYPE, len)?;
        self.require_layout(name, self.is_aligned::<T>())?;
        let strides = [step as usize, sequence as usize];
        let span = if len == 0 { 0 } else { span(strides) };
        // SAFETY: all of it lies between the first and the last number of the array.
        Ok(Some((if span == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), span) } }, strides)))
    }

    /// Rows `(batch, tokens, heads, width)` of contiguous numbers, which may have 16 bits. One head may have no axis.
    pub fn tokens<T: Number>(&self, name: &str, len: usize) -> Reading<Tokens<'static, T>> {
        self.require_kind::<T>(name, len)?;
        let axes = match self.dims {
            3 => [self.axes[1], self.axes[2], (1, 0), self.axes[3]],
            _ => self.axes,
        };
        let (sizes, strides) =
            (axes.map(|(size, _)| size), axes.map(|(size, stride)| if size > 1 { stride } else { 0 }));
        let is_row = sizes[3] <= 1 || strides[3] == 1;
        let fits = matches!(self.dims, 3 | 4) && is_row && strides.iter().all(|&stride| stride >= 0);
        self.require_layout(name, (self.is_contiguous || fits) && self.is_aligned_as::<T>())?;
        let numbers = match self.dtype {
            DType::BFloat16 => Numbers::BFloat16(self.reached()),
            DType::Float16 => Numbers::Float16(self.reached()),
            _ => Numbers::Full(self.reached()),
        };
        if self.is_contiguous {
            return Ok(numbers.into());
        }
        Ok(Tokens::strided(numbers, sizes, [0, 1, 2].map(|i: usize| strides[i] as usize))?)
    }

    /// Contiguous numbers to be overwritten, which may have 16 bits.
    pub fn numbers_mut<T: Number>(&self, name: &str, len: usize) -> Reading<NumbersMut<'static, T>> {
        self.require_kind::<T>(name, len)?;
        self.require_layout(name, self.is_contiguous && self.is_aligned_as::<T>())?;
        Ok(match self.dtype {
            DType::BFloat16 => NumbersMut::BFloat16(self.overwritten(name)?),
            DType::Float16 => NumbersMut::Float16(self.overwritten(name)?),
            _ => NumbersMut::Full(self.overwritten(name)?),
        })
    }

    /// All from the first to the last number, whose type and alignment have been checked.
    fn reached<E>(&self) -> &'static [E] {
        // SAFETY: the array's own memory, with strides that are not negative.
        if self.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), self.reach) } }
    }

    /// All numbers of a contiguous array, whose type and alignment have been checked.
    fn overwritten<E>(&self, name: &str) -> Reading<&'static mut [E]> {
        if !self.is_writable {
            return Err(Refusal::invalid(format!("{name}: the array is read-only")));
        }
        let (data, len) = (self.data.cast(), self.len);
        // SAFETY: as many numbers; outputs are distinct arrays that nobody else uses during the call.
        let numbers = if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, len) } };
        advise_huge_pages(numbers);
        Ok(numbers)
    }

    /// Requires `len` numbers of a type, or of 16 bits in place of `f32`.
    fn require_kind<T: Number>(&self, name: &str, len: usize) -> Reading<()> {
        let is_half = T::DTYPE == DType::Float32 && self.dtype.is_half();
        self.require(name, if is_half { self.dtype } else { T::DTYPE }, len)
    }

    fn is_aligned_as<T>(&self) -> bool {
        if self.dtype.is_half() { self.is_aligned::<u16>() } else { self.is_aligned::<T>() }
    }

    /// Numbers of sequences that take part in each step.
    pub fn batch_sizes(&self) -> Reading<&'static [i64]> {
        if self.dtype != DType::Int64 || self.dims != 1 || !self.is_contiguous {
            let given = self.describe()?;
            return Err(Refusal::Type(format!("batch_sizes: expected int64 numbers along one axis, got {given}")));
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
        Err(Refusal::invalid(format!("{name}: expected shape {lead}{shape:?}, got {}", self.describe()?)))
    }

    fn require(&self, name: &str, dtype: DType, len: usize) -> Reading<()> {
        if self.dtype != dtype {
            let given = self.object.getattr(intern!(self.object.py(), "dtype"))?;
            if self.is_tensor {
                let remedy = "convert modules before the forward or after the backward pass";
                let text = format!("{name} is {given}, expected torch.{dtype}: {remedy}");
                return Err(PyRuntimeError::new_err(text).into());
            }
            return Err(Refusal::Type(format!("{name}: expected a native {dtype} array, got {given}")));
        }
        if self.len == len { Ok(()) } else { Err(self.refusal(name, len)?) }
    }

    /// Requires a layout that the core reads. The dispatcher lays out tensors.
    fn require_layout(&self, name: &str, fits: bool) -> Reading<()> {
        match (fits, self.is_tensor) {
            (true, _) => Ok(()),
            (false, true) => Err(Refusal::Foreign),
            (false, false) => Err(self.refusal(name, self.len)?),
        }
    }

    /// The addresses of its numbers, and of what lies between them.
    pub fn memory(&self) -> std::ops::Range<usize> {
        let begin = self.data as usize;
        begin..begin.saturating_add(if self.len == 0 { 0 } else { self.reach.saturating_mul(self.dtype.bytes()) })
    }

    fn is_aligned<T>(&self) -> bool {
        self.len == 0 || self.data.cast::<T>().is_aligned() // NumPy calls an empty array aligned, wherever it lies
    }

    fn refusal(&self, name: &str, len: usize) -> PyResult<Refusal> {
        let given = self.describe()?;
        Ok(Refusal::invalid(format!("{name}: expected {len} contiguous, aligned numbers, got {given}")))
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

/// Remembers torch's types of ordinary tensors, the general one first, and how they are read.
#[pyfunction]
pub fn share_tensor_types(tensor: Bound<'_, PyType>, parameter: Bound<'_, PyType>) -> PyResult<()> {
    let capsule = tensor.getattr(intern!(tensor.py(), "__dlpack_c_exchange_api__")).ok();
    let exchange = capsule.and_then(|capsule| exchange_of(capsule.cast::<PyCapsule>().ok()?));
    let exchange = exchange.ok_or_else(|| PyImportError::new_err("householder.torch needs torch 2.10 or later"))?;
    let _ = TORCH.set(tensor.py(), Torch { types: [tensor.unbind(), parameter.unbind()], exchange });
    Ok(())
}

struct Torch {
    types: [Py<PyType>; 2],
    exchange: Exchange,
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

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
}

/// `a * b * ..`, refused where it leaves the address space.
pub fn size(factors: &[usize]) -> Reading<usize> {
    let product = factors.iter().try_fold(1_usize, |product, &x| product.checked_mul(x));
    let size = product.filter(|&x| isize::try_from(x).is_ok());
    size.ok_or_else(|| Refusal::invalid("an array of that size cannot exist"))
}
