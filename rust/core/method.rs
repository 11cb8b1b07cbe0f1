//! The choice of the algorithm for a shape.

use crate::arrays::view::Shape;
use crate::operator::form::Form;
use crate::simd::isa::InstructionSet;

members! {
    /// The way a product of reflections is applied.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Method {
        /// One reflection after the other (Algorithm 1).
        Reflections,
        /// Compact WY, never forming W.
        Wy,
        /// W is formed.
        Dense,
    }
}

/// Expected time of each method, forward and backward, in microseconds: measured with one thread, float32 and complex64,
/// on a processor with AVX-512. Only the ratios matter; they are similar on other processors and in double precision. Where
/// they differ, with narrower registers, costs are in units of that processor's products of matrices.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// One reflection after the other; infinite where it is not offered.
    pub reflections: f64,
    /// Compact WY.
    pub wy: f64,
    /// The matrix.
    pub dense: f64,
}

/// Microseconds for each term of [`Costs::of_application`], of real numbers: reflections, compact WY and the matrix, fitted to
/// times of 566 shapes, and of 726 with gradients. With registers of 16 numbers, and with shorter ones.
type Rates = [[f64; 6]; 3];
const FORWARD: [Rates; 2] = [
    [
        [0.4, 0.029, 2.3e-4, 3.1e-3, 3.1e-5, 3.6e-4],
        [1.1, 7.6e-4, 2.9e-3, 3.3e-5, 8.6e-4, 2.4e-5],
        [1.2, 0.09, 6.2e-4, 1.7e-5, 8.3e-6, 2.3e-4],
    ],
    [
        [0.39, 0.016, 2.5e-4, 2.2e-3, 4.4e-5, 3.6e-4],
        [0.92, 7.8e-4, 3.5e-3, 4.3e-5, 7.1e-4, 5.3e-5],
        [1.1, 0.085, 8.0e-4, 2.7e-5, 1.5e-5, 2.1e-4],
    ],
];
const WITH_GRADIENTS: [Rates; 2] = [
    [
        [1.1, 0.069, 1.0e-3, 6.3e-3, 1.1e-4, 1.3e-3],
        [1.8, 2.0e-3, 3.3e-3, 9.9e-5, 3.2e-3, 4.3e-5],
        [2.6, 0.11, 1.7e-3, 6.9e-5, 2.7e-5, 8.0e-4],
    ],
    [
        [1.1, 0.053, 1.2e-3, 6.3e-3, 1.7e-4, 1.3e-3],
        [1.4, 2.3e-3, 4.5e-3, 1.2e-4, 2.7e-3, 1.4e-4],
        [2.2, 0.12, 2.0e-3, 1.1e-4, 5.4e-5, 5.4e-4],
    ],
];

impl Costs {
    /// One application of `k` reflections to `rows` vectors of size `n`, with or without its gradients; of complex numbers always
    /// with them. No cost falls when `n`, `k` or `rows` grows.
    pub fn of_application(
        isa: InstructionSet,
        form: Form,
        (n, k): Shape,
        rows: usize,
        complex: bool,
        gradients: bool,
    ) -> Self {
        let block = k.next_multiple_of(16); // registers are whole
        let (inverses, blocks) = (k * k.min(32), k * k.min(64));
        let [n, k, rows, block, inverses, blocks] = [n, k, rows, block, inverses, blocks].map(|x| x as f64);
        // Numbers in U: columns end before the last coordinate.
        let numbers = |k: f64| k * if form == Form::Full { n } else { (n - k / 2.0).max(n / 2.0) };
        let (entries, padded) = (numbers(k), numbers(block));
        // From half a million numbers on, U comes from the third-level cache.
        let far = entries / (entries + 5e5);
        let has_long_registers = isa.tile_height::<f32>().0 == 16;
        if !complex {
            let terms = [
                [1.0, k, entries * (1.0 + 2.0 * far), rows * k, rows * entries, rows * n],
                [1.0, padded * (1.0 + 2.5 * far), inverses, rows * padded, rows * entries / n, rows * blocks],
                [1.0, k, n * n, n * n * k, rows * n * n, rows * n],
            ];
            let rates = if gradients { WITH_GRADIENTS } else { FORWARD }[usize::from(!has_long_registers)];
            let sum = |i: usize| terms[i].iter().zip(rates[i]).map(|(term, rate)| term * rate).sum();
            return Self { reflections: sum(0), wy: sum(1), dense: sum(2) };
        }
        // 18 flops a number and row, at 150 GFLOP/s but for short sums, whole registers and several blocks.
        let whole = if has_long_registers { 1.3 } else { 1.1 };
        let wy = 18.0 / 150e3 * (whole * padded + 24.0 * entries / n + 2.0 * blocks);
        // 6 n^2 a row.
        let dense = rows * n * n * 6.0 / 110e3;
        // Gram matrices and inverses in double precision; W, and its gradient's way back to U.
        let inverses = 0.025 * inverses;
        let part = if form == Form::Full { 1.0 } else { 1.0 - k / n + k * k / (3.0 * n * n) };
        let formation = n * n * (0.009 + 0.00065 * k * part);
        Self {
            reflections: rows * (0.095 * k + 0.006 * entries),
            wy: 2.0 + 0.011 * padded + inverses + 2.7 * rows * wy,
            dense: 5.0 + formation + inverses + 3.6 * dense,
        }
    }

    /// A recurrence of `k` reflections over `rows` states in all.
    pub fn of_sequence(n: usize, k: usize, rows: usize) -> Self {
        let [n, k, rows] = [n, k, rows].map(|x| x as f64);
        let state = n * n * 6.0 / 90e3;
        // Two thin factors reach half the rate of one square matrix, less once they leave the cache.
        let wy = n * k * (0.01 + 2e-4 * k) + rows * state * (2.0 * k / n).powf(1.25);
        // Up to 64 coordinates, W is formed in registers.
        let formed = if n <= 64.0 { 0.018 } else { 0.036 };
        let dense = n * n * (formed * n / (n + 128.0) + 5e-5 * k) + rows * state;
        Self { reflections: f64::INFINITY, wy, dense }
    }

    /// The costs of the methods whose gradients stay accurate, where `tau` may be given. A formed W sums `g h*` over all rows
    /// and leaves to the end products with `S`. If `tau` is far from a reflection's, the sum's rounding errors grow with `S`.
    #[must_use]
    pub fn accurate(self, given: bool) -> Self {
        if given { Self { dense: f64::INFINITY, ..self } } else { self }
    }

    /// The cheapest method.
    pub fn best(self) -> Method {
        if self.reflections <= self.wy.min(self.dense) {
            Method::Reflections
        } else if self.wy <= self.dense {
            Method::Wy
        } else {
            Method::Dense
        }
    }
}

/// Reflections of a block of [`crate::wy::blocks`], applied to `rows` vectors. Wide ones run faster, narrow ones are formed
/// faster.
pub(crate) fn block_width(k: usize, rows: usize) -> usize {
    even_width(k, if rows < 64 { 32 } else { 64 })
}

/// The same where the matrix of size `n` is formed.
pub(crate) fn block_width_of_matrix(k: usize, n: usize) -> usize {
    even_width(k, if n < 512 { 32 } else { 64 })
}

/// Blocks about as wide, in whole registers, and all alike.
fn even_width(k: usize, widest: usize) -> usize {
    let count = ((k + widest / 2) / widest).max(1);
    k.div_ceil(count).next_multiple_of(16).max(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 14] = [1, 2, 7, 16, 24, 33, 64, 100, 128, 256, 500, 512, 1024, 2048];
    const ROWS: [usize; 14] = [1, 2, 3, 4, 6, 8, 9, 10, 12, 16, 32, 100, 1000, 10_000];

    /// Costs of every method for a form of `k` reflections.
    fn costs(isa: InstructionSet, (n, k): Shape, rows: usize, form: Form, [complex, gradients]: [bool; 2]) -> [f64; 3] {
        let Costs { reflections, wy, dense } = Costs::of_application(isa, form, (n, k), rows, complex, gradients);
        [reflections, wy, dense]
    }

    #[test]
    fn no_cost_falls_when_work_grows() {
        for (isa, pass, form) in InstructionSet::available().into_iter().flat_map(|isa| {
            [[false, false], [false, true], [true, true]]
                .into_iter()
                .flat_map(move |pass| [Form::Trapezoidal, Form::Full].map(|form| (isa, pass, form)))
        }) {
            for (n, k, rows) in SIZES.into_iter().flat_map(|n| {
                SIZES.into_iter().filter(move |&k| k <= n).flat_map(move |k| ROWS.map(|rows| (n, k, rows)))
            }) {
                let less = costs(isa, (n, k), rows, form, pass);
                for (n, k, rows) in [(n + 1, k, rows), (2 * n, k, rows), (n, k + 1, rows), (n, k, rows + 1)] {
                    if k > n {
                        continue;
                    }
                    let more = costs(isa, (n, k), rows, form, pass);
                    for (less, more) in less.into_iter().zip(more) {
                        assert!(less <= more, "{isa:?} {n} {k} {rows} {form:?} {pass:?}: {less} {more}");
                    }
                    let least = |costs: [f64; 3]| costs.into_iter().fold(f64::INFINITY, f64::min);
                    assert!(least(less) <= least(more));
                }
            }
        }
    }
}
