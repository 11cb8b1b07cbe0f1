//! One application of `W` or `W*` to a batch of vectors, forward and backward (Theorem 2).
//!
//! With `W = (I + V N V*) D`, `N = -S` and `D` the diagonal of `u_1` or of the phases:
//!
//! ```text
//! c = W h:   a = D h,  y = N V* a,   c = a + V y
//! backward:  b = g,    w = N* V* b,  q = b + V w,  dL/dh = D* q
//!            dL/dV = V E + b y* + a w*,            E as in `wy::gradient` with M = sum y w*
//! ```
//!
//! `c = W* h` is the same with `N` and `N*` exchanged and `D*` last; its gradient exchanges the roles of `h` and `g`.
//! Many reflections are several such forms one after the other.
//!
//! Many problems run on several threads at the same time. Few run one after the other, with all threads on each. Small
//! problems are solved within one dispatch to the instruction set, and share a workspace.

pub(crate) mod backward;
pub(crate) mod forward;
mod lanes;

pub(crate) mod matrix;
mod pass;
pub(crate) mod sequential;
mod small;

pub use crate::operator::gradients::Gradients;
pub use backward::{backward, backward_in_place};
pub use forward::{Saved, forward, forward_and_save};
pub(crate) use matrix::{from_outer, is_small, matrix_of_one, small_matrix_backward};
pub use matrix::{matrix, matrix_and_save, matrix_backward};

pub use crate::wy::compact_wy;
pub use sequential::{backward_tape, forward_tape};

/// Fewest vectors of a task, and most that it handles at a time so that their intermediate results stay in the cache.
const TASK: usize = 16;
const CHUNK: usize = 64;
/// Most tasks of a pass over the vectors.
const TASKS: usize = 64;
