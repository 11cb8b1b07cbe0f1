//! The arguments of a call, taken off torch's stack in the order of the schema. A kernel owns what it takes.

use householder_binding::refusal::Reading;

use crate::abi::{Handle, Value, torch};
use crate::tensor::Tensor;

/// Those that are still to be taken. All are, before anything can fail: what stays would never be freed.
pub struct Arguments(*const Value);

impl Arguments {
    /// # Safety
    /// Each argument is taken once, by the method of its type.
    pub unsafe fn new(stack: *const Value) -> Self {
        Self(stack)
    }

    fn next(&mut self) -> Value {
        // SAFETY: the stack has one more, as the schema says.
        unsafe {
            let value = self.0.read();
            self.0 = self.0.add(1);
            value
        }
    }

    /// `Tensor`.
    pub fn tensor(&mut self) -> Tensor {
        // SAFETY: a handle that the kernel owns.
        unsafe { Tensor::take(self.next()) }
    }

    /// `Tensor?`: null, or a value on the heap, which the kernel frees.
    pub fn optional(&mut self) -> Option<Tensor> {
        let place = self.next() as *mut Value;
        if place.is_null() {
            return None;
        }
        // SAFETY: as above. Versions before 2.13 have allocated it by `new`, whose memory the system's `free` takes.
        unsafe {
            let tensor = Tensor::take(*place);
            match torch().ok().and_then(|torch| torch.torch_delete_stable_ivalue) {
                Some(delete) => {
                    delete(place);
                }
                None => libc::free(place.cast()),
            }
            tensor.is_defined().then_some(tensor)
        }
    }

    /// Several of `Tensor?`.
    pub fn optionals<const N: usize>(&mut self) -> [Option<Tensor>; N] {
        std::array::from_fn(|_| self.optional())
    }

    /// `bool`: one byte.
    pub fn flag(&mut self) -> bool {
        self.next() as u8 != 0
    }

    /// `float`.
    pub fn real(&mut self) -> f64 {
        f64::from_bits(self.next())
    }

    /// `int`.
    pub fn integer(&mut self) -> i64 {
        self.next() as i64
    }

    /// `str`.
    pub fn text(&mut self) -> Reading<String> {
        let (torch, handle) = (torch()?, self.next() as Handle);
        let (mut len, mut data) = (0, std::ptr::null());
        // SAFETY: a string of torch's, which lives until it is deleted.
        unsafe {
            let found = torch
                .done((torch.torch_string_length)(handle, &raw mut len))
                .and_then(|()| torch.done((torch.torch_string_c_str)(handle, &raw mut data)))
                .map(|()| String::from_utf8_lossy(std::slice::from_raw_parts(data.cast(), len)).into_owned());
            torch.done((torch.torch_delete_string)(handle))?;
            found
        }
    }

    /// `bool[]`, of that many.
    pub fn flags<const N: usize>(&mut self) -> Reading<[bool; N]> {
        let (torch, handle) = (torch()?, self.next() as Handle);
        let (mut len, mut flags) = (0, [false; N]);
        // SAFETY: a list of torch's, which lives until it is deleted.
        unsafe {
            let mut found = torch.done((torch.torch_list_size)(handle, &raw mut len));
            for (i, flag) in flags.iter_mut().enumerate().take(len) {
                let mut item = 0;
                found = found.and_then(|()| torch.done((torch.torch_list_get_item)(handle, i, &raw mut item)));
                *flag = item as u8 != 0;
            }
            torch.done((torch.torch_delete_list)(handle))?;
            found.map(|()| flags)
        }
    }
}
