//! Columns for one reflection after the other, with `tau = 2 / |v|^2` or as given.

use std::ops::Deref;

use pulp::Simd;

use super::ReflectionSteps;
use crate::error::Result;
use crate::memory::filled;
use crate::numbers::number::{Number, Real};
use crate::numbers::scalar::Scalar;
use crate::operator::{Form, Reflections};
use crate::wy::layout::Trapezoid;

/// Columns and what their [`ReflectionSteps`] need, for one matrix after the other of the same shape.
pub struct Chain<T: Scalar> {
    /// The columns.
    pub v: Trapezoid<T>,
    /// `2 / |v_j|^2`, zero for a zero column; or as given for the column before it was scaled.
    pub tau: Vec<T>,
    /// Whether `tau` is given.
    given: bool,
    /// Which entries the columns consist of.
    pub form: Form,
    pivots: Vec<(usize, T)>,
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
        let (tau, pivots) = (filled(v.ld_k, T::ZERO)?, filled(k, (0, T::ZERO))?);
        Ok(Self { tau, given: false, form: Form::Trapezoidal, pivots, v })
    }

    /// Takes the reflections of `u`.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) {
        self.v.set(s, u);
        (self.form, self.given) = (u.form(), u.tau().is_some());
        if let Some(given) = u.tau() {
            let scale = self.v.scale.iter();
            for ((tau, given), &scale) in self.tau.iter_mut().zip(given).zip(scale) {
                *tau = T::narrow(given.widen().scale(inverse_square(scale)));
            }
            return;
        }
        for (tau, &square) in self.tau.iter_mut().zip(&self.v.squares) {
            *tau = T::from_real(T::Real::of(if square == 0.0 { 0.0 } else { 2.0 / square }));
        }
    }

    /// [`Chain::set`], and the columns.
    #[inline(always)]
    pub fn set_columns<S: Simd>(&mut self, s: S, u: Reflections<'_, T>) {
        self.set(s, u);
        self.v.transpose(s);
    }

    /// Finds the pivots, for states from a tape.
    pub fn find_pivots(&mut self) {
        for (pivot, column) in self.pivots.iter_mut().zip(self.v.columns.chunks(self.v.ld)) {
            let mut largest = T::Real::ZERO;
            for (p, x) in column[..self.v.n].iter().enumerate() {
                let square = x.abs2();
                if !(square <= largest) {
                    largest = square;
                    *pivot = (p, x.conj().scale(T::Real::ONE / square));
                }
            }
        }
    }

    /// Turns `dL/dtau` of the scaled columns into that of those given.
    pub fn finish_grad_tau(&self, grad_tau: &mut [T]) {
        for (grad, &scale) in grad_tau.iter_mut().zip(&self.v.scale) {
            *grad = T::narrow(grad.widen().scale(inverse_square(scale)));
        }
    }

    /// The reflections in order of application, after [`Chain::set_columns`].
    #[inline(always)]
    pub fn steps(&self, adjoint: bool) -> ReflectionSteps<'_, T> {
        let (v, tau, pivots) = (&self.v, &self.tau[..self.k], &self.pivots);
        ReflectionSteps { n: v.n, v: &v.columns, ld: v.ld, tau, given: self.given, form: self.form, pivots, adjoint }
    }
}

/// `1 / scale^2`; zero where there is no column.
#[inline(always)]
fn inverse_square(scale: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { 1.0 / (scale * scale) }
}
