//! What the tests of the core and these problems share.

#[path = "../../tests/core/common/apart.rs"]
pub mod apart;
#[path = "../../tests/core/common/convolution.rs"]
pub mod convolution;
#[path = "../../tests/core/common/delta.rs"]
pub mod delta;
#[path = "../../tests/core/common/gated_norm.rs"]
pub mod gated_norm;
