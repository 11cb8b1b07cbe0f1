//! Where the gradients of an application go.

use std::ops::Range;

use crate::arrays::lengths;
use crate::arrays::stack::StackMut;
use crate::error::Result;
use crate::numbers::scalar::Scalar;
use crate::operator::Operator;
use crate::operator::diagonal::PhaseGradients;

/// Gradients to be written; what is `None` is not computed.
#[derive(Debug, Default)]
pub struct Gradients<'a, T: Scalar> {
    /// `dL/dU (count, n, m)`, the gradient of `u_1` last.
    pub u: Option<&'a mut [T]>,
    /// `dL/dh (count, rows, n)`.
    pub h: Option<&'a mut [T]>,
    /// `dL/dtau (count, m)`, where `tau` is given.
    pub tau: Option<&'a mut [T]>,
    /// `dL/dtheta`, of as many numbers as there are angles: summed over problems that share them.
    pub phases: Option<&'a mut [T::Real]>,
}

impl<T: Scalar> Gradients<'_, T> {
    /// How many vectors each problem has, if `vectors` and these arrays fit.
    pub(crate) fn check(&self, w: &Operator<'_, T>, vectors: &[(&'static str, usize)]) -> Result<usize> {
        let len = |x: &Option<&mut [T]>| x.as_ref().map(|x| x.len());
        let rows = w.vectors(vectors)?;
        w.require(&[
            ("dL/dU", len(&self.u), &[w.n(), w.m()]),
            ("dL/dh", len(&self.h), &[rows, w.n()]),
            ("dL/dtau", len(&self.tau), &[if w.are_involutions() { 0 } else { w.m() }]),
        ])?;
        lengths::require(1, &[("dL/dtheta", self.phases.as_ref().map(|x| x.len()), &[w.angles()])])?;
        Ok(rows)
    }

    /// Writes the gradients of a sum over no vectors.
    pub(crate) fn vanish(self) {
        self.u.into_iter().chain(self.tau).for_each(|x| x.fill(T::ZERO));
        self.phases.into_iter().for_each(|x| x.fill(T::ZERO.re()));
    }

    /// Calls `run` with the gradients of each problem, which it may ask for on any thread, once each.
    pub(crate) fn by_problem(
        self,
        w: &Operator<'_, T>,
        run: impl for<'b> FnOnce(&'b (dyn Fn(usize) -> Gradients<'b, T> + Sync)) -> Result<()>,
    ) -> Result<()> {
        self.by_problems(w, |of| run(&|i| of(i..i + 1)))
    }

    /// The same for some problems at a time.
    pub(crate) fn by_problems(
        self,
        w: &Operator<'_, T>,
        run: impl for<'b> FnOnce(&'b (dyn Fn(Range<usize>) -> Gradients<'b, T> + Sync)) -> Result<()>,
    ) -> Result<()> {
        let Self { u, h, tau, phases } = self;
        let [u, h, tau] = [u, h, tau].map(|x| x.map(|x| StackMut::new(x, w.count())));
        let mut sums = PhaseGradients::new(w, phases)?;
        let phases = sums.parts();
        // SAFETY: the part of a problem is asked for once.
        run(&|problems| unsafe {
            Gradients {
                u: u.as_ref().map(|x| x.part(problems.clone())),
                h: h.as_ref().map(|x| x.part(problems.clone())),
                tau: tau.as_ref().map(|x| x.part(problems.clone())),
                phases: phases.as_ref().map(|x| x.part(problems.clone())),
            }
        })?;
        sums.finish();
        Ok(())
    }
}
