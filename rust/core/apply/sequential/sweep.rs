//! Vectors on their way through all reflections, and what is kept for their way back.

use std::ops::Range;

use pulp::Simd;

use super::columns::ReflectionColumns;
use super::groups::{Four, GROUP};
use super::vectors::Registers;
use super::{panels, side_by_side};
use crate::error::{Error, Result};
use crate::memory::{Buffer, filled};
use crate::numbers::scalar::Scalar;
use crate::operator::{Form, Reflections, Transform};
use crate::threads::Cancel;

/// What tells one application from another.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Application {
    rows: usize,
    n: usize,
    reflections: usize,
    form: Form,
    has_tau: bool,
    adjoint: bool,
}

impl Application {
    fn new<T: Scalar>(Transform { u, adjoint, .. }: Transform<'_, T>, rows: usize) -> Self {
        Self { rows, n: u.n(), reflections: u.count(), form: u.form(), has_tau: u.tau().is_some(), adjoint }
    }
}

/// What some vectors leave to the backward pass.
pub struct Swept<T: Scalar> {
    of: Application,
    /// The states behind all reflections `(rows, n)`; for `W*`, those in front of `D*`.
    x: Buffer<T>,
    /// A factor for each vector and reflection, `(rows, groups)`: `a`, or `v* x` where `tau` is given.
    factors: Vec<Four<T>>,
}

impl<T: Scalar> Swept<T> {
    /// Memory for `rows` vectors.
    pub fn new(w: Transform<'_, T>, rows: usize) -> Result<Self> {
        let of = Application::new(w, rows);
        let factors = filled(rows * of.reflections.div_ceil(GROUP), [T::ZERO; GROUP])?;
        Ok(Self { of, x: Buffer::scratch(rows * of.n)?, factors })
    }

    /// Refuses what another application left.
    pub fn check(&self, w: Transform<'_, T>, rows: usize) -> Result<()> {
        let given = Application::new(w, rows);
        if given == self.of {
            return Ok(());
        }
        Err(Error::InvalidArgument(format!("saved of {:?}, got {given:?}", self.of)))
    }

    /// All of it, to be read.
    pub fn read(&self) -> SweptRows<'_, T> {
        SweptRows { x: &self.x, factors: &self.factors }
    }

    /// All of it, to be written.
    pub fn write(&mut self) -> SweptRowsMut<'_, T> {
        SweptRowsMut { x: &mut self.x, factors: &mut self.factors }
    }
}

/// What is kept of some rows.
#[derive(Clone, Copy)]
pub struct SweptRows<'a, T> {
    pub x: &'a [T],
    pub factors: &'a [Four<T>],
}

impl<T> SweptRows<'_, T> {
    /// Some of them, each with `n` numbers and `groups` factors.
    pub fn part(self, rows: Range<usize>, n: usize, groups: usize) -> Self {
        let SweptRows { x, factors } = self;
        Self { x: &x[rows.start * n..rows.end * n], factors: &factors[rows.start * groups..rows.end * groups] }
    }
}

/// The same, to be written.
pub struct SweptRowsMut<'a, T> {
    pub x: &'a mut [T],
    pub factors: &'a mut [Four<T>],
}

impl<T> SweptRowsMut<'_, T> {
    /// Some of them, each with `n` numbers and `groups` factors.
    pub fn part(&mut self, rows: Range<usize>, n: usize, groups: usize) -> SweptRowsMut<'_, T> {
        let Self { x, factors } = self;
        let factors = &mut factors[rows.start * groups..rows.end * groups];
        SweptRowsMut { x: &mut x[rows.start * n..rows.end * n], factors }
    }
}

/// Takes vectors, `ld` apart, through all reflections: in groups, or one after the other. Keeps the factors if there is room.
#[inline(always)]
pub fn sweep<T: Scalar, S: Simd>(
    s: S,
    columns: &mut ReflectionColumns<T>,
    cancel: &Cancel<'_>,
    (u, adjoint, grouped): (Reflections<'_, T>, bool, bool),
    x: &mut [T],
    ld: usize,
    mut factors: Option<&mut [Four<T>]>,
) -> Result<()> {
    let (k, ops) = (u.count(), Registers(s));
    let (groups, side) = (k.div_ceil(GROUP), side_by_side::<T>(x.len() / ld, ld));
    for (number, panel) in panels(k, adjoint).enumerate() {
        if number > 0 {
            cancel.check()?;
        }
        let (first, begin) = (u.form().first(panel.start), panel.start / GROUP);
        columns.set(s, u.columns(panel.start, panel.end))?;
        if grouped {
            columns.find_factors(ops, adjoint);
        }
        for (chunk, x) in x.chunks_mut(side * ld).enumerate() {
            let place = |r: usize, group: usize| (chunk * side + r) * groups + begin + group;
            if grouped {
                columns.apply_groups(
                    ops,
                    adjoint,
                    &mut x[first..],
                    ld,
                    #[inline(always)]
                    |group, r, of_group| {
                        if let Some(factors) = &mut factors {
                            factors[place(r, group)] = of_group;
                        }
                    },
                );
            } else {
                let steps = columns.steps(adjoint);
                steps.apply(
                    ops,
                    &mut x[first..],
                    ld,
                    #[inline(always)]
                    |i, r, _, factor| {
                        if let Some(factors) = &mut factors {
                            let j = steps.column(i);
                            factors[place(r, j / GROUP)][j % GROUP] = factor;
                        }
                    },
                );
            }
        }
    }
    Ok(())
}
