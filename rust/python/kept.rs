//! What a forward pass keeps for its backward pass, as an opaque object of Python.

use householder::blocks::Blocks;
use householder::scalar::{Scalar, c32, c64};
use pyo3::prelude::*;

/// Reflections in blocks, of any number type.
#[pyclass(frozen, module = "householder._core")]
pub struct Kept(AnyBlocks);

enum AnyBlocks {
    F32(Blocks<f32>),
    F64(Blocks<f64>),
    C32(Blocks<c32>),
    C64(Blocks<c64>),
}

/// A number type whose blocks can be kept.
pub trait Keep: Scalar {
    fn wrap(blocks: Blocks<Self>) -> Kept;
    /// The blocks, if they are of this type.
    fn unwrap(kept: &Kept) -> Option<&Blocks<Self>>;
}

macro_rules! keep {
    ($t:ty, $variant:ident) => {
        impl Keep for $t {
            fn wrap(blocks: Blocks<Self>) -> Kept {
                Kept(AnyBlocks::$variant(blocks))
            }
            fn unwrap(kept: &Kept) -> Option<&Blocks<Self>> {
                match &kept.0 {
                    AnyBlocks::$variant(blocks) => Some(blocks),
                    _ => None,
                }
            }
        }
    };
}
keep!(f32, F32);
keep!(f64, F64);
keep!(c32, C32);
keep!(c64, C64);
