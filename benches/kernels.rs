//! The hot products of a recurrent step alone, as a share of the FMA peak.

mod peak;

use criterion::{Criterion, criterion_group, criterion_main};
use householder::kernel::activation::Activation;
use householder::kernel::dispatch::InstructionSet;
use householder::kernel::epilogue::{Step, Store};
use householder::kernel::fetch::Fetch;
use householder::kernel::gemm::gemm;
use householder::kernel::pack::{Part, pack};
use householder::memory::{Buffer, padded};
use householder::scalar::Scalar;
use householder::view::View;

fn steps<T: Scalar>(criterion: &mut Criterion, type_name: &str) {
    for isa in InstructionSet::available() {
        let peak = peak::peak::<T>(isa);
        for (n, m, batch) in [(128, 16, 25), (256, 32, 25), (512, 32, 32), (512, 64, 32), (100, 33, 25), (512, 64, 1)] {
            let ld = padded::<T>(m);
            let weights = Buffer::<T>::zeroed(n * m).unwrap();
            let (h, mut next) = (Buffer::<T>::zeroed(n * batch).unwrap(), Buffer::<T>::zeroed(n * batch).unwrap());
            let mut z = Buffer::<T>::zeroed(ld * batch).unwrap();
            // SAFETY: n x m weights, vectors of n and of m numbers for the whole batch.
            let mut step = unsafe {
                let project = pack(isa, m, &[Part::adjoint(weights.ptr(), n, n)]).unwrap();
                let expand = pack(isa, n, &[Part::columns(weights.ptr(), n, m)]).unwrap();
                let z = View::new(z.ptr_mut(), ld, batch);
                let step = Step {
                    out: View::new(next.ptr_mut(), n, batch),
                    previous: View::new(h.ptr(), n, batch),
                    input: View::none(),
                    activation: Activation::Relu,
                    fetch: Fetch::none(),
                };
                let state = View::new(h.ptr(), n, batch);
                // z = U* h and h' = relu(h + A z)
                move || {
                    gemm(isa, (m, batch), project.weights(), state, &Store::new(z));
                    gemm(isa, (n, batch), expand.weights(), z, &step);
                }
            };
            let flops = 4 * T::PARTS * T::PARTS * n * m * batch;
            let name = format!("step {type_name} {} n={n} m={m} B={batch}", isa.name());
            peak::bench(criterion, &name, flops, peak, &mut step);
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
