//! The validated view of the parameter `U`.

use crate::error::{Error, Result};
use crate::kernel::dispatch::InstructionSet;
use crate::memory::filled;
use crate::scalar::{Real, Scalar};

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

    /// Row `i`, as stored.
    pub fn row(&self, i: usize) -> &'a [T] {
        &self.entries[i * self.ld..i * self.ld + self.m]
    }

    /// Writes the zeros above the diagonal of a gradient.
    pub fn clear_above_diagonal(&self, grad_u: &mut [T]) {
        for (i, row) in grad_u.chunks_mut(self.m).take(self.m).enumerate() {
            row[i + 1..].fill(T::ZERO);
        }
    }

    /// What makes each reflection's column a unit vector.
    pub fn normalizers(&self) -> Result<Normalizers> {
        let k = self.count();
        let mut scale = filled(k, 1.0)?;
        // Squares of f32 numbers neither overflow nor vanish in f64: no scaling needed.
        if size_of::<T::Real>() == 8 {
            scale.fill(0.0);
            for i in 0..self.n {
                for (largest, x) in scale[..k.min(i + 1)].iter_mut().zip(self.row(i)) {
                    let x = x.max_abs().to_f64();
                    if !(x <= *largest) {
                        *largest = x; // NaN stays: the comparison above is false for it ever after
                    }
                }
            }
            for scale in &mut scale {
                *scale = scale_of(*scale);
            }
        }
        let mut inverse = filled(k, 0.0)?;
        InstructionSet::current().dispatch(
            #[inline(always)]
            || {
                for i in 0..self.n {
                    for ((square, scale), x) in inverse[..k.min(i + 1)].iter_mut().zip(&scale).zip(self.row(i)) {
                        *square += x.widen().scale(*scale).abs2();
                    }
                }
            },
        );
        for (square, scale) in inverse.iter_mut().zip(&mut scale) {
            (*scale, *square) = factors_of::<T>(*scale, *square);
        }
        Ok(Normalizers { scale, inverse })
    }
}

/// Two factors for each reflection: `u * scale * inverse` has norm one. `scale` is a power of two that keeps the sum of
/// squares from overflowing or underflowing. A column whose norm is zero or subnormal gets zeros: it is the identity.
pub struct Normalizers {
    /// Powers of two.
    pub scale: Vec<f64>,
    /// Inverse norms of the scaled columns.
    pub inverse: Vec<f64>,
}

/// A power of two that brings a column with this largest entry near one.
pub(crate) fn scale_of(largest: f64) -> f64 {
    if largest > 0.0 && largest.is_finite() { power_of_two_below_inverse(largest) } else { 1.0 }
}

/// The factors of a column in [`Normalizers`], from the sum of squares of its entries times `scale`.
pub(crate) fn factors_of<T: Scalar>(scale: f64, square: f64) -> (f64, f64) {
    let norm = square.sqrt();
    if norm < T::Real::MIN_POSITIVE.to_f64() * scale {
        return (0.0, 0.0);
    }
    // An infinite column has no direction: NaN, as its entries divided by its norm would be.
    (scale, if norm.is_finite() { 1.0 / norm } else { f64::NAN })
}

/// The power of two in `(1 / (2 x), 1 / x]`, kept normal.
fn power_of_two_below_inverse(x: f64) -> f64 {
    let exponent = (x.to_bits() >> 52) as i64 & 0x7ff;
    f64::from_bits(((2045 - exponent).clamp(1, 2046) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_invert_magnitudes() {
        for x in [1.0, 1.5, 3.0e10, 1e-300, 1e300, f64::MAX, f64::MIN_POSITIVE] {
            let p = power_of_two_below_inverse(x);
            assert!(p.is_normal() && p * x <= 4.0 && p * x > 0.24, "{x}: {p}");
        }
    }

    #[test]
    fn columns_of_any_scale_are_normalised() {
        for scale in [1.0, 1e-300, 1e300, 1e-160, 1e160] {
            let u = [3.0 * scale, 0.0, 4.0 * scale, 2.0 * scale];
            let factors = Reflections::new(4, 1, &u).unwrap().normalizers().unwrap();
            let v: Vec<f64> = u.iter().map(|x| x * factors.scale[0] * factors.inverse[0]).collect();
            let norm: f64 = v.iter().map(|x| x * x).sum();
            assert!((norm - 1.0).abs() < 1e-15, "{scale}: {norm}");
        }
    }

    #[test]
    fn infinite_columns_are_nan() {
        let u = [1.0, f64::INFINITY];
        assert!(Reflections::new(2, 1, &u).unwrap().normalizers().unwrap().inverse[0].is_nan());
    }

    #[test]
    fn vanishing_columns_are_identities() {
        let u = [0.0, f64::MIN_POSITIVE / 4.0];
        let factors = Reflections::new(2, 1, &u).unwrap().normalizers().unwrap();
        assert_eq!((factors.scale[0], factors.inverse[0]), (0.0, 0.0));
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert!(Reflections::new(2, 3, &[0.0; 6]).is_err());
        assert!(Reflections::new(2, 0, &[0.0; 0]).is_err());
        assert!(Reflections::new(2, 1, &[0.0; 3]).is_err());
        let square = [crate::scalar::c64::default(); 4];
        assert!(Reflections::new(2, 2, &square).is_err_and(|e| e.to_string().contains("phases")));
    }
}
