//! The parameter gradients of a slice of the batch, as sums over its rows, and what follows from their total.

use super::plan::Plan;
use super::transition::TransitionFactors;
use crate::apply::{self, from_outer};
use crate::error::Result;
use crate::memory::{Buffer, filled, padded};
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::Diagonal;
use crate::operator::gradients::Gradients;
use crate::simd::isa::InstructionSet;
use crate::simd::transpose::transpose;
use crate::threads::Context;
use crate::wy::dense::adjoint;
use crate::wy::gradient::from_sums;

/// Sums over one slice of the batch, column-major with columns `padded(n)` apart; those not wanted are empty.
pub struct Sums<T: Scalar> {
    /// `sum delta [z x 1]*`: `C1` (low rank) or `G` (dense), `dL/dV` and `dL/db`, of these widths.
    pub c1: Buffer<T>,
    /// Columns of `C1` or `G`, of `dL/dV` and of `dL/db`.
    pub widths: [usize; 3],
    /// `C2` (low rank).
    pub c2: Buffer<T>,
    /// Gradient of modReLU's bias.
    pub activation_bias: Vec<T::Real>,
}

impl<T: Scalar> Sums<T> {
    /// Zeros for the sums that are wanted: of `U` (and the phases), of the input weights and of the bias.
    pub fn new(plan: &Plan<'_, T>, [u, input, bias]: [bool; 3]) -> Result<Self> {
        let (n, rank) = (plan.n(), plan.layout.rank);
        let count = |wanted, count: usize| if wanted { count } else { 0 };
        let widths = [count(u, if rank == 0 { n } else { rank }), count(input, plan.d), count(bias, 1)];
        Ok(Self {
            c1: Buffer::zeroed(widths.iter().sum::<usize>() * padded::<T>(n))?,
            widths,
            c2: Buffer::zeroed(count(u, rank) * padded::<T>(n))?,
            activation_bias: filled(plan.activation.bias().map_or(0, <[_]>::len), T::Real::ZERO)?,
        })
    }

    /// Adds the sums of another slice.
    pub fn merge(&mut self, other: &Self) {
        for (sum, part) in [(&mut self.c1, &other.c1), (&mut self.c2, &other.c2)] {
            sum.iter_mut().zip(part.iter()).for_each(|(a, b)| *a += *b);
        }
        self.activation_bias.iter_mut().zip(&other.activation_bias).for_each(|(a, b)| *a += *b);
    }

    /// Writes `dL/dV` and `dL/db`.
    pub fn write_inputs(&self, isa: InstructionSet, n: usize, grad_v: Option<&mut [T]>, grad_b: Option<&mut [T]>) {
        let ld = padded::<T>(n);
        let [u, d, _] = self.widths;
        if let Some(grad_v) = grad_v {
            transpose(isa, (n, d), &self.c1[u * ld..], ld, grad_v, d);
        }
        if let Some(grad_b) = grad_b {
            grad_b.copy_from_slice(&self.c1[(u + d) * ld..][..n]);
        }
    }

    /// `dL/dU`, `dL/dtau` and `dL/dtheta`. A recurrence with `W*` exchanges the roles of states and gradients.
    pub fn finish(
        self,
        context: &mut Context<'_>,
        factors: &TransitionFactors<T>,
        plan: &Plan<'_, T>,
        gradients: Gradients<'_, T>,
    ) -> Result<()> {
        let (w, u, n) = (plan.w, plan.w.u, plan.n());
        let wy = match factors {
            TransitionFactors::Small { .. } => {
                let Some(grad_u) = gradients.u else { return Ok(()) };
                let (ld, mut outer) = (padded::<T>(n), Buffer::scratch(n * n)?);
                if w.adjoint {
                    for (row, column) in outer.chunks_mut(n).zip(self.c1.chunks(ld)) {
                        row.copy_from_slice(&column[..n]);
                    }
                } else {
                    transpose(context.isa, (n, n), &self.c1, ld, &mut outer, n);
                }
                return apply::small_matrix_backward(context.isa, w, &outer, grad_u);
            }
            TransitionFactors::Dense(dense) => {
                let mut outer = self.c1;
                if self.widths[0] == 0 {
                    return Ok(());
                }
                if w.adjoint {
                    outer = adjoint(context.isa, n, &outer)?;
                }
                return from_outer(context, dense, w, outer, gradients);
            }
            TransitionFactors::LowRank { wy, .. } => wy,
        };
        let Gradients { u: grad_u, tau: mut grad_tau, .. } = gradients;
        let (k, ld) = (wy.k, wy.ld_n());
        if grad_u.is_none() && grad_tau.is_none() {
            return Ok(());
        }
        grad_tau.iter_mut().for_each(|x| x.fill(T::ZERO));
        let (c1, mut c2) = if w.adjoint { (self.c2, self.c1) } else { (self.c1, self.c2) };
        let mut grad_u1 = None;
        if let Diagonal::Last(u1) = w.diagonal {
            // sum q_n h_n with q = delta + V w; the augmenting column of C1 holds sum delta h_n.
            let mut sum = c1[k * ld + n - 1];
            for j in 0..k {
                sum += wy.v[j * ld + n - 1] * c2[j * ld + n - 1];
                c2[j * ld + n - 1] = c2[j * ld + n - 1] * u1;
            }
            grad_u1 = Some(sum);
        }
        from_sums(context, wy, &c1, &mut c2, grad_tau)?;
        let Some(grad_u) = grad_u else { return Ok(()) };
        wy.write_gradient(context.isa, &c2, u, grad_u);
        if let Some(grad_u1) = grad_u1 {
            grad_u[n * u.m() - 1] = grad_u1;
        }
        Ok(())
    }
}
