//! Signs of phases that the columns of a unitary matrix leave open.
//!
//! The first column of `Q = H(v) .. D`, with a unit vector `v`, has the first entry
//!
//! ```text
//! q_11 = d_1 (1 - 2 |v_1|^2).
//! ```
//!
//! The bracket is real, so `q_11` gives `d_1` except for its sign. Each sign gives another `v`, and perhaps only one sign
//! leaves a matrix that the other reflections reach. Once these are fewer than half of the coordinates, [`few_phases`]
//! needs no choice. Before that, this search tries both signs, depth first. The first pass begins with the smaller `|v_1|`,
//! which finds random vectors soon. The second begins with the larger, which finds vectors with large first entries.

use super::phases::{few_phases, without};
use super::range::few_reflections;
use super::{Target, angle, distance_of, reduce, reflection_of};
use crate::error::Result;
use crate::memory::{collected, filled};
use crate::numbers::scalar::Scalar;
use crate::operator::{Diagonal, Reflections};
use crate::simd::vector::axpy;
use crate::threads::Context;

/// Most choices of signs that are tried in each order.
const CHOICES: usize = 1 << 14;
/// The last levels, where most choices are, keep what the reflections before them left. Earlier ones compute it again, because
/// their matrices may be many and large.
const KEPT_LEVELS: usize = 4;
/// Most operations that these choices may take.
const OPERATIONS: usize = 1 << 28;

/// `U (n, m)`, row-major, and the units of the phases for the row-major `q` and `m < n`: the nearest that was found, if any.
pub fn search<W: Scalar<Real = f64, Wide = W>>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[W],
    negligible: f64,
) -> Result<Option<(Vec<W>, Vec<W>)>> {
    let mut search = Search {
        context,
        n,
        m,
        q,
        negligible,
        u: filled(n * m, W::ZERO)?,
        d: filled(n, W::ONE)?,
        targets: [Target::Phase, Target::OppositePhase],
        choices: 0,
        most: CHOICES.min(OPERATIONS / (8 * (n - m).pow(3))).max(1), // the last coordinates are 2 (n - m) - 1
        nearest: None,
        distance: f64::INFINITY,
    };
    search.descend(n, m, search.rest(n, m)?)?;
    if search.choices == search.most {
        search.choices = 0;
        search.targets.reverse();
        search.descend(n, m, search.rest(n, m)?)?;
    }
    Ok(search.nearest)
}

struct Search<'a, 'b, W: Scalar> {
    context: &'a mut Context<'b>,
    n: usize,
    m: usize,
    q: &'a [W],
    /// What rounding may leave of a column.
    negligible: f64,
    /// The reflections and phases of the present choice.
    u: Vec<W>,
    d: Vec<W>,
    /// The order in which signs are tried.
    targets: [Target; 2],
    /// How many choices were tried in this order, and how many are allowed.
    choices: usize,
    most: usize,
    nearest: Option<(Vec<W>, Vec<W>)>,
    distance: f64,
}

impl<W: Scalar<Real = f64, Wide = W>> Search<'_, '_, W> {
    /// Finds the last `m` reflections and the last `n` phases from `rest (n, n)`, which the reflections before them left.
    fn descend(&mut self, n: usize, m: usize, mut rest: Vec<W>) -> Result<()> {
        if 2 * m < n || m == n - 1 {
            return self.finish(n, m, &rest);
        }
        let column = collected(rest.iter().step_by(n).copied())?;
        let mut v = filled(n, W::ZERO)?;
        if !reflection_of(self.context.isa, &column, Target::Phase, self.negligible, &mut v) {
            self.d[self.n - n] = unit_of(rest[0]);
            return self.descend(n - 1, m, below_first(n, rest));
        }
        for target in self.targets {
            if self.is_over() {
                break;
            }
            let mut reflected = if 2 * m - n < KEPT_LEVELS {
                collected(rest.iter().copied())?
            } else if rest.is_empty() {
                self.rest(n, m)?
            } else {
                std::mem::take(&mut rest)
            };
            reflection_of(self.context.isa, &column, target, self.negligible, &mut v);
            self.reflect(&v, &mut reflected)?;
            self.place(n, m, 1, &v);
            self.d[self.n - n] = unit_of(reflected[0]);
            self.descend(n - 1, m - 1, below_first(n, reflected))?;
        }
        Ok(())
    }

    /// What the present choice of the reflections before the last `m` leaves at the last `n` coordinates.
    fn rest(&self, n: usize, m: usize) -> Result<Vec<W>> {
        let mut rest = collected(self.q.iter().copied())?;
        for j in 0..self.m - m {
            let v = collected(self.u.iter().skip(j).step_by(self.m).copied())?;
            self.reflect(&v, &mut rest)?;
        }
        (n + 1..=self.n).rev().for_each(|n| remove_first(n, &mut rest));
        Ok(rest)
    }

    /// Whether a product was found, or as many choices were tried as are allowed.
    fn is_over(&self) -> bool {
        self.distance <= self.negligible.sqrt() || self.choices >= self.most
    }

    /// Completes the present choice where no sign is open, and keeps it if it is nearer than those before.
    fn finish(&mut self, n: usize, m: usize, rest: &[W]) -> Result<()> {
        self.choices += 1;
        let (u, d) = if m == n - 1 {
            let (mut u, mut phases) = (filled(n * m, W::ZERO)?, filled(n, 0.0)?);
            reduce(self.context, n, m, rest, &mut u, Target::Phase, Some(&mut phases))?;
            (u, phases.into_iter().map(W::unit).collect())
        } else {
            let Some(d) = few_phases(self.context, n, m, rest, self.negligible)? else {
                return Ok(());
            };
            (few_reflections(self.context, n, m, &without(n, rest, &d)?)?, d)
        };
        let distance = distance_of(self.context, Reflections::new(n, m, &u), Diagonal::Phases(&d), rest)?;
        if distance < self.distance {
            self.distance = distance;
            self.place(n, m, m, &u);
            self.d[self.n - n..].copy_from_slice(&d);
            self.nearest = Some((self.u.clone(), self.d.clone()));
        }
        Ok(())
    }

    /// Writes `width` of the last `m` reflections, whose entries begin at the last `n` coordinates.
    fn place(&mut self, n: usize, m: usize, width: usize, vectors: &[W]) {
        let first = self.m - m;
        let (above, rows) = self.u.split_at_mut((self.n - n) * self.m);
        above.chunks_exact_mut(self.m).for_each(|row| row[first..first + width].fill(W::ZERO));
        for (row, from) in rows.chunks_exact_mut(self.m).zip(vectors.chunks_exact(width)) {
            row[first..first + width].copy_from_slice(from);
        }
    }

    /// `(I - 2 v v*) rest` for a unit vector, in the place of `rest`.
    fn reflect(&self, v: &[W], rest: &mut [W]) -> Result<()> {
        let (isa, n) = (self.context.isa, v.len());
        let mut product = filled(n, W::ZERO)?;
        v.iter().zip(rest.chunks_exact(n)).for_each(|(v, row)| axpy(isa, v.conj(), row, &mut product));
        for (v, row) in v.iter().zip(rest.chunks_exact_mut(n)) {
            axpy(isa, -v.scale(2.0), &product, row);
        }
        Ok(())
    }
}

/// The matrix `(n, n)` without its first row and column, in less memory.
fn below_first<W: Scalar>(n: usize, mut matrix: Vec<W>) -> Vec<W> {
    remove_first(n, &mut matrix);
    matrix.shrink_to_fit();
    matrix
}

/// Removes the first row and column of a matrix `(n, n)`.
fn remove_first<W: Scalar>(n: usize, matrix: &mut Vec<W>) {
    (1..n).for_each(|i| matrix.copy_within(i * n + 1..(i + 1) * n, (i - 1) * (n - 1)));
    matrix.truncate((n - 1) * (n - 1));
}

/// The number of modulus one in the direction of `x`.
fn unit_of<W: Scalar<Real = f64>>(x: W) -> W {
    W::unit(angle(x))
}
