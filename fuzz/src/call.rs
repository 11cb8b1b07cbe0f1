//! A call on one of this machine's instruction sets, with the same bits for any number of threads.

use householder::number::c64;
use householder::scalar::Scalar;
use householder::threads::{Context, InstructionSet, set_num_threads};

use crate::oracle::to_c64;
use crate::source::{Extent, Source};

/// One, as many as this is likely to have, and more than tasks can be shared out to evenly.
const THREADS: [usize; 3] = [1, 2, 7];

/// What a call leaves.
pub trait Results {
    /// All of it, to be compared.
    fn bits(&self) -> Vec<u64>;
}

/// Those of some arrays, of which some may be absent. All NaNs are alike: the processor chooses among those that it adds.
pub fn bits<T: Scalar, const N: usize>(arrays: [Option<&Vec<T>>; N]) -> Vec<u64> {
    let of_real = |x: f64| if x.is_nan() { f64::NAN } else { x }.to_bits();
    let of_number = |c64 { re, im }| [re, im].map(of_real);
    arrays.into_iter().flatten().flatten().flat_map(|&x| of_number(to_c64(x))).collect()
}

/// Runs a problem: a large one with each number of threads, another one, for which no thread is woken, with one of them.
pub fn call<R: Results>(source: &mut Source, extent: Extent, mut run: impl FnMut(&mut Context<'_>) -> R) -> R {
    let available = InstructionSet::available();
    let isa = available[source.below(available.len())];
    let mut with = |threads: usize| {
        set_num_threads(threads).expect("a positive number");
        let mut context = Context::default();
        context.isa = isa;
        run(&mut context)
    };
    if extent != Extent::Large {
        return with(THREADS[source.below(THREADS.len())]);
    }
    let [alone, together @ ..] = THREADS;
    let results = with(alone);
    for threads in together {
        assert!(with(threads).bits() == results.bits(), "{threads} threads: other bits than alone");
    }
    results
}
