//! The arrays for the gradients of a sequence.

use super::Sequence;
use crate::error::Result;
use crate::lengths::require;
use crate::number::Number;
use crate::scalar::Scalar;

/// Where the gradients go; what is `None` is not computed.
#[derive(Default)]
pub struct SequenceGradients<'a, T: Scalar> {
    /// `dL/dU (n, m)`.
    pub u: Option<&'a mut [T]>,
    /// `dL/dx (rows, d)`.
    pub x: Option<&'a mut [T]>,
    /// `dL/dh_0 (batch, n)`.
    pub h0: Option<&'a mut [T]>,
    /// `dL/dV (n, d)`.
    pub input_weight: Option<&'a mut [T]>,
    /// `dL/db (n,)`.
    pub bias: Option<&'a mut [T]>,
    /// `dL/dtau (m,)`, where `tau` is given.
    pub tau: Option<&'a mut [T]>,
    /// `dL/dtheta (n,)`.
    pub phases: Option<&'a mut [T::Real]>,
    /// Gradient of modReLU's bias.
    pub activation_bias: Option<&'a mut [T::Real]>,
}

impl<T: Scalar> SequenceGradients<'_, T> {
    /// Whether each array has the size of what it is the gradient of.
    pub(super) fn check(&self, sequence: &Sequence<'_, T>) -> Result<()> {
        let len = |x: &Option<&mut [T]>| x.as_ref().map(|x| x.len());
        let real = |x: &Option<&mut [T::Real]>| x.as_ref().map(|x| x.len());
        let (n, d, m, steps) = (sequence.u.n(), sequence.d, sequence.u.m(), &sequence.steps);
        let moduli = sequence.activation.bias().map_or(0, <[_]>::len);
        require(&[
            ("dL/dU", len(&self.u), &[n, m]),
            ("dL/dx", len(&self.x), &[steps.rows(), d]),
            ("dL/dh_0", len(&self.h0), &[steps.batch(), n]),
            ("dL/dV", len(&self.input_weight), &[n, d]),
            ("dL/db", len(&self.bias), &[n]),
            ("dL/dtau", len(&self.tau), &[sequence.u.tau().map_or(0, <[T]>::len)]),
            ("dL/dtheta", real(&self.phases), &[sequence.diagonal.angles()]),
            ("the gradient of modReLU's bias", real(&self.activation_bias), &[moduli]),
        ])
    }

    /// Writes the gradients of a sequence without steps: zeros, except that `h_0` is the last state and has its gradient.
    pub(super) fn of_no_steps(self, grad_last: Option<&[T]>) -> Result<()> {
        let Self { u, x, mut h0, input_weight, bias, tau, phases, activation_bias } = self;
        for gradient in [u, x, h0.as_deref_mut(), input_weight, bias, tau].into_iter().flatten() {
            gradient.fill(T::ZERO);
        }
        if let (Some(h0), Some(grad_last)) = (h0, grad_last) {
            require(&[("dL/dh_0", Some(h0.len()), &[grad_last.len()])])?;
            h0.copy_from_slice(grad_last);
        }
        phases.into_iter().chain(activation_bias).for_each(|x| x.fill(T::Real::ZERO));
        Ok(())
    }
}
