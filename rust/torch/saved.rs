//! What a forward pass saves for its backward pass. A tensor stands for it, because graphs carry tensors alone: the backward
//! pass finds what is saved by the address of that tensor's memory.
//!
//! What is saved ends with this memory. If the tensor was copied or replaced, as by checkpoints, the backward pass finds nothing,
//! and computes it again.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, PoisonError};

use householder_binding::array::AnyArray;
use householder_binding::dtype::DType;
use householder_binding::refusal::Reading;
use householder_binding::saved::{AnySaved, Held};

use crate::abi::torch;
use crate::dtype;
use crate::once::Once;
use crate::tensor::{Laid, Tensor};

type Entries = HashMap<usize, Arc<Held>>;

/// The entries of one process, by address. A forked child makes a table of its own: another thread may hold the lock of its
/// parent's for ever.
struct Table {
    process: u32,
    entries: Mutex<Entries>,
}

fn with_entries<R>(work: impl FnOnce(&mut Entries) -> R) -> R {
    static TABLE: Once<Table> = Once::new();
    let process = std::process::id();
    let table = TABLE.get_if(|table| table.process == process, |_| Table { process, entries: Mutex::default() });
    work(&mut table.entries.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether this torch can make such tensors, as versions from 2.11 on can.
pub fn is_possible() -> bool {
    torch().is_ok_and(|torch| torch.torch_from_blob.is_some() && torch.aoti_torch_layout_strided.is_some())
}

/// A tensor of one number if something may be saved, else of none.
pub fn save(may_save: bool, saved: Option<AnySaved>) -> Reading<Tensor> {
    let torch = torch()?;
    let functions = torch.torch_from_blob.zip(torch.aoti_torch_layout_strided).filter(|_| may_save);
    let Some((from_blob, strided)) = functions else { return Laid::empty(&[0], DType::Int64).map(Tensor::from) };
    let data = Box::into_raw(Box::new(0_i64)).cast::<c_void>();
    if let Some(saved) = saved {
        with_entries(|entries| entries.insert(data as usize, saved.held.into()));
    }
    let (one, mut handle) = (1, null_mut());
    // SAFETY: one number, which lives until `end`; nobody else owns the new tensor.
    unsafe {
        let (dtype, cpu) = (dtype::number(torch, DType::Int64), (torch.aoti_torch_device_type_cpu)());
        let [size, stride] = [&raw const one; 2];
        let code =
            from_blob(data, 1, size, stride, 0, dtype, cpu, -1, &raw mut handle, strided(), null(), 0, end, null_mut());
        if code != 0 {
            end(data, null_mut());
        }
        torch.done(code)?;
        Ok(Tensor::take(handle as u64))
    }
}

/// Called by torch when nothing uses the memory of a tensor any more.
unsafe extern "C" fn end(data: *mut c_void, _: *mut c_void) {
    let entry = with_entries(|entries| entries.remove(&(data as usize)));
    drop(entry); // without the lock
    // SAFETY: a box of `save`, whose address may be used anew from here on.
    drop(unsafe { Box::from_raw(data.cast::<i64>()) });
}

/// What the forward pass has saved, if this is the tensor that stands for it.
pub fn find(tensor: Option<&Laid>) -> Option<Arc<Held>> {
    let tensor: &dyn AnyArray = tensor?;
    let address = tensor.integers("saved").ok()?.as_ptr() as usize;
    with_entries(|entries| entries.get(&address).cloned())
}
