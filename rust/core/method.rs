//! The choice of the algorithm for a shape.

use crate::form::Form;
use crate::view::Shape;

/// The way a product of reflections is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One reflection after the other (Algorithm 1).
    Reflections,
    /// Compact WY, never forming W.
    Wy,
    /// W is formed.
    Dense,
}

/// Expected time of each method, forward and backward, in microseconds: measured with one thread, float32 and complex64,
/// on a processor with AVX-512. Only the ratios matter; they are similar on other processors and in double precision.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// One reflection after the other; infinite where it is not offered.
    pub reflections: f64,
    /// Compact WY.
    pub wy: f64,
    /// The matrix.
    pub dense: f64,
}

impl Costs {
    /// One application of `k` reflections to `rows` vectors of size `n`.
    pub fn of_application(form: Form, (n, k): Shape, rows: usize, complex: bool) -> Self {
        let block = k.next_multiple_of(16); // registers are whole
        let [n, k, rows, block] = [n, k, rows, block].map(|x| x as f64);
        // Numbers in a column of U, and in U.
        let column = if form == Form::Full { n } else { n - k / 2.0 };
        let (entries, padded) = (k * column, block * column);
        // 18 flops a number and row, at 150 GFLOP/s but for short sums and several blocks.
        let wy = rows * padded * 18.0 / 150e3 * (1.3 + (24.0 + 256.0 * k / n) / n);
        // 6 n^2 a row.
        let dense = rows * n * n * 6.0 / 110e3;
        // Gram matrices and inverses in double precision; W, and its gradient's way back to U.
        if complex {
            let inverses = 0.025 * k * k.min(32.0);
            let part = if form == Form::Full { 1.0 } else { 1.0 - k / n + k * k / (3.0 * n * n) };
            let formation = n * n * (0.009 + 0.00065 * k * part);
            Self {
                reflections: rows * (0.095 * k + 0.006 * entries),
                wy: 2.0 + 0.011 * padded + inverses + 2.7 * wy,
                dense: 5.0 + formation + inverses + 3.6 * dense,
            }
        } else {
            Self {
                reflections: rows * (0.045 * k + 0.00055 * entries),
                wy: 2.0 + 0.005 * padded + wy,
                dense: 5.0 + n * n * (0.01 + 8e-5 * k) + dense,
            }
        }
    }

    /// A recurrence of `k` reflections over `rows` states in all.
    pub fn of_sequence(n: usize, k: usize, rows: usize) -> Self {
        let [n, k, rows] = [n, k, rows].map(|x| x as f64);
        let state = n * n * 6.0 / 90e3;
        // Two thin factors reach half the rate of one square matrix, less once they leave the cache.
        let wy = n * k * (0.01 + 2e-4 * k) + rows * state * (2.0 * k / n).powf(1.25);
        let dense = n * n * (0.036 * n / (n + 128.0) + 5e-5 * k) + rows * state;
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
