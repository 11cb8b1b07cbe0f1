//! The core against explicit reflections. One program, because each one compiles the kernels anew; tests of what is
//! global to a process are programs of their own.

mod common;

mod applications;
mod bounds;
mod convolution;
mod delta;
mod factor;
mod forms;
mod gated_norm;
mod lengths;
mod many;
mod sequences;
mod side_by_side;
mod tokens;
