//! torch's types of numbers.

use householder_binding::dtype::DType;

use crate::abi::Torch;

/// A type, and the function that tells torch's number for it.
type TypeCode = (DType, fn(&Torch) -> i32);

macro_rules! table {
    ($($dtype:ident $number:ident),*) => {
        // SAFETY: the functions return a constant.
        [$((DType::$dtype, |torch: &Torch| unsafe { (torch.$number)() })),*]
    };
}

static TABLE: [TypeCode; 8] = table!(
    Float32 aoti_torch_dtype_float32,
    Float64 aoti_torch_dtype_float64,
    Complex64 aoti_torch_dtype_complex64,
    Complex128 aoti_torch_dtype_complex128,
    Int64 aoti_torch_dtype_int64,
    Float16 aoti_torch_dtype_float16,
    BFloat16 aoti_torch_dtype_bfloat16,
    Int32 aoti_torch_dtype_int32
);

/// That of torch's number.
pub fn of(torch: &Torch, number: i32) -> DType {
    TABLE.iter().find(|names| names.1(torch) == number).map_or(DType::Other, |names| names.0)
}

/// torch's number of a type that has a name.
pub fn number(torch: &Torch, dtype: DType) -> i32 {
    TABLE.iter().find(|names| names.0 == dtype).map_or(-1, |names| names.1(torch))
}

/// torch's name.
pub fn name(dtype: DType) -> String {
    dtype.name().map_or_else(|| dtype.to_string(), |name| format!("torch.{name}"))
}
