//! The types of numbers, by the names that NumPy, DLPack and XLA have for them.

use std::ffi::c_int;
use std::fmt::{Display, Formatter};

use householder::number::{c32, c64};
use householder::scalar::Scalar;
use numpy::npyffi::NPY_TYPES;
use numpy::{PyArrayDescr, PyArrayDescrMethods};
use pyo3::Bound;

use crate::call::Refusal;
use crate::xla::c_api;

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
    /// One that this module does not read.
    Other,
}

/// Name, bytes, and what NumPy, DLPack (code and bits) and XLA call it.
type Names = (DType, &'static str, usize, NPY_TYPES, (u8, u8), c_int);

const TABLE: [Names; 7] = [
    (DType::Float32, "float32", 4, NPY_TYPES::NPY_FLOAT, (2, 32), c_api::F32),
    (DType::Float64, "float64", 8, NPY_TYPES::NPY_DOUBLE, (2, 64), c_api::F64),
    (DType::BFloat16, "bfloat16", 2, NPY_TYPES::NPY_NOTYPE, (4, 16), c_api::BF16), // NumPy has no name for it
    (DType::Float16, "float16", 2, NPY_TYPES::NPY_HALF, (2, 16), c_api::F16),
    (DType::Complex64, "complex64", 8, NPY_TYPES::NPY_CFLOAT, (5, 64), c_api::C64),
    (DType::Complex128, "complex128", 16, NPY_TYPES::NPY_CDOUBLE, (5, 128), c_api::C128),
    (DType::Int64, "int64", 8, NPY_TYPES::NPY_LONGLONG, (0, 64), c_api::S64),
];

impl DType {
    fn find(is: impl Fn(&Names) -> bool) -> Self {
        TABLE.iter().find(|names| is(names)).map_or(Self::Other, |names| names.0)
    }

    fn names(self) -> Option<&'static Names> {
        TABLE.iter().find(|names| names.0 == self)
    }

    /// The type of that name.
    pub fn named(name: &str) -> Self {
        Self::find(|names| names.1 == name)
    }

    /// That of a NumPy array.
    pub fn of_numpy(descriptor: &Bound<'_, PyArrayDescr>) -> Self {
        if descriptor.byteorder() == b'>' {
            return Self::Other;
        }
        // Integers of 64 bits have two numbers in NumPy.
        let is_int64 = descriptor.kind() == b'i' && descriptor.itemsize() == 8;
        let number = if is_int64 { NPY_TYPES::NPY_LONGLONG as i32 } else { descriptor.num() };
        Self::find(|names| names.3 as i32 == number)
    }

    /// That of DLPack's code, bits and lanes.
    pub fn of_dlpack(code: u8, bits: u8, lanes: u16) -> Self {
        Self::find(|names| lanes == 1 && names.4 == (code, bits))
    }

    /// That of an array of XLA.
    pub fn of_xla(number: c_int) -> Self {
        Self::find(|names| names.5 == number)
    }

    /// XLA's number for it.
    pub fn xla(self) -> c_int {
        self.names().map_or(0, |names| names.5)
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        self.names().map_or(8, |names| names.2)
    }

    pub fn is_half(self) -> bool {
        matches!(self, Self::BFloat16 | Self::Float16)
    }

    /// The type that numbers are computed in.
    pub fn computed(self) -> Self {
        if self.is_half() { Self::Float32 } else { self }
    }

    pub fn is_complex(self) -> bool {
        matches!(self, Self::Complex64 | Self::Complex128)
    }

    /// The error that names what was expected instead.
    pub fn refusal(self, expected: &str) -> Refusal {
        Refusal::Type(format!("dtype: expected {expected}, got {self}"))
    }
}

impl Display for DType {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.names().map_or("another type", |names| names.1))
    }
}

/// A number type of the core.
pub trait Number: Scalar {
    const DTYPE: DType;
}

macro_rules! number {
    ($($t:ty: $dtype:ident),*) => {
        $(impl Number for $t {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}
number!(f32: Float32, f64: Float64, c32: Complex64, c64: Complex128);

/// Calls a function that is generic over the number type, or over the real ones alone, by dtype.
#[macro_export]
macro_rules! by_dtype {
    (real $dtype:expr, $function:ident $arguments:tt) => {
        match $dtype {
            $crate::dtype::DType::Float32 => $function::<f32> $arguments,
            $crate::dtype::DType::Float64 => $function::<f64> $arguments,
            other => Err(other.refusal("float32 or float64")),
        }
    };
    ($dtype:expr, $function:ident $arguments:tt) => {
        match $dtype {
            $crate::dtype::DType::Float32 => $function::<f32> $arguments,
            $crate::dtype::DType::Float64 => $function::<f64> $arguments,
            $crate::dtype::DType::Complex64 => $function::<householder::number::c32> $arguments,
            $crate::dtype::DType::Complex128 => $function::<householder::number::c64> $arguments,
            other => Err(other.refusal("float32, float64, complex64 or complex128")),
        }
    };
}
