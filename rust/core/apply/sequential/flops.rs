//! Flops of Algorithm 1, counted by numbers that count, in the loops over reflections that every number type runs.

use std::cell::Cell;
use std::ops::{Add, Mul, Neg, Sub};

use super::{Factor, Steps, Vectors};
use crate::operator::Form;

thread_local! {
    static FLOPS: Cell<usize> = const { Cell::new(0) };
}

/// A number whose every sum, difference and product is counted; a sign costs nothing.
#[derive(Clone, Copy, Debug)]
struct Counted(f64);

fn counted(x: f64) -> Counted {
    FLOPS.set(FLOPS.get() + 1);
    Counted(x)
}

impl Add for Counted {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        counted(self.0 + other.0)
    }
}
impl Sub for Counted {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        counted(self.0 - other.0)
    }
}
impl Mul for Counted {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        counted(self.0 * other.0)
    }
}
impl Neg for Counted {
    type Output = Self;
    fn neg(self) -> Self {
        Self(-self.0)
    }
}

impl Factor for Counted {
    fn conj(self) -> Self {
        self
    }
}

#[derive(Clone, Copy)]
struct Plain;

impl Vectors<Counted> for Plain {
    fn project(self, v: &[Counted], x: &[Counted]) -> Counted {
        assert_eq!(v.len(), x.len());
        v.iter().zip(x).map(|(&v, &x)| v * x).reduce(Counted::add).expect("a reflection has entries")
    }
    fn subtract(self, a: Counted, v: &[Counted], x: &mut [Counted]) {
        assert_eq!(v.len(), x.len());
        x.iter_mut().zip(v).for_each(|(x, &v)| *x = *x - a * v);
    }
    fn gradient(
        self,
        (a, x): (Counted, &[Counted]),
        (b, g): (Counted, &[Counted]),
        _: (&[Counted], bool),
        grad: &mut [Counted],
        first: bool,
    ) {
        for ((grad, &x), &g) in grad.iter_mut().zip(x).zip(g) {
            let term = -a * g - b * x;
            *grad = if first { term } else { *grad + term };
        }
    }
}

fn flops(work: impl FnOnce()) -> usize {
    FLOPS.set(0);
    work();
    FLOPS.get()
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn algorithm_1_costs_at_most_what_the_paper_says() {
    for (n, m) in [(2, 1), (3, 2), (5, 1), (8, 5), (16, 15), (33, 4), (64, 63), (100, 50), (128, 2)] {
        let mut angle = n as f64;
        let mut number = || {
            angle += 1.0;
            Counted(angle.sin())
        };
        let mut numbers = |len: usize| -> Vec<Counted> { (0..len).map(|_| number()).collect() };
        let v = numbers(n * m);
        let h = numbers(n);
        let g = numbers(n);
        let square = |j: usize| -> f64 { v[j * n + j..(j + 1) * n].iter().map(|v| v.0 * v.0).sum() };
        let tau: Vec<Counted> = (0..m).map(|j| Counted(2.0 / square(j))).collect();
        let pivots: Vec<_> = (0..m).map(|j| (n - 1, Counted(1.0 / v[j * n + n - 1].0))).collect();
        for adjoint in [false, true] {
            let steps =
                Steps { n, v: &v, ld: n, tau: &tau, given: false, form: Form::Trapezoidal, pivots: &pivots, adjoint };
            // What Algorithm 1 stores: every state, by the forward pass.
            let mut states = vec![h.clone()];
            let mut factors = vec![Counted(0.0); m];
            let mut grad_v = vec![Counted(0.0); n * m];
            let mut c = h.clone();
            let mut keep = |i: usize, _, x: &mut [Counted], factor| {
                states.push(x.to_vec());
                factors[i] = factor;
            };
            let forward = flops(|| steps.apply(Plain, &mut c, n, &mut keep));
            assert!(forward <= (4 * n - m + 2) * m, "FP {n} {m}: {forward}");

            let recovered = forward
                + flops(|| {
                    let back = |i: usize, _, x: &mut [Counted]| {
                        steps.recover(Plain, i, factors[i], x);
                        factors[i]
                    };
                    steps.backward(Plain, &mut c.clone(), &mut g.clone(), n, &mut grad_v, &mut [], true, back);
                });
            // Recovering the states takes two flops more for each entry than recomputing them all and storing them.
            let entries = m * (2 * n - m + 1) / 2;
            assert!(recovered <= (11 * n - 3 * m + 5) * m + 2 * entries, "BP recovered {n} {m}: {recovered}");

            let (want, computed) = (grad_v.clone(), factors.clone());
            let stored = flops(|| {
                let back = |i: usize, _, x: &mut [Counted]| {
                    factors[i] = steps.recall(Plain, i, &states[i], x);
                    factors[i]
                };
                steps.backward(Plain, &mut c, &mut g.clone(), n, &mut grad_v, &mut [], true, back);
            });
            // A factor comes from the stored vectors in two flops: for a single reflection one more than the paper's.
            let single = usize::from(m == 1);
            assert!(stored <= (7 * n - 2 * m + 3) * m + single, "BP stored {n} {m}: {stored}");
            assert!(factors.iter().zip(&computed).all(|(a, b)| (a.0 - b.0).abs() < 1e-9));
            assert!(grad_v.iter().zip(&want).all(|(a, b)| (a.0 - b.0).abs() < 1e-9));
        }
    }
}
