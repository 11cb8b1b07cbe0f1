//! Orthogonal and unitary transformations by Householder reflections.
//!
//! The parameter `U (n, m)` is lower-trapezoidal; its columns are the reflection vectors `u_n, .., u_{n-m+1}`, and
//!
//! ```text
//! W = H_n(u_n) ... H_{n-m+1}(u_{n-m+1}),     H(u) = I - 2 u u* / |u|^2
//! ```
//!
//! is orthogonal (unitary) for every `U`. Columns may be full as well, and have a `tau` of their own
//! ([`reflections::Form`]). It is applied in its compact WY form `W = I - V S V*` ([`wy`]), one reflection
//! after the other ([`unblocked`]), or as a matrix ([`wy::dense`]), whichever is fastest for the shape ([`method`]).
//!
//! * [`apply`]: `W h` for a batch of vectors and its gradients (Theorem 2);
//! * [`recurrence`]: whole sequences `h_t = phi(W h_{t-1} + V x_t + b)` and their gradients in one call;
//! * [`many`]: many problems of one size in one call;
//! * [`factor`]: reflections of a given orthogonal or unitary matrix (Theorem 1).
//!
//! ```
//! use householder::{apply, diagonal::Diagonal, reflections::Reflections, threads::Context};
//!
//! let u = [1.0, 0.0, 2.0, 1.0, 2.0, 1.0]; // 3 x 2, row-major
//! let u = Reflections::new(3, 2, &u)?;
//! let mut never = || false;
//! let mut context = Context::new(&mut never);
//! let mut c = [0.0; 3];
//! apply::forward(&mut context, u, &Diagonal::new(u, None)?, &[3.0, 0.0, 4.0], &mut c, false, None)?;
//! let norm: f64 = c.iter().map(|x| x * x).sum();
//! assert!((norm - 25.0).abs() < 1e-12);
//! # Ok::<(), householder::error::Error>(())
//! ```

pub mod apply;
pub mod delta;
pub mod diagonal;
pub mod error;
pub mod factor;
pub mod gradients;
#[doc(hidden)]
pub mod kernel;
pub mod many;
pub mod memory;
pub mod method;
pub mod number;
mod product;
pub mod recurrence;
pub mod recycle;
pub mod reflections;
pub mod scalar;
pub mod threads;
mod trapezoid;
pub mod unblocked;
#[doc(hidden)]
pub mod view;
pub mod wy;
