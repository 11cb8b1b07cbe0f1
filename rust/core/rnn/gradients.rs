//! The arrays for the gradients of a sequence.

use super::sequence::Sequence;
use crate::arrays::lengths;
use crate::arrays::stack::StackMut;
use crate::error::Result;
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::diagonal::PhaseGradients;

/// Where the gradients go; what is `None` is not computed.
#[derive(Debug, Default)]
pub struct SequenceGradients<'a, T: Scalar> {
    /// `dL/dU (count, n, m)`.
    pub u: Option<&'a mut [T]>,
    /// `dL/dx (count, rows, d)`.
    pub x: Option<&'a mut [T]>,
    /// `dL/dh_0 (count, batch, n)`.
    pub h0: Option<&'a mut [T]>,
    /// `dL/dV (count, n, d)`.
    pub input_weight: Option<&'a mut [T]>,
    /// `dL/db (count, n)`.
    pub bias: Option<&'a mut [T]>,
    /// `dL/dtau (count, m)`, where `tau` is given.
    pub tau: Option<&'a mut [T]>,
    /// `dL/dtheta`, of as many numbers as there are angles: summed over problems that share them.
    pub phases: Option<&'a mut [T::Real]>,
    /// Gradient of modReLU's bias.
    pub activation_bias: Option<&'a mut [T::Real]>,
}

impl<T: Scalar> SequenceGradients<'_, T> {
    /// Whether each array has the size of what it is the gradient of.
    pub(super) fn check(&self, sequence: &Sequence<'_, T>) -> Result<()> {
        let len = |x: &Option<&mut [T]>| x.as_ref().map(|x| x.len());
        let real = |x: &Option<&mut [T::Real]>| x.as_ref().map(|x| x.len());
        let Sequence { operator: w, activation, steps, d, .. } = sequence;
        let (n, m, moduli) = (w.n(), w.m(), activation.bias().map_or(0, <[_]>::len));
        // Sequences without steps do not say how many there are.
        let h0 = if steps.count() == 0 { None } else { len(&self.h0) };
        w.require(&[
            ("dL/dU", len(&self.u), &[n, m]),
            ("dL/dx", len(&self.x), &[steps.rows(), *d]),
            ("dL/dh_0", h0, &[steps.batch(), n]),
            ("dL/dV", len(&self.input_weight), &[n, *d]),
            ("dL/db", len(&self.bias), &[n]),
            ("dL/dtau", len(&self.tau), &[if w.are_involutions() { 0 } else { m }]),
        ])?;
        lengths::require(
            1,
            &[
                ("dL/dtheta", real(&self.phases), &[w.angles()]),
                ("the gradient of modReLU's bias", real(&self.activation_bias), &[moduli]),
            ],
        )
    }

    /// Writes the gradients of a sequence without steps: zeros, except that `h_0` is the last state and has its gradient.
    pub(super) fn of_no_steps(self, grad_last: Option<&[T]>) -> Result<()> {
        let Self { u, x, mut h0, input_weight, bias, tau, phases, activation_bias } = self;
        if let (Some(h0), Some(grad_last)) = (&h0, grad_last) {
            lengths::require(1, &[("dL/dh_0", Some(h0.len()), &[grad_last.len()])])?;
        }
        for gradient in [u, x, h0.as_deref_mut(), input_weight, bias, tau].into_iter().flatten() {
            gradient.fill(T::ZERO);
        }
        if let (Some(h0), Some(grad_last)) = (h0, grad_last) {
            h0.copy_from_slice(grad_last);
        }
        phases.into_iter().chain(activation_bias).for_each(|x| x.fill(T::Real::ZERO));
        Ok(())
    }

    /// Calls `run` with the gradients of each problem, which it may ask for on any thread, once each.
    pub(super) fn by_problem(
        self,
        sequence: &Sequence<'_, T>,
        run: impl for<'b> FnOnce(&'b (dyn Fn(usize) -> SequenceGradients<'b, T> + Sync)) -> Result<()>,
    ) -> Result<()> {
        let Self { u, x, h0, input_weight, bias, tau, phases, activation_bias } = self;
        let w = &sequence.operator;
        let stacks = [u, x, h0, input_weight, bias, tau].map(|x| x.map(|x| StackMut::new(x, w.count())));
        let activation_bias = activation_bias.map(|x| StackMut::new(x, w.count()));
        let mut sums = PhaseGradients::new(w, phases)?;
        let phases = sums.parts();
        // SAFETY: the part of a problem is asked for once.
        run(&|i| unsafe {
            let [u, x, h0, input_weight, bias, tau] = stacks.each_ref().map(|x| x.as_ref().map(|x| x.at(i)));
            let phases = phases.as_ref().map(|x| x.at(i));
            let activation_bias = activation_bias.as_ref().map(|x| x.at(i));
            SequenceGradients { u, x, h0, input_weight, bias, tau, phases, activation_bias }
        })?;
        sums.finish();
        Ok(())
    }
}
