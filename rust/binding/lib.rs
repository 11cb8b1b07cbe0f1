//! The operations as callers see them, whoever calls: Python, XLA or torch's dispatcher.
//!
//! Each operation is one file: its operands, their shapes and checks, and the function of the core that takes them. A binding
//! reads headers ([`array`]) or implements [`operands`] itself, and turns a [`refusal`] into an error of its own.
#![allow(missing_docs)] // private to the bindings

pub mod apply;
pub mod array;
pub mod columns;
pub mod convolution;
pub mod delta;
pub mod dtype;
pub mod gated_norm;
pub mod kept;
pub mod loaded;
pub mod matrix;
pub mod operands;
pub mod options;
pub mod refusal;
pub mod rnn;
