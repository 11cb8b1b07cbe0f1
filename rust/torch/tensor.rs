//! torch's tensors on the CPU, whose memory the core reads and writes in place.

use std::ffi::c_void;
use std::ptr::null_mut;

use householder::advise_huge_pages;
use householder::stored::{Numbers, NumbersMut, Tokens};

use crate::abi::{Handle, Value, torch};
use crate::call::{Kind, Reading, Refusal};
use crate::dtype::{DType, Number};

/// A tensor that this library owns a reference to.
pub struct Tensor(Handle);

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Ok(torch) = torch() {
            // SAFETY: an owned handle, whose deletion does not fail.
            unsafe { (torch.aoti_torch_delete_tensor_object)(self.0) };
        }
    }
}

impl Tensor {
    /// # Safety
    /// The value is a handle that nobody else owns.
    pub unsafe fn take(value: Value) -> Self {
        Self(value as Handle)
    }

    /// The handle, for the caller of a kernel to own.
    pub fn give(self) -> Value {
        let value = self.0 as Value;
        std::mem::forget(self);
        value
    }

    /// What torch has where there is no tensor.
    pub fn undefined() -> Reading<Self> {
        let (torch, mut handle) = (torch()?, null_mut());
        // SAFETY: a place for the handle.
        torch.done(unsafe { (torch.aoti_torch_new_uninitialized_tensor)(&raw mut handle) })?;
        Ok(Self(handle))
    }

    /// A new one, row after row.
    pub fn empty(shape: &[usize], like: &Self) -> Reading<Self> {
        let (torch, mut number) = (torch()?, 0);
        // SAFETY: an owned handle.
        torch.done(unsafe { (torch.aoti_torch_get_dtype)(like.0, &raw mut number) })?;
        Self::allocated(shape, number)
    }

    /// A new one of this type, row after row.
    pub fn of_type(shape: &[usize], dtype: DType) -> Reading<Self> {
        Self::allocated(shape, dtype.number(torch()?))
    }

    fn allocated(shape: &[usize], dtype: i32) -> Reading<Self> {
        let torch = torch()?;
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let mut strides = vec![1_i64; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(sizes[i].max(1));
        }
        let mut handle = null_mut();
        // SAFETY: both arrays have as many numbers as there are axes.
        unsafe {
            let (cpu, axes) = ((torch.aoti_torch_device_type_cpu)(), shape.len() as i64);
            let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
            torch.done((torch.aoti_torch_empty_strided)(axes, sizes, strides, dtype, cpu, -1, &raw mut handle))?;
        }
        Ok(Self(handle))
    }

    /// A new one of the same shape, row after row.
    pub fn empty_like(&self) -> Reading<Self> {
        Self::empty(&self.shape()?, self)
    }

    /// Whether there is a tensor at all.
    pub fn is_defined(&self) -> bool {
        let mut is_defined = false;
        // SAFETY: an owned handle.
        torch()
            .is_ok_and(|torch| unsafe { (torch.aoti_torch_is_defined)(self.0, &raw mut is_defined) } == 0 && is_defined)
    }

    fn axes(&self) -> Reading<usize> {
        let (torch, mut axes) = (torch()?, 0);
        // SAFETY: an owned handle.
        torch.done(unsafe { (torch.aoti_torch_get_dim)(self.0, &raw mut axes) })?;
        Ok(axes as usize)
    }

    /// The sizes of its axes.
    pub fn shape(&self) -> Reading<Vec<usize>> {
        let (torch, axes, mut sizes) = (torch()?, self.axes()?, null_mut());
        // SAFETY: as many numbers as there are axes, alive with the tensor.
        unsafe {
            torch.done((torch.aoti_torch_get_sizes)(self.0, &raw mut sizes))?;
            Ok((0..axes).map(|i| *sizes.add(i) as usize).collect())
        }
    }

    /// How many numbers it has.
    pub fn len(&self) -> Reading<usize> {
        Ok(self.shape()?.iter().product())
    }

    pub fn dtype(&self) -> Reading<DType> {
        let (torch, mut number) = (torch()?, 0);
        // SAFETY: an owned handle.
        torch.done(unsafe { (torch.aoti_torch_get_dtype)(self.0, &raw mut number) })?;
        Ok(DType::of(torch, number))
    }

    /// The same one, or a copy that lies row after row.
    pub fn laid_out(self) -> Reading<Self> {
        let (torch, mut device, mut is_contiguous) = (torch()?, -1, false);
        // SAFETY: an owned handle.
        unsafe {
            torch.done((torch.aoti_torch_get_device_type)(self.0, &raw mut device))?;
            if device != (torch.aoti_torch_device_type_cpu)() {
                return Err(Refusal::new(Kind::Type, "expected tensors that lie in memory of the CPU"));
            }
            torch.done((torch.aoti_torch_is_contiguous)(self.0, &raw mut is_contiguous))?;
        }
        let data = self.data()?;
        if data.is_null() && self.len()? > 0 {
            let text = format!(
                "a tensor of shape {} has no memory: its storage was freed, as by FSDP after forward",
                tuple(&self.shape()?)
            );
            return Err(Refusal::invalid(text));
        }
        if is_contiguous && (data as usize).is_multiple_of(self.dtype()?.alignment()) {
            return Ok(self);
        }
        let copy = self.empty_like()?;
        // SAFETY: two owned handles, of one shape.
        torch.done(unsafe { (torch.aoti_torch_copy_)(copy.0, self.0, 0) })?;
        Ok(copy)
    }

    /// The same one, or a copy of this type.
    pub fn converted(self, dtype: DType) -> Reading<Self> {
        if self.dtype()? == dtype {
            return Ok(self);
        }
        let copy = Self::of_type(&self.shape()?, dtype)?;
        // SAFETY: two owned handles, of one shape.
        torch()?.done(unsafe { (torch()?.aoti_torch_copy_)(copy.0, self.0, 0) })?;
        Ok(copy)
    }

    fn data(&self) -> Reading<*const c_void> {
        let (torch, mut data) = (torch()?, std::ptr::null());
        // SAFETY: an owned handle.
        torch.done(unsafe { (torch.torch_get_const_data_ptr)(self.0, &raw mut data) })?;
        Ok(data)
    }

    /// Its numbers, `len` of type `T`. It is laid out.
    pub fn numbers<T: Number>(&self, name: &str, len: usize) -> Reading<&[T]> {
        self.require(name, T::DTYPE, len)?;
        let data = self.data()?.cast();
        // SAFETY: as many numbers of this type, aligned, which the tensor keeps alive.
        Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } })
    }

    /// Its rows of numbers, `len` of type `T` or of a half type. It is laid out.
    pub fn tokens<T: Number>(&self, name: &str, len: usize) -> Reading<Tokens<'_, T>> {
        let dtype = self.dtype()?;
        if dtype.computed() == dtype {
            return Ok(self.numbers(name, len)?.into());
        }
        self.require(name, if T::DTYPE == dtype.computed() { dtype } else { T::DTYPE }, len)?;
        let data = self.data()?.cast();
        // SAFETY: as above.
        let bits = if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } };
        Ok(if dtype == DType::BFloat16 { Numbers::BFloat16(bits) } else { Numbers::Float16(bits) }.into())
    }

    /// The numbers of a tensor of integers.
    pub fn integers(&self, name: &str) -> Reading<&[i64]> {
        if self.dtype()? != DType::Int64 || self.axes()? != 1 {
            let given = self.describe()?;
            let text = format!("{name}: expected int64 numbers along one axis, got {given}");
            return Err(Refusal::new(Kind::Type, text));
        }
        let (len, data) = (self.len()?, self.data()?.cast());
        // SAFETY: as above.
        Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } })
    }

    /// The numbers of a new tensor, to be written.
    pub fn numbers_mut<T: Number>(&mut self, len: usize) -> Reading<&mut [T]> {
        self.require("a result", T::DTYPE, len)?;
        let (torch, mut data) = (torch()?, null_mut());
        // SAFETY: an owned handle.
        torch.done(unsafe { (torch.torch_get_mutable_data_ptr)(self.0, &raw mut data) })?;
        // SAFETY: as above; nobody else has a reference to a new tensor.
        let numbers = if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data.cast::<T>(), len) } };
        advise_huge_pages(numbers);
        Ok(numbers)
    }

    /// Those of type `T` or of a half type, of a new tensor, to be written.
    pub fn stored_mut<T: Number>(&mut self) -> Reading<NumbersMut<'_, T>> {
        let (dtype, len) = (self.dtype()?, self.len()?);
        if dtype.computed() == dtype {
            return Ok(NumbersMut::Full(self.numbers_mut(len)?));
        }
        let (torch, mut data) = (torch()?, null_mut());
        // SAFETY: an owned handle.
        torch.done(unsafe { (torch.torch_get_mutable_data_ptr)(self.0, &raw mut data) })?;
        // SAFETY: as above.
        let bits = if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data.cast(), len) } };
        Ok(if dtype == DType::BFloat16 { NumbersMut::BFloat16(bits) } else { NumbersMut::Float16(bits) })
    }

    fn require(&self, name: &str, dtype: DType, len: usize) -> Reading<()> {
        let given = self.dtype()?;
        if given != dtype {
            let remedy = "convert modules before the forward or after the backward pass";
            let text = format!("{name} is {}, expected {}: {remedy}", given.name(), dtype.name());
            return Err(Refusal::new(Kind::Runtime, text));
        }
        if self.len()? == len {
            return Ok(());
        }
        let given = self.describe()?;
        Err(Refusal::invalid(format!("{name}: expected {len} contiguous, aligned numbers, got {given}")))
    }

    /// Says what was given, for messages.
    pub fn describe(&self) -> Reading<String> {
        let (torch, shape, mut strides) = (torch()?, self.shape()?, null_mut());
        // SAFETY: as many numbers as there are axes, alive with the tensor.
        let strides: Vec<usize> = unsafe {
            torch.done((torch.aoti_torch_get_strides)(self.0, &raw mut strides))?;
            (0..shape.len()).map(|i| *strides.add(i) as usize).collect()
        };
        Ok(format!("{} torch.Size({shape:?}) with strides {}", self.dtype()?.name(), tuple(&strides)))
    }
}

/// Numbers as a tuple of Python.
pub fn tuple(numbers: &[usize]) -> String {
    match numbers {
        [one] => format!("({one},)"),
        _ => format!("({})", numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Lays out a tensor that may be absent.
pub fn optional(tensor: Option<Tensor>) -> Reading<Option<Tensor>> {
    tensor.map(Tensor::laid_out).transpose()
}

/// The numbers of a tensor that may be absent.
pub fn optional_numbers<'a, T: Number>(tensor: Option<&'a Tensor>, name: &str, len: usize) -> Reading<Option<&'a [T]>> {
    tensor.map(|tensor| tensor.numbers(name, len)).transpose()
}

/// The numbers of a result that may not be wanted.
pub fn wanted<T: Number>(tensor: Option<&mut Tensor>) -> Reading<Option<&mut [T]>> {
    let Some(tensor) = tensor else { return Ok(None) };
    let len = tensor.len()?;
    tensor.numbers_mut(len).map(Some)
}

/// A place for the gradient of a tensor that is given and whose gradient is wanted.
pub fn gradient(tensor: Option<&Tensor>, is_wanted: bool) -> Reading<Option<Tensor>> {
    tensor.filter(|_| is_wanted).map(Tensor::empty_like).transpose()
}
