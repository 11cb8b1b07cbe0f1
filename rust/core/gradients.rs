//! Where the gradients of an application go.

use crate::reflections::Reflections;
use crate::scalar::Scalar;

/// Gradients to be written; what is `None` is not computed.
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
    /// The number of vectors that `h` and `g` hold.
    ///
    /// # Panics
    /// If the size of an array does not fit `u` and `h`.
    pub(crate) fn check(&self, u: Reflections<'_, T>, h: &[T], g: &[T]) -> usize {
        let (grad_u, grad_h) = (self.u.as_ref().map(|x| x.len()), self.h.as_ref().map(|x| x.len()));
        assert!(grad_u.is_none_or(|len| len == u.n() * u.m()), "dL/dU has {grad_u:?} numbers");
        check_tau(u, self.tau.as_deref());
        u.vectors(&[h.len(), g.len(), grad_h.unwrap_or(h.len())])
    }

    /// Writes the gradients of a sum over no vectors.
    pub(crate) fn vanish(self) {
        self.u.into_iter().chain(self.tau).for_each(|x| x.fill(T::ZERO));
        self.phases.into_iter().for_each(|x| x.fill(T::ZERO.re()));
    }
}

/// # Panics
/// If the array for the gradient does not fit the given `tau`.
pub(crate) fn check_tau<T: Scalar>(u: Reflections<'_, T>, grad_tau: Option<&[T]>) {
    let (given, len) = (u.tau().map(<[T]>::len), grad_tau.map(<[T]>::len));
    assert!(len.is_none() || len == given, "dL/dtau has {len:?} numbers, tau {given:?}");
}
