//! Which algorithm for which shape.

use crate::error::{Error, Result};

/// The way a product of reflections is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One reflection after the other (Algorithm 1).
    Reflections,
    /// Compact WY, never forming W.
    Wy,
    /// W is formed.
    Dense,
}

impl Method {
    /// The method of that name; `None` for `"auto"`.
    pub fn parse(name: &str) -> Result<Option<Self>> {
        match name {
            "auto" => Ok(None),
            "reflections" => Ok(Some(Self::Reflections)),
            "wy" => Ok(Some(Self::Wy)),
            "dense" => Ok(Some(Self::Dense)),
            _ => Err(Error::InvalidArgument(format!(
                "method: expected 'auto', 'reflections', 'wy' or 'dense', got '{name}'"
            ))),
        }
    }
}

/// For one application to `rows` vectors, forward or backward. Depends on the shape alone.
pub fn for_application(n: usize, k: usize, rows: usize) -> Method {
    // Flops: reflections 4nk a row, at the speed of memory rather than of FMAs; compact WY nk^2 for V*V and k^3/3 for S
    // once, then 4nk + 2k^2 a row; dense 2n^2 k once, then 2n^2 a row.
    if rows * 4 <= k || k <= 2 {
        Method::Reflections
    } else if 4 * k > 2 * n && rows * (4 * k - 2 * n) > 2 * n * k {
        Method::Dense
    } else {
        Method::Wy
    }
}

/// For a recurrence over `rows` states in all. Depends on the shape alone.
pub fn for_sequence(n: usize, k: usize, rows: usize) -> Method {
    // Forward and backward: 12nk a state against 6n^2 a state and 6n^2 k once. What is done once runs at the speed of
    // large products, about four times that of a step at batch 1 (n = 512, k = 510, 300 states: 47 ms against 31 ms).
    if 2 * k > n && 4 * rows * (2 * k - n) > n * k { Method::Dense } else { Method::Wy }
}
