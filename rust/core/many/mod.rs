//! Many problems of one size in one call: each has a matrix, and vectors or sequences, of its own.
//!
//! Many problems run on several threads at the same time. Few run one after the other, with all threads on each. Small
//! problems are solved within one dispatch to the instruction set, and share a workspace.

mod applications;
mod matrices;
mod reflections;
mod sequences;
mod stack;

pub use applications::{Applications, Kept, ManyGradients};
pub use matrices::{matrices, matrices_backward};
pub use reflections::ManyReflections;
pub use sequences::{ManySequenceGradients, ManySequences};
pub use stack::{Stack, StackMut};

use std::borrow::Cow;

use crate::diagonal::Diagonal;
use crate::error::Result;
use crate::reflections::Reflections;
use crate::scalar::Scalar;

/// Approximate flops of `count` applications to `rows` vectors, including the normalisation of the columns. They decide
/// only how work is spread over threads.
fn flops(count: usize, n: usize, m: usize, rows: usize) -> usize {
    (n * m).saturating_mul(rows.saturating_mul(8).saturating_add(32)).saturating_mul(count)
}

/// The diagonals of many matrices. They share their phases, so `exp(i theta)` is computed once.
struct Diagonals<T: Scalar>(Option<Diagonal<T>>);

impl<T: Scalar> Diagonals<T> {
    fn new(n: usize, phases: Option<&[T::Real]>) -> Result<Self> {
        Ok(Self(phases.map(|theta| Diagonal::phases(n, theta)).transpose()?))
    }

    /// The diagonal of one matrix.
    #[inline(always)]
    fn of(&self, u: Reflections<'_, T>) -> Cow<'_, Diagonal<T>> {
        self.0.as_ref().map_or_else(|| Cow::Owned(Diagonal::of(u)), Cow::Borrowed)
    }
}
