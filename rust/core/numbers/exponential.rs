//! Real numbers with an exponential: those of the delta rule and of what layers compute around it.

use pulp::Simd;

use crate::RealOperations;
use crate::numbers::number::Real;
use crate::numbers::scalar::Scalar;

/// A real number with an exponential that loops can be vectorised over.
pub trait Exponential: Scalar + Real + RealOperations {
    /// Return `exp x` within a few units in the last place: zero where it would be subnormal, infinity above
    /// `2^(MAX_EXP - 1/2)`.
    fn exp<S: Simd>(self, s: S) -> Self;

    /// Return `1 / (1 + exp(-x))`.
    #[inline(always)]
    fn sigmoid<S: Simd>(self, s: S) -> Self {
        Self::ONE / (Self::ONE + (-self).exp(s))
    }
}

macro_rules! exponential {
    ($t:ident, $terms:expr) => {
        impl Exponential for $t {
            // exp x = 2^k exp r, x = k ln 2 + r, |r| <= ln 2 / 2, and exp r by its Taylor series.
            #[inline(always)]
            fn exp<S: Simd>(self, _: S) -> Self {
                const MANTISSA: u32 = $t::MANTISSA_DIGITS - 1;
                const ROUND: $t = (3u64 << (MANTISSA - 1)) as $t; // adding it leaves the nearest integer in the low bits
                const LN2: f64 = std::f64::consts::LN_2;
                // ln 2 in two parts, the first short enough for k times it to be exact.
                const LN2_HIGH: $t = ((LN2 * 4096.0) as i64 as f64 / 4096.0) as $t;
                // What `LN2` lacks: 1,000 times it would be 100 units in the last place of a float64 exponential.
                const LN2_LACKS: f64 = 2.319_046_813_846_3e-17;
                const LN2_LOW: $t = (LN2 - (LN2 * 4096.0) as i64 as f64 / 4096.0 + LN2_LACKS) as $t;
                const LEAST: $t = (($t::MIN_EXP - 1) as f64 * LN2) as $t; // that of the smallest normal number
                const MOST: $t = (($t::MAX_EXP as f64 - 0.5) * LN2) as $t;
                let x = if self < LEAST { LEAST } else { self };
                let x = if x > MOST { MOST } else { x };
                let shifted = x * std::$t::consts::LOG2_E + ROUND;
                let k = shifted - ROUND;
                let r = (x - k * LN2_HIGH) - k * LN2_LOW;
                let mut series = INVERSE_FACTORIALS[$terms] as $t;
                for inverse in INVERSE_FACTORIALS[..$terms].iter().rev() {
                    let inverse = *inverse as $t;
                    // Without an instruction for it, a fused product and sum is a call of a library.
                    series = if S::IS_SCALAR { series * r + inverse } else { series.mul_add(r, inverse) };
                }
                // The low bits of `shifted` hold k; a product moves them up to the exponent's place.
                let one: $t = 1.0;
                let power = $t::from_bits(shifted.to_bits().wrapping_shl(MANTISSA).wrapping_add(one.to_bits()));
                let value = series * power;
                let value = if self > MOST { $t::INFINITY } else { value };
                if self < LEAST { 0.0 } else { value }
            }
        }
    };
}
exponential!(f32, 7);
exponential!(f64, 13);

/// `1 / k!`.
const INVERSE_FACTORIALS: [f64; 14] = {
    let mut inverse = [1.0; 14];
    let mut k = 1;
    while k < inverse.len() {
        inverse[k] = inverse[k - 1] / k as f64;
        k += 1;
    }
    inverse
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::isa::{InstructionSet, simd};

    simd! {
        fn replace<T: Exponential>(s, x: &mut [T]) -> () {
            x.iter_mut().for_each(|x| *x = x.exp(s));
        }
    }

    /// Compares exponentials of every instruction set with those of the standard library.
    fn expect<T: Exponential + Into<f64>>(x: &[T], are_equal: impl Fn(f64, f64) -> bool) {
        for isa in InstructionSet::available() {
            let mut results = x.to_vec();
            replace(isa, &mut results);
            for (&x, result) in x.iter().zip(results) {
                let (x, result): (f64, f64) = (x.into(), result.into());
                assert!(are_equal(result, x.exp()), "{isa:?}: exp {x} is {}, not {result}", x.exp());
            }
        }
    }

    #[test]
    fn exponentials_are_exact_to_a_few_units() {
        let x: Vec<_> = (-80_000..80_000).map(|i| f64::from(i) / 1000.0).collect();
        expect(&x, |result, exact| (result / exact - 1.0).abs() < 4.0 * f64::EPSILON);
        let x: Vec<_> = x.iter().map(|&x| x as f32).collect();
        expect(&x, |result, exact| (result / exact - 1.0).abs() < 2.5 * f64::from(f32::EPSILON));
    }

    #[test]
    fn extremes_are_limits() {
        let are_equal = |result: f64, exact: f64| result == exact || result.is_nan() && exact.is_nan();
        expect(&[0.0_f32, -1e4, f32::NEG_INFINITY, f32::INFINITY, f32::NAN], are_equal);
        expect(&[0.0, -1e4, 1e4, f64::NEG_INFINITY, f64::INFINITY, f64::NAN], are_equal);
        // The last octave of normal numbers, and what is just below it.
        expect(&[-87.3_f32], |result, exact| (result / exact - 1.0).abs() < 4.0 * f64::from(f32::EPSILON));
        expect(&[-708.39], |result, exact| (result / exact - 1.0).abs() < 4.0 * f64::EPSILON);
        expect(&[-87.4_f32, -90.0], |result, _| result == 0.0);
        expect(&[-708.4], |result, _| result == 0.0);
    }
}
