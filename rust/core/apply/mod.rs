//! One application of `W` or `W*` to a batch of vectors, forward and backward (Theorem 2).
//!
//! With `W = (I + V N V*) D`, `N = -S` and `D` the diagonal of `u_1` or of the phases:
//!
//! ```text
//! c = W h:   a = D h,  y = N V* a,   c = a + V y
//! backward:  b = g,    w = N* V* b,  q = b + V w,  dL/dh = D* q
//!            dL/dV = V (L + L*) + b y* + a w*,     L = (sum y w*) o B',  B' = lower triangle, diagonal halved
//! ```
//!
//! `c = W* h` is the same with `N` and `N*` exchanged and `D*` last; its gradient exchanges the roles of `h` and `g`.

mod backward;
mod diagonal;
mod forward;
mod products;

pub use backward::{Gradients, backward};
pub use diagonal::Diagonal;
pub(crate) use diagonal::DiagonalSum;
pub use forward::{forward, matrix};

/// Vectors handled at a time: their intermediate results stay in the cache.
pub(crate) const CHUNK: usize = 64;
