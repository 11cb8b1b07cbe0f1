//! One call of a kernel: what torch gives and takes, and errors as exceptions.

use std::cell::RefCell;
use std::ffi::{CStr, CString};

use householder::error::Error;
use householder_binding::refusal::{Reading, Refusal, catch_panic};

use crate::abi::{Value, torch};
use crate::arguments::Arguments;
use crate::tensor::{Laid, Tensor};

/// The results of an operator; torch sees an undefined tensor, and Python None, where there is none.
pub type Tensors = Vec<Option<Tensor>>;

/// The results that are there.
pub fn results<const N: usize>(tensors: [Option<Laid>; N]) -> Tensors {
    tensors.map(|tensor| tensor.map(Tensor::from)).into()
}

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

/// The exception of Python that an error means. torch itself raises a `RuntimeError` for each.
#[derive(Clone, Copy, Default)]
pub enum Kind {
    #[default]
    Runtime = 0,
    Value = 1,
    Type = 2,
    Memory = 3,
}

/// The exception for a refusal, and its text for C.
pub fn raised(refusal: Refusal) -> (Kind, CString) {
    let (kind, text) = match refusal {
        Refusal::Type(text) => (Kind::Type, text),
        Refusal::Core(error) if error.is_invalid_argument() => (Kind::Value, error.to_string()),
        Refusal::Core(error @ Error::OutOfMemory { .. }) => (Kind::Memory, error.to_string()),
        Refusal::Core(error) => (Kind::Runtime, error.to_string()),
        Refusal::Runtime(text) => (Kind::Runtime, text),
        Refusal::Foreign | Refusal::Raised(_) => (Kind::Runtime, "a layout that a kernel does not read".to_owned()),
    };
    (kind, CString::new(text.replace('\0', "?")).unwrap_or_default())
}

thread_local!(static LAST: RefCell<(Kind, CString)> = RefCell::default());

/// The kind of the last error of this thread, if it had this text.
pub fn kind_of(text: &CStr) -> Kind {
    LAST.with(|last| if *last.borrow().1 == *text { last.borrow().0 } else { Kind::Runtime })
}

/// Runs a kernel. An error becomes an exception of C++.
///
/// # Safety
/// The stack holds the arguments that the kernel takes, and has room for its results.
pub unsafe fn enter(stack: *mut Value, kernel: fn(&mut Arguments) -> Reading<Tensors>) {
    let outcome = catch_panic(|| {
        let results = kernel(&mut Arguments::new(stack))?;
        let results = results.into_iter().map(|result| result.map_or_else(Tensor::undefined, Ok));
        for (i, result) in results.collect::<Reading<Vec<_>>>()?.into_iter().enumerate() {
            stack.add(i).write(result.give());
        }
        Ok(())
    });
    let Err(refusal) = outcome else { return };
    // The exception leaves through this frame, which therefore owns nothing: the text is the thread's.
    let text = LAST.with(|last| {
        *last.borrow_mut() = raised(refusal);
        last.borrow().1.as_ptr()
    });
    if let Ok(torch) = torch() {
        (torch.aoti_torch_check)(false, c"kernel".as_ptr(), c"householder".as_ptr(), 0, text);
    }
}
