//! One call of a kernel: what torch gives and takes, errors as exceptions, torch's number of threads.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};

use householder::error::{Error, Result};
use householder::threads::{Context, set_num_threads};

use crate::abi::{Value, torch};
use crate::arguments::Arguments;
use crate::call::{Kind, Reading, Refusal};
use crate::signals;
use crate::tensor::Tensor;

/// The results of an operator; torch sees an undefined tensor, and Python None, where there is none.
pub type Results = Vec<Option<Tensor>>;

/// The entry of a kernel, `fn(&mut Arguments) -> Reading<Results>`, which takes all arguments of its schema, in order.
macro_rules! entry {
    ($kernel:path) => {{
        unsafe extern "C-unwind" fn entry(stack: *mut $crate::abi::Value, _: u64, _: u64) {
            // SAFETY: torch calls with the arguments of the schema.
            unsafe { $crate::kernel::enter(stack, $kernel) }
        }
        entry as $crate::abi::Kernel
    }};
}
pub(crate) use entry;

thread_local!(static LAST: RefCell<(Kind, CString)> = RefCell::default());

/// The kind of the last error of this thread, if it had this text.
pub fn kind_of(text: &CStr) -> Kind {
    LAST.with(|last| if *last.borrow().1 == *text { last.borrow().0 } else { Kind::Runtime })
}

/// Runs a kernel. An error becomes an exception of C++.
///
/// # Safety
/// The stack holds the arguments that the kernel takes, and has room for its results.
pub unsafe fn enter(stack: *mut Value, kernel: fn(&mut Arguments) -> Reading<Results>) {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let results = kernel(&mut Arguments::new(stack))?;
        let results = results.into_iter().map(|result| result.map_or_else(Tensor::undefined, Ok));
        for (i, result) in results.collect::<Reading<Vec<_>>>()?.into_iter().enumerate() {
            stack.add(i).write(result.give());
        }
        Ok(())
    }));
    let Err(refusal) = outcome.unwrap_or_else(|panic| Err(of_panic(panic.as_ref()))) else { return };
    // The exception leaves through this frame, which therefore owns nothing: the text is the thread's.
    let text = LAST.with(|last| {
        *last.borrow_mut() = (refusal.kind, refusal.into_text());
        last.borrow().1.as_ptr()
    });
    if let Ok(torch) = torch() {
        (torch.aoti_torch_check)(false, c"kernel".as_ptr(), c"householder".as_ptr(), 0, text);
    }
}

fn of_panic(panic: &(dyn Any + Send)) -> Refusal {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Internal(text.unwrap_or_else(|| "a kernel panicked".to_owned())).into()
}

/// Computes on as many threads as torch has. Python's signals stop it.
pub fn run<R>(work: impl FnOnce(&mut Context<'_>) -> Result<R>) -> Reading<R> {
    let (torch, mut threads) = (torch()?, 1);
    // SAFETY: a place for the number.
    torch.done(unsafe { (torch.torch_get_num_threads)(&raw mut threads) })?;
    set_num_threads(threads as usize)?;
    Ok(work(&mut Context::new(&mut signals::poll))?)
}
