//! The operations as callers see them, whoever calls: Python, XLA or torch's dispatcher.
//!
//! Each operation is one file: its operands, their shapes and checks, and the function of the core that takes them. A binding
//! reads headers of arrays ([`array`]) and turns a [`refusal`] into an error of its own. The extension module has no kernels: it
//! calls the operations through the table in [`interface`].
#![allow(missing_docs)] // private to the bindings

pub mod apply;
pub mod array;
pub mod columns;
mod constrain;
pub mod convolution;
pub mod delta;
pub mod dtype;
mod factor;
pub mod gated_norm;
pub mod interface;
pub mod loaded;
pub mod matrix;
pub mod operands;
pub mod options;
mod process;
pub mod recurrence;
pub mod refusal;
pub mod rnn;
pub mod saved;
