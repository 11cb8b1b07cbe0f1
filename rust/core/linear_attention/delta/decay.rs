//! Products with decays.

use crate::numbers::exponential::Exponential;

/// A number or a decay times a decay; zero where that would be subnormal. Processors take a hundred times as long for such
/// numbers, and strong gates make many: a chunk's decays fall by the same factor at each step.
#[inline(always)]
pub fn decayed<T: Exponential>(x: T, decay: T) -> T {
    let product = x * decay;
    if product.abs() < T::MIN_POSITIVE { T::ZERO } else { product }
}

/// A decay times the decay of another step; zero where it is negligible, long before it is subnormal: else numbers that it
/// multiplies would make subnormal products.
#[inline(always)]
pub fn longer<T: Exponential>(decay: T, step: T) -> T {
    let product = decay * step;
    if product < T::MIN_POSITIVE * T::of(NEGLIGIBLE) { T::ZERO } else { product }
}

/// The least decay over several steps, relative to the least normal number.
const NEGLIGIBLE: f64 = 67_108_864.0; // 2^26

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_decays_to_a_subnormal_number() {
        for x in [f32::MIN_POSITIVE, -1e-30, 0.5, -1.0, f32::INFINITY] {
            assert_eq!(decayed(x, 1.0), x);
        }
        assert_eq!([(f32::MIN_POSITIVE, 0.5), (-1e-30, 1e-30), (0.0, 0.5)].map(|(x, by)| decayed(x, by)), [0.0; 3]);
        assert_eq!([1e-7, 1e-9].map(|by| decayed(-1e-300, by)), [-1e-300 * 1e-7, 0.0]);
        assert_eq!(
            [(50, 50), (51, 50)].map(|(i, j)| longer(0.5_f32.powi(i), 0.5_f32.powi(j))),
            [0.5_f32.powi(100), 0.0]
        );
        assert!(decayed(f64::NAN, 0.5).is_nan() && decayed(0.5, f64::NAN).is_nan());
    }
}
