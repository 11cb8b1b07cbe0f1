//! The four number types, `f32`, `f64`, `c32` and `c64`, and their scalar arithmetic.

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

use num_complex::Complex;

/// Complex numbers of two `f32`.
#[allow(non_camel_case_types)]
pub type c32 = Complex<f32>;
/// Complex numbers of two `f64`.
#[allow(non_camel_case_types)]
pub type c64 = Complex<f64>;

/// Scalar arithmetic of a real or complex number.
pub trait Number:
    Copy
    + Default
    + Send
    + Sync
    + Debug
    + Display
    + PartialEq
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + 'static
{
    /// Its real part's type.
    type Real: Real;
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Whether the imaginary part exists.
    const COMPLEX: bool;

    /// `x + 0i`.
    fn from_real(x: Self::Real) -> Self;
    /// `re + i im`; real numbers drop `im`.
    fn from_parts(re: Self::Real, im: Self::Real) -> Self;
    /// Real part.
    fn re(self) -> Self::Real;
    /// Imaginary part, zero for real numbers.
    fn im(self) -> Self::Real;
    /// Complex conjugate.
    fn conj(self) -> Self;
    /// Product with a real number.
    fn scale(self, by: Self::Real) -> Self;
    /// `exp(i theta)`; one for real numbers, which have no phases.
    fn unit(theta: Self::Real) -> Self;

    /// `|x|^2`.
    #[inline(always)]
    fn abs2(self) -> Self::Real {
        self.re() * self.re() + self.im() * self.im()
    }
    /// The larger of `|re|` and `|im|`: never overflows, zero only at zero, NaN if either is.
    #[inline(always)]
    fn max_abs(self) -> Self::Real {
        let (re, im) = (self.re().abs(), self.im().abs());
        if re > im || re.is_nan() { re } else { im }
    }
}

/// A real [`Number`].
pub trait Real: Number<Real = Self> + PartialOrd + Div<Output = Self> {
    /// Smallest positive normal number.
    const MIN_POSITIVE: Self;
    /// Distance from one to the next larger number.
    const EPSILON: Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Whether it is no number.
    fn is_nan(self) -> bool;
    /// Conversion from `f64`, rounded.
    fn of(x: f64) -> Self;
    /// Conversion to `f64`, exact.
    fn to_f64(self) -> f64;
}

macro_rules! real {
    ($t:ident) => {
        impl Number for $t {
            type Real = $t;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const COMPLEX: bool = false;
            #[inline(always)]
            fn from_real(x: $t) -> Self {
                x
            }
            #[inline(always)]
            fn from_parts(re: $t, _: $t) -> Self {
                re
            }
            #[inline(always)]
            fn re(self) -> $t {
                self
            }
            #[inline(always)]
            fn im(self) -> $t {
                0.0
            }
            #[inline(always)]
            fn conj(self) -> Self {
                self
            }
            #[inline(always)]
            fn scale(self, by: $t) -> Self {
                self * by
            }
            #[inline(always)]
            fn unit(_: $t) -> Self {
                1.0
            }
        }
        impl Real for $t {
            const MIN_POSITIVE: Self = $t::MIN_POSITIVE;
            const EPSILON: Self = $t::EPSILON;
            #[inline(always)]
            fn sqrt(self) -> Self {
                self.sqrt()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
        }
    };
}
real!(f32);
real!(f64);

macro_rules! complex {
    ($t:ident, $r:ident) => {
        impl Number for $t {
            type Real = $r;
            const ZERO: Self = Complex::new(0.0, 0.0);
            const ONE: Self = Complex::new(1.0, 0.0);
            const COMPLEX: bool = true;
            #[inline(always)]
            fn from_real(x: $r) -> Self {
                Complex::new(x, 0.0)
            }
            #[inline(always)]
            fn from_parts(re: $r, im: $r) -> Self {
                Complex::new(re, im)
            }
            #[inline(always)]
            fn re(self) -> $r {
                self.re
            }
            #[inline(always)]
            fn im(self) -> $r {
                self.im
            }
            #[inline(always)]
            fn conj(self) -> Self {
                Complex::new(self.re, -self.im)
            }
            #[inline(always)]
            fn scale(self, by: $r) -> Self {
                Complex::new(self.re * by, self.im * by)
            }
            #[inline(always)]
            fn unit(theta: $r) -> Self {
                Complex::new(theta.cos(), theta.sin())
            }
        }
    };
}
complex!(c32, f32);
complex!(c64, f64);
