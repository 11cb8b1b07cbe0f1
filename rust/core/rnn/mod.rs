//! Whole sequences `h_t = phi(W h_{t-1} + x_t)`, `t = 1..T`, in one call.
//!
//! `x_t` is given, or made from raw input inside the same products, `V_in x_t + b`. Four choices make it fast:
//!
//! * the transition is two thin products a step, `z = P* h` and `h + Q z`, since `W = I + Q P*` with `P = V`, `Q = V N`
//!   (and one more column each for `u_1`: `W_1 D = I + [V N | (u_1 - 1) e_n] [D V | e_n]*`), or one product with `W`;
//! * a step back is the same with `P` and `Q` exchanged, and only `delta_t = dL/da_t` travels: parameter gradients are
//!   products over many steps at once, `sum delta z*` and `sum h q*` (or `sum delta h*`);
//! * `V_in` and `b` are further columns of the weights `Q`, `x_t` and a one further entries of the operand `z`, and their
//!   gradients further columns of `sum delta z*`;
//! * a thread owns a slice of the batch for the whole sequence: no synchronisation at a step. Where sequences are too few
//!   for that and `W` is large, it owns some of the coordinates, and threads go through the steps as stages.

pub(crate) mod backward;
pub(crate) mod forward;
mod grad_x;
mod gradients;
mod plan;
mod recurrence;
mod ring;
mod sequence;
mod steps;
mod sums;
mod transition;
pub(crate) mod weights;

pub use backward::{Cotangents, Trace, backward};
pub use forward::{Saved, States, forward, forward_and_save};
pub use gradients::SequenceGradients;
pub use recurrence::Recurrence;
pub use sequence::Sequence;
#[cfg(feature = "safetensors")]
pub(crate) use sequence::check_activation;
#[doc(hidden)]
pub use sequence::tape_width;
pub use steps::{Series, Steps};

pub use crate::simd::activation::Activation;
