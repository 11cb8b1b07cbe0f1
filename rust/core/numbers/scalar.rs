//! What the routines of this crate require of a number type: arithmetic, SIMD kernels and a wide precision.

use crate::Operations;
use crate::numbers::number::{Number, Real, c32, c64};
use crate::simd::element::Element;
use crate::simd::epilogue::Tiles;

/// A number that every routine of this crate can compute with.
pub trait Scalar: Tiles<Real: Element> + Operations {
    /// The precision in which Gram matrices and `S = T^-1` are formed: `f64` or `c64`.
    type Wide: Scalar<Real = f64, Wide = Self::Wide>;
    /// Whether this precision is the wide one.
    const IS_WIDE: bool = size_of::<Self>() == size_of::<Self::Wide>();

    /// The same number in wide precision.
    #[inline(always)]
    fn widen(self) -> Self::Wide {
        Self::Wide::from_parts(self.re().to_f64(), self.im().to_f64())
    }
    /// The nearest number in this precision.
    #[inline(always)]
    fn narrow(wide: Self::Wide) -> Self {
        Self::from_parts(Self::Real::of(wide.re()), Self::Real::of(wide.im()))
    }
    /// The same array, if its precision is the wide one.
    fn as_wide_mut(array: &mut [Self]) -> Option<&mut [Self::Wide]>;
}

macro_rules! scalar {
    ($t:ident, $wide:ident, |$array:ident| $same:expr) => {
        impl Scalar for $t {
            type Wide = $wide;
            fn as_wide_mut($array: &mut [Self]) -> Option<&mut [$wide]> {
                $same
            }
        }
    };
}
scalar!(f32, f64, |_array| None);
scalar!(f64, f64, |array| Some(array));
scalar!(c32, c64, |_array| None);
scalar!(c64, c64, |array| Some(array));
