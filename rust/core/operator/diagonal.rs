//! Gradients of the diagonal factor `D` of `W = W_1 D`: of `u_1` on the last coordinate, or of phases (Corollary 1).

use crate::arrays::stack::StackMut;
use crate::error::Result;
use crate::memory::filled;
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::{Diagonal, Operator, Reflections};

/// Gradient of `u_1` or of the phases, from `q = W_1* b` and `a = D p`.
pub struct DiagonalSum<T: Scalar> {
    u1: T,
    phases: Vec<T::Real>,
}

impl<T: Scalar> DiagonalSum<T> {
    /// An empty sum.
    pub fn new(n: usize, diagonal: Diagonal<'_, T>) -> Result<Self> {
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

    /// Adds the sums over other vectors.
    pub fn merge(&mut self, other: &Self) {
        self.u1 += other.u1;
        self.phases.iter_mut().zip(&other.phases).for_each(|(sum, &x)| *sum += x);
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

/// The gradients of the phases of all problems, which are summed in order where the problems share their phases.
pub struct PhaseGradients<'a, T: Scalar> {
    count: usize,
    to: Option<&'a mut [T::Real]>,
    /// One for each problem, where they share their phases.
    each: Option<Vec<T::Real>>,
}

impl<'a, T: Scalar> PhaseGradients<'a, T> {
    /// For the gradient `to` of the phases of `w`, if wanted.
    pub fn new(w: &Operator<'_, T>, to: Option<&'a mut [T::Real]>) -> Result<Self> {
        let (count, n) = (w.count(), w.n());
        let shares = count != 1 && to.as_ref().is_some_and(|to| to.len() == n);
        Ok(Self { count, to, each: shares.then(|| filled(count * n, T::Real::ZERO)).transpose()? })
    }

    /// Where each problem writes.
    pub fn parts(&mut self) -> Option<StackMut<'_, T::Real>> {
        let to = self.to.as_deref_mut()?;
        Some(StackMut::new(self.each.as_deref_mut().unwrap_or(to), self.count))
    }

    /// Adds up the parts.
    pub fn finish(self) {
        let (Some(sum), Some(each)) = (self.to, self.each) else { return };
        sum.fill(T::Real::ZERO);
        each.chunks(sum.len()).for_each(|each| sum.iter_mut().zip(each).for_each(|(sum, &x)| *sum += x));
    }
}
