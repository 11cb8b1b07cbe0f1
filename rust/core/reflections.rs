//! The validated view of the parameter `U`.

use crate::error::{Error, Result};
use crate::lengths::require;
use crate::memory::{Buffer, filled};
use crate::number::{Number, Real};
use crate::scalar::Scalar;

/// Which entries of `U` its columns consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Column `j` (from 0) begins on the diagonal, behind `j` zeros: `m <= n`.
    Trapezoidal,
    /// Below the diagonal, which has implied ones, as in LAPACK.
    UnitTrapezoidal,
    /// All of them: any `m`.
    Full,
}

impl Form {
    /// The coordinate with which column `j` begins.
    #[inline(always)]
    pub fn first(self, j: usize) -> usize {
        if self == Self::Full { 0 } else { j }
    }

    /// How many of `k` columns have entries of their own in row `i`: these are read and have gradients.
    #[inline(always)]
    pub fn stored(self, i: usize, k: usize) -> usize {
        match self {
            Self::Trapezoidal => k.min(i + 1),
            Self::UnitTrapezoidal => k.min(i),
            Self::Full => k,
        }
    }

    /// The number of reflections of `m` columns. The last of `m == n` trapezoidal columns is a number, not a reflection.
    #[inline(always)]
    pub fn reflections(self, n: usize, m: usize) -> usize {
        m - usize::from(self == Self::Trapezoidal && m == n)
    }

    /// Whether all columns have a one on the diagonal.
    #[inline(always)]
    pub fn has_ones(self) -> bool {
        self == Self::UnitTrapezoidal
    }
}

/// `U (n, m)`, row-major: the vectors of the reflections and, where `tau` is not `2 / |v|^2`, their `tau`:
///
/// ```text
/// H = I - tau v v*
/// ```
///
/// Entries outside the columns, as their [`Form`] defines them, are never read.
///
/// For real trapezoidal columns and `m == n` the last column is the single number `u_1`, a factor on the last
/// coordinate and not a reflection: `W = W_1 diag(1, .., 1, u_1)`.
#[derive(Clone, Copy)]
pub struct Reflections<'a, T: Scalar> {
    n: usize,
    m: usize,
    /// Distance between rows.
    ld: usize,
    entries: &'a [T],
    form: Form,
    tau: Option<&'a [T]>,
}

impl<'a, T: Scalar> Reflections<'a, T> {
    /// Views `entries` as a trapezoidal `U (n, m)`.
    pub fn new(n: usize, m: usize, entries: &'a [T]) -> Result<Self> {
        Self::with_form(n, m, entries, Form::Trapezoidal, None)
    }

    /// Views `entries` as `U (n, m)` with columns of that form, and `tau (m,)`. Trapezoidal columns have a `tau` where there
    /// are ones on the diagonal, and only there.
    pub fn with_form(n: usize, m: usize, entries: &'a [T], form: Form, tau: Option<&'a [T]>) -> Result<Self> {
        if n == 0 || m == 0 || (m > n && form != Form::Full) {
            let sizes = if form == Form::Full { "n >= 1 and m >= 1" } else { "1 <= m <= n" };
            return Err(Error::InvalidArgument(format!("expected {sizes}, got n = {n}, m = {m}")));
        }
        if T::COMPLEX && m == n && form == Form::Trapezoidal {
            return Err(Error::InvalidArgument(format!(
                "a complex U takes at most n - 1 = {} reflections, got m = {m}; phases supply the rest of U(n)",
                n - 1
            )));
        }
        if n.checked_mul(m) != Some(entries.len()) {
            return Err(Error::InvalidArgument(format!("u: expected {n} x {m} entries, got {}", entries.len())));
        }
        if tau.is_some_and(|tau| tau.len() != m) {
            return Err(Error::InvalidArgument(format!(
                "tau: expected {m} numbers, got {}",
                tau.map_or(0, <[T]>::len)
            )));
        }
        if form != Form::Full && tau.is_some() != form.has_ones() {
            return Err(Error::InvalidArgument(
                "tau: expected it with ones on the diagonal or full columns".to_owned(),
            ));
        }
        Ok(Self { n, m, ld: m, entries, form, tau })
    }

    /// The reflections `begin..end` as a `U` of the coordinates from `form().first(begin)` on. They do not change earlier
    /// coordinates. `u_1` is not one of them.
    pub(crate) fn columns(self, begin: usize, end: usize) -> Self {
        debug_assert!(begin < end && end <= self.count());
        let first = self.form.first(begin);
        let (entries, tau) = (&self.entries[first * self.ld + begin..], self.tau.map(|tau| &tau[begin..end]));
        Self { n: self.n - first, m: end - begin, entries, tau, ..self }
    }

    /// All numbers in wide precision. Columns whose norm is subnormal in their own precision are the identity there as
    /// well: they become zero.
    pub(crate) fn widen(self) -> Result<Widened<T::Wide>> {
        let Self { n, m, ld, entries, form, tau } = self;
        let (mut wide, mut squares) = (Buffer::scratch(n * m)?, filled(m, 0.0)?);
        for (i, (to, from)) in wide.chunks_mut(m).zip(entries.chunks(ld)).enumerate() {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = x.widen());
            let stored = form.stored(i, m);
            squares.iter_mut().zip(&*to).take(stored).for_each(|(square, x)| *square += x.abs2());
        }
        let tau = tau.map(|tau| tau.iter().map(|x| x.widen()).collect());
        if !T::IS_WIDE && !form.has_ones() {
            let smallest = T::Real::MIN_POSITIVE.to_f64();
            for (j, _) in squares.iter().enumerate().take(self.count()).filter(|(_, square)| square.sqrt() < smallest) {
                wide.iter_mut().skip(j).step_by(m).for_each(|x| *x = T::Wide::ZERO);
            }
        }
        Ok(Widened { n, m, entries: wide, form, tau })
    }

    /// Size of the transformed vectors.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns of `U`.
    pub fn m(&self) -> usize {
        self.m
    }

    /// Which entries the columns consist of.
    pub fn form(&self) -> Form {
        self.form
    }

    /// `tau` of every column, where it is given.
    pub fn tau(&self) -> Option<&'a [T]> {
        self.tau
    }

    /// Number of true reflections `k`: `m`, or one less where the last column is `u_1`.
    pub fn count(&self) -> usize {
        self.form.reflections(self.n, self.m)
    }

    /// The factor `u_1` of the last coordinate, if there is one.
    pub fn u1(&self) -> Option<T> {
        (self.count() < self.m).then(|| self.entries[self.n * self.n - 1])
    }

    /// Distance between rows.
    pub(crate) fn ld(&self) -> usize {
        self.ld
    }

    /// All entries, row by row.
    pub fn entries(&self) -> &'a [T] {
        self.entries
    }

    /// How many vectors of size `n` an array holds, and others as well.
    pub(crate) fn vectors(&self, name: &str, len: usize, others: &[(&str, usize)]) -> Result<usize> {
        let rows = len / self.n;
        let all = std::iter::once((name, len)).chain(others.iter().copied());
        all.into_iter().try_for_each(|(name, len)| require(&[(name, Some(len), &[rows, self.n])]))?;
        Ok(rows)
    }

    /// Sets the gradient of entries outside the columns to zero.
    pub(crate) fn clear_unused(&self, grad_u: &mut [T]) {
        for (i, row) in grad_u.chunks_mut(self.m).take(self.m).enumerate() {
            row[self.form.stored(i, self.m)..].fill(T::ZERO);
        }
    }
}

/// [`Reflections`] with numbers of its own.
pub(crate) struct Widened<T: Scalar> {
    n: usize,
    m: usize,
    entries: Buffer<T>,
    form: Form,
    tau: Option<Vec<T>>,
}

impl<T: Scalar> Widened<T> {
    /// Views these numbers.
    pub fn reflections(&self) -> Result<Reflections<'_, T>> {
        Reflections::with_form(self.n, self.m, &self.entries, self.form, self.tau.as_deref())
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
        let [full, ones] = [Form::Full, Form::UnitTrapezoidal];
        assert!(Reflections::with_form(2, 3, &[0.0; 6], full, None).is_ok_and(|u| u.count() == 3));
        assert!(Reflections::with_form(2, 2, &square, full, None).is_ok_and(|u| u.count() == 2));
        assert!(Reflections::with_form(2, 0, &[0.0; 0], full, None).is_err());
        assert!(Reflections::<f64>::with_form(0, 1, &[], full, None).is_err());
        assert!(Reflections::<f64>::with_form(1 << 33, 1 << 33, &[], full, None).is_err());
        assert!(Reflections::with_form(2, 3, &[0.0; 6], full, Some(&[0.0; 2])).is_err());
        assert!(Reflections::with_form(2, 3, &[0.0; 6], ones, Some(&[0.0; 3])).is_err());
        assert!(Reflections::with_form(2, 1, &[0.0; 2], ones, None).is_err());
    }
}
