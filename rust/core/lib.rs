//! Orthogonal and unitary transformations by Householder reflections.
//!
//! The parameter `U (n, m)` is lower-trapezoidal; its columns are the reflection vectors `u_n, .., u_{n-m+1}`, and
//!
//! ```text
//! W = H_n(u_n) ... H_{n-m+1}(u_{n-m+1}),     H(u) = I - 2 u u* / |u|^2
//! ```
//!
//! is orthogonal (unitary) for every `U`. Columns may be full as well, and have a `tau` of their own
//! ([`operator::Form`]). An [`operator::Operator`] is one `W`, or many of one size. It is applied in its compact WY form
//! `W = I - V S V*`, one reflection after the other, or as a matrix, whichever is fastest for the shape ([`method`]).
//!
//! * [`apply`]: `W h` for a batch of vectors and its gradients (Theorem 2), and `W` itself;
//! * [`rnn`]: whole sequences `h_t = phi(W h_{t-1} + V x_t + b)` and their gradients in one call;
//! * [`delta`]: the gated delta rule, whose transitions are products of reflections, and its gradients;
//! * [`factor`]: reflections of a given orthogonal or unitary matrix (Theorem 1).
//!
//! ```
//! use householder::{apply, operator::Operator, threads::Context};
//!
//! let u = [1.0, 0.0, 2.0, 1.0, 2.0, 1.0]; // 3 x 2, row-major
//! let w = Operator::new([1, 3, 2], &u)?;
//! let mut never = || false;
//! let mut context = Context::new(&mut never);
//! let mut c = [0.0; 3];
//! apply::forward(&mut context, &w, &[3.0, 0.0, 4.0], &mut c)?;
//! let norm: f64 = c.iter().map(|x| x * x).sum();
//! assert!((norm - 25.0).abs() < 1e-12);
//! # Ok::<(), householder::error::Error>(())
//! ```
//!
//! A sequence of two steps and its gradient with respect to `U`:
//!
//! ```
//! use householder::rnn::{self, Activation, Sequence, SequenceGradients, Series, Steps};
//! use householder::{operator::Operator, threads::Context};
//!
//! let (n, steps, batch) = (3, 2, 1);
//! let u = [1.0, 0.0, 2.0, 1.0, 2.0, 1.0];
//! let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // (steps, batch, n)
//! let sequence = Sequence {
//!     operator: Operator::new([1, n, 2], &u)?,
//!     activation: Activation::Tanh,
//!     steps: Steps::uniform(steps, batch)?,
//!     d: n,
//!     x: Series::new(&x),
//!     input_weight: None,
//!     bias: None,
//!     h0: None,
//! };
//! let mut never = || false;
//! let mut context = Context::new(&mut never);
//! let mut h = [0.0; 6];
//! let saved = rnn::forward_and_save(&mut context, &sequence, &mut h, None, None)?;
//! let (grad_h, mut grad_u) = (Series::new(&[1.0; 6]), [0.0; 6]);
//! let gradients = SequenceGradients { u: Some(&mut grad_u), ..SequenceGradients::default() };
//! rnn::backward(&mut context, &sequence, Some(&saved), &h, None, Some(grad_h), None, gradients)?;
//! assert!(grad_u.iter().any(|&x| x != 0.0) && grad_u[1] == 0.0); // above the diagonal
//! # Ok::<(), householder::error::Error>(())
//! ```
//!
//! Every function checks the lengths of its arrays. One that does not fit is an [`error::Error::InvalidArgument`].

pub mod apply;
#[doc(hidden)]
pub mod bench;
pub mod delta;
mod diagonal;
pub mod error;
pub mod factor;
mod form;
mod gradients;

mod lengths;
mod memory;
pub mod method;
pub mod number;
mod once;
pub mod operator;
mod product;

mod recycle;
pub mod rnn;
pub mod scalar;
mod simd;
mod stack;
pub mod threads;

mod view;
mod wy;

pub use recycle::{advise_huge_pages, release as release_memory};

#[cfg(doctest)]
mod private;
