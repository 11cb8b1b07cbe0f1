//! Arithmetic of numbers of several problems, one a lane.

use std::marker::PhantomData;

use pulp::Simd;

use crate::numbers::scalar::Scalar;
use crate::simd::element::Element;

/// A register of real parts and one of imaginary parts, which real numbers do not have.
#[derive(Clone, Copy)]
pub struct Parts<S: Simd, T: Scalar> {
    re: <T::Real as Element>::V<S>,
    im: <T::Real as Element>::V<S>,
}

/// Operations on them; `group` is the distance of imaginary parts from real ones.
pub struct Arithmetic<S, T> {
    s: S,
    group: usize,
    number: PhantomData<T>,
}

impl<S: Simd, T> Clone for Arithmetic<S, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Simd, T> Copy for Arithmetic<S, T> {}

impl<S: Simd, T: Scalar> Arithmetic<S, T> {
    /// With an instruction set.
    #[inline(always)]
    pub fn new(s: S, group: usize) -> Self {
        Self { s, group, number: PhantomData }
    }

    /// Zeros.
    #[inline(always)]
    pub fn zero(self) -> Parts<S, T> {
        let zero = T::Real::splat(self.s, T::Real::default());
        Parts { re: zero, im: zero }
    }

    /// Reads a register of each part.
    ///
    /// # Safety
    /// The caller owns a number of each lane at `p`.
    #[inline(always)]
    pub unsafe fn load(self, p: *const T::Real) -> Parts<S, T> {
        let re = T::Real::load(self.s, p);
        Parts { re, im: if T::COMPLEX { T::Real::load(self.s, p.add(self.group)) } else { re } }
    }

    /// Writes them.
    ///
    /// # Safety
    /// As of [`Arithmetic::load`].
    #[inline(always)]
    pub unsafe fn store(self, p: *mut T::Real, x: Parts<S, T>) {
        T::Real::store(self.s, p, x.re);
        if T::COMPLEX {
            T::Real::store(self.s, p.add(self.group), x.im);
        }
    }

    /// `-a`.
    #[inline(always)]
    pub fn neg(self, a: Parts<S, T>) -> Parts<S, T> {
        Parts { re: T::Real::neg(self.s, a.re), im: T::Real::neg(self.s, a.im) }
    }

    /// `conj(a)` if asked.
    #[inline(always)]
    pub fn conj_if(self, conj: bool, a: Parts<S, T>) -> Parts<S, T> {
        if T::COMPLEX && conj { Parts { im: T::Real::neg(self.s, a.im), ..a } } else { a }
    }

    /// `sum + a b`.
    #[inline(always)]
    pub fn fma(self, a: Parts<S, T>, b: Parts<S, T>, sum: Parts<S, T>) -> Parts<S, T> {
        let Self { s, .. } = self;
        let re = T::Real::fma(s, a.re, b.re, sum.re);
        if !T::COMPLEX {
            return Parts { re, im: re };
        }
        let im = T::Real::fma(s, a.re, b.im, sum.im);
        Parts { re: T::Real::fma(s, T::Real::neg(s, a.im), b.im, re), im: T::Real::fma(s, a.im, b.re, im) }
    }

    /// `a + b`.
    #[inline(always)]
    pub fn plus(self, a: Parts<S, T>, b: Parts<S, T>) -> Parts<S, T> {
        Parts { re: T::Real::plus(self.s, a.re, b.re), im: T::Real::plus(self.s, a.im, b.im) }
    }

    /// `a b`.
    #[inline(always)]
    pub fn times(self, a: Parts<S, T>, b: Parts<S, T>) -> Parts<S, T> {
        self.fma(a, b, self.zero())
    }

    /// `i Im(a)`.
    #[inline(always)]
    pub fn imaginary(self, a: Parts<S, T>) -> Parts<S, T> {
        Parts { im: a.im, ..self.zero() }
    }
}
