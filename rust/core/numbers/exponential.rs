//! Real numbers with an exponential: those of the delta rule and of what layers compute around it.

use crate::RealOperations;
use crate::numbers::number::Real;
use crate::numbers::scalar::Scalar;

/// A real number with an exponential that loops can be vectorised over.
pub trait Exponential: Scalar + Real + RealOperations {
    /// `exp x` within 2 units in the last place; zero where it would be subnormal.
    fn exp(self) -> Self;
}

macro_rules! exponential {
    ($t:ident, $terms:expr) => {
        impl Exponential for $t {
            // exp x = 2^k exp r, x = k ln 2 + r, |r| <= ln 2 / 2, and exp r by its Taylor series.
            #[inline(always)]
            fn exp(self) -> Self {
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
                let mut series = 1.0;
                let mut term = $terms;
                while term > 0 {
                    series = series * r * (1.0 / term as $t) + 1.0;
                    term -= 1;
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
exponential!(f32, 8);
exponential!(f64, 14);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_exact_to_a_few_units() {
        for i in -80_000..80_000 {
            let x = f64::from(i) / 1000.0;
            assert!((Exponential::exp(x) / f64::exp(x) - 1.0).abs() < 4.0 * f64::EPSILON, "{x}");
            let (x, exact) = (x as f32, f64::exp(f64::from(x as f32)));
            assert!((f64::from(Exponential::exp(x)) / exact - 1.0).abs() < 2.5 * f64::from(f32::EPSILON), "{x}");
        }
    }

    #[test]
    fn extremes_are_limits() {
        assert_eq!(Exponential::exp(0.0_f32), 1.0);
        assert_eq!([-1e4, f32::NEG_INFINITY, -90.0].map(Exponential::exp), [0.0; 3]);
        assert_eq!([-1e4, f64::NEG_INFINITY].map(Exponential::exp), [0.0; 2]);
        assert_eq!(Exponential::exp(1e4_f64), f64::INFINITY);
        assert!(Exponential::exp(f32::NAN).is_nan());
        // The last octave of normal numbers, and what is just below it.
        assert!((Exponential::exp(-87.3_f32) / f32::exp(-87.3) - 1.0).abs() < 4.0 * f32::EPSILON);
        assert!((Exponential::exp(-708.39_f64) / f64::exp(-708.39) - 1.0).abs() < 4.0 * f64::EPSILON);
        assert_eq!((Exponential::exp(-87.4_f32), Exponential::exp(-708.4_f64)), (0.0, 0.0));
    }
}
