//! Rates as a share of what the machine's FMA units can do, measured in the same run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use householder::bench::sums;
use householder::number::Real;
use householder::scalar::Scalar;
use householder::threads::InstructionSet;

/// Flops per second of independent FMAs on one core.
pub fn peak<T: Scalar>(isa: InstructionSet) -> f64 {
    const ROUNDS: usize = 200_000;
    let (mut best, mut flops) = (Duration::MAX, 0);
    for _ in 0..20 {
        let begin = Instant::now();
        let (numbers, done) = sums(isa, black_box(ROUNDS), black_box(T::from_real(T::Real::of(0.9))));
        black_box(numbers);
        best = best.min(begin.elapsed());
        flops = done;
    }
    flops as f64 / best.as_secs_f64()
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
