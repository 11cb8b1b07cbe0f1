//! NumPy arrays and torch's tensors, read in place: one header for both, checked once.
//!
//! torch's headers come from DLPack's table of C functions, which takes a hundredth of the time that Python attributes take.
//! Only ordinary tensors are read: wrappers, subclasses, lazily negated or conjugated tensors and those of other devices are
//! [`Refusal::Foreign`], and the caller takes torch's dispatcher.

use std::ffi::{c_int, c_void};
use std::ops::Deref;

use householder_binding::array::{AnyArray, Header, Origin, Work};
use householder_binding::dtype::DType;
use householder_binding::refusal::{Reading, Refusal};
use numpy::npyffi::flags::{NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_WRITEABLE};
use numpy::npyffi::{NPY_TYPES, PyArrayObject};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyImportError;
use pyo3::ffi::PyType_IsSubtype;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyType};

use crate::call::{self, raised};

/// An array or a tensor, and its header.
pub struct Array<'a, 'py> {
    object: &'a Bound<'py, PyAny>,
    header: Header,
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
        let (dtype, bytes) = (of_numpy(&descriptor), descriptor.itemsize());
        let fields: *mut PyArrayObject = array.as_array_ptr();
        // SAFETY: a live NumPy array; its fields are read under the interpreter lock.
        let (flags, data) = unsafe { ((*fields).fields.flags, (*fields).fields.data.cast()) };
        let whole = |of: &[usize]| of.iter().map(|&size| size as i64).collect::<Vec<_>>();
        let strides: Vec<i64> = array.strides().iter().map(|&stride| stride as i64 / bytes.max(1) as i64).collect();
        let mut header = Header::new(data, dtype, &whole(array.shape()), &strides);
        header.is_contiguous = flags & NPY_ARRAY_C_CONTIGUOUS != 0;
        header.is_writable = flags & NPY_ARRAY_WRITEABLE != 0;
        header.origin = Origin::NumPy;
        Self { object, header }
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
            let DlDataType { code, bits, lanes } = header.dtype;
            let dtype = find(|names| lanes == 1 && names.2 == (code, bits));
            let data = header.data.wrapping_byte_add(header.byte_offset as usize);
            Ok((Self { object, header: Header::new(data, dtype, shape, strides) }, header.device == CPU))
        }
    }
}

impl Deref for Array<'_, '_> {
    type Target = Header;
    fn deref(&self) -> &Header {
        &self.header
    }
}

impl AnyArray for Array<'_, '_> {
    fn describe(&self) -> Reading<String> {
        let [dtype, shape] = ["dtype", "shape"].map(|name| self.object.getattr(name).map_err(raised));
        let strides = self.object.call_method0("stride").or_else(|_| self.object.getattr("strides"));
        Ok(format!("{} {} with strides {}", dtype?, shape?, strides.map_err(raised)?))
    }

    fn type_name(&self) -> Reading<String> {
        Ok(self.object.getattr("dtype").map_err(raised)?.to_string())
    }

    fn run(&self, work: &mut Work<'_>) -> Reading<()> {
        call::run(self.object.py(), work)
    }
}

/// A type, and what NumPy and DLPack (code and bits) call it.
type Names = (DType, NPY_TYPES, (u8, u8));

const TABLE: [Names; 7] = [
    (DType::Float32, NPY_TYPES::NPY_FLOAT, (2, 32)),
    (DType::Float64, NPY_TYPES::NPY_DOUBLE, (2, 64)),
    (DType::BFloat16, NPY_TYPES::NPY_NOTYPE, (4, 16)), // NumPy has no name for it
    (DType::Float16, NPY_TYPES::NPY_HALF, (2, 16)),
    (DType::Complex64, NPY_TYPES::NPY_CFLOAT, (5, 64)),
    (DType::Complex128, NPY_TYPES::NPY_CDOUBLE, (5, 128)),
    (DType::Int64, NPY_TYPES::NPY_LONGLONG, (0, 64)),
];

fn find(is: impl Fn(&Names) -> bool) -> DType {
    TABLE.iter().find(|names| is(names)).map_or(DType::Other, |names| names.0)
}

fn of_numpy(descriptor: &Bound<'_, PyArrayDescr>) -> DType {
    if descriptor.byteorder() == b'>' {
        return DType::Other;
    }
    // Integers of 64 bits have two numbers in NumPy.
    let is_int64 = descriptor.kind() == b'i' && descriptor.itemsize() == 8;
    let number = if is_int64 { NPY_TYPES::NPY_LONGLONG as i32 } else { descriptor.num() };
    find(|names| names.1 as i32 == number)
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
