//! The diagonal factor `D` of `W = W_1 D`: `u_1` on the last coordinate, or phases (Corollary 1).

use crate::error::{Error, Result};
use crate::memory::{collected, filled};
use crate::number::Number;
use crate::reflections::Reflections;
use crate::scalar::Scalar;

/// `D`.
#[derive(Clone, Debug)]
pub enum Diagonal<T: Scalar> {
    /// The identity.
    One,
    /// `diag(1, .., 1, u_1)`, real.
    Last(T),
    /// `diag(exp(i theta))`, complex.
    Phases(Vec<T>),
}

impl<T: Scalar> Diagonal<T> {
    /// The diagonal of `u` with optional phases, one for each coordinate.
    pub fn new(u: Reflections<'_, T>, phases: Option<&[T::Real]>) -> Result<Self> {
        phases.map_or_else(|| Ok(Self::of(u)), |theta| Self::phases(u.n(), theta))
    }

    /// The diagonal of `u` alone.
    pub fn of(u: Reflections<'_, T>) -> Self {
        u.u1().map_or(Self::One, Self::Last)
    }

    /// `diag(exp(i theta))`.
    pub fn phases(n: usize, theta: &[T::Real]) -> Result<Self> {
        if !T::COMPLEX || theta.len() != n {
            return Err(Error::InvalidArgument(format!("phases: expected {n} real numbers and a complex u")));
        }
        Ok(Self::Phases(collected(theta.iter().map(|&angle| T::unit(angle)))?))
    }

    /// Refuses a diagonal that `u` cannot have.
    pub(crate) fn check(&self, u: Reflections<'_, T>) -> Result<()> {
        match self {
            Self::One => Ok(()),
            Self::Last(_) if u.u1().is_some() => Ok(()),
            Self::Last(_) => Err(Error::InvalidArgument("diagonal: expected no u_1, which u does not have".to_owned())),
            Self::Phases(units) if T::COMPLEX && units.len() == u.n() => Ok(()),
            Self::Phases(units) => {
                let text = format!("phases: expected {} and a complex u, got {}", u.n(), units.len());
                Err(Error::InvalidArgument(text))
            }
        }
    }

    /// How many angles it has.
    pub(crate) fn angles(&self) -> usize {
        if let Self::Phases(units) = self { units.len() } else { 0 }
    }

    /// The same in wide precision. Phases are normalised to modulus one in that precision.
    pub(crate) fn widen(&self) -> Result<Diagonal<T::Wide>> {
        Ok(match self {
            Self::One => Diagonal::One,
            Self::Last(u1) => Diagonal::Last(u1.widen()),
            Self::Phases(units) => Diagonal::Phases(collected(units.iter().map(|unit| {
                let unit = unit.widen();
                unit.scale(1.0 / unit.abs2().sqrt())
            }))?),
        })
    }

    /// Whether it changes anything.
    pub(crate) fn is_one(&self) -> bool {
        matches!(self, Self::One)
    }

    /// Multiplies column `j` of a square matrix, which stands on the left of `D` (or of `D*`), by its entry.
    pub(crate) fn scale(&self, j: usize, column: &mut [T], adjoint: bool) {
        let factor = match self {
            Self::Last(u1) if j + 1 == column.len() => *u1,
            Self::Phases(units) => units[j],
            _ => return,
        };
        let factor = if adjoint { factor.conj() } else { factor };
        column.iter_mut().for_each(|x| *x = *x * factor);
    }

    /// `x <- D x`, or `D* x`.
    pub(crate) fn apply(&self, x: &mut [T], adjoint: bool) {
        match self {
            Self::One => {}
            Self::Last(u1) => {
                if let Some(last) = x.last_mut() {
                    *last = *last * *u1;
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

/// Gradient of `u_1` or of the phases, from `q = W_1* b` and `a = D p`.
pub(crate) struct DiagonalSum<T: Scalar> {
    u1: T,
    phases: Vec<T::Real>,
}

impl<T: Scalar> DiagonalSum<T> {
    /// An empty sum.
    pub fn new(n: usize, diagonal: &Diagonal<T>) -> Result<Self> {
        let phases = if matches!(diagonal, Diagonal::Phases(_)) { n } else { 0 };
        Ok(Self { u1: T::ZERO, phases: filled(phases, T::Real::ZERO)? })
    }

    /// `dL/du_1 = q_n p_n` and `dL/dtheta_j = -Im(conj(q_j) a_j)`.
    pub fn add(&mut self, q: &[T], a: &[T], p: &[T]) {
        self.u1 += q[q.len() - 1] * p[p.len() - 1];
        for ((sum, q), a) in self.phases.iter_mut().zip(q).zip(a) {
            *sum -= (q.conj() * *a).im();
        }
    }

    /// Writes the sums to the gradients that are wanted.
    pub fn write(&self, u: Reflections<'_, T>, grad_u: Option<&mut [T]>, grad_phases: Option<&mut [T::Real]>) {
        if let (Some(_), Some(grad_u)) = (u.u1(), grad_u) {
            grad_u[u.n() * u.m() - 1] = self.u1;
        }
        if let Some(grad_phases) = grad_phases {
            grad_phases.copy_from_slice(&self.phases);
        }
    }
}
