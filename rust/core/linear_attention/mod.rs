//! Layers of linear attention: the delta rule, the short convolution before it, and the gated norm after it.

pub mod convolution;
pub mod delta;
pub mod gated_norm;
