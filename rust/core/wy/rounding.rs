//! Columns in wide precision, rounded.

use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::scalar::Scalar;

/// Rounds columns of `len` numbers, `padded(len)` apart, and adds `more` zeros.
pub fn narrow<T: Scalar>(wide: &[T::Wide], len: usize, more: usize) -> Result<Buffer<T>> {
    let (ld, ld_wide) = (padded::<T>(len), padded::<T::Wide>(len));
    let mut columns = Buffer::zeroed(wide.len() / ld_wide.max(1) * ld + more)?;
    for (to, from) in columns.chunks_mut(ld.max(1)).zip(wide.chunks_exact(ld_wide.max(1))) {
        to[..len].iter_mut().zip(from).for_each(|(to, x)| *to = T::narrow(*x));
    }
    Ok(columns)
}
