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

mod backward;
mod forward;
mod from_outer;
mod pass;

pub use backward::{backward, backward_by_matrix, backward_in_place, backward_of};
pub use forward::{Prepared, forward, forward_and_keep, matrix};
pub(crate) use from_outer::from_outer;

pub use crate::unblocked::{backward_tape, forward_tape};
pub use crate::wy::dense::Dense;
pub use crate::wy::write as compact_wy;

/// Fewest vectors of a task, and most that it handles at a time so that their intermediate results stay in the cache.
const TASK: usize = 16;
const CHUNK: usize = 64;
/// Most tasks of a pass over the vectors.
const TASKS: usize = 64;
