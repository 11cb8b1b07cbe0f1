//! torch's tensors on the CPU, whose memory the core reads and writes in place.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::null_mut;

use householder::threads::{MOST_THREADS, set_num_threads};
use householder_binding::array::{AnyArray, Header, Work};
use householder_binding::dtype::DType;
use householder_binding::refusal::{Reading, Refusal};

use crate::abi::{Code, Handle, Torch, Value, torch};
use crate::{dtype, signals};

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

    /// Whether there is a tensor at all.
    pub fn is_defined(&self) -> bool {
        let mut is_defined = false;
        // SAFETY: an owned handle.
        torch()
            .is_ok_and(|torch| unsafe { (torch.aoti_torch_is_defined)(self.0, &raw mut is_defined) } == 0 && is_defined)
    }

    fn sizes(&self) -> Reading<&[i64]> {
        self.axes(torch()?.aoti_torch_get_sizes)
    }

    fn strides(&self) -> Reading<&[i64]> {
        self.axes(torch()?.aoti_torch_get_strides)
    }

    /// A number for each axis.
    fn axes(&self, get: unsafe extern "C-unwind" fn(Handle, *mut *mut i64) -> Code) -> Reading<&[i64]> {
        let (torch, mut axes, mut numbers) = (torch()?, 0, null_mut());
        // SAFETY: an owned handle, and as many numbers as there are axes, alive with the tensor.
        unsafe {
            torch.done((torch.aoti_torch_get_dim)(self.0, &raw mut axes))?;
            torch.done(get(self.0, &raw mut numbers))?;
            Ok(if axes == 0 { &[] } else { std::slice::from_raw_parts(numbers, axes as usize) })
        }
    }

    /// With the header of its memory, for reading or for writing.
    fn read(self, torch: &Torch, is_written: bool) -> Reading<Laid> {
        let (mut number, mut data) = (0, null_mut::<c_void>());
        // SAFETY: an owned handle, and places for what is asked.
        unsafe {
            torch.done((torch.aoti_torch_get_dtype)(self.0, &raw mut number))?;
            torch.done(if is_written {
                (torch.torch_get_mutable_data_ptr)(self.0, &raw mut data)
            } else {
                (torch.torch_get_const_data_ptr)(self.0, (&raw mut data).cast())
            })?;
        }
        let header = Header::new(data, dtype::of(torch, number), self.sizes()?, self.strides()?);
        Ok(Laid { tensor: self, header })
    }

    /// The same one, or a copy that lies row after row.
    pub fn laid_out(self) -> Reading<Laid> {
        let (torch, mut device) = (torch()?, -1);
        // SAFETY: an owned handle.
        unsafe {
            torch.done((torch.aoti_torch_get_device_type)(self.0, &raw mut device))?;
            if device != (torch.aoti_torch_device_type_cpu)() {
                return Err(Refusal::Type("expected tensors that lie in memory of the CPU".to_owned()));
            }
        }
        let laid = self.read(torch, false)?;
        if laid.data.is_null() && laid.len > 0 {
            let text = format!(
                "a tensor of shape {} has no memory: its storage was freed, as by FSDP after forward",
                tuple(&laid.shape())
            );
            return Err(Refusal::invalid(text));
        }
        let is_aligned = (laid.data as usize).is_multiple_of(laid.dtype.real().bytes());
        if laid.is_contiguous && is_aligned || laid.dtype == DType::Other { Ok(laid) } else { laid.copied(laid.dtype) }
    }
}

/// A tensor that lies row after row, and its header.
pub struct Laid {
    tensor: Tensor,
    header: Header,
}

impl Laid {
    /// A new one.
    pub fn empty(shape: &[usize], dtype: DType) -> Reading<Self> {
        if dtype == DType::Other {
            return Err(dtype.refusal("float32, float64, complex64 or complex128"));
        }
        let (torch, mut handle) = (torch()?, null_mut());
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let mut strides = vec![1_i64; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(sizes[i].max(1));
        }
        // SAFETY: both arrays have as many numbers as there are axes.
        unsafe {
            let (cpu, axes, dtype) =
                ((torch.aoti_torch_device_type_cpu)(), shape.len() as i64, dtype::number(torch, dtype));
            let (sizes, strides) = (sizes.as_ptr(), strides.as_ptr());
            torch.done((torch.aoti_torch_empty_strided)(axes, sizes, strides, dtype, cpu, -1, &raw mut handle))?;
        }
        Tensor(handle).read(torch, true)
    }

    /// A new one of the same shape.
    pub fn empty_like(&self) -> Reading<Self> {
        Self::empty(&self.shape(), self.dtype)
    }

    /// The sizes of its axes.
    pub fn shape(&self) -> Vec<usize> {
        self.tensor.sizes().unwrap_or_default().iter().map(|&size| size as usize).collect()
    }

    fn copied(&self, dtype: DType) -> Reading<Self> {
        let copy = Self::empty(&self.shape(), dtype)?;
        // SAFETY: two owned handles, of one shape.
        torch()?.done(unsafe { (torch()?.aoti_torch_copy_)(copy.tensor.0, self.tensor.0, 0) })?;
        Ok(copy)
    }

    /// The same one, or a copy of this type.
    pub fn converted(self, dtype: DType) -> Reading<Self> {
        if self.dtype == dtype { Ok(self) } else { self.copied(dtype) }
    }
}

impl From<Laid> for Tensor {
    fn from(laid: Laid) -> Self {
        laid.tensor
    }
}

impl Deref for Laid {
    type Target = Header;
    fn deref(&self) -> &Header {
        &self.header
    }
}

impl AnyArray for Laid {
    fn describe(&self) -> Reading<String> {
        let strides: Vec<usize> = self.tensor.strides()?.iter().map(|&stride| stride as usize).collect();
        Ok(format!("{} torch.Size({:?}) with strides {}", dtype::name(self.dtype), self.shape(), tuple(&strides)))
    }

    fn type_name(&self) -> Reading<String> {
        Ok(dtype::name(self.dtype))
    }

    fn leading(&self, axes: usize) -> Option<Vec<usize>> {
        self.shape().get(..axes).map(<[_]>::to_vec)
    }

    /// On as many threads as torch has. Python's signals stop it.
    fn run(&self, work: &mut Work<'_>) -> Reading<()> {
        let (torch, mut threads) = (torch()?, 1);
        // SAFETY: a place for the number.
        torch.done(unsafe { (torch.torch_get_num_threads)(&raw mut threads) })?;
        set_num_threads((threads as usize).min(MOST_THREADS))?;
        Ok(work(&mut signals::poll)?)
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
pub fn optional(tensor: Option<Tensor>) -> Reading<Option<Laid>> {
    tensor.map(Tensor::laid_out).transpose()
}

/// Places for the gradients of tensors that are given and whose gradients are wanted.
pub fn gradients<'a, const N: usize>(
    tensors: impl IntoIterator<Item = Option<&'a Laid>>,
    wants: [bool; N],
) -> Reading<[Option<Laid>; N]> {
    let mut gradients = [const { None }; N];
    for ((gradient, tensor), is_wanted) in gradients.iter_mut().zip(tensors).zip(wants) {
        *gradient = tensor.filter(|_| is_wanted).map(Laid::empty_like).transpose()?;
    }
    Ok(gradients)
}
