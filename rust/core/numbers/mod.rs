//! Numbers: their types, what kernels need of them, and exponentials.

pub mod exponential;
pub mod number;
pub mod scalar;
