//! Rows of `V` for reflections in registers, with `tau = 2 / |v|^2` or as given.

use std::ops::Deref;

use pulp::Simd;

use crate::apply::sequential::columns::set_tau;
use crate::error::Result;
use crate::memory::filled;
use crate::numbers::scalar::Scalar;
use crate::operator::{Form, Reflections};
use crate::wy::layout::Trapezoid;

/// The reflections of one matrix after the other of the same shape.
pub struct Chain<T: Scalar> {
    /// The columns, row by row.
    pub v: Trapezoid<T>,
    /// `2 / |v_j|^2`, zero for a zero column; or as given for the column before it was scaled.
    pub tau: Vec<T>,
    /// Which entries the columns consist of.
    pub form: Form,
}

impl<T: Scalar> Deref for Chain<T> {
    type Target = Trapezoid<T>;
    fn deref(&self) -> &Trapezoid<T> {
        &self.v
    }
}

impl<T: Scalar> Chain<T> {
    /// Workspace for `k` reflections of vectors of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let v = Trapezoid::new(n, k)?;
        Ok(Self { tau: filled(v.ld_k, T::ZERO)?, form: Form::Trapezoidal, v })
    }

    /// Takes the reflections of `u`.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) {
        self.v.set(s, u);
        self.form = u.form();
        set_tau(&mut self.tau, &self.v.squares, &self.v.scale, u.tau());
    }
}
