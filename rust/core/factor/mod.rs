//! Reflections of a given orthogonal or unitary matrix (Theorem 1 and its proof, Algorithm 2).
//!
//! The first column `x` of what is left goes to `e^{i arg x_1} |x| e_1` by `u = x - e^{i arg x_1} |x| e_1`. The first entry
//! of `u` cancels when `x` is almost there already; `-e^{i arg x_1} |x_2..|^2 / (|x_1| + |x|)` is the same and does not.
//!
//! A column that needs no reflection uses none, so a real product of `k` reflections is found again with `k` reflections:
//! the vector of a column lies in the range of `Q - I`, and its reflection removes one dimension from that range. Unused
//! reflections flip the sign of the last coordinate again and again, because zero columns would never receive a gradient.
//!
//! If this fails, `range` tries another way. For complex `Q`, `signs` and `phases` come before it.
//!
//! Columns are reduced by panels; the columns to the right of a panel see its reflections at once, in compact WY form.

mod phases;
mod range;
mod signs;

use std::sync::{Mutex, PoisonError};

use range::{by_rows, few_reflections};

use crate::apply;
use crate::arrays::lengths::{flops, require};
use crate::arrays::view::{View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, collected, filled, padded};
use crate::numbers::number::{Number, Real};
use crate::numbers::scalar::Scalar;
use crate::operator::{Diagonal, Operator, Reflections, Transform};
use crate::product::outer;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::transpose::{transpose, turned};
use crate::simd::vector::{axpy, dot, sum_of_squares};
use crate::threads::{Context, slices};
use crate::wy::CompactWy;
use crate::wy::blocks::Block;

/// Columns reduced before the others see their reflections.
const PANEL: usize = 32;
/// Columns of a task at least.
const TASK: usize = 32;

/// Where a reflection takes a column `x`.
#[derive(Clone, Copy, PartialEq)]
enum Target {
    /// To `|x| e_1`.
    One,
    /// To `e^{i arg x_1} |x| e_1`.
    Phase,
    /// To `-e^{i arg x_1} |x| e_1`.
    OppositePhase,
}

impl Target {
    /// Complex matrices have phases on their diagonal.
    fn of<T: Scalar>() -> Self {
        if T::COMPLEX { Self::Phase } else { Self::One }
    }
}

/// Writes `U (n, m)`, unit columns, and the phases of the `n x n` matrix `q` (row-major). Returns how far `q` is from the
/// product of these `m` reflections: the largest entry by which what remains of it differs from the identity. A complex matrix
/// is reduced to phases in any case: without a place for them, they are what remains.
pub fn factor<T: Scalar>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[T],
    u: &mut [T],
    phases: Option<&mut [T::Real]>,
) -> Result<f64> {
    T::factor(context, n, m, q, u, phases)
}

/// [`factor`], to be compiled for each type.
pub(crate) fn search<T: Scalar>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[T],
    u: &mut [T],
    mut phases: Option<&mut [T::Real]>,
) -> Result<f64> {
    check(n, m, q, u, phases.as_deref())?;
    let residual = reduce(context, n, m, q, u, Target::of::<T>(), phases.as_deref_mut())?;
    let reaches_all = m == n || (T::COMPLEX && (phases.is_none() || m == n - 1));
    if reaches_all || !residual.is_finite() || residual <= rounding::<T>(n) {
        return Ok(residual);
    }
    let wide = collected(q.iter().map(|x| x.widen()))?;
    let (few, units) = if T::COMPLEX {
        let Some(product) = signs::search(context, n, m, &wide, rounding::<T>(n))? else {
            return Ok(residual);
        };
        product
    } else {
        (few_reflections(context, n, m, &wide)?, Vec::new())
    };
    let [few, units] = [few, units].map(|x| collected(x.into_iter().map(T::narrow)));
    let (few, units) = (few?, units?);
    let diagonal = if T::COMPLEX { Diagonal::Phases(&units) } else { Diagonal::One };
    let distance = distance_of(context, Reflections::new(n, m, &few), diagonal, q)?;
    if distance < residual {
        u.copy_from_slice(&few);
        for (phase, unit) in phases.into_iter().flatten().zip(units) {
            *phase = T::Real::of(angle(unit.widen()));
        }
    }
    Ok(distance.min(residual))
}

/// `max |Q* Q - I|` over the entries of an `n x n` matrix (row-major), NaN if one is.
pub fn departure<T: Scalar>(context: &mut Context<'_>, n: usize, q: &[T]) -> Result<f64> {
    T::departure(context, n, q)
}

/// [`departure`], to be compiled for each type.
pub(crate) fn distance<T: Scalar>(context: &mut Context<'_>, n: usize, q: &[T]) -> Result<f64> {
    if n == 0 {
        return Err(Error::value("Q", "n >= 1", "n = 0"));
    }
    require(1, &[("Q", Some(q.len()), &[n, n])])?;
    let product = outer(context, n, q, q)?; // conj(Q* Q)
    let entries = product
        .chunks(padded::<T>(n))
        .enumerate()
        .flat_map(|(j, column)| column[..n].iter().enumerate().map(move |(i, &x)| if i == j { x - T::ONE } else { x }));
    Ok(largest(entries.map(Number::abs2)).to_f64().sqrt())
}

/// The largest entry by which a product of reflections and a diagonal differs from `q`, NaN if there is one.
fn distance_of<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: Diagonal<'_, T>,
    q: &[T],
) -> Result<f64> {
    let mut w = filled(q.len(), T::ZERO)?;
    apply::matrix_of_one(context, Transform { u, diagonal, adjoint: false }, &mut w)?;
    Ok(largest(w.iter().zip(q).map(|(&w, &q)| (w - q).max_abs())).to_f64())
}

/// The largest of some sizes, NaN if one is.
fn largest<R: Real>(sizes: impl Iterator<Item = R>) -> R {
    sizes.fold(R::ZERO, larger)
}

/// The larger of two sizes, NaN if one is.
#[inline(always)]
fn larger<R: Real>(a: R, b: R) -> R {
    if a.is_nan() || a >= b { a } else { b }
}

/// `arg x`.
fn angle<W: Scalar<Real = f64>>(x: W) -> f64 {
    x.im().atan2(x.re())
}

/// What rounding may leave of a column.
fn rounding<T: Scalar>(n: usize) -> f64 {
    (n + 8) as f64 * T::Real::EPSILON.to_f64()
}

/// [`factor`], column by column. The first `m` columns of `q` are found whatever the others are: those of a frame.
pub fn by_columns<T: Scalar>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[T],
    u: &mut [T],
    phases: Option<&mut [T::Real]>,
) -> Result<f64> {
    T::factor_by_columns(context, n, m, q, u, phases)
}

/// [`by_columns`], to be compiled for each type.
pub(crate) fn reduce_columns<T: Scalar>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[T],
    u: &mut [T],
    phases: Option<&mut [T::Real]>,
) -> Result<f64> {
    check(n, m, q, u, phases.as_deref())?;
    reduce(context, n, m, q, u, Target::of::<T>(), phases)
}

/// Whether there is such a `U`, and the sizes of all arrays fit.
fn check<T: Scalar>(n: usize, m: usize, q: &[T], u: &[T], phases: Option<&[T::Real]>) -> Result<()> {
    Operator::new([1, n, m], u)?;
    if phases.is_some() && !T::COMPLEX {
        return Err(Error::unlike("phases", "none, because Q is real"));
    }
    require(1, &[("Q", Some(q.len()), &[n, n]), ("phases", phases.map(<[_]>::len), &[n])])
}

/// [`by_columns`] with another target, for arrays whose sizes fit.
fn reduce<T: Scalar>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[T],
    u: &mut [T],
    target: Target,
    phases: Option<&mut [T::Real]>,
) -> Result<f64> {
    let mut rest = Residual::new(context, n, q, target)?;
    u.fill(T::ZERO);
    let reflections = if m == n { n - 1 } else { m };
    // If the reflections suffice for any matrix, they may also reflect mere rounding errors.
    let negligible = if m == n || (target == Target::Phase && m == n - 1) { 0.0 } else { rounding::<T>(n) };
    let limits = |used: usize| Limits { reflections: reflections - used, negligible };
    let mut panel = rest.panel(0).reduce(context, &limits(0))?;
    let mut used = 0;
    for begin in (0..n).step_by(PANEL) {
        let (width, k) = (PANEL.min(n - begin), panel.count);
        for (u, v) in u[begin * m..].chunks_mut(m).zip(panel.vectors.chunks(width)) {
            u[used..used + k].copy_from_slice(&v[..k]);
        }
        used += k;
        let next = begin + width;
        if next == n {
            break;
        }
        panel = match panel.wy {
            Some(wy) => rest.update(context, &Block { begin, first: begin, wy }, next, &limits(used))?,
            None if used < reflections => rest.panel(next).reduce(context, &limits(used))?,
            None => break,
        };
    }
    u[(n - 1) * m + used..(n - 1) * m + reflections].fill(T::ONE);
    if (reflections - used) % 2 == 1 {
        (0..n).for_each(|j| *rest.last_of(j) = -*rest.last_of(j));
    }
    if m == n {
        u[n * n - 1] = if rest.last_of(n - 1).re() < T::Real::ZERO { -T::ONE } else { T::ONE };
    }
    let diagonal = rest.diagonal((m == n).then(|| u[n * n - 1]), phases)?;
    rest.distance_from(context, &diagonal)
}

/// What the reflections found so far leave of `Q`.
struct Residual<T: Scalar> {
    n: usize,
    ld: usize,
    /// Column-major, columns `ld` apart: a reflection acts on whole columns.
    columns: Buffer<T>,
    target: Target,
}

impl<T: Scalar> Residual<T> {
    fn new(context: &mut Context<'_>, n: usize, q: &[T], target: Target) -> Result<Self> {
        let (isa, ld) = (context.isa, padded::<T>(n));
        let mut columns = Buffer::scratch(n * ld)?;
        let (rows, to) = (View::of(q, n, n), ViewMut::of(&mut columns, ld, n));
        let bounds = slices(n, TASK, 64);
        context.run(bounds.len() - 1, flops(&[8, n, n]), &|i, cancel| {
            cancel.check()?;
            let (begin, end) = (bounds[i], bounds[i + 1]);
            // SAFETY: tasks own disjoint columns.
            unsafe { turned(isa, (end - begin, n), rows.from(begin, 0), to.part(begin, end)) };
            Ok(())
        })?;
        Ok(Self { n, ld, columns, target })
    }

    /// Last entry of column `j`.
    fn last_of(&mut self, j: usize) -> &mut T {
        &mut self.columns[j * self.ld + self.n - 1]
    }

    /// The panel that begins with column `begin`.
    fn panel(&mut self, begin: usize) -> Panel<'_, T> {
        let Self { n, ld, target, .. } = *self;
        let end = n.min(begin + PANEL);
        Panel { n, begin, ld, columns: &mut self.columns[begin * ld..end * ld], target }
    }

    /// Multiplies the columns from `column` on by `W*`. One task reduces the panel that begins with it, and forms its compact WY
    /// form, while others are busy with the columns behind.
    fn update(
        &mut self,
        context: &mut Context<'_>,
        block: &Block<T>,
        column: usize,
        limits: &Limits,
    ) -> Result<ReducedPanel<T>> {
        let Self { n, ld, target, .. } = *self;
        let (isa, ld_k) = (context.isa, block.wy.ld_k());
        let behind = n.min(column + PANEL);
        let mut bounds = vec![column];
        bounds.extend(slices(n - behind, TASK, 64).into_iter().map(|i| behind + i));
        let columns = ViewMut::of(&mut self.columns, ld, n);
        let reduced = Mutex::new(None);
        context.run(bounds.len() - 1, flops(&[4, block.wy.n, block.wy.k, n - column]), &|i, cancel| {
            cancel.check()?;
            let rest = columns.part(bounds[i], bounds[i + 1]);
            let cols = rest.count;
            let (mut z, mut y) = (Buffer::<T>::scratch(cols * ld_k)?, Buffer::<T>::scratch(cols * ld_k)?);
            let (z, y) = (ViewMut::of(&mut z, ld_k, cols), ViewMut::of(&mut y, ld_k, cols));
            // SAFETY: tasks own disjoint columns; z and y have a row for each.
            unsafe {
                block.project(isa, rest.read(), z, y, true);
                block.expand(isa, y.read(), rest.read(), rest);
            }
            if i == 0 {
                // SAFETY: the columns of this task.
                let columns = unsafe { std::slice::from_raw_parts_mut(rest.ptr, cols * ld) };
                let poll = &mut || cancel.check().is_err();
                let panel = Panel { n, begin: column, ld, columns, target };
                let panel = panel.reduce(&mut Context::of_task(isa, poll), limits)?;
                *reduced.lock().unwrap_or_else(PoisonError::into_inner) = Some(panel);
            }
            Ok(())
        })?;
        let reduced = reduced.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(reduced.expect("the first task reduces the panel"))
    }

    /// The diagonal that should be left: ones, the last of them `u_1`, or the units of the phases, which are written.
    fn diagonal(&self, u1: Option<T>, phases: Option<&mut [T::Real]>) -> Result<Vec<T>> {
        let mut diagonal = filled(self.n, T::ONE)?;
        if let (Some(u1), Some(last)) = (u1, diagonal.last_mut()) {
            *last = u1;
        }
        for (j, phase) in phases.into_iter().flatten().enumerate() {
            let angle = angle(self.columns[j * self.ld + j].widen());
            *phase = T::Real::of(angle);
            diagonal[j] = T::narrow(<T::Wide as Number>::unit(angle));
        }
        Ok(diagonal)
    }

    /// Largest entry of the difference from a diagonal matrix, NaN if there is one.
    fn distance_from(&mut self, context: &mut Context<'_>, diagonal: &[T]) -> Result<f64> {
        let (isa, n) = (context.isa, self.n);
        let distance = Mutex::new(T::Real::ZERO);
        by_rows(context, self.ld, &mut self.columns, flops(&[8, n, n]), &|j, column| {
            column[j] -= diagonal[j];
            let of_column = largest_entry(isa, &column[..n]);
            let mut distance = distance.lock().unwrap_or_else(PoisonError::into_inner);
            *distance = larger(*distance, of_column);
        })?;
        Ok(distance.into_inner().unwrap_or_else(PoisonError::into_inner).to_f64())
    }
}

/// What a panel may use, and what it leaves alone.
struct Limits {
    /// Most reflections.
    reflections: usize,
    /// Norm of a difference that needs none.
    negligible: f64,
}

/// Some columns of a [`Residual`].
struct Panel<'a, T: Scalar> {
    n: usize,
    begin: usize,
    ld: usize,
    columns: &'a mut [T],
    target: Target,
}

/// The reflections of a panel, which were applied to it alone.
struct ReducedPanel<T: Scalar> {
    /// Row-major, row 0 is that of the panel's first column. Columns that find nothing to reflect leave a zero column at the
    /// end, which is the identity.
    vectors: Buffer<T>,
    /// How many there are.
    count: usize,
    /// Their compact WY form, if there are any, and columns behind the panel.
    wy: Option<CompactWy<T>>,
}

impl<T: Scalar> Panel<'_, T> {
    /// Reduces the columns, one after the other.
    fn reduce(self, context: &mut Context<'_>, limits: &Limits) -> Result<ReducedPanel<T>> {
        let Self { n, begin, ld, columns, target } = self;
        let isa = context.isa;
        let width = columns.len() / ld;
        let rows = n - begin;
        let mut v = Buffer::<T>::zeroed(rows * width)?; // column-major
        let mut count = 0;
        for column in 0..width {
            let coordinates = begin + column..n;
            let v_j = &mut v[count * rows..][column..rows];
            let x = &columns[column * ld..][coordinates.clone()];
            if count == limits.reflections || !reflection_of(isa, x, target, limits.negligible, v_j) {
                continue;
            }
            let tau = T::Real::of(2.0 / squares(isa, v_j));
            for x in columns[column * ld..].chunks_exact_mut(ld) {
                let x = &mut x[coordinates.clone()];
                let a = dot(isa, v_j, x).scale(tau);
                axpy(isa, -a, v_j, x);
            }
            count += 1;
        }
        let mut vectors = Buffer::scratch(rows * width)?;
        transpose(isa, (rows, width), &v, rows, &mut vectors, width);
        let reflections = Reflections::new(rows, width, &vectors);
        let wy = if count > 0 && width < rows { Some(CompactWy::new(context, reflections)?) } else { None };
        Ok(ReducedPanel { vectors, count, wy })
    }
}

simd! {
    /// The largest part of an entry, NaN if one is: the largest in each of several chains, which the compiler maps to lanes.
    fn largest_entry<T: Scalar>(_s, numbers: &[T]) -> T::Real {
        const CHAINS: usize = 32;
        let mut chains = [T::Real::ZERO; CHAINS];
        let (pieces, rest) = numbers.as_chunks::<CHAINS>();
        for piece in pieces.iter().map(<[T; CHAINS]>::as_slice).chain([rest]) {
            for (chain, x) in chains.iter_mut().zip(piece) {
                *chain = larger(*chain, x.max_abs());
            }
        }
        largest(chains.into_iter())
    }

    /// `|v|^2` in double precision.
    fn squares<T: Scalar>(_s, v: &[T]) -> f64 {
        sum_of_squares(v)
    }

    /// `x / norm`, from double precision.
    fn normalised<T: Scalar>(_s, x: &[T], inverse: f64, v: &mut [T]) -> () {
        for (v, x) in v.iter_mut().zip(x) {
            *v = T::narrow(x.widen().scale(inverse));
        }
    }
}

/// Writes the unit vector whose reflection takes `x` to its target. Returns `false` if `x` is there already, up to an error of
/// norm `negligible`.
fn reflection_of<T: Scalar>(isa: InstructionSet, x: &[T], target: Target, negligible: f64, v: &mut [T]) -> bool {
    let first = x[0].widen();
    let below = squares(isa, &x[1..]);
    let (modulus, norm) = (first.abs2().sqrt(), (first.abs2() + below).sqrt());
    let direction = if modulus > 0.0 { first.scale(1.0 / modulus) } else { <T::Wide as Number>::ONE };
    let short = -below / (modulus + norm);
    let (entry, distance) = match target {
        Target::Phase => (direction.scale(short), below.sqrt()),
        Target::One if first.re() > 0.0 => {
            let off_unit = first.re() - 1.0;
            (<T::Wide as Number>::from_real(short), (below + off_unit * off_unit).sqrt())
        }
        // A column that goes to the opposite phase needs its reflection even when all entries below the first are zero.
        Target::One => (<T::Wide as Number>::from_real(first.re() - norm), f64::INFINITY),
        Target::OppositePhase => (direction.scale(modulus + norm), f64::INFINITY),
    };
    // Squares below the smallest normal number have lost their digits.
    if distance <= negligible || (below < f64::MIN_POSITIVE && distance.is_finite()) {
        return false;
    }
    let square = entry.abs2() + below;
    if square == 0.0 {
        return false; // a column of zeros, which no unitary matrix has
    }
    let inverse = 1.0 / square.sqrt();
    v[0] = T::narrow(entry.scale(inverse));
    normalised(isa, &x[1..], inverse, &mut v[1..]);
    true
}
