//! Flops of Algorithm 1: those of the operations on vectors, on the entries that reflections read.

use pulp::Scalar as OneLane;

use super::ReflectionSteps;
use super::vectors::Registers;
use crate::operator::Form;

/// Flops of operations on `e` real numbers: a product and a sum each.
fn project(e: usize) -> usize {
    2 * e - 1
}
fn subtract(e: usize) -> usize {
    2 * e
}
/// Two products, a difference, and the sum with the other vectors' unless there are none.
fn gradient(e: usize, first: bool) -> usize {
    if first { 3 * e } else { 4 * e }
}
/// `tau v* x`.
const TAU: usize = 1;
/// A factor from two states at one entry: a difference and a product.
const RECALL: usize = 2;

#[test]
fn algorithm_1_costs_at_most_what_the_paper_says() {
    for (n, m) in [(2, 1), (3, 2), (5, 1), (8, 5), (16, 15), (33, 4), (64, 63), (100, 50), (128, 2)] {
        for adjoint in [false, true] {
            let (v, tau) = (vec![1.0_f64; n * m], vec![1.0; m]);
            let steps = ReflectionSteps {
                n,
                v: &v,
                ld: n,
                tau: &tau,
                given: false,
                form: Form::Trapezoidal,
                pivots: &[],
                adjoint,
            };
            let sum = |flops: &dyn Fn(usize) -> usize| -> usize {
                let entries = (0..m).map(|i| steps.vector(Registers(OneLane::new()), steps.column(i)).len());
                entries.map(flops).sum()
            };
            let reflect = |e: usize| project(e) + TAU + subtract(e);
            let forward = sum(&reflect);
            assert!(forward <= (4 * n - m + 2) * m, "FP {n} {m}: {forward}");
            let stored = sum(&|e| RECALL + reflect(e) + gradient(e, true));
            // A factor comes from the stored vectors in two flops: for a single reflection one more than the paper's.
            let single = usize::from(m == 1);
            assert!(stored <= (7 * n - 2 * m + 3) * m + single, "BP stored {n} {m}: {stored}");
            // Recovering the states takes two flops more for each entry than recomputing them all and storing them.
            let recovered = forward + sum(&|e| subtract(e) + reflect(e) + gradient(e, true));
            let entries = m * (2 * n - m + 1) / 2;
            assert!(recovered <= (11 * n - 3 * m + 5) * m + 2 * entries, "BP recovered {n} {m}: {recovered}");
        }
    }
}
