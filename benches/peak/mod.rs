//! Rates as a share of what the machine's FMA units can do, measured in the same run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use householder::kernel::dispatch::InstructionSet;
use householder::number::Real;
use householder::scalar::Scalar;
use pulp::{Simd, WithSimd};

/// Flops per second of independent FMAs on one core.
pub fn peak<T: Scalar>(isa: InstructionSet) -> f64 {
    const CHAINS: usize = 12;
    struct Chains<T>(usize, T);
    impl<T: Scalar> WithSimd for Chains<T> {
        type Output = [T; 16];
        #[inline(always)]
        fn with_simd<S: Simd>(self, s: S) -> [T; 16] {
            // x <- 0.9 x + start: every chain has its own start, none is a fixed point.
            let factor = T::splat(s, self.1);
            let mut sums = [factor; CHAINS];
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = T::splat(s, black_box(self.1));
                for _ in 0..i {
                    *sum = T::plus(s, *sum, factor);
                }
            }
            let start = T::plus(s, factor, factor);
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = T::fma(s, *sum, factor, start);
                }
            }
            let mut total = sums[0];
            for sum in &sums[1..] {
                total = T::plus(s, total, *sum);
            }
            let mut out = [T::default(); 16];
            // SAFETY: a register holds at most 64 bytes, and T is at least 4 bytes.
            unsafe { T::store(s, out.as_mut_ptr(), total) };
            out
        }
    }
    const ROUNDS: usize = 200_000;
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let begin = Instant::now();
        black_box(isa.dispatch(Chains::<T>(black_box(ROUNDS), black_box(T::from_real(T::Real::of(0.9))))));
        best = best.min(begin.elapsed());
    }
    (2 * T::PARTS * isa.tile_height::<T>().0 * CHAINS * ROUNDS) as f64 / best.as_secs_f64()
}

/// Benchmarks `work` of `flops` and prints its best rate as a share of `peak`.
pub fn bench(criterion: &mut Criterion, name: &str, flops: usize, peak: f64, mut work: impl FnMut()) {
    let mut best = f64::INFINITY;
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let begin = Instant::now();
            for _ in 0..iterations {
                work();
            }
            let elapsed = begin.elapsed();
            best = best.min(elapsed.as_secs_f64() / iterations as f64);
            elapsed
        });
    });
    if best.is_finite() {
        let rate = flops as f64 / best;
        eprintln!(
            "{name:<40} {:8.1} GFLOP/s = {:5.1} % of peak ({:.1})\n",
            rate / 1e9,
            100.0 * rate / peak,
            peak / 1e9
        );
    }
}
