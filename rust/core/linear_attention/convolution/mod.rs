//! A causal convolution along time, of each channel by itself, with `SiLU` if asked.
//!
//! ```text
//! a_t = b + sum_j w_j x_{t - taps + 1 + j},    y_t = a_t or a_t sigmoid(a_t),    x_t = 0 for t < 0
//! ```
//!
//! Vectors of all channels are contiguous, so registers hold one number of many channels. A task has a block of channels, and
//! a window of the last `taps` vectors of it.
//!
//! ```
//! use householder::Context;
//! use householder::convolution::{Operands, Sizes, advance, forward};
//!
//! let (x, weight) = ([1.0, 10.0, 2.0, 20.0, 3.0, 30.0], [0.5, 1.0, 0.0, 2.0]); // two channels of two taps
//! let sizes = Sizes { batch: 1, tokens: 3, channels: 2, taps: 2 };
//! let mut y = [0.0_f64; 6];
//! let operands = Operands { sizes, x: (&x).into(), weight: &weight, bias: None, silu: false };
//! forward(&mut Context::default(), operands, (&mut y).into())?;
//! assert_eq!(y, [1.0, 20.0, 2.5, 40.0, 4.0, 60.0]);
//!
//! // The same, as tokens arrive.
//! let mut state = [0.0; 2]; // the input before the next
//! for (x, y) in x.chunks(2).zip(y.chunks(2)) {
//!     let mut next = [0.0; 2];
//!     let operands = Operands { sizes: Sizes { tokens: 1, ..sizes }, x: x.into(), ..operands };
//!     advance(&mut Context::default(), operands, &mut state, (&mut next).into())?;
//!     assert_eq!(next, y);
//! }
//! # Ok::<(), householder::Error>(())
//! ```

pub(crate) mod backward;
pub(crate) mod forward;
mod operands;
mod window;

pub use backward::{Gradients, backward};
pub use forward::{advance, forward};
pub use operands::{Operands, Sizes};
