//! `W = W_1 D` of one problem, or of many of one size: what every operation takes, with the checks of its shape.

pub(crate) mod diagonal;
pub(crate) mod form;
pub(crate) mod gradients;

use std::borrow::Cow;
use std::ops::Range;

use crate::arrays::lengths::{self, Length, flops, product};
use crate::arrays::rows::Rows;
use crate::arrays::view::Shape;
use crate::error::{Error, Result};
use crate::memory::{Buffer, collected, filled};
use crate::method::{Costs, Method};
use crate::numbers::number::{Number, Real};
use crate::numbers::scalar::Scalar;
use crate::simd::isa::{InstructionSet, simd};
pub use form::Form;

/// Products `W` of reflections, one for each problem, or their adjoints `W*`.
///
/// `U (count, n, m)`, row-major, has the vectors of the reflections and, where their `tau` is not `2 / |v|^2`,
/// `tau (count, m)` has that:
///
/// ```text
/// H = I - tau v v*
/// ```
///
/// Entries outside the columns, as their [`Form`] defines them, are never read.
///
/// For real trapezoidal columns and `m == n` the last column is the single number `u_1`, a factor on the last
/// coordinate and not a reflection: `W = W_1 diag(1, .., 1, u_1)`. Complex `W` may have phases, `W = W_1 diag(exp(i theta))`.
#[derive(Clone, Debug)]
pub struct Operator<'a, T: Scalar> {
    count: usize,
    n: usize,
    m: usize,
    pub(crate) form: Form,
    pub(crate) entries: Cow<'a, [T]>,
    pub(crate) tau: Option<&'a [T]>,
    /// `exp(i theta)`, `n` numbers or `n` for each problem; empty without phases.
    pub(crate) units: Cow<'a, [T]>,
    adjoint: bool,
    method: Option<Method>,
}

/// Refuses sizes that no `U (n, m)` of this form has.
pub(crate) fn check_shape<T: Scalar>((n, m): Shape, form: Form) -> Result<()> {
    if n == 0 || m == 0 || (m > n && form != Form::Full) {
        let sizes = if form == Form::Full { "n >= 1 and m >= 1" } else { "1 <= m <= n" };
        return Err(Error::value("", sizes, format!("n = {n}, m = {m}")));
    }
    if T::COMPLEX && m == n && form == Form::Trapezoidal {
        return Err(Error::InvalidArgument(format!(
            "a complex U takes at most n - 1 = {} reflections, got m = {m}; phases supply the rest of U(n)",
            n - 1
        )));
    }
    Ok(())
}

impl<'a, T: Scalar> Operator<'a, T> {
    /// Products of trapezoidal columns, `entries (count, n, m)`: a slice, or the `count * n` rows of a matrix.
    pub fn new(shape: [usize; 3], entries: impl Into<Rows<'a, T>>) -> Result<Self> {
        Self::with_form(shape, entries, Form::Trapezoidal, None)
    }

    /// Products of columns of that form, `entries (count, n, m)`, and `tau (count, m)`. Trapezoidal columns have a `tau` where
    /// there are ones on the diagonal, and only there.
    pub fn with_form(
        [count, n, m]: [usize; 3],
        entries: impl Into<Rows<'a, T>>,
        form: Form,
        tau: Option<&'a [T]>,
    ) -> Result<Self> {
        let entries = entries.into().read("u", m)?;
        check_shape::<T>((n, m), form)?;
        let largest = n.max(m);
        if product(&[largest, largest, size_of::<T::Wide>()]).is_none() {
            return Err(Error::Shape { name: "W", shape: vec![largest; 2] });
        }
        lengths::require(count, &[("u", Some(entries.len()), &[n, m]), ("tau", tau.map(<[T]>::len), &[m])])?;
        if form != Form::Full && tau.is_some() != form.has_ones() {
            return Err(Error::unlike("tau", "it with ones on the diagonal or full columns"));
        }
        Ok(Self { count, n, m, form, entries, tau, units: Cow::Borrowed(&[]), adjoint: false, method: None })
    }

    /// These products with phases behind them: `theta (n,)`, which all problems share, or `(count, n)`.
    pub fn with_phases(self, theta: &[T::Real]) -> Result<Self> {
        let n = self.n;
        if !T::COMPLEX || (theta.len() != n && product(&[self.count, n]) != Some(theta.len())) {
            let expected = format!("{n} real numbers and a complex u").into();
            return Err(Error::Value { name: "phases", expected, found: None });
        }
        Ok(Self { units: Cow::Owned(collected(theta.iter().map(|&angle| T::unit(angle)))?), ..self })
    }

    /// `W*` in place of `W`, if asked.
    pub fn adjoint(self, adjoint: bool) -> Self {
        Self { adjoint, ..self }
    }

    /// By that method; `None` lets the shape decide.
    pub fn by(self, method: Option<Method>) -> Self {
        Self { method, ..self }
    }

    /// How many problems there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Size of the vectors.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Columns of `U`.
    pub fn m(&self) -> usize {
        self.m
    }

    /// How many true reflections each product has: `m`, or one less where the last column is `u_1`.
    pub fn reflections(&self) -> usize {
        self.form.reflections(self.n, self.m)
    }

    /// Whether `W*` is meant.
    pub fn is_adjoint(&self) -> bool {
        self.adjoint
    }

    /// How many angles there are in all.
    pub(crate) fn angles(&self) -> usize {
        self.units.len()
    }

    /// Whether each reflection is its own inverse, because no `tau` is given.
    pub(crate) fn are_involutions(&self) -> bool {
        self.tau.is_none()
    }

    /// The method that was asked for.
    pub(crate) fn requested_method(&self) -> Option<Method> {
        self.method
    }

    /// The method for so many vectors, with or without gradients.
    pub(crate) fn method_for(&self, isa: InstructionSet, rows: usize, gradients: bool) -> Method {
        let costs = || Costs::of_application(isa, self.form, (self.n, self.reflections()), rows, T::COMPLEX, gradients);
        self.method.unwrap_or_else(|| costs().accurate(!self.are_involutions()).best())
    }

    /// Approximate flops of all applications to `rows` vectors each, including the normalisation of the columns. They decide
    /// only how work is spread over threads.
    pub(crate) fn flops(&self, rows: usize) -> usize {
        flops(&[self.n, self.m, rows.saturating_mul(8).saturating_add(32), self.count])
    }

    /// Refuses arrays that are not of these sizes for each problem.
    pub(crate) fn require(&self, arrays: &[Length<'_>]) -> Result<()> {
        lengths::require(self.count, arrays)
    }

    /// How many vectors each problem has, if all arrays hold as many as the first.
    pub(crate) fn vectors(&self, arrays: &[(&'static str, usize)]) -> Result<usize> {
        let rows = arrays[0].1.checked_div(self.count * self.n).unwrap_or(0);
        arrays.iter().try_for_each(|&(name, len)| self.require(&[(name, Some(len), &[rows, self.n])]))?;
        Ok(rows)
    }

    /// Some of the problems.
    pub(crate) fn problems(&self, range: Range<usize>) -> Operator<'_, T> {
        let part = |each: usize| range.start * each..range.end * each;
        let own_units = self.units.len() > self.n;
        Operator {
            count: range.len(),
            entries: Cow::Borrowed(&self.entries[part(self.n * self.m)]),
            tau: self.tau.map(|tau| &tau[part(self.m)]),
            units: Cow::Borrowed(if own_units { &self.units[part(self.n)] } else { &self.units }),
            ..*self
        }
    }

    /// Problem `i`.
    #[inline(always)]
    pub(crate) fn at(&self, i: usize) -> Transform<'_, T> {
        let &Self { n, m, form, ref entries, adjoint, .. } = self;
        let (entries, tau) = (&entries[i * n * m..][..n * m], self.tau.map(|tau| &tau[i * m..][..m]));
        let u = Reflections { n, m, ld: m, entries, form, tau };
        let diagonal = match self.units.len() {
            0 => Diagonal::of(u),
            len => Diagonal::Phases(&self.units[if len == n { 0 } else { i * n }..][..n]),
        };
        Transform { u, diagonal, adjoint }
    }
}

/// `W_1 D` of one problem, or its adjoint.
#[derive(Clone, Copy)]
pub(crate) struct Transform<'a, T: Scalar> {
    /// `W_1`.
    pub u: Reflections<'a, T>,
    /// `D`.
    pub diagonal: Diagonal<'a, T>,
    /// Whether `W*` is meant.
    pub adjoint: bool,
}

/// The diagonal factor `D` of `W = W_1 D`: `u_1` on the last coordinate, or phases (Corollary 1).
#[derive(Clone, Copy)]
pub(crate) enum Diagonal<'a, T: Scalar> {
    /// The identity.
    One,
    /// `diag(1, .., 1, u_1)`, real.
    Last(T),
    /// `diag(exp(i theta))`, complex.
    Phases(&'a [T]),
}

impl<T: Scalar> Diagonal<'_, T> {
    /// The diagonal of `u` alone.
    #[inline(always)]
    pub fn of(u: Reflections<'_, T>) -> Self {
        u.u1().map_or(Self::One, Self::Last)
    }

    /// Whether it changes nothing.
    pub fn is_one(self) -> bool {
        matches!(self, Self::One)
    }

    /// Multiplies column `j` of a square matrix, which stands on the left of `D` (or of `D*`), by its entry.
    pub fn scale(self, j: usize, column: &mut [T], adjoint: bool) {
        let factor = match self {
            Self::Last(u1) if j + 1 == column.len() => u1,
            Self::Phases(units) => units[j],
            _ => return,
        };
        let factor = if adjoint { factor.conj() } else { factor };
        column.iter_mut().for_each(|x| *x = *x * factor);
    }

    /// `x <- D x`, or `D* x`.
    pub fn apply(self, x: &mut [T], adjoint: bool) {
        match self {
            Self::One => {}
            Self::Last(u1) => {
                if let Some(last) = x.last_mut() {
                    *last = *last * u1;
                }
            }
            Self::Phases(units) => {
                for (x, &unit) in x.iter_mut().zip(units) {
                    *x = *x * if adjoint { unit.conj() } else { unit };
                }
            }
        }
    }
}

/// `U (n, m)` of one problem, row-major, and `tau (m,)`.
#[derive(Clone, Copy)]
pub(crate) struct Reflections<'a, T: Scalar> {
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
    pub fn new(n: usize, m: usize, entries: &'a [T]) -> Self {
        assert_eq!(n * m, entries.len(), "entries of U");
        Self { n, m, ld: m, entries, form: Form::Trapezoidal, tau: None }
    }

    /// The reflections `begin..end` as a `U` of the coordinates from `form().first(begin)` on. They do not change earlier
    /// coordinates. `u_1` is not one of them.
    pub fn columns(self, begin: usize, end: usize) -> Self {
        debug_assert!(begin < end && end <= self.count());
        let first = self.form.first(begin);
        let (entries, tau) = (&self.entries[first * self.ld + begin..], self.tau.map(|tau| &tau[begin..end]));
        Self { n: self.n - first, m: end - begin, entries, tau, ..self }
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
    pub fn ld(&self) -> usize {
        self.ld
    }

    /// All entries, row by row.
    pub fn entries(&self) -> &'a [T] {
        self.entries
    }

    /// Sets the gradient of entries outside the columns to zero.
    pub fn clear_unused(&self, grad_u: &mut [T]) {
        for (i, row) in grad_u.chunks_mut(self.m).take(self.m).enumerate() {
            row[self.form.stored(i, self.m)..].fill(T::ZERO);
        }
    }
}

impl<T: Scalar> Transform<'_, T> {
    /// All numbers in wide precision. Columns whose norm is subnormal in their own precision are the identity there as well:
    /// they become zero. Phases are normalised to modulus one in that precision.
    pub fn widen(self, isa: InstructionSet) -> Result<Widened<T::Wide>> {
        let Reflections { n, m, form, tau, .. } = self.u;
        let (mut wide, mut squares) = (Buffer::scratch(n * m)?, filled(m, 0.0)?);
        widen_rows(isa, self.u, &mut wide, &mut squares);
        if !T::IS_WIDE && !form.has_ones() {
            let smallest = T::Real::MIN_POSITIVE.to_f64();
            let k = self.u.count();
            for (j, _) in squares.iter().enumerate().take(k).filter(|(_, square)| square.sqrt() < smallest) {
                wide.iter_mut().skip(j).step_by(m).for_each(|x| *x = T::Wide::ZERO);
            }
        }
        let unit = |unit: &T| {
            let unit = unit.widen();
            unit.scale(1.0 / unit.abs2().sqrt())
        };
        let units = if let Diagonal::Phases(units) = self.diagonal { units } else { &[] };
        Ok(Widened {
            n,
            m,
            entries: wide,
            form,
            tau: tau.map(|tau| collected(tau.iter().map(|x| x.widen()))).transpose()?,
            units: collected(units.iter().map(unit))?,
            adjoint: self.adjoint,
        })
    }
}

simd! {
    /// Widens all entries, and adds up the squares of those of each column.
    fn widen_rows<T: Scalar>(_s, u: Reflections<'_, T>, wide: &mut [T::Wide], squares: &mut [f64]) -> () {
        for (i, (to, from)) in wide.chunks_mut(u.m).zip(u.entries.chunks(u.ld)).enumerate() {
            for (to, x) in to.iter_mut().zip(from) {
                *to = x.widen();
            }
            let stored = u.form.stored(i, u.m);
            for (square, x) in squares[..stored].iter_mut().zip(&to[..stored]) {
                *square += x.abs2();
            }
        }
    }
}

/// A [`Transform`] with numbers of its own.
pub(crate) struct Widened<T: Scalar> {
    n: usize,
    m: usize,
    entries: Buffer<T>,
    form: Form,
    tau: Option<Vec<T>>,
    units: Vec<T>,
    adjoint: bool,
}

impl<T: Scalar> Widened<T> {
    /// Views these numbers.
    pub fn transform(&self) -> Transform<'_, T> {
        let &Self { n, m, form, adjoint, .. } = self;
        let u = Reflections { n, m, ld: m, entries: &self.entries, form, tau: self.tau.as_deref() };
        let diagonal = if self.units.is_empty() { Diagonal::of(u) } else { Diagonal::Phases(&self.units) };
        Transform { u, diagonal, adjoint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::number::c64;

    #[test]
    fn impossible_shapes_are_refused() {
        assert!(Operator::new([1, 2, 3], &[0.0; 6]).is_err());
        assert!(Operator::new([1, 2, 0], &[0.0; 0]).is_err());
        assert!(Operator::new([1, 2, 1], &[0.0; 3]).is_err());
        assert!(Operator::new([2, 2, 1], &[0.0; 2]).is_err());
        let square = [c64::default(); 4];
        assert!(Operator::new([1, 2, 2], &square).is_err_and(|e| e.to_string().contains("phases")));
        let [full, ones] = [Form::Full, Form::UnitTrapezoidal];
        assert!(Operator::with_form([1, 2, 3], &[0.0; 6], full, None).is_ok_and(|u| u.reflections() == 3));
        assert!(Operator::with_form([1, 2, 2], &square, full, None).is_ok_and(|u| u.reflections() == 2));
        assert!(Operator::with_form([1, 2, 0], &[0.0; 0], full, None).is_err());
        assert!(Operator::<f64>::with_form([1, 0, 1], &[], full, None).is_err());
        assert!(Operator::<f64>::with_form([1, 1 << 33, 1 << 33], &[], full, None).is_err());
        assert!(Operator::with_form([1, 2, 3], &[0.0; 6], full, Some(&[0.0; 2])).is_err());
        assert!(Operator::with_form([1, 2, 3], &[0.0; 6], ones, Some(&[0.0; 3])).is_err());
        assert!(Operator::with_form([1, 2, 1], &[0.0; 2], ones, None).is_err());
    }

    #[test]
    fn phases_are_one_for_each_coordinate_of_a_complex_operator() {
        let numbers = [c64::default(); 6];
        let operator = || Operator::new([2, 3, 1], &numbers).unwrap();
        for len in [0, 1, 2, 4, 5, 7, 9] {
            assert!(operator().with_phases(&vec![0.0; len]).is_err());
        }
        assert!([3, 6].iter().all(|&len| operator().with_phases(&vec![0.0; len]).is_ok()));
        assert!(Operator::new([1, 3, 1], &[1.0; 3]).unwrap().with_phases(&[0.0; 3]).is_err());
    }
}
