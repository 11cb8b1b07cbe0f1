//! torch's stable C functions, found in the process. `tests/torch/ops/test_native.py` compares each with torch's headers.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use householder::threads::Chunk;
use householder_binding::loaded::Library;
use householder_binding::refusal::{Reading, Refusal};

/// `AtenTensorHandle`, `TorchLibraryHandle`, `StableListHandle` or `StringHandle`.
pub type Handle = *mut c_void;

/// `StableIValue`: an argument or a result of a kernel.
pub type Value = u64;

/// `AOTITorchError`: 0 is success.
pub type Code = i32;

/// Takes the arguments off a stack, and puts the results there. It may throw an exception of C++.
pub type Kernel = unsafe extern "C-unwind" fn(*mut Value, u64, u64);

/// Frees the memory of a tensor, by its address and the caller's context.
pub type Deleter = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// The version of torch whose conventions kernels follow, 2.10: what each byte of it means is part of the ABI.
pub const VERSION: u64 = (2 << 56) | (10 << 48);

/// Declares a struct of functions, which `find` looks up by their names.
macro_rules! functions {
    ($structure:ident, required { $( $name:ident : fn($($argument:ty),*) $(-> $result:ty)? ; )* }
     optional { $( $late:ident : fn($($other:ty),*) $(-> $found:ty)? ; )* }) => {
        #[allow(non_snake_case, clippy::struct_field_names)] // as in C
        pub struct $structure {
            $( pub $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?, )*
            $( pub $late: Option<unsafe extern "C-unwind" fn($($other),*) $(-> $found)?>, )*
        }

        impl $structure {
            /// Those of a library, or the name of one that is missing.
            fn find(library: &Library) -> Result<Self, &'static str> {
                let find = |name: &'static str| library.symbol(CStr::from_bytes_with_nul(name.as_bytes()).ok()?);
                // SAFETY: the functions of these names have these types.
                unsafe {
                    Ok(Self {
                        $( $name: std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?>(
                            find(concat!(stringify!($name), "\0")).ok_or(stringify!($name))?
                        ), )*
                        $( $late: find(concat!(stringify!($late), "\0")).map(|found| {
                            std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($other),*) $(-> $found)?>(found)
                        }), )*
                    })
                }
            }
        }
    };
}
pub(crate) use functions;

functions! {
    Torch, required {
        aoti_torch_check: fn(bool, *const c_char, *const c_char, u32, *const c_char);
        aoti_torch_copy_: fn(Handle, Handle, i32) -> Code;
        aoti_torch_delete_tensor_object: fn(Handle) -> Code;
        aoti_torch_device_type_cpu: fn() -> i32;
        aoti_torch_dtype_bfloat16: fn() -> i32;
        aoti_torch_dtype_complex128: fn() -> i32;
        aoti_torch_dtype_complex64: fn() -> i32;
        aoti_torch_dtype_float16: fn() -> i32;
        aoti_torch_dtype_float32: fn() -> i32;
        aoti_torch_dtype_float64: fn() -> i32;
        aoti_torch_dtype_int32: fn() -> i32;
        aoti_torch_dtype_int64: fn() -> i32;
        aoti_torch_empty_strided: fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code;
        aoti_torch_get_device_type: fn(Handle, *mut i32) -> Code;
        aoti_torch_get_dim: fn(Handle, *mut i64) -> Code;
        aoti_torch_get_dtype: fn(Handle, *mut i32) -> Code;
        aoti_torch_get_sizes: fn(Handle, *mut *mut i64) -> Code;
        aoti_torch_get_strides: fn(Handle, *mut *mut i64) -> Code;
        aoti_torch_is_defined: fn(Handle, *mut bool) -> Code;
        aoti_torch_library_def: fn(Handle, *const c_char) -> Code;
        aoti_torch_library_init_fragment: fn(*const c_char, *const c_char, u32, *mut Handle) -> Code;
        aoti_torch_library_init_impl: fn(*const c_char, *const c_char, *const c_char, u32, *mut Handle) -> Code;
        aoti_torch_new_uninitialized_tensor: fn(*mut Handle) -> Code;
        torch_delete_list: fn(Handle) -> Code;
        torch_delete_string: fn(Handle) -> Code;
        torch_get_const_data_ptr: fn(Handle, *mut *const c_void) -> Code;
        torch_get_mutable_data_ptr: fn(Handle, *mut *mut c_void) -> Code;
        torch_get_num_threads: fn(*mut u32) -> Code;
        torch_library_impl: fn(Handle, *const c_char, Kernel, u64) -> Code;
        torch_list_get_item: fn(Handle, usize, *mut Value) -> Code;
        torch_list_size: fn(Handle, *mut usize) -> Code;
        torch_parallel_for: fn(i64, i64, i64, Chunk, *mut c_void) -> Code;
        torch_string_c_str: fn(Handle, *mut *const c_char) -> Code;
        torch_string_length: fn(Handle, *mut usize) -> Code;
    }
    optional {
        aoti_torch_layout_strided: fn() -> i32; // since 2.11
        torch_delete_stable_ivalue: fn(*mut Value) -> Code; // since 2.13
        torch_from_blob: fn(*mut c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut Handle, i32, *const u8, i64, Deleter, *mut c_void) -> Code; // since 2.11
        torch_exception_get_what_without_backtrace: fn() -> *const c_char; // since 2.13
    }
}

impl Torch {
    /// Whether a function has succeeded.
    pub fn done(&self, code: Code) -> Reading<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: a text that lives until the next exception of this thread.
        let text = self.torch_exception_get_what_without_backtrace.map(|what| unsafe {
            let text = what();
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        });
        Err(Refusal::Runtime(text.unwrap_or_else(|| "torch has failed".to_owned())))
    }
}

/// torch's functions.
pub fn torch() -> Reading<&'static Torch> {
    static TORCH: OnceLock<Result<Torch, &str>> = OnceLock::new();
    let lacks = |name: &&str| {
        let text = format!("householder needs torch 2.10 or later in the process: {name} is missing");
        Refusal::Runtime(text)
    };
    TORCH.get_or_init(|| Torch::find(&library())).as_ref().map_err(lacks)
}

/// torch's library. Python loads it for itself alone, so that the default scope does not show it.
fn library() -> Library {
    let names = ["libtorch_cpu.so", "@rpath/libtorch_cpu.dylib", "libtorch_cpu.dylib"];
    names.into_iter().find_map(Library::find).unwrap_or_else(Library::any)
}
