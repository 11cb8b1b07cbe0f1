//! The validated view of the parameter `U`.

use crate::error::{Error, Result};
use crate::memory::{Buffer, filled};
use crate::number::{Number, Real};
use crate::scalar::Scalar;

/// `U (n, m)`, row-major and lower-trapezoidal: column `j` (from 0) is the reflection vector `u_{n-j}` behind `j` zeros.
/// What is stored above the diagonal is never read.
///
/// For real numbers and `m == n` the last column is the single number `u_1`, a factor on the last coordinate and not a
/// reflection: `W = W_1 diag(1, .., 1, u_1)`.
#[derive(Clone, Copy)]
pub struct Reflections<'a, T: Scalar> {
    n: usize,
    m: usize,
    /// Distance between rows.
    ld: usize,
    entries: &'a [T],
}

impl<'a, T: Scalar> Reflections<'a, T> {
    /// Views `entries` as `U (n, m)`.
    pub fn new(n: usize, m: usize, entries: &'a [T]) -> Result<Self> {
        if m == 0 || m > n {
            return Err(Error::InvalidArgument(format!("expected 1 <= m <= n, got n = {n}, m = {m}")));
        }
        if T::COMPLEX && m == n {
            return Err(Error::InvalidArgument(format!(
                "a complex U takes at most n - 1 = {} reflections, got m = {m}; phases supply the rest of U(n)",
                n - 1
            )));
        }
        if n.checked_mul(m) != Some(entries.len()) {
            return Err(Error::InvalidArgument(format!("u: expected {n} x {m} entries, got {}", entries.len())));
        }
        Ok(Self { n, m, ld: m, entries })
    }

    /// The reflections `begin..end`, which leave the first `begin` coordinates alone: a `U` of the others. `u_1` is not
    /// one of them.
    pub fn columns(self, begin: usize, end: usize) -> Self {
        debug_assert!(begin < end && end <= self.count());
        let entries = &self.entries[begin * self.ld + begin..];
        Self { n: self.n - begin, m: end - begin, ld: self.ld, entries }
    }

    /// All entries in wide precision. Columns whose norm is subnormal in their own precision are the identity there as
    /// well: they become zero.
    pub(crate) fn widen(self) -> Result<Buffer<T::Wide>> {
        let Self { n, m, ld, entries } = self;
        let (mut wide, mut squares) = (Buffer::scratch(n * m)?, filled(m, 0.0)?);
        for (i, (to, from)) in wide.chunks_mut(m).zip(entries.chunks(ld)).enumerate() {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x.widen());
            squares.iter_mut().zip(&*to).take(i + 1).for_each(|(square, x)| *square += x.abs2());
        }
        if T::as_wide(&[]).is_some() {
            return Ok(wide);
        }
        let smallest = T::Real::MIN_POSITIVE.to_f64();
        for (j, _) in squares.iter().enumerate().take(self.count()).filter(|(_, square)| square.sqrt() < smallest) {
            wide.iter_mut().skip(j).step_by(m).for_each(|x| *x = T::Wide::ZERO);
        }
        Ok(wide)
    }

    /// Size of the transformed vectors.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns of `U`.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Number of true reflections `k`: `m`, or `n - 1` when `m == n`.
    pub fn count(&self) -> usize {
        if self.m == self.n { self.n - 1 } else { self.m }
    }

    /// The factor `u_1` of the last coordinate, when `m == n`.
    pub fn u1(&self) -> Option<T> {
        (self.m == self.n).then(|| self.entries[self.n * self.n - 1])
    }

    /// Distance between rows.
    pub fn ld(&self) -> usize {
        self.ld
    }

    /// All that is stored from entry `(i, j)` on.
    pub fn from(&self, i: usize, j: usize) -> &'a [T] {
        &self.entries[i * self.ld + j..]
    }

    /// How many vectors of size `n` each of these arrays holds.
    ///
    /// # Panics
    /// If their lengths differ or are no multiples of `n`.
    pub(crate) fn vectors(&self, lengths: &[usize]) -> usize {
        let n = self.n;
        let fit = lengths.iter().all(|&len| len == lengths[0] && len.is_multiple_of(n));
        assert!(fit, "arrays of {lengths:?} numbers, expected equally many vectors of size {n}");
        lengths[0] / n
    }

    /// Writes the zeros above the diagonal of a gradient.
    pub fn clear_above_diagonal(&self, grad_u: &mut [T]) {
        for (i, row) in grad_u.chunks_mut(self.m).take(self.m).enumerate() {
            row[i + 1..].fill(T::ZERO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_shapes_are_refused() {
        assert!(Reflections::new(2, 3, &[0.0; 6]).is_err());
        assert!(Reflections::new(2, 0, &[0.0; 0]).is_err());
        assert!(Reflections::new(2, 1, &[0.0; 3]).is_err());
        let square = [crate::number::c64::default(); 4];
        assert!(Reflections::new(2, 2, &square).is_err_and(|e| e.to_string().contains("phases")));
    }
}
