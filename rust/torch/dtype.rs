//! torch's types of numbers.

use householder::number::{c32, c64};
use householder::scalar::Scalar;

use crate::abi::Torch;
use crate::call::{Kind, Refusal};

/// A type of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DType {
    Float32,
    Float64,
    Complex64,
    Complex128,
    Int64,
    /// Computed with in float32.
    Float16,
    BFloat16,
    /// Types that kernels do not read.
    Int32,
    Other,
}

/// A type, its name, and the function that tells torch's number for it.
type Names = (DType, &'static str, fn(&Torch) -> i32);

macro_rules! table {
    ($($dtype:ident $name:literal $number:ident),*) => {
        // SAFETY: the functions return a constant.
        [$((DType::$dtype, $name, |torch: &Torch| unsafe { (torch.$number)() })),*]
    };
}

static TABLE: [Names; 8] = table!(
    Float32 "torch.float32" aoti_torch_dtype_float32,
    Float64 "torch.float64" aoti_torch_dtype_float64,
    Complex64 "torch.complex64" aoti_torch_dtype_complex64,
    Complex128 "torch.complex128" aoti_torch_dtype_complex128,
    Int64 "torch.int64" aoti_torch_dtype_int64,
    Float16 "torch.float16" aoti_torch_dtype_float16,
    BFloat16 "torch.bfloat16" aoti_torch_dtype_bfloat16,
    Int32 "torch.int32" aoti_torch_dtype_int32
);

impl DType {
    /// That of torch's number.
    pub fn of(torch: &Torch, number: i32) -> Self {
        TABLE.iter().find(|names| names.2(torch) == number).map_or(Self::Other, |names| names.0)
    }

    /// torch's name.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|names| names.0 == self).map_or("another type", |names| names.1)
    }

    /// torch's number of a type that has a name.
    pub fn number(self, torch: &Torch) -> i32 {
        TABLE.iter().find(|names| names.0 == self).map_or(-1, |names| names.2(torch))
    }

    /// The type to compute in.
    pub fn computed(self) -> Self {
        if matches!(self, Self::Float16 | Self::BFloat16) { Self::Float32 } else { self }
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

    /// Where its numbers may begin: at multiples of so many bytes.
    pub fn alignment(self) -> usize {
        match self {
            Self::Float16 | Self::BFloat16 => 2,
            Self::Float32 | Self::Complex64 => 4,
            _ => 8,
        }
    }

    /// The error that names what was expected instead.
    pub fn refusal(self, expected: &str) -> Refusal {
        let given = self.name().trim_start_matches("torch.");
        Refusal::new(Kind::Type, format!("dtype: expected {expected}, got {given}"))
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
pub(crate) use by_dtype;
