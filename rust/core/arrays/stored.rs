//! Numbers as they lie in the caller's memory: of the type that is computed with, or of 16 bits, which are converted row by
//! row as they are read and written.
//!
//! The rows of tokens of the delta rule, the convolution and the gated norm may be bfloat16 or float16, and so may their outputs.
//! States, gates, betas and weights are of the type that is computed with. Numbers of 16 bits are passed as their bits, which
//! the crate `half` has as `reinterpret_cast` of a slice.
//!
//! ```
//! use householder::stored::{Numbers, NumbersMut};
//! use householder::{Context, convolution, delta, gated_norm};
//!
//! let bf16 = |x: f32| (x.to_bits() >> 16) as u16; // exact for the numbers here
//! let context = &mut Context::default();
//!
//! let x = [1.0, 10.0, 2.0, 20.0].map(bf16); // two tokens of two channels
//! let operands = convolution::Operands {
//!     sizes: convolution::Sizes { batch: 1, tokens: 2, channels: 2, taps: 2 },
//!     x: Numbers::BFloat16(&x).into(),
//!     weight: &[0.5_f32, 1.0, 0.0, 2.0],
//!     bias: None,
//!     silu: false,
//! };
//! let mut y = [0; 4];
//! convolution::forward(context, operands, NumbersMut::BFloat16(&mut y))?;
//! assert_eq!(y, [1.0, 20.0, 2.5, 40.0].map(bf16));
//!
//! let (q, k) = ([0.0, 1.0, 1.0, 0.0].map(bf16), [1.0, 0.0, 0.0, 1.0].map(bf16)); // the second token reads what the first wrote
//! let v = [5.0, 6.0, 0.0, 0.0].map(bf16);
//! let [queries, keys, values] = [&q, &k, &v].map(|bits| Numbers::BFloat16(bits));
//! let operands = delta::Operands {
//!     scale: 1.0_f32,
//!     ..delta::Operands::new(delta::Sizes::new(1, 2, 2), queries, keys, values, &[1.0, 1.0])
//! };
//! let mut out = [0; 4];
//! let results = delta::Results { out: Some(NumbersMut::Float16(&mut out)), ..delta::Results::default() };
//! delta::forward(context, &delta::Problem::new(operands)?, results)?;
//! assert_eq!(out, [0, 0, 0x4500, 0x4600]); // the bits of 5 and 6 in float16
//!
//! let (x, z) = ([1.0, -1.0].map(bf16), [0.0, 0.0].map(bf16)); // gates of zero: one half
//! let (x, z) = (Numbers::BFloat16(&x).into(), Numbers::BFloat16(&z).into());
//! let operands = gated_norm::Operands { rows: 1, x, z, weight: &[2.0_f32, 4.0], epsilon: 0.0, silu: false };
//! let mut y = [0; 2];
//! gated_norm::forward(context, operands, NumbersMut::BFloat16(&mut y))?;
//! assert_eq!(y, [1.0, -2.0].map(bf16));
//! # Ok::<(), householder::Error>(())
//! ```

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use crate::arrays::lengths::product;
use crate::arrays::view::{View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::ALIGNMENT;
use crate::numbers::number::Real;
use crate::simd::fetch::{Fetch, prefetch_rows};
use crate::simd::isa::{InstructionSet, simd};

/// Numbers to read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Numbers<'a, T> {
    /// Of the type that is computed with.
    Full(&'a [T]),
    /// The bits of bfloat16.
    BFloat16(&'a [u16]),
    /// The bits of float16.
    Float16(&'a [u16]),
}

/// Numbers to be written. They are rounded to nearest, ties to even.
#[derive(Debug)]
#[non_exhaustive]
pub enum NumbersMut<'a, T> {
    /// Of the type that is computed with.
    Full(&'a mut [T]),
    /// The bits of bfloat16.
    BFloat16(&'a mut [u16]),
    /// The bits of float16.
    Float16(&'a mut [u16]),
}

impl<T> Numbers<'_, T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Full(numbers) => numbers.len(),
            Self::BFloat16(numbers) | Self::Float16(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn place(&self) -> (*const c_void, Format) {
        match self {
            Self::Full(numbers) => (numbers.as_ptr().cast(), Format::Full),
            Self::BFloat16(numbers) => (numbers.as_ptr().cast(), Format::BFloat16),
            Self::Float16(numbers) => (numbers.as_ptr().cast(), Format::Float16),
        }
    }
}

impl<'a, T> NumbersMut<'a, T> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Full(numbers) => numbers.len(),
            Self::BFloat16(numbers) | Self::Float16(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows of `width` numbers, one after the other.
    pub(crate) fn rows(self, width: usize) -> StoredRowsMut<'a, T> {
        let count = self.len().checked_div(width).unwrap_or(0);
        let (ptr, format) = match self {
            Self::Full(numbers) => (numbers.as_mut_ptr().cast(), Format::Full),
            Self::BFloat16(numbers) => (numbers.as_mut_ptr().cast(), Format::BFloat16),
            Self::Float16(numbers) => (numbers.as_mut_ptr().cast(), Format::Float16),
        };
        StoredRowsMut { ptr, format, ld: width, count, owner: PhantomData }
    }
}

/// Rows `(batch, tokens, heads, width)` to read. Each row is contiguous. The axes before may have any strides.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a, T> {
    numbers: Numbers<'a, T>,
    layout: Option<([usize; 4], [usize; 3])>,
}

/// Rows one after the other.
impl<'a, T> From<Numbers<'a, T>> for Tokens<'a, T> {
    fn from(numbers: Numbers<'a, T>) -> Self {
        Self { numbers, layout: None }
    }
}

macro_rules! arrays {
    ($($array:ty, $($length:ident)?);+) => {
        $(impl<'a, T $(, const $length: usize)?> From<&'a mut $array> for NumbersMut<'a, T> {
            fn from(numbers: &'a mut $array) -> Self {
                Self::Full(numbers)
            }
        }
        impl<'a, T $(, const $length: usize)?> From<&'a $array> for Tokens<'a, T> {
            fn from(numbers: &'a $array) -> Self {
                Numbers::Full(numbers).into()
            }
        })+
    };
}
arrays!([T],; Vec<T>,; [T; N], N);

impl<'a, T> Tokens<'a, T> {
    /// Row `(i, j, k)` begins at `numbers[i strides[0] + j strides[1] + k strides[2]]`. The stride of an axis of one is never used.
    pub fn strided(numbers: Numbers<'a, T>, shape: [usize; 4], strides: [usize; 3]) -> Result<Self> {
        let is_empty = shape.contains(&0);
        let strides = [0, 1, 2].map(|i: usize| if is_empty || shape[i] == 1 { 0 } else { strides[i] });
        let ends = || shape.iter().zip(strides).map(|(&size, stride)| (size - 1).checked_mul(stride));
        let reach = || ends().try_fold(shape[3], |reach, end| reach.checked_add(end?));
        if !is_empty && reach().is_none_or(|reach| reach > numbers.len()) {
            let (shape, strides) = (shape.to_vec(), strides.to_vec());
            return Err(Error::Reach { shape, strides, found: numbers.len() });
        }
        Ok(Self { numbers, layout: Some((shape, strides)) })
    }

    /// How many numbers the rows have, if a `usize` can say so.
    pub(crate) fn len(&self) -> Option<usize> {
        self.layout.map_or(Some(self.numbers.len()), |(shape, _)| product(&shape))
    }

    /// Checks the shape `[tokens, heads, width]`, with tokens counted over all batches. Its product must fit in usize.
    pub(crate) fn expect(&mut self, name: &'static str, [tokens, heads, width]: [usize; 3]) -> Result<()> {
        let (layout, expected) = (([1, tokens, heads, width], [0, heads * width, width]), tokens * heads * width);
        let (shape, strides) = self.layout.unwrap_or(layout);
        let found = self.len();
        if found != Some(expected) {
            return Err(Error::Length { name, expected: vec![expected], found: found.unwrap_or(usize::MAX) });
        }
        if shape[2..] != [heads, width] {
            let rows = |heads: usize, width: usize| format!("{heads} heads of {width} numbers");
            return Err(Error::value(name, rows(heads, width), rows(shape[2], shape[3])));
        }
        self.layout = Some((shape, strides));
        Ok(())
    }

    /// Checks that the rows of each of these sequences of tokens, counted over all batches, are at one distance from each other.
    pub(crate) fn expect_even(
        &self,
        name: &'static str,
        sequences: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<()> {
        let ([_, each, ..], [of_batch, of_token, _]) = self.layout();
        let is_of_one_batch =
            |tokens: Range<usize>| tokens.len() <= 1 || tokens.start / each == (tokens.end - 1) / each;
        if of_batch == each * of_token || sequences.into_iter().all(is_of_one_batch) {
            return Ok(());
        }
        Err(Error::Uneven { name })
    }

    fn layout(&self) -> ([usize; 4], [usize; 3]) {
        self.layout.expect("the shape has been checked")
    }

    /// How many numbers the rows have.
    pub(crate) fn count(&self) -> usize {
        self.layout().0.iter().product()
    }

    /// Tokens of a batch.
    pub(crate) fn of_batch(&self) -> usize {
        self.layout().0[1]
    }

    /// `count` rows of a head, from a token on, counted over all batches. They are at one distance from each other.
    pub(crate) fn rows(&self, (first, count): (usize, usize), head: usize) -> StoredRows<'a, T> {
        let ([_, tokens, ..], [of_batch, of_token, of_head]) = self.layout();
        let (ptr, format) = self.numbers.place();
        let batch = first.checked_div(tokens).unwrap_or(0);
        let rows = StoredRows { ptr, format, ld: of_token, count, owner: PhantomData };
        rows.skip(batch * of_batch + (first - batch * tokens) * of_token + head * of_head)
    }

    /// The same rows at any distances, in pieces of one batch each.
    pub(crate) fn pieces(
        &self,
        (mut first, count): (usize, usize),
        head: usize,
    ) -> impl Iterator<Item = StoredRows<'a, T>> {
        let ([_, tokens, ..], end) = (self.layout().0, first + count);
        std::iter::from_fn(move || {
            let begin = first;
            first = end.min(begin + tokens - begin.checked_rem(tokens)?);
            (begin < end).then(|| self.rows((begin, first - begin), head))
        })
    }
}

/// How numbers lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Full,
    BFloat16,
    Float16,
}

/// Rows of contiguous numbers to read, `ld` numbers apart; null means none.
#[derive(Clone, Copy)]
pub(crate) struct StoredRows<'a, T> {
    ptr: *const c_void,
    format: Format,
    ld: usize,
    /// Number of rows.
    pub count: usize,
    owner: PhantomData<&'a T>,
}

/// Rows to be written, where [`StoredRows`] would be. Tasks on several threads hold copies: whoever hands rows to several
/// tasks promises that what one writes, no other touches at the same time.
#[derive(Clone, Copy)]
pub(crate) struct StoredRowsMut<'a, T> {
    ptr: *mut c_void,
    format: Format,
    ld: usize,
    /// Number of rows.
    pub count: usize,
    owner: PhantomData<&'a mut T>,
}

/// What both kinds of rows have.
macro_rules! stored_rows {
    ($rows:ident, $null:expr) => {
        // SAFETY: numbers are read on any thread, and whoever hands rows to several tasks promises that what one writes, no
        // other touches at the same time.
        unsafe impl<T> Send for $rows<'_, T> {}
        // SAFETY: as above.
        unsafe impl<T> Sync for $rows<'_, T> {}

        impl<T> $rows<'_, T> {
            /// No rows.
            pub fn none() -> Self {
                Self { ptr: $null, format: Format::Full, ld: 0, count: 0, owner: PhantomData }
            }

            /// Whether there are none at all.
            pub fn is_none(&self) -> bool {
                self.ptr.is_null()
            }

            fn size(&self) -> usize {
                if self.format == Format::Full { size_of::<T>() } else { 2 }
            }

            /// From so many numbers on.
            fn skip(&self, numbers: usize) -> Self {
                Self { ptr: self.ptr.wrapping_byte_add(numbers * self.size()), ..*self }
            }

            /// `count` rows from row `first` on, from a column on.
            pub fn part(self, first: usize, count: usize, column: usize) -> Self {
                Self { count, ..self.skip(first * self.ld + column) }
            }

            /// Fetches `width` numbers of each row.
            pub fn prefetch(self, width: usize) {
                // SAFETY: they are only fetched.
                let bytes = unsafe { View::from_raw(self.ptr.cast::<u8>(), self.ld * self.size(), self.count) };
                prefetch_rows(bytes, width * self.size());
            }

            /// The same while a product over as many terms is computed.
            pub(crate) fn fetch(self, width: usize) -> Fetch<T> {
                let (size, lines) = (self.size(), (width * self.size()).div_ceil(ALIGNMENT));
                Fetch::rows(self.ptr.cast(), (self.count, self.ld * size / size_of::<T>()), lines)
            }
        }
    };
}
stored_rows!(StoredRows, std::ptr::null());
stored_rows!(StoredRowsMut, std::ptr::null_mut());

impl<T: Real> StoredRows<'_, T> {
    /// Copies `width` numbers of each row to workspace.
    ///
    /// # Safety
    /// The rows and the workspace have these numbers, are not the same, and nothing else writes them meanwhile.
    pub unsafe fn read(self, isa: InstructionSet, width: usize, to: ViewMut<'_, T>) {
        let halves = View::from_raw(self.ptr.cast::<u16>(), self.ld, self.count);
        match self.format {
            Format::Full => View::from_raw(self.ptr.cast::<T>(), self.ld, self.count).copy_to(to, width),
            Format::BFloat16 => of_bfloat16(isa, width, halves, to),
            Format::Float16 => of_float16(isa, width, halves, to),
        }
    }
}

impl<T: Real> StoredRowsMut<'_, T> {
    /// Copies `width` numbers of each row from workspace.
    ///
    /// # Safety
    /// As of [`StoredRows::read`].
    pub unsafe fn write(self, isa: InstructionSet, width: usize, from: View<'_, T>) {
        let from = View { count: self.count, ..from };
        let halves = ViewMut::from_raw(self.ptr.cast::<u16>(), self.ld, self.count);
        match self.format {
            Format::Full => from.copy_to(ViewMut::from_raw(self.ptr.cast::<T>(), self.ld, self.count), width),
            Format::BFloat16 => to_bfloat16(isa, width, from, halves),
            Format::Float16 => to_float16(isa, width, from, halves),
        }
    }
}

/// Defines a conversion of the rows of a view.
macro_rules! conversion {
    ($name:ident, $from:ty, $to:ty, $convert:expr) => {
        simd! {
            /// Converts rows.
            ///
            /// # Safety
            /// The caller owns the rows, and nothing else writes them meanwhile.
            unsafe fn $name<T: Real>(_s, width: usize, from: View<'_, $from>, to: ViewMut<'_, $to>) -> () {
                for i in 0..from.count {
                    // SAFETY: rows of the caller's, of different arrays.
                    let (from, to) = unsafe { (from.vector(i, width), to.vector_mut(i, width)) };
                    for x in 0..width {
                        to[x] = $convert(from[x]);
                    }
                }
            }
        }
    };
}
// Between `f32` and `f32`, the way over `f64` costs nothing: compilers leave it out.
conversion!(of_bfloat16, u16, T, |x: u16| T::of(f64::from(f32::from_bits(u32::from(x) << 16))));
conversion!(of_float16, u16, T, |x: u16| T::of(f64::from(float16_to_f32(x))));
conversion!(to_bfloat16, T, u16, |x: T| f32_to_bfloat16(rounded_to_odd(x)));
conversion!(to_float16, T, u16, |x: T| f32_to_float16(rounded_to_odd(x)));

// Without branches, so that loops are vectorised.

/// `x`, or the neighbour whose last bit is one where a `f32` is not exact: rounding that to fewer bits is rounding once.
#[inline(always)]
fn rounded_to_odd<T: Real>(x: T) -> f32 {
    let (wide, nearest) = (x.to_f64(), x.to_f64() as f32);
    if size_of::<T>() == size_of::<f32>() {
        return nearest;
    }
    let toward_zero = nearest.to_bits() - u32::from(f64::from(nearest).abs() > wide.abs());
    if f64::from(nearest) == wide { nearest } else { f32::from_bits(toward_zero | 1) }
}

#[inline(always)]
fn f32_to_bfloat16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    (if x.is_nan() { bits | 0x40_0000 } else { rounded } >> 16) as u16
}

/// The exponent's place, and how much larger exponents are there than in a float16.
const EXPONENT: u32 = 23;
const LARGER: u32 = 112 << EXPONENT;

#[inline(always)]
fn float16_to_f32(x: u16) -> f32 {
    let (sign, body) = (u32::from(x & 0x8000) << 16, u32::from(x & 0x7fff) << 13);
    // A subnormal number is what a mantissa adds to the least normal number.
    let least = LARGER + (1 << EXPONENT);
    let small = f32::from_bits(body.wrapping_add(least)) - f32::from_bits(least);
    let bits = if body < 1 << EXPONENT { small.to_bits() } else { body.wrapping_add(LARGER) };
    let bits = if body >= 0x7c00 << 13 { body | 0x7f80_0000 } else { bits };
    f32::from_bits(bits | sign)
}

#[inline(always)]
fn f32_to_float16(x: f32) -> u16 {
    let (sign, size) = (x.to_bits() >> 16 & 0x8000, x.to_bits() & 0x7fff_ffff);
    let normal = size.wrapping_sub(LARGER).wrapping_add(0xfff + (size >> 13 & 1)) >> 13;
    // Numbers below 2^-14 are multiples of 2^-24, the distance of numbers at one half.
    let small = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let bits = if size < LARGER + (1 << EXPONENT) { small } else { normal };
    let bits = if size >= 65520.0_f32.to_bits() { 0x7c00 } else { bits };
    let bits = if size > f32::INFINITY.to_bits() { 0x7e00 } else { bits };
    (bits | sign) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All finite numbers of a 16-bit type, and what lies between them.
    fn rounds(to: fn(f32) -> u16, of: fn(u16) -> f32, infinity: u16) {
        for x in 0..infinity {
            assert!(of(x + 1) > of(x), "{x:#x}");
            assert_eq!((to(of(x)), to(-of(x))), (x, x | 0x8000));
            let here = f64::from(of(x));
            let next = if x + 1 == infinity { 2.0 * here - f64::from(of(x - 1)) } else { f64::from(of(x + 1)) };
            let middle = f64::midpoint(here, next) as f32;
            assert_eq!(to(middle), x + (x & 1), "ties go to even numbers");
            let (below, above) = (f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1));
            assert_eq!((to(below), to(above)), (x, x + 1), "{x:#x}");
        }
        assert_eq!((of(infinity), to(f32::INFINITY)), (f32::INFINITY, infinity));
        assert_eq!((of(infinity | 0x8000), to(f32::NEG_INFINITY)), (f32::NEG_INFINITY, infinity | 0x8000));
        assert!(of(to(f32::NAN)).is_nan() && of(to(-f32::NAN)).is_nan() && of(infinity + 1).is_nan());
    }

    #[test]
    fn numbers_of_sixteen_bits_are_the_nearest() {
        assert_eq!(
            (float16_to_f32(0x3c00), float16_to_f32(1), float16_to_f32(0xfbff)),
            (1.0, 2_f32.powi(-24), -65504.0)
        );
        assert_eq!(f32_to_float16(f32::from_bits(1)), 0);
        rounds(f32_to_float16, float16_to_f32, 0x7c00);
        // Its subnormal numbers are those of `f32`, so its numbers lie as far apart from the first one on.
        rounds(f32_to_bfloat16, |x| f32::from_bits(u32::from(x) << 16), 0x7f80);
    }

    #[test]
    fn double_precision_is_rounded_once() {
        let (exact, tiny) = (1.0 + 2_f64.powi(-8), 2_f64.powi(-40)); // in the middle of two numbers of bfloat16
        let bits = |x: f64| f32_to_bfloat16(rounded_to_odd(x));
        assert_eq!([exact, exact + tiny, exact - tiny].map(bits), [0x3f80, 0x3f81, 0x3f80]);
        assert_eq!([exact, exact + tiny, exact - tiny].map(|x| bits(-x)), [0xbf80, 0xbf81, 0xbf80]);
        let bits = |x: f64| f32_to_float16(rounded_to_odd(x));
        let middle = 1.0 + 2_f64.powi(-11);
        assert_eq!([middle, middle + tiny, middle - tiny].map(bits), [0x3c00, 0x3c01, 0x3c00]);
        assert_eq!([1e300, -f64::INFINITY, 65_519.999_999_999].map(bits), [0x7c00, 0xfc00, 0x7bff]);
        assert!(float16_to_f32(bits(f64::NAN)).is_nan() && bits(1e-300) == 0 && bits(-0.0) == 0x8000);
    }

    #[test]
    fn rows_are_read_and_written_on_every_instruction_set() {
        for isa in InstructionSet::available() {
            for width in [1, 7, 16, 33] {
                let bits: Vec<u16> = (0..3 * width as u16).map(|i| 0x3c00 + 37 * i).collect();
                for (numbers, of) in [
                    (Numbers::Float16(&bits), float16_to_f32 as fn(u16) -> f32),
                    (Numbers::BFloat16(&bits), |x| f32::from_bits(u32::from(x) << 16)),
                ] {
                    let tokens = Tokens::strided(numbers, [1, 3, 1, width], [0, width, 0]).unwrap();
                    let (mut wide, mut written) = (vec![0.0_f64; 3 * width], vec![0_u16; 3 * width]);
                    let target = match numbers {
                        Numbers::Float16(_) => NumbersMut::Float16(&mut written),
                        _ => NumbersMut::BFloat16(&mut written),
                    };
                    let view = ViewMut::of(&mut wide, width, 3);
                    // SAFETY: three rows here and there.
                    unsafe {
                        tokens.rows((0, 3), 0).read(isa, width, view);
                        target.rows(width).write(isa, width, view.read());
                    }
                    assert!(wide.iter().zip(&bits).all(|(&x, &bits)| x == f64::from(of(bits))));
                    assert_eq!(written, bits);
                }
            }
        }
    }

    #[test]
    fn rows_stay_among_their_numbers() {
        let numbers = [0.0_f32; 24];
        let strided = |shape, strides| Tokens::strided(Numbers::Full(&numbers), shape, strides);
        assert!(strided([2, 2, 2, 3], [12, 6, 3]).is_ok());
        assert!(strided([2, 2, 2, 3], [3, 12, 6]).is_ok());
        assert!(strided([2, 0, 2, 3], [usize::MAX, 6, 3]).is_ok());
        for strides in [[13, 6, 3], [12, 6, 4], [usize::MAX, 1, 1], [1, usize::MAX, usize::MAX]] {
            assert!(strided([2, 2, 2, 3], strides).is_err(), "{strides:?}");
        }
    }
}
