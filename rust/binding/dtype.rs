//! The types of numbers.

use std::fmt::{Display, Formatter};

use householder::number::{c32, c64};
use householder::scalar::Scalar;

use crate::refusal::Refusal;

/// A type of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DType {
    Float32,
    Float64,
    /// Numbers of 16 bits are read and written, but not computed with.
    BFloat16,
    Float16,
    Complex64,
    Complex128,
    Int64,
    /// Types that are not read.
    Int32,
    Other,
}

/// Names, and bytes of a number.
const TABLE: [(DType, &str, usize); 8] = [
    (DType::Float32, "float32", 4),
    (DType::Float64, "float64", 8),
    (DType::BFloat16, "bfloat16", 2),
    (DType::Float16, "float16", 2),
    (DType::Complex64, "complex64", 8),
    (DType::Complex128, "complex128", 16),
    (DType::Int64, "int64", 8),
    (DType::Int32, "int32", 4),
];

impl DType {
    /// The type of that name.
    pub fn named(name: &str) -> Self {
        TABLE.iter().find(|names| names.1 == name).map_or(Self::Other, |names| names.0)
    }

    /// Its name.
    pub fn name(self) -> Option<&'static str> {
        TABLE.iter().find(|names| names.0 == self).map(|names| names.1)
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        TABLE.iter().find(|names| names.0 == self).map_or(8, |names| names.2)
    }

    pub fn is_half(self) -> bool {
        matches!(self, Self::BFloat16 | Self::Float16)
    }

    /// The type that numbers are computed in.
    pub fn computed(self) -> Self {
        if self.is_half() { Self::Float32 } else { self }
    }

    /// The type of real and imaginary parts.
    pub fn real(self) -> Self {
        match self {
            Self::Complex64 => Self::Float32,
            Self::Complex128 => Self::Float64,
            other => other,
        }
    }

    pub fn is_complex(self) -> bool {
        self.real() != self
    }

    /// The error that names what was expected instead.
    pub fn refusal(self, expected: &str) -> Refusal {
        Refusal::Type(format!("dtype: expected {expected}, got {self}"))
    }
}

impl Display for DType {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name().unwrap_or("another type"))
    }
}

/// A number type of the core.
pub trait ArrayNumber: Scalar {
    const DTYPE: DType;
}

macro_rules! number {
    ($($t:ty: $dtype:ident),*) => {
        $(impl ArrayNumber for $t {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}
number!(f32: Float32, f64: Float64, c32: Complex64, c64: Complex128);

/// Evaluates an expression for the number type `T` of a dtype, or for the real ones alone.
#[macro_export]
macro_rules! by_dtype {
    (@ $dtype:expr, $expected:literal, $t:ident, $body:expr, $($name:ident $number:ty),*) => {
        match $dtype {
            $($crate::dtype::DType::$name => {
                type $t = $number;
                $body
            })*
            other => Err(other.refusal($expected)),
        }
    };
    ($dtype:expr, real, |$t:ident| $body:expr) => {
        $crate::by_dtype!(@ $dtype, "float32 or float64", $t, $body, Float32 f32, Float64 f64)
    };
    ($dtype:expr, |$t:ident| $body:expr) => {
        $crate::by_dtype!(@ $dtype, "float32, float64, complex64 or complex128", $t, $body, Float32 f32, Float64 f64,
            Complex64 householder::number::c32, Complex128 householder::number::c64)
    };
}
