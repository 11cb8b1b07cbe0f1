//! Where the gradients of an application go.

use crate::diagonal::Diagonal;
use crate::error::Result;
use crate::lengths::require;
use crate::reflections::Reflections;
use crate::scalar::Scalar;

/// Gradients to be written; what is `None` is not computed.
#[derive(Default)]
pub struct Gradients<'a, T: Scalar> {
    /// `dL/dU (n, m)`, the gradient of `u_1` last.
    pub u: Option<&'a mut [T]>,
    /// `dL/dh (rows, n)`.
    pub h: Option<&'a mut [T]>,
    /// `dL/dtau (m,)`, where `tau` is given.
    pub tau: Option<&'a mut [T]>,
    /// `dL/dtheta (n,)`.
    pub phases: Option<&'a mut [T::Real]>,
}

impl<T: Scalar> Gradients<'_, T> {
    /// The number of vectors that `h` and `g` hold, if the sizes of all arrays fit `u` and `h`.
    pub(crate) fn check(&self, u: Reflections<'_, T>, diagonal: &Diagonal<T>, h: &[T], g: &[T]) -> Result<usize> {
        self.check_parameters(u, diagonal)?;
        let grad_h = self.h.as_ref().map_or(h.len(), |x| x.len());
        u.vectors("h", h.len(), &[("g", g.len()), ("dL/dh", grad_h)])
    }

    /// Whether the arrays other than `h` fit.
    pub(crate) fn check_parameters(&self, u: Reflections<'_, T>, diagonal: &Diagonal<T>) -> Result<()> {
        diagonal.check(u)?;
        require(&[
            ("dL/dU", self.u.as_ref().map(|x| x.len()), &[u.n(), u.m()]),
            ("dL/dtau", self.tau.as_ref().map(|x| x.len()), &[u.tau().map_or(0, <[T]>::len)]),
            ("dL/dtheta", self.phases.as_ref().map(|x| x.len()), &[diagonal.angles()]),
        ])
    }

    /// Writes the gradients of a sum over no vectors.
    pub(crate) fn vanish(self) {
        self.u.into_iter().chain(self.tau).for_each(|x| x.fill(T::ZERO));
        self.phases.into_iter().for_each(|x| x.fill(T::ZERO.re()));
    }
}
