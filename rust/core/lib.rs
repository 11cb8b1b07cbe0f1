#![doc = include_str!("../README.md")]
//!
//! # Operators
//!
//! The parameter `U (n, m)` is lower-trapezoidal; its columns are the reflection vectors `u_n, .., u_{n-m+1}`, and
//!
//! ```text
//! W = H_n(u_n) ... H_{n-m+1}(u_{n-m+1}),     H(u) = I - 2 u u* / |u|^2
//! ```
//!
//! is orthogonal (unitary) for every `U`. Columns may be full as well, and have a `tau` of their own
//! ([`operator::Form`]). An [`Operator`] is one `W`, or many of one size. It is applied in its compact WY form
//! `W = I - V S V*`, one reflection after the other, or as a matrix, whichever is fastest for the shape ([`method`]).
//!
//! * [`apply`]: `W h` for a batch of vectors and its gradients (Theorem 2), and `W` itself;
//! * [`rnn`]: whole sequences `h_t = phi(W h_{t-1} + V x_t + b)` and their gradients in one call, or one step at a time;
//! * [`delta`]: the gated delta rule, whose transitions are products of reflections, and its gradients;
//! * [`factor`]: reflections of a given orthogonal or unitary matrix (Theorem 1).
//!
//! Numbers are [`f32`], [`f64`], [`number::c32`] or [`number::c64`]. Arrays are slices, row-major, and the last axis of an
//! array of vectors has their entries. Operands and results of [`apply`] may also be rows at any distances ([`rows`]).
//!
//! # Applications and their gradients
//!
//! ```
//! use householder::apply::{self, Gradients};
//! use householder::{Context, Operator};
//!
//! let u = [1.0, 0.0, 2.0, 1.0, 2.0, 1.0]; // 3 x 2
//! let w = Operator::new([1, 3, 2], &u)?;
//! let h = [3.0, 0.0, 4.0];
//! let context = &mut Context::default();
//! let mut c = [0.0; 3];
//! let saved = apply::forward_and_save(context, &w, &h, &mut c)?;
//! let (mut grad_u, mut grad_h) = ([0.0_f64; 6], [0.0_f64; 3]);
//! let gradients = Gradients { u: Some(&mut grad_u), h: Some(&mut grad_h), ..Gradients::default() };
//! apply::backward(context, &w, &h, &c, gradients, saved.as_ref())?; // of |c|^2 / 2, which is |h|^2 / 2
//! assert!(grad_u.iter().all(|x| x.abs() < 1e-14));
//! assert!(grad_h.iter().zip(h).all(|(x, h)| (x - h).abs() < 1e-14));
//! # Ok::<(), householder::Error>(())
//! ```
//!
//! # Sequences
//!
//! Two steps and their gradient with respect to `U`:
//!
//! ```
//! use householder::rnn::{self, Activation, Cotangents, Sequence, SequenceGradients, Series, States, Steps, Trace};
//! use householder::{Context, Operator};
//!
//! let (n, steps, batch) = (3, 2, 1);
//! let u = [1.0, 0.0, 2.0, 1.0, 2.0, 1.0];
//! let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]; // (steps, batch, n)
//! let sequence = Sequence {
//!     activation: Activation::Tanh,
//!     ..Sequence::new(Operator::new([1, n, 2], &u)?, Steps::uniform(steps, batch)?, Series::new(&x))
//! };
//! let context = &mut Context::default();
//! let mut h = [0.0; 6];
//! let saved = rnn::forward_and_save(context, &sequence, States::new(&mut h))?;
//! let mut grad_u = [0.0; 6];
//! let trace = Trace { saved: Some(&saved), ..Trace::new(&h) };
//! let cotangents = Cotangents { h: Some(Series::new(&[1.0; 6])), last: None };
//! let gradients = SequenceGradients { u: Some(&mut grad_u), ..SequenceGradients::default() };
//! rnn::backward(context, &sequence, trace, cotangents, gradients)?;
//! assert!(grad_u[0] != 0.0 && grad_u[1] == 0.0); // above the diagonal
//! # Ok::<(), householder::Error>(())
//! ```
//!
//! # The delta rule
//!
//! A value is written under a key and read back:
//!
//! ```
//! use householder::Context;
//! use householder::delta::{self, Gate, Operands, Problem, Results, Sizes};
//!
//! let [key, other] = [[1.0, 0.0], [0.0, 1.0]];
//! let (q, k) = ([other, key].concat(), [key, other].concat()); // 2 tokens, 1 head, keys of 2 numbers
//! let (v, beta, g) = ([5.0, 6.0, 7.0, 0.0, 0.0, 0.0], [1.0, 1.0], [0.0, 0.0]); // values of 3 numbers
//! let problem = Problem::new(Operands {
//!     gate: Gate::Head(&g),
//!     scale: 1.0,
//!     ..Operands::new(Sizes::new(1, 2, 3), &q, &k, &v, &beta)
//! })?;
//! let mut out = [1.0; 6];
//! delta::forward(&mut Context::default(), &problem, Results { out: Some((&mut out).into()), ..Results::default() })?;
//! assert_eq!(out, [0.0, 0.0, 0.0, 5.0, 6.0, 7.0]);
//! # Ok::<(), householder::Error>(())
//! ```
//!
//! # Reflections of a matrix
//!
//! ```
//! use householder::{Context, Operator, apply, factor};
//!
//! let (cos, sin) = (0.6, 0.8);
//! let q = [cos, -sin, sin, cos];
//! let context = &mut Context::default();
//! let mut u = [0.0; 4];
//! let distance = factor::factor(context, 2, 2, &q, &mut u, None)?;
//! assert!(distance < 1e-15);
//! let mut w = [0.0_f64; 4];
//! apply::matrix(context, &Operator::new([1, 2, 2], &u)?, &mut w)?;
//! assert!(w.iter().zip(q).all(|(w, q)| (w - q).abs() < 1e-15));
//! # Ok::<(), householder::Error>(())
//! ```
//!
//! # Errors
//!
//! Every function checks the lengths of its arrays. What does not fit is refused ([`Error::is_invalid_argument`]); memory that
//! cannot be had an [`Error::OutOfMemory`]. NaN and infinity propagate.
//!
//! No call modifies its operands. Arrays that are updated in place ([`delta::Results::in_place`], [`convolution::advance`],
//! [`apply::backward_in_place`]) are results. Wrong lengths are refused before anything is written. After any other error, such
//! as a positive gate or an interruption, results are unspecified: keep a copy of a state that you want to go on from.
#![warn(missing_debug_implementations)]

/// Defines an enumeration, and an array of all its members, which tests read.
macro_rules! members {
    ($(#[$of_all:meta])* pub enum $name:ident { $($(#[$of_one:meta])* $member:ident,)+ }) => {
        $(#[$of_all])*
        pub enum $name {
            $($(#[$of_one])* $member,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: [Self; [$(Self::$member),+].len()] = [$(Self::$member),+];
        }
    };
}

pub mod apply;
mod arrays;
#[doc(hidden)]
pub mod bench;
pub mod error;
pub mod factor;
#[cfg(feature = "safetensors")]
pub mod layers;
mod linear_attention;
mod memory;
pub mod method;
mod numbers;
mod operations;
pub mod operator;
mod product;
pub mod rnn;
mod simd;
pub mod threads;
mod wy;

pub use arrays::{rows, stored};
pub use error::Error;
pub use linear_attention::{convolution, delta, gated_norm};
pub use memory::recycle::{advise_huge_pages, release as release_memory};
pub use numbers::{exponential, number, scalar};
use operations::{Operations, RealOperations};
pub use operator::Operator;
pub use threads::Context;

#[cfg(doctest)]
mod private;
