//! The operators `torch.ops.householder` on the CPU, without Python: compiled and exported graphs call them from any process
//! that has torch, also from a C++ program.
//!
//! The library links to no version of torch. [`abi`] finds torch's stable C functions in the process, [`arguments`] and
//! [`tensor`] read what a kernel is given, [`kernel`] runs it, and each operation is one file. No mathematics here.
#![cfg(unix)]

mod abi;
mod apply;
mod arguments;
mod convolution;
mod delta;
mod dtype;
mod gated_norm;
mod kernel;
mod matrix;
#[allow(dead_code)] // only the core uses `Once::get`
#[path = "../core/memory/once.rs"]
mod once;
mod rnn;
mod saved;
mod signals;
mod tensor;

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use abi::{Handle, Kernel, torch};
use householder::threads::{TorchThreads, share_torch_threads};
use householder_binding::interface::Interface;
use householder_binding::refusal::Reading;
use kernel::{entry, raised};

/// An operator: its name, its schema, and the kernel for the CPU.
type Registration = (&'static CStr, &'static CStr, Kernel);

/// The operators. Python defines the same ones, with what else they need there: see `torch/_ops/operator.py`.
static OPERATORS: [Registration; 12] = [
    (
        c"apply",
        c"apply(Tensor u, Tensor h, Tensor? tau, bool save, bool transpose, str method, str form) -> (Tensor, Tensor)",
        entry!(apply::forward),
    ),
    (
        c"apply_backward",
        c"apply_backward(Tensor u, Tensor h, Tensor? tau, Tensor? saved, Tensor grad_c, bool[] needs_grad, bool transpose, \
          str method, str form) -> (Tensor, Tensor, Tensor)",
        entry!(apply::backward),
    ),
    (c"matrix", c"matrix(Tensor u, bool save) -> (Tensor, Tensor)", entry!(matrix::forward)),
    (
        c"matrix_backward",
        c"matrix_backward(Tensor u, Tensor? saved, Tensor grad_w, bool[] needs_grad) -> Tensor",
        entry!(matrix::backward),
    ),
    (
        c"rnn",
        c"rnn(Tensor u, Tensor x, Tensor? h0, Tensor? input_weight, Tensor? bias, Tensor? phases, \
          Tensor? nonlinearity_bias, Tensor? tau, Tensor? batch_sizes, bool save, str nonlinearity, float negative_slope, \
          bool transpose, bool reverse, str form, str method) -> (Tensor, Tensor, Tensor)",
        entry!(rnn::forward),
    ),
    (
        c"rnn_backward",
        c"rnn_backward(Tensor u, Tensor x, Tensor? h0, Tensor? input_weight, Tensor? bias, Tensor? phases, \
          Tensor? nonlinearity_bias, Tensor? tau, Tensor? batch_sizes, Tensor h, Tensor? saved, Tensor? grad_h, \
          Tensor? grad_last, bool[] needs_grad, str nonlinearity, float negative_slope, bool transpose, bool reverse, \
          str form, str method) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        entry!(rnn::backward),
    ),
    (
        c"delta_rule",
        c"delta_rule(Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? g, Tensor? initial_state, Tensor? skip, \
          Tensor? cu_seqlens, bool save, float scale, int reflections, bool normalize) -> (Tensor, Tensor, Tensor)",
        entry!(delta::forward),
    ),
    (
        c"delta_rule_backward",
        c"delta_rule_backward(Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? g, Tensor? initial_state, \
          Tensor? skip, Tensor? cu_seqlens, Tensor? saved, Tensor? grad_o, Tensor? grad_last, bool[] needs_grad, float scale, \
          int reflections, bool normalize) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        entry!(delta::backward),
    ),
    (
        c"causal_convolution",
        c"causal_convolution(Tensor x, Tensor weight, Tensor? bias, bool silu) -> Tensor",
        entry!(convolution::forward),
    ),
    (
        c"causal_convolution_backward",
        c"causal_convolution_backward(Tensor x, Tensor weight, Tensor? bias, Tensor grad_y, bool[] needs_grad, bool silu) \
          -> (Tensor, Tensor, Tensor)",
        entry!(convolution::backward),
    ),
    (
        c"gated_norm",
        c"gated_norm(Tensor x, Tensor z, Tensor weight, float epsilon, bool silu) -> Tensor",
        entry!(gated_norm::forward),
    ),
    (
        c"gated_norm_backward",
        c"gated_norm_backward(Tensor x, Tensor z, Tensor weight, Tensor grad_y, bool[] needs_grad, float epsilon, bool silu) \
          -> (Tensor, Tensor, Tensor)",
        entry!(gated_norm::backward),
    ),
];

/// What the extension module of Python calls; see [`householder_binding::interface`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // as the functions
pub static householder_interface: Interface = Interface::HERE;

/// Defines the operators and registers their kernels, in a process without Python. Returns null, or why it could not.
#[unsafe(no_mangle)]
pub extern "C" fn householder_torch_register() -> *const c_char {
    static OUTCOME: OnceLock<Result<(), CString>> = OnceLock::new();
    told(OUTCOME.get_or_init(|| define().and_then(|()| implement()).map_err(|refusal| raised(refusal).1)))
}

/// Registers the kernels of operators that are defined already, as `import householder.torch` does. Returns null, or why it
/// could not.
#[unsafe(no_mangle)]
pub extern "C" fn householder_torch_register_kernels() -> *const c_char {
    static OUTCOME: OnceLock<Result<(), CString>> = OnceLock::new();
    told(OUTCOME.get_or_init(|| implement().map_err(|refusal| raised(refusal).1)))
}

/// Whether the forward operators return a tensor for what they save, if they are asked to save it: 1 if so, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn householder_torch_can_save() -> c_int {
    c_int::from(saved::is_possible())
}

/// The kind of an error that a kernel of this thread has just raised, by its text: 0 `RuntimeError`, 1 `ValueError`,
/// 2 `TypeError`, 3 `MemoryError`.
///
/// # Safety
/// The text ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn householder_torch_kind_of(text: *const c_char) -> c_int {
    kernel::kind_of(CStr::from_ptr(text)) as c_int
}

/// Gives the memory that is kept for the next calls back to the system.
#[unsafe(no_mangle)]
pub extern "C" fn householder_torch_release_memory() {
    householder::release_memory();
}

fn told(outcome: &'static Result<(), CString>) -> *const c_char {
    outcome.as_ref().err().map_or(null(), |text| text.as_ptr())
}

/// The namespace, and where torch's messages say that it was defined.
const NAMESPACE: &CStr = c"householder";
const HERE: &CStr = c"rust/torch/lib.rs";

fn define() -> Reading<()> {
    let (torch, mut library): (_, Handle) = (torch()?, null_mut());
    // SAFETY: texts end with a zero. The library lives as long as the process: its end would remove the operators.
    unsafe {
        torch.done((torch.aoti_torch_library_init_fragment)(NAMESPACE.as_ptr(), HERE.as_ptr(), 0, &raw mut library))?;
        for (_, schema, _) in &OPERATORS {
            torch.done((torch.aoti_torch_library_def)(library, schema.as_ptr()))?;
        }
    }
    Ok(())
}

fn implement() -> Reading<()> {
    let (torch, mut library): (_, Handle) = (torch()?, null_mut());
    let threads = TorchThreads { parallel_for: torch.torch_parallel_for, num_threads: torch.torch_get_num_threads };
    // SAFETY: as above, and kernels do what `entry!` says; torch stays loaded.
    unsafe {
        share_torch_threads(threads);
        let (key, place) = (c"CPU".as_ptr(), HERE.as_ptr());
        torch.done((torch.aoti_torch_library_init_impl)(NAMESPACE.as_ptr(), key, place, 0, &raw mut library))?;
        for (name, _, kernel) in &OPERATORS {
            torch.done((torch.torch_library_impl)(library, name.as_ptr(), *kernel, abi::VERSION))?;
        }
    }
    Ok(())
}
