//! Whole sequences and their gradients.

use super::{Stack, StackMut};
use crate::error::{Error, Result};
use crate::memory::collected;
use crate::recurrence::{self, Prepared, Sequence, SequenceGradients, Series};
use crate::scalar::Scalar;
use crate::threads::Context;

/// Batches of sequences of one size.
pub struct ManySequences<'a, T: Scalar>(pub Vec<Sequence<'a, T>>);

/// Where the gradients go; what is `None` is not computed.
#[derive(Default)]
pub struct ManySequenceGradients<'a, T: Scalar> {
    /// `dL/dU (count, n, m)`.
    pub u: Option<StackMut<'a, T>>,
    /// `dL/dx (count, rows, d)`.
    pub x: Option<StackMut<'a, T>>,
    /// `dL/dh_0 (count, batch, n)`.
    pub h0: Option<StackMut<'a, T>>,
    /// `dL/dV (count, n, d)`.
    pub input_weight: Option<StackMut<'a, T>>,
    /// `dL/db (count, n)`.
    pub bias: Option<StackMut<'a, T>>,
    /// `dL/dtau (count, m)`.
    pub tau: Option<StackMut<'a, T>>,
    /// `dL/dtheta (count, n)`.
    pub phases: Option<StackMut<'a, T::Real>>,
    /// Gradients of modReLU's biases.
    pub activation_bias: Option<StackMut<'a, T::Real>>,
}

/// Refuses arrays of another number of batches.
fn same_count<'a>(count: usize, arrays: impl IntoIterator<Item = (&'a str, Option<usize>)>) -> Result<()> {
    let other = arrays.into_iter().find(|(_, have)| have.is_some_and(|have| have != count));
    other.map_or(Ok(()), |(name, have)| {
        let text = format!("{name}: expected arrays of {count} batches, got {}", have.unwrap_or(0));
        Err(Error::InvalidArgument(text))
    })
}

impl<T: Scalar> ManySequenceGradients<'_, T> {
    fn check(&self, count: usize) -> Result<()> {
        let Self { u, x, h0, input_weight, bias, tau, phases, activation_bias } = self;
        let numbers = [u, x, h0, input_weight, bias, tau].map(|x| x.as_ref().map(|x| x.shape().0));
        let reals = [phases, activation_bias].map(|x| x.as_ref().map(|x| x.shape().0));
        same_count(count, numbers.into_iter().chain(reals).map(|count| ("a gradient", count)))
    }
}

impl<T: Scalar> ManySequences<'_, T> {
    /// Rows of a batch, and the width of its tape.
    pub fn tape_shape(&self) -> Result<[usize; 2]> {
        self.0.first().map_or(Ok([0; 2]), |first| Ok([first.steps.rows(), first.tape_width()?]))
    }

    /// Writes all states `h (count, rows, n)` and, where wanted, the last ones `(count, batch, n)` and the tape, of
    /// [`ManySequences::tape_shape`] each. Gives what the backward pass need not form again, if it is to be kept: with the
    /// tape, unless that has a place of its own.
    pub fn forward(
        &self,
        context: &mut Context<'_>,
        h: StackMut<'_, T>,
        last: Option<StackMut<'_, T>>,
        tape: Option<StackMut<'_, T>>,
        keep: bool,
    ) -> Result<Option<Vec<Option<Prepared<T>>>>> {
        let count = self.0.len();
        let each = ["h", "the last states", "the tape"].into_iter().zip([Some(&h), last.as_ref(), tape.as_ref()]);
        same_count(count, each.map(|(name, x)| (name, x.map(|x| x.shape().0))))?;
        let mut kept = collected((0..if keep { count } else { 0 }).map(|_| None))?;
        let each = StackMut::<Option<Prepared<T>>>::new(&mut kept, count);
        context.for_each(count, self.flops(), &|i, context| {
            // SAFETY: each problem writes its own parts.
            let (h, tape, last, kept) =
                unsafe { (h.at(i), tape.as_ref().map(|x| x.at(i)), last.as_ref().map(|x| x.at(i)), each.at(i)) };
            let prepared = if keep && tape.is_none() {
                recurrence::forward_and_keep(context, &self.0[i], h)?
            } else {
                recurrence::forward(context, &self.0[i], h, tape)?
            };
            if let Some(last) = last {
                self.0[i].copy_last(h, last)?;
            }
            kept.first_mut().map(|kept| kept.insert(prepared));
            Ok(())
        })?;
        Ok(keep.then_some(kept))
    }

    /// Writes the gradients, given all states, the tape, and the gradients of all states and of the last ones. What was kept
    /// serves if it is of these sequences.
    pub fn backward(
        &self,
        context: &mut Context<'_>,
        (h, tape): (Stack<'_, T>, Option<Stack<'_, T>>),
        grad_h: &[Option<Series<'_, T>>],
        grad_last: Option<Stack<'_, T>>,
        gradients: &ManySequenceGradients<'_, T>,
        kept: Option<&[Option<Prepared<T>>]>,
    ) -> Result<()> {
        let states = [("h", Some(h.shape().0)), ("the tape", tape.map(|x| x.shape().0))];
        let grads = [("dL/dh", Some(grad_h.len())), ("dL/dh_T", grad_last.map(|x| x.shape().0))];
        same_count(self.0.len(), states.into_iter().chain(grads))?;
        gradients.check(self.0.len())?;
        context.for_each(self.0.len(), self.flops().saturating_mul(2), &|i, context| {
            // SAFETY: each problem writes its own parts.
            let gradients = unsafe {
                SequenceGradients {
                    u: gradients.u.as_ref().map(|x| x.at(i)),
                    x: gradients.x.as_ref().map(|x| x.at(i)),
                    h0: gradients.h0.as_ref().map(|x| x.at(i)),
                    input_weight: gradients.input_weight.as_ref().map(|x| x.at(i)),
                    bias: gradients.bias.as_ref().map(|x| x.at(i)),
                    tau: gradients.tau.as_ref().map(|x| x.at(i)),
                    phases: gradients.phases.as_ref().map(|x| x.at(i)),
                    activation_bias: gradients.activation_bias.as_ref().map(|x| x.at(i)),
                }
            };
            let sequence = &self.0[i];
            let kept = kept.and_then(|kept| kept.get(i)?.as_ref()).filter(|kept| kept.fits(sequence));
            let (tape, grad_last) = (tape.map(|x| x.at(i)), grad_last.map(|x| x.at(i)));
            recurrence::backward(context, sequence, kept, h.at(i), tape, grad_h[i], grad_last, gradients)
        })
    }

    fn flops(&self) -> usize {
        self.0.first().map_or(0, |first| first.flops().saturating_mul(self.0.len()))
    }
}
