//! The check of the lengths of arrays, and products of sizes.

use crate::error::{Error, Result};

/// The name of an array, its length if it is there, and the sizes whose product each problem has.
pub type Length<'a> = (&'static str, Option<usize>, &'a [usize]);

/// Refuses arrays of other lengths for `count` problems, and sizes whose product leaves the address space.
pub fn require(count: usize, arrays: &[Length<'_>]) -> Result<()> {
    arrays.iter().try_for_each(|&(name, len, sizes)| match len {
        Some(len) if product(sizes).and_then(|each| each.checked_mul(count)) != Some(len) => {
            Err(refusal(name, len, count, sizes))
        }
        _ => Ok(()),
    })
}

/// The product of these sizes, if there can be so many numbers.
pub fn product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1_usize, |product, &size| product.checked_mul(size))
}

/// The product of these sizes, at most `usize::MAX`: work, which decides how many threads share it.
pub fn flops(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

#[cold]
fn refusal(name: &'static str, found: usize, count: usize, sizes: &[usize]) -> Error {
    let expected = [count].iter().filter(|&&count| count != 1).chain(sizes).copied().collect();
    Error::Length { name, expected, found }
}
