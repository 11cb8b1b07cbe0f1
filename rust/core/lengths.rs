//! The check of the lengths of arrays.

use crate::error::{Error, Result};

/// The name of an array, its length if it is there, and the sizes whose product that should be.
pub type Length<'a> = (&'a str, Option<usize>, &'a [usize]);

/// Refuses arrays of other lengths, and sizes whose product leaves the address space.
pub fn require(arrays: &[Length<'_>]) -> Result<()> {
    arrays.iter().try_for_each(|&(name, len, sizes)| match len {
        Some(len) if product(sizes) != Some(len) => Err(refusal(name, len, sizes)),
        _ => Ok(()),
    })
}

/// The product of these sizes, if there can be so many numbers.
pub fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))
}

#[cold]
fn refusal(name: &str, len: usize, sizes: &[usize]) -> Error {
    let sizes = sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
    Error::InvalidArgument(format!("{name}: expected {sizes} numbers, got {len}"))
}
