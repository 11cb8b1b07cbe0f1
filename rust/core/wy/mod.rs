//! The compact WY form of a product of reflections (Proposition 1), with unit columns `V` for `U`:
//!
//! ```text
//! T = striu(V* V) + I / 2,    S = T^-1,    W = I - V S V*      (times D = diag(1, .., 1, u_1) when m == n)
//! ```
//!
//! With unit columns `|S_ij| <= 4`, so `S` is formed once and no application solves a triangular system. `V* V` and `S`
//! are computed in double precision: nearly collinear reflections cost no accuracy. (Columns of any norm would save a pass,
//! but the entries of `S` for collinear ones are then no longer close to whole numbers: its rounding cost eight units of
//! orthogonality in single precision instead of one.)
//!
//! `N = -S` is stored instead of `S`, so that every use adds: `W = I + V N V*`. Where `tau` is given, `T` has `1 / tau` on
//! its diagonal, but the stored factors do not contain `1 / tau` (`tau.rs`).

pub mod blocks;
mod compact;
pub mod dense;
mod form;
pub mod gradient;
mod gram;
mod inverse;
pub mod layout;
mod tau;

pub use compact::{CompactWy, Factors, compact_wy, write};
pub use form::Overlap;
