//! Columns for one reflection after the other, with `tau = 2 / |v|^2` or as given.
//!
//! `U` is row-major, and its rows may be pages apart. Some rows at a time are turned into their part of the columns.

use std::ops::Range;

use pulp::Simd;

use super::ReflectionSteps;
use super::groups::{BATCH, Four, GROUP, GroupColumns, GroupFactor, GroupSums};
use super::vectors::{Registers, distance};
use crate::arrays::view::View;
use crate::error::Result;
use crate::memory::{ALIGNMENT, Buffer, filled, padded};
use crate::numbers::number::{Number, Real};
use crate::numbers::scalar::Scalar;
use crate::operator::{Form, Reflections};
use crate::simd::fetch::prefetch_rows;
use crate::simd::lanes::Lanes;
use crate::simd::transpose::{transpose_at, transpose_with};
use crate::simd::vector::sum_of_squares;
use crate::wy::layout::{ORDINARY, PIECE, inverse_square, scale_columns, tau_of, write_gradient_rows};

/// Rows that are laid out at a time, and a multiple of which columns there are: whole registers, and a unit of [`padded`].
const fn unit<T>() -> usize {
    let line = ALIGNMENT / size_of::<T>();
    if line > PIECE { line } else { PIECE }
}

/// Columns and what their [`ReflectionSteps`] need, for one matrix after the other of the same shape.
pub struct ReflectionColumns<T: Scalar> {
    n: usize,
    /// Number of reflections.
    pub k: usize,
    /// The columns, zero before their first entry and, in whole registers, behind the last; then columns that pad their number.
    entries: Buffer<T>,
    /// Distance between columns.
    pub ld: usize,
    /// Some rows, [`padded`]: where columns begin or end, and gradients.
    rows: Buffer<T>,
    /// `|v_j|^2`, zero for the identity.
    squares: Vec<f64>,
    /// What each column was multiplied by: a power of two, zero or NaN.
    scale: Vec<f64>,
    /// `2 / |v_j|^2`, zero for a zero column; or as given for the column before it was scaled.
    tau: Vec<T>,
    /// Whether `tau` is given.
    given: bool,
    /// Which entries the columns consist of.
    form: Form,
    pivots: Vec<(usize, T)>,
    /// That of each group of columns, once [`ReflectionColumns::find_factors`] was called.
    factors: Vec<GroupFactor<T::Wide>>,
}

impl<T: Scalar> ReflectionColumns<T> {
    /// Memory for `k` reflections of vectors of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let (ld, ld_k) = (distance::<T>(n), padded::<T>(k));
        Ok(Self {
            n,
            k,
            entries: Buffer::scratch(Self::len(n, k))?,
            ld,
            rows: Buffer::scratch(unit::<T>() * ld_k)?,
            squares: filled(k.next_multiple_of(PIECE), 0.0)?,
            scale: filled(k.next_multiple_of(PIECE), 1.0)?,
            tau: filled(k, T::ZERO)?,
            given: false,
            form: Form::Trapezoidal,
            pivots: filled(k, (0, T::ZERO))?,
            factors: filled(if T::COMPLEX { 0 } else { k.div_ceil(GROUP) }, GroupFactor::IDENTITY)?,
        })
    }

    /// How many numbers the columns take, and gradients that are laid out like them.
    pub fn len(n: usize, k: usize) -> usize {
        k.next_multiple_of(unit::<T>()) * distance::<T>(n)
    }

    /// Takes the reflections of `u`, which may have a smaller shape than the memory is for.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) -> Result<()> {
        let (n, k) = (u.n(), u.count());
        let (ld, ld_k, unit) = (distance::<T>(n), padded::<T>(k), unit::<T>());
        let fits = Self::len(n, k) <= self.entries.len() && unit * ld_k <= self.rows.len() && k <= self.tau.len();
        assert!(fits, "workspace for a smaller shape");
        (self.n, self.k, self.ld, self.form, self.given) = (n, k, ld, u.form(), u.tau().is_some());
        if k == 0 {
            return Ok(());
        }
        let (entries, width) = (View::of(u.entries(), u.ld(), n), k.next_multiple_of(unit));
        for begin in (0..n).step_by(unit) {
            let end = n.min(begin + unit);
            prefetch_rows(entries.part(end, n.min(end + unit)), k);
            let is_whole = [width, end - begin] == [k, unit] && u.form().stored(begin, k) == k;
            if !is_whole {
                self.take_rows(s, u, begin..end);
            }
            let rows = if is_whole { entries.part(begin, end) } else { View::of(&self.rows, ld_k, unit) };
            // SAFETY: whole registers of rows of U, or of padded ones, and as many columns of ld numbers.
            unsafe { transpose_at(s, (width, unit), rows.ptr, rows.ld, self.entries.ptr_mut().add(begin), ld) };
        }
        for (j, (column, square)) in self.entries.chunks_exact(ld).zip(&mut self.squares).take(k).enumerate() {
            *square = sum_of_squares(&column[u.form().first(j)..n]);
        }
        self.scale[..k].fill(1.0);
        for begin in (0..k).step_by(PIECE) {
            let end = k.min(begin + PIECE);
            // Counted rather than searched, so that the comparisons are vectorised.
            if self.squares[begin..end].iter().filter(|&square| ORDINARY.contains(square)).count() < end - begin {
                self.scale_piece(s, begin..end)?;
            }
        }
        set_tau(&mut self.tau[..k], &self.squares, &self.scale, u.tau());
        Ok(())
    }

    /// Copies rows of the columns, with zeros before the columns' first entries, and around all of them.
    #[inline(always)]
    fn take_rows<S: Simd>(&mut self, s: S, u: Reflections<'_, T>, rows: Range<usize>) {
        let (k, ld_k, unit) = (self.k, padded::<T>(self.k), unit::<T>());
        self.rows[rows.len() * ld_k..unit * ld_k].fill(T::ZERO);
        for (i, to) in rows.zip(self.rows.chunks_exact_mut(ld_k)) {
            let from = &u.entries()[i * u.ld()..];
            for j in (0..k.next_multiple_of(unit)).step_by(T::lanes::<S>()) {
                let inside = Lanes::<S, T, 1>::first(s, u.form().stored(i, k).saturating_sub(j));
                // SAFETY: the lanes inside a row of U, and a whole register of a padded row.
                unsafe { T::store(s, to.as_mut_ptr().add(j), inside.load(from.as_ptr().wrapping_add(j))[0]) };
            }
            if u.form().has_ones() && i < k {
                to[i] = T::ONE;
            }
        }
    }

    /// Scales those of a piece of columns that need it.
    #[inline(never)]
    fn scale_piece<S: Simd>(&mut self, s: S, columns: Range<usize>) -> Result<()> {
        let (n, ld, count) = (self.n, self.ld, columns.len());
        let mut rows = Buffer::zeroed(n.next_multiple_of(4) * PIECE)?;
        let entries = &mut self.entries[columns.start * ld..columns.end * ld];
        transpose_with(s, (n, count), entries, ld, &mut rows, PIECE);
        let mut square = [1.0; PIECE];
        square[..count].copy_from_slice(&self.squares[columns.clone()]);
        let (scale, scaled) = scale_columns(&mut rows, PIECE, &square);
        transpose_with(s, (count, n), &rows, PIECE, entries, ld);
        for (j, l) in columns.zip(0..) {
            self.scale[j] = scale[l];
            if scale[l] != 1.0 {
                self.squares[j] = scaled[l];
            }
        }
        Ok(())
    }

    /// Finds the pivots, for states from a tape.
    pub fn find_pivots(&mut self) {
        for (pivot, column) in self.pivots.iter_mut().zip(self.entries.chunks(self.ld)).take(self.k) {
            let mut largest = T::Real::ZERO;
            *pivot = (0, T::ZERO); // that of the identity
            for (p, x) in column[..self.n].iter().enumerate() {
                let square = x.abs2();
                if !(square <= largest) {
                    largest = square;
                    *pivot = (p, x.conj().scale(T::Real::ONE / square));
                }
            }
        }
    }

    /// Finds the factor of each group of columns for `W` or for `W*`. Zero columns fill the last group.
    #[inline(always)]
    pub fn find_factors(&mut self, ops: Registers<impl Simd>, adjoint: bool) {
        for group in 0..self.k.div_ceil(GROUP) {
            let tau = std::array::from_fn(|j| self.wide_tau(GROUP * group + j));
            self.factors[group] = self.group(ops, group).0.factor(ops, tau, adjoint);
        }
    }

    /// `tau_j` before it is rounded, unless it is given; zero behind the last column.
    fn wide_tau(&self, j: usize) -> T::Wide {
        match self.given {
            _ if j >= self.k => T::Wide::ZERO,
            true => self.tau[j].widen(),
            false => T::Wide::from_real(tau_of(self.squares[j])),
        }
    }

    /// Columns of a group, and their first number that is read.
    #[inline(always)]
    fn group<S: Simd>(&self, _: Registers<S>, group: usize) -> (GroupColumns<'_, T>, usize) {
        let lanes = T::lanes::<S>();
        let first = self.form.first(GROUP * group) / lanes * lanes;
        let len = self.n.next_multiple_of(lanes) - first;
        (GroupColumns { v: &self.entries[GROUP * group * self.ld + first..], ld: self.ld, len }, first)
    }

    /// The groups in order of application.
    fn groups(&self, adjoint: bool) -> impl DoubleEndedIterator<Item = usize> + use<T> {
        let count = self.k.div_ceil(GROUP);
        (0..count).map(move |i| if adjoint { i } else { count - 1 - i })
    }

    /// Applies all groups, of which [`ReflectionColumns::find_factors`] found the factors, to some vectors, `ld` apart. Calls
    /// `keep` with the numbers of the group and of the vector, and a factor of each reflection: `a`, or `v* x` in its place
    /// where `tau` is given.
    #[inline(always)]
    pub fn apply_groups(
        &self,
        ops: Registers<impl Simd>,
        adjoint: bool,
        x: &mut [T],
        ld: usize,
        mut keep: impl FnMut(usize, usize, Four<T>),
    ) {
        for group in self.groups(adjoint) {
            let ((columns, first), factor) = (self.group(ops, group), &self.factors[group]);
            for (number, x) in x.chunks_mut(BATCH * ld).enumerate() {
                let (x, mut a) = (&mut x[first..], [[T::ZERO; GROUP]; BATCH]);
                let a = &mut a[..x.len().div_ceil(ld)];
                columns.project(ops, x, ld, a);
                for (r, a) in a.iter_mut().enumerate() {
                    let s = factor.of_sums(*a);
                    *a = factor.scaled(s).map(T::narrow);
                    keep(group, number * BATCH + r, if self.given { s.map(T::narrow) } else { *a });
                }
                columns.subtract(ops, a, x, ld);
            }
        }
    }

    /// Takes some vectors `x` and their gradients `g`, both `ld` apart, from behind all groups to their input.
    /// [`ReflectionColumns::find_factors`] found the factors of the reverse order; `kept` returns those of a group and a vector.
    /// Writes `dL/dV`, and adds to `dL/dtau`, which is empty unless wanted.
    #[inline(always)]
    pub fn back_through_groups(
        &self,
        ops: Registers<impl Simd>,
        adjoint: bool,
        [x, g]: [&mut [T]; 2],
        ld: usize,
        kept: impl Fn(usize, usize) -> Four<T>,
        (grad_v, grad_tau): (&mut [T], &mut [T]),
    ) {
        for group in self.groups(!adjoint) {
            let ((columns, first), factor) = (self.group(ops, group), &self.factors[group]);
            let mut sums = GroupSums::new();
            let grad_v = &mut grad_v[GROUP * group * self.ld + first..];
            let vectors = x.chunks_mut(BATCH * ld).zip(g.chunks_mut(BATCH * ld));
            for (number, (x, g)) in vectors.enumerate() {
                let (rows, x, g) = (x.len().div_ceil(ld), &mut x[first..], &mut g[first..]);
                let [mut a, mut b, mut s, mut t] = [[[T::ZERO; GROUP]; BATCH]; 4];
                let [a, b, s, t] = [&mut a, &mut b, &mut s, &mut t].map(|x| &mut x[..rows]);
                columns.project(ops, g, ld, t);
                for r in 0..rows {
                    s[r] = kept(group, number * BATCH + r);
                    let of_g = factor.of_sums(t[r]);
                    t[r] = of_g.map(T::narrow);
                    b[r] = factor.scaled(of_g).map(T::narrow);
                    a[r] = if self.given { factor.scaled(s[r].map(T::widen)).map(T::narrow) } else { s[r] };
                }
                sums.add([a, b], [s, t]);
                columns.back(ops, [a, b], [x, g], ld, grad_v, number == 0);
            }
            columns.add_own(ops, &sums, (self.given, adjoint), grad_v);
            for (grad, sum) in grad_tau.iter_mut().skip(GROUP * group).zip(sums.of_tau) {
                *grad -= T::narrow(sum);
            }
        }
    }

    /// Turns `dL/dtau` of the scaled columns into that of those given.
    pub fn finish_grad_tau(&self, grad_tau: &mut [T]) {
        for (grad, &scale) in grad_tau.iter_mut().zip(&self.scale) {
            *grad = T::narrow(grad.widen().scale(inverse_square(scale)));
        }
    }

    /// Writes `dL/dU` from `dL/dV`, [`ReflectionColumns::len`] numbers laid out like the columns, or adds it to what is there.
    /// `grad_u` begins with the first entry of `u`, and its rows are as far apart. A last column for `u_1` is left as it is but
    /// for its zeros.
    #[inline(always)]
    pub fn write_gradient<S: Simd>(&mut self, s: S, grad_v: &[T], u: Reflections<'_, T>, grad_u: &mut [T], add: bool) {
        let (n, k, ld_k, unit) = (self.n, self.k, padded::<T>(self.k), unit::<T>());
        for begin in (0..n).step_by(unit) {
            let shape = (unit, k.next_multiple_of(unit));
            transpose_with(s, shape, &grad_v[begin..], self.ld, &mut self.rows, ld_k);
            let (rows, grad_u) = (&mut self.rows[..unit.min(n - begin) * ld_k], &mut grad_u[begin * u.ld()..]);
            write_gradient_rows(s, rows, &self.scale[..k], begin, u, grad_u, add);
        }
    }

    /// The reflections in order of application.
    #[inline(always)]
    pub fn steps(&self, adjoint: bool) -> ReflectionSteps<'_, T> {
        let Self { n, k, ref entries, ld, ref tau, given, form, ref pivots, .. } = *self;
        ReflectionSteps { n, v: entries, ld, tau: &tau[..k], given, form, pivots, adjoint }
    }
}

/// Sets `2 / |v|^2`, zero for a zero column; or what is given, for columns that were multiplied by `scale`.
#[inline(always)]
pub fn set_tau<T: Scalar>(tau: &mut [T], squares: &[f64], scale: &[f64], given: Option<&[T]>) {
    if let Some(given) = given {
        for ((tau, given), &scale) in tau.iter_mut().zip(given).zip(scale) {
            *tau = T::narrow(given.widen().scale(inverse_square(scale)));
        }
        return;
    }
    for (tau, &square) in tau.iter_mut().zip(squares) {
        *tau = T::from_real(T::Real::of(tau_of(square)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrays::view::Shape;
    use crate::numbers::number::{c32, c64};
    use crate::operator::Operator;
    use crate::simd::isa::{InstructionSet, simd};
    use crate::wy::layout::Trapezoid;

    simd! {
        fn lay_out<T: Scalar>(s, v: &mut Trapezoid<T>, columns: &mut ReflectionColumns<T>, u: Reflections<'_, T>) -> Result<()> {
            v.set(s, u);
            columns.set(s, u)
        }

        fn write<T: Scalar>(s, columns: &mut ReflectionColumns<T>, grad_v: &[T], u: Reflections<'_, T>, grad_u: &mut [T]) -> () {
            columns.write_gradient(s, grad_v, u, grad_u, false);
        }
    }

    /// Columns of many sizes, some zero, with NaN above the diagonal.
    fn entries<T: Scalar>(n: usize, m: usize, form: Form, size: f64) -> Vec<T> {
        let entry = |i: usize, j: usize| {
            let column = [size, 1.0, 0.0][j % 3];
            if i < form.first(j) { f64::NAN } else { column * ((i * m + j) as f64).sin() }
        };
        let entries = (0..n * m).map(|e| T::narrow(<T::Wide as Number>::from_real(entry(e / m, e % m))));
        entries.collect()
    }

    /// The same columns and norms as row by row, and a gradient that is the columns themselves.
    fn columns_are_those_of_rows<T: Scalar>() {
        let shapes: &[Shape] =
            if cfg!(miri) { &[(17, 9)] } else { &[(2, 1), (7, 3), (16, 15), (17, 9), (33, 32), (40, 31), (70, 20)] };
        for (isa, &(n, m)) in
            InstructionSet::available().into_iter().flat_map(|isa| shapes.iter().map(move |s| (isa, s)))
        {
            for (form, size) in
                [(Form::Trapezoidal, 1.0), (Form::Full, 1e-15), (Form::Trapezoidal, 1e15), (Form::UnitTrapezoidal, 1.0)]
            {
                let entries = entries::<T>(n, m, form, size);
                let tau = form.has_ones().then(|| vec![T::ONE; m]);
                let w = Operator::with_form([1, n, m], &entries[..], form, tau.as_deref()).unwrap();
                let u = w.at(0).u;
                let k = u.count();
                let (mut v, mut columns) = (Trapezoid::new(n, k).unwrap(), ReflectionColumns::new(n, k).unwrap());
                lay_out(isa, &mut v, &mut columns, u).unwrap();
                let case = format!("{} {n} {m} {form:?} {size}", isa.name());
                for j in 0..k {
                    let column = &columns.entries[j * columns.ld..][..columns.ld];
                    assert!((0..n).all(|i| column[i] == v.rows[i * v.ld_k + j]), "{case}: column {j}");
                    let behind = &column[n..n.next_multiple_of(unit::<T>())];
                    assert!(behind.iter().all(|&x| x == T::ZERO), "{case}: behind column {j}");
                    let difference = (columns.squares[j] - v.squares[j]).abs();
                    assert!(difference <= 1e-14 * v.squares[j], "{case}: norm of column {j}");
                    assert_eq!(columns.scale[j], v.scale[j], "{case}: scale of column {j}");
                }
                let grad_v = columns.entries.to_vec();
                let mut grad_u = vec![T::ONE; n * m];
                write(isa, &mut columns, &grad_v, u, &mut grad_u);
                for (e, grad) in grad_u.into_iter().enumerate().filter(|(e, _)| e % m < k) {
                    let (i, j) = (e / m, e % m);
                    let scale = columns.scale[j] * columns.scale[j];
                    let expected = if j < form.stored(i, k) { entries[e].widen().scale(scale) } else { T::Wide::ZERO };
                    assert_eq!(grad, T::narrow(expected), "{case}: gradient ({i}, {j})");
                }
            }
        }
    }

    #[test]
    fn columns_of_every_type_are_those_of_rows() {
        columns_are_those_of_rows::<f32>();
        columns_are_those_of_rows::<f64>();
        columns_are_those_of_rows::<c32>();
        columns_are_those_of_rows::<c64>();
    }
}
