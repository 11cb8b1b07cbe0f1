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
pub fn for_application(_n: usize, k: usize, rows: usize) -> Method {
    // Flops a row: 4k(n - k/2) for both reflections, at the speed of memory, and blocks of them, at the speed of FMAs once
    // they are formed. That takes as long as reflections of 9 to 15 rows forward, 3 to 5 backward (n = 128 to 512). A
    // matrix takes 2n^2 a row, never less, and has to be formed as well.
    if rows <= 4 || k <= 2 { Method::Reflections } else { Method::Wy }
}

/// Reflections of a block of [`crate::blocks`], applied to `rows` vectors. Wide ones run faster, narrow ones are formed
/// faster.
pub fn block_width(k: usize, rows: usize) -> usize {
    let widest = if rows < 512 { 32 } else { 64 };
    let count = ((k + widest / 2) / widest).max(1);
    k.div_ceil(count).next_multiple_of(16).max(16)
}

/// For a recurrence over `rows` states in all. Depends on the shape alone.
pub fn for_sequence(n: usize, k: usize, rows: usize) -> Method {
    // Forward and backward: 12nk a state against 6n^2 a state and 6n^2 k once. What is done once runs at the speed of
    // large products, about four times that of a step at batch 1 (n = 512, k = 510, 300 states: 47 ms against 31 ms).
    if 2 * k > n && 4 * rows * (2 * k - n) > n * k { Method::Dense } else { Method::Wy }
}
