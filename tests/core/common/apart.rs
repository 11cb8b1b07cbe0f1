//! Rows of tokens that lie apart from each other, in their own type or in 16 bits.

use householder::number::Real;
use householder::stored::{Numbers, Tokens};

/// A copy of contiguous rows `(batch, tokens, heads, width)`, with NaN between the rows.
pub struct Apart<T> {
    numbers: Copied<T>,
    shape: [usize; 4],
    strides: [usize; 3],
}

/// Numbers in one of the formats of [`Numbers`].
enum Copied<T> {
    Full(Vec<T>),
    BFloat16(Vec<u16>),
    Float16(Vec<u16>),
}

impl<T: Real> Apart<T> {
    /// The axes in memory have any order and gaps. The stride of an axis of one may be anything. The format is any in which all
    /// numbers are exact. `below` draws a number below another one.
    pub fn any(mut below: impl FnMut(usize) -> usize, rows: &[T], shape: [usize; 4]) -> Self {
        assert_eq!(rows.len(), shape.iter().product::<usize>(), "rows of {shape:?}");
        let mut order = [0, 1, 2];
        (1..3).for_each(|i| order.swap(i, below(i + 1)));
        let (mut strides, mut reach) = ([0; 3], shape[3] + below(3));
        for axis in order {
            strides[axis] = reach + below(2) * below(7);
            reach += shape[axis].saturating_sub(1) * strides[axis];
        }
        let mut numbers = vec![T::of(f64::NAN); reach];
        let [_, tokens, heads, width] = shape;
        for (i, row) in rows.chunks(width.max(1)).enumerate() {
            let at = [i / heads / tokens, i / heads % tokens, i % heads];
            let first: usize = at.iter().zip(strides).map(|(at, stride)| at * stride).sum();
            numbers[first..first + width].copy_from_slice(row);
        }
        for axis in 0..3 {
            if shape[axis] == 1 && below(2) == 0 {
                strides[axis] = [usize::MAX, usize::MAX / 2 + 1, 1 << 40][below(3)];
            }
        }
        let bits = |of: fn(f64) -> Option<u16>| numbers.iter().map(|x| of(x.to_f64())).collect::<Option<Vec<_>>>();
        let numbers = match below(3) {
            0 => bits(bfloat16).map(Copied::BFloat16),
            1 => bits(float16).map(Copied::Float16),
            _ => None,
        }
        .unwrap_or(Copied::Full(numbers));
        Self { numbers, shape, strides }
    }

    pub fn tokens(&self) -> Tokens<'_, T> {
        let numbers = match &self.numbers {
            Copied::Full(numbers) => Numbers::Full(numbers),
            Copied::BFloat16(bits) => Numbers::BFloat16(bits),
            Copied::Float16(bits) => Numbers::Float16(bits),
        };
        Tokens::strided(numbers, self.shape, self.strides).expect("rows within the numbers")
    }
}

/// Cuts numbers to eight bits, as bfloat16 has. Those of ordinary size fit into float16, too.
pub fn shorten<'a, T: Real>(arrays: impl IntoIterator<Item = &'a mut Vec<T>>) {
    let short = |x: f64| f32::from_bits((x as f32).to_bits() & 0xffff_0000);
    arrays.into_iter().flatten().for_each(|x| *x = T::of(f64::from(short(x.to_f64()))));
}

/// The bits of a number of bfloat16.
fn bfloat16(x: f64) -> Option<u16> {
    let bits = (x as f32).to_bits();
    (x.is_nan() || f64::from(f32::from_bits(bits & 0xffff_0000)) == x).then_some((bits >> 16) as u16)
}

/// The bits of a number of float16, of one that is normal there.
fn float16(x: f64) -> Option<u16> {
    let bits = (x as f32).to_bits();
    let (sign, exponent, fraction) = (bits >> 16 & 0x8000, bits >> 23 & 0xff, bits & 0x007f_ffff);
    let is_exact = f64::from(x as f32) == x && fraction.trailing_zeros() >= 13 && (113..143).contains(&exponent);
    match x {
        _ if x.is_nan() => Some(0x7e00),
        _ if x == 0.0 => Some(sign as u16),
        _ if is_exact => Some((sign | (exponent - 112) << 10 | fraction >> 13) as u16),
        _ => None,
    }
}
