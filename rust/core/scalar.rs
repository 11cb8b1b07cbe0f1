//! What the routines of this crate require of a number type: arithmetic, SIMD kernels and a wide precision.

use num_complex::Complex;

use crate::Operations;
use crate::number::{c32, c64};
use crate::simd::element::Element;
use crate::simd::epilogue::Tiles;

/// A number that every routine of this crate can compute with.
pub trait Scalar: Tiles<Real: Element> + Operations {
    /// The precision in which Gram matrices and `S = T^-1` are formed: `f64` or `c64`.
    type Wide: Scalar<Real = f64, Wide = Self::Wide>;
    /// Whether this precision is the wide one.
    const IS_WIDE: bool = size_of::<Self>() == size_of::<Self::Wide>();

    /// The same number in wide precision.
    fn widen(self) -> Self::Wide;
    /// The nearest number in this precision.
    fn narrow(wide: Self::Wide) -> Self;
    /// The same array, if its precision is the wide one.
    fn as_wide_mut(array: &mut [Self]) -> Option<&mut [Self::Wide]>;
}

/// The method that reinterprets arrays.
macro_rules! array {
    (wide) => {
        fn as_wide_mut(array: &mut [Self]) -> Option<&mut [Self]> {
            Some(array)
        }
    };
    (narrow) => {
        fn as_wide_mut(_: &mut [Self]) -> Option<&mut [Self::Wide]> {
            None
        }
    };
}

macro_rules! real {
    ($t:ident, $precision:ident) => {
        impl Scalar for $t {
            type Wide = f64;
            #[inline(always)]
            fn widen(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn narrow(wide: f64) -> Self {
                wide as $t
            }
            array!($precision);
        }
    };
}
real!(f32, narrow);
real!(f64, wide);

macro_rules! complex {
    ($t:ident, $r:ident, $precision:ident) => {
        impl Scalar for $t {
            type Wide = c64;
            #[inline(always)]
            fn widen(self) -> c64 {
                Complex::new(f64::from(self.re), f64::from(self.im))
            }
            #[inline(always)]
            fn narrow(wide: c64) -> Self {
                Complex::new(wide.re as $r, wide.im as $r)
            }
            array!($precision);
        }
    };
}
complex!(c32, f32, narrow);
complex!(c64, f64, wide);
