//! What `benches/kernels.rs` measures: the two products of a recurrent step, on packed weights.

use std::fmt;
use std::hint::black_box;

use crate::arrays::lengths::product;
use crate::arrays::view::{View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::simd::activation::Activation;
use crate::simd::epilogue::{Step, Store};
use crate::simd::fetch::Fetch;
use crate::simd::gemm::gemm;
use crate::simd::isa::simd;
use crate::simd::pack::{Packed, Part, pack};
use crate::threads::InstructionSet;

/// A step `z = P* h`, `h' = relu(h + Q z)` of `batch` sequences.
pub struct RecurrentStep<T: Scalar> {
    isa: InstructionSet,
    n: usize,
    m: usize,
    batch: usize,
    project: Packed<T>,
    expand: Packed<T>,
    h: Buffer<T>,
    next: Buffer<T>,
    z: Buffer<T>,
}

impl<T: Scalar> fmt::Debug for RecurrentStep<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecurrentStep").field("n", &self.n).field("m", &self.m).finish_non_exhaustive()
    }
}

impl<T: Scalar> RecurrentStep<T> {
    /// For states of `n` numbers and `m` reflections.
    pub fn new(isa: InstructionSet, n: usize, m: usize, batch: usize) -> Result<Self> {
        let fits =
            [[n, m], [n, batch], [m.saturating_add(1 << 10), batch]].iter().all(|sizes| product(sizes).is_some());
        if !fits {
            let text = format!("no arrays have the sizes n = {n}, m = {m}, batch = {batch}");
            return Err(Error::InvalidArgument(text));
        }
        let weights = Buffer::<T>::zeroed(n * m)?;
        // SAFETY: n x m weights.
        let (project, expand) = unsafe {
            (pack(isa, m, &[Part::adjoint(&weights, n, n)])?, pack(isa, n, &[Part::columns(&weights, n, m)])?)
        };
        let (h, next) = (Buffer::zeroed(n * batch)?, Buffer::zeroed(n * batch)?);
        Ok(Self { isa, n, m, batch, project, expand, h, next, z: Buffer::zeroed(padded::<T>(m) * batch)? })
    }

    /// Computes it.
    pub fn run(&mut self) {
        let &mut Self { isa, n, m, batch, .. } = self;
        let z = ViewMut::of(&mut self.z, padded::<T>(m), batch);
        let state = View::of(&self.h, n, batch);
        let step = Step {
            out: ViewMut::of(&mut self.next, n, batch),
            previous: state,
            input: View::none(),
            activation: Activation::Relu,
            fetch: Fetch::none(),
        };
        // SAFETY: vectors of n and of m numbers for the whole batch, and weights of these sizes.
        unsafe {
            gemm(isa, (m, batch), self.project.weights(), state, &Store::new(z));
            gemm(isa, (n, batch), self.expand.weights(), z.read(), &step);
        }
    }
}

/// Sums at a time, as many as keep the FMA units busy.
const CHAINS: usize = 12;

/// A number from each lane after `rounds` rounds of independent sums `x <- x factor + 2 factor`, and how many flops they take.
pub fn sums<T: Scalar>(isa: InstructionSet, rounds: usize, factor: T) -> ([T; 16], usize) {
    let flops = 2 * T::PARTS * isa.tile_height::<T>().0 * CHAINS * rounds;
    (chains(isa, rounds, factor), flops)
}

simd! {
    fn chains<T: Scalar>(s, rounds: usize, number: T) -> [T; 16] {
        // Every chain has its own start, none is a fixed point.
        let factor = T::splat(s, number);
        let mut sums = [factor; CHAINS];
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = T::splat(s, black_box(number));
            for _ in 0..i {
                *sum = T::plus(s, *sum, factor);
            }
        }
        let start = T::plus(s, factor, factor);
        for _ in 0..rounds {
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
