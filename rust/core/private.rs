//! What safe code of another crate must not reach: each of these programs once read or wrote memory out of bounds.
//!
//! Buffers of any length:
//!
//! ```compile_fail,E0603
//! use householder::{memory::Buffer, operator::Reflections, threads::Context, wy::{CompactWy, gradient::from_sums}};
//! let u = vec![3.0_f32; 4096 * 64];
//! let u = Reflections::new(4096, 64, &u);
//! let mut context = Context::default();
//! let wy = CompactWy::new(&mut context, u).unwrap();
//! let (c1, mut c2) = (Buffer::zeroed(0).unwrap(), Buffer::zeroed(0).unwrap());
//! from_sums(&mut context, &wy, &c1, &mut c2, None).unwrap();
//! ```
//!
//! Sizes as public fields:
//!
//! ```compile_fail,E0603
//! use householder::{operator::Reflections, threads::Context, wy::{CompactWy, gradient::expansion}};
//! let u = Reflections::new(3, 2, &[1.0, 0.0, 2.0, 1.0, 2.0, 1.0]);
//! let mut context = Context::default();
//! let mut wy = CompactWy::new(&mut context, u).unwrap();
//! wy.n = 1 << 14;
//! println!("{}", expansion(&mut context, &wy).unwrap().len());
//! ```
//!
//! ```compile_fail,E0616
//! fn none(saved: &mut householder::apply::Saved<f64>) {
//!     saved.0.clear();
//! }
//! ```
//!
//! What a recurrence leaves:
//!
//! ```compile_fail,E0616
//! fn none(saved: &mut householder::rnn::Saved<f64>) {
//!     saved.0.clear();
//! }
//! ```
//!
//! Memory that is not written yet:
//!
//! ```compile_fail,E0603
//! let buffer = householder::memory::Buffer::<f64>::scratch(2048).unwrap();
//! println!("{:?}", &buffer[..4]);
//! ```
//!
//! Some columns of `U`, whose bounds are checked in debug builds alone:
//!
//! ```compile_fail,E0603
//! let u = householder::operator::Reflections::new(3, 2, &[1.0, 0.0, 2.0, 1.0, 2.0, 1.0]);
//! println!("{}", u.columns(2, 1).m());
//! ```
//!
//! Functions of another library that this one would call:
//!
//! ```compile_fail,E0133
//! use householder::threads::{Chunk, TorchThreads, share_torch_threads};
//! unsafe extern "C-unwind" fn parallel_for(_: i64, _: i64, _: i64, _: Chunk, _: *mut std::ffi::c_void) -> i32 { 1 }
//! unsafe extern "C-unwind" fn num_threads(_: *mut u32) -> i32 { 1 }
//! share_torch_threads(TorchThreads { parallel_for, num_threads });
//! ```
