//! The hot products of a recurrent step alone, as a share of the FMA peak.

mod peak;

use criterion::{Criterion, criterion_group, criterion_main};
use householder::bench::RecurrentStep;
use householder::scalar::Scalar;
use householder::threads::InstructionSet;

fn steps<T: Scalar>(criterion: &mut Criterion, type_name: &str) {
    for isa in InstructionSet::available() {
        let peak = peak::peak::<T>(isa);
        for (n, m, batch) in [(128, 16, 25), (256, 32, 25), (512, 32, 32), (512, 64, 32), (100, 33, 25), (512, 64, 1)] {
            let mut step = RecurrentStep::<T>::new(isa, n, m, batch).unwrap();
            let flops = 4 * T::PARTS * T::PARTS * n * m * batch;
            let name = format!("step {type_name} {} n={n} m={m} B={batch}", isa.name());
            peak::bench(criterion, &name, flops, peak, || step.run());
        }
    }
}

fn kernels(criterion: &mut Criterion) {
    steps::<f32>(criterion, "f32");
    steps::<f64>(criterion, "f64");
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).without_plots()
        .warm_up_time(std::time::Duration::from_millis(200)).measurement_time(std::time::Duration::from_millis(600));
    targets = kernels
}
criterion_main!(benches);
