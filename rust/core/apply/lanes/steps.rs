//! Reflections of a register of problems, of `R` vectors each.

use pulp::Simd;

use super::arithmetic::{Arithmetic, Parts};
use super::columns::LaneColumns;
use crate::numbers::scalar::Scalar;

/// One register of the problems of a group, from lane `lane` on.
pub struct LaneSteps<'a, S, T: Scalar> {
    ops: Arithmetic<S, T>,
    columns: &'a LaneColumns<T>,
    lane: usize,
    /// Distance between the numbers of a vector, between vectors, and between states.
    number: usize,
    vector: usize,
    state: usize,
    adjoint: bool,
}

/// Places of the gradients that a backward pass adds to; null where one is not wanted.
#[derive(Clone, Copy)]
pub struct GradientPlaces<R> {
    /// `dL/dV`, laid out like `V`.
    pub u: *mut R,
    /// `dL/dtau`.
    pub tau: *mut R,
}

impl<'a, S: Simd, T: Scalar> LaneSteps<'a, S, T> {
    /// `adjoint` means `W*`.
    #[inline(always)]
    pub fn new<const R: usize>(s: S, columns: &'a LaneColumns<T>, lane: usize, adjoint: bool) -> Self {
        let number = columns.layout.number::<T>();
        let vector = columns.n * number;
        Self {
            ops: Arithmetic::new(s, columns.layout.group),
            columns,
            lane,
            number,
            vector,
            state: R * vector,
            adjoint,
        }
    }

    /// Column of the `i`-th reflection in order of application.
    #[inline(always)]
    fn column(&self, i: usize) -> usize {
        if self.adjoint { i } else { self.columns.k - 1 - i }
    }

    /// `v_ij`.
    #[inline(always)]
    unsafe fn v(&self, i: usize, j: usize) -> Parts<S, T> {
        self.ops.load(self.columns.at(i, j).add(self.lane))
    }

    /// Number `i` of vector `r`.
    #[inline(always)]
    fn at(&self, x: *mut T::Real, r: usize, i: usize) -> *mut T::Real {
        x.wrapping_add(r * self.vector + i * self.number + self.lane)
    }

    /// `tau_j`, or `conj(tau_j)`.
    #[inline(always)]
    unsafe fn tau(&self, j: usize, conj: bool) -> Parts<S, T> {
        self.ops.conj_if(conj, self.ops.load(self.columns.tau(j).add(self.lane)))
    }

    /// `v_j* x` of each vector. A single one is summed in two chains.
    #[inline(always)]
    unsafe fn project<const R: usize>(&self, j: usize, x: *mut T::Real) -> [Parts<S, T>; R] {
        let Self { ops, columns, .. } = self;
        let mut sums = [[ops.zero(); R]; 2];
        for i in columns.form.first(j)..columns.n {
            let v = ops.conj_if(true, self.v(i, j));
            for (r, sum) in sums[0].iter_mut().enumerate() {
                *sum = ops.fma(v, ops.load(self.at(x, r, i)), *sum);
            }
            if R == 1 {
                sums.swap(0, 1);
            }
        }
        if R == 1 {
            sums[0][0] = ops.plus(sums[0][0], sums[1][0]);
        }
        sums[0]
    }

    /// `to = x - a v_j` from the first entry of the column on.
    #[inline(always)]
    unsafe fn subtract<const R: usize>(&self, j: usize, a: [Parts<S, T>; R], x: *mut T::Real, to: *mut T::Real) {
        let Self { ops, columns, .. } = self;
        let minus = a.map(
            #[inline(always)]
            |a| ops.neg(a),
        );
        for i in columns.form.first(j)..columns.n {
            let v = self.v(i, j);
            for (r, &minus) in minus.iter().enumerate() {
                ops.store(self.at(to, r, i), ops.fma(minus, v, ops.load(self.at(x, r, i))));
            }
        }
    }

    /// All reflections of `R` vectors, in place.
    ///
    /// # Safety
    /// The caller owns `R` vectors of a group.
    #[inline(always)]
    pub unsafe fn apply<const R: usize>(&self, x: *mut T::Real) {
        for i in 0..self.columns.k {
            let j = self.column(i);
            let tau = self.tau(j, self.adjoint);
            let a = self.project::<R>(j, x).map(
                #[inline(always)]
                |sum| self.ops.times(tau, sum),
            );
            self.subtract(j, a, x, x);
        }
    }

    /// Makes all states from the first ones, and `v* x` of each reflection and vector.
    ///
    /// # Safety
    /// The caller owns `k + 1` states of `R` vectors of a group, and `k R` numbers at `sums`.
    #[inline(always)]
    pub unsafe fn states<const R: usize>(&self, states: *mut T::Real, sums: *mut T::Real) {
        let ops = self.ops;
        for i in 0..self.columns.k {
            let (j, x) = (self.column(i), states.add(i * self.state));
            let next = x.add(self.state);
            let tau = self.tau(j, self.adjoint);
            let sum = self.project::<R>(j, x);
            for l in 0..self.columns.form.first(j) {
                for r in 0..R {
                    ops.store(self.at(next, r, l), ops.load(self.at(x, r, l)));
                }
            }
            let mut a = sum;
            for r in 0..R {
                ops.store(sums.add((i * R + r) * self.number + self.lane), sum[r]);
                a[r] = ops.times(tau, sum[r]);
            }
            self.subtract(j, a, x, next);
        }
    }

    /// Takes `R` vectors `g` back to the first states and adds to the gradients (overwrites those of `U` with the `first`
    /// vectors').
    ///
    /// # Safety
    /// As of [`LaneSteps::states`], and of `R` vectors and of gradients of a group.
    #[inline(always)]
    pub unsafe fn backward<const R: usize>(
        &self,
        states: *mut T::Real,
        sums: *mut T::Real,
        g: *mut T::Real,
        gradients: GradientPlaces<T::Real>,
        first: bool,
    ) {
        let Self { ops, columns, .. } = *self;
        for i in (0..columns.k).rev() {
            let (j, x) = (self.column(i), states.add(i * self.state));
            let [tau, back] = [self.tau(j, self.adjoint), self.tau(j, !self.adjoint)];
            let of_g = self.project::<R>(j, g);
            // -b, -conj(a), -conj(b) and -conj(a) b or its imaginary part.
            let [mut minus_b, mut a, mut b, mut turn] = [of_g; 4];
            for r in 0..R {
                let sum = ops.load(sums.add((i * R + r) * self.number + self.lane));
                let of_b = ops.times(back, of_g[r]);
                minus_b[r] = ops.neg(of_b);
                b[r] = ops.conj_if(true, minus_b[r]);
                a[r] = ops.neg(ops.conj_if(true, ops.times(tau, sum)));
                turn[r] = ops.times(a[r], of_b);
                if !columns.given {
                    turn[r] = ops.imaginary(turn[r]);
                }
                if !gradients.tau.is_null() {
                    let to = gradients.tau.add(j * self.number + self.lane);
                    let (of_g, of_x) = (ops.neg(of_g[r]), sum);
                    let term = if self.adjoint {
                        ops.times(ops.conj_if(true, of_g), of_x)
                    } else {
                        ops.times(of_g, ops.conj_if(true, of_x))
                    };
                    ops.store(to, ops.plus(ops.load(to), term));
                }
            }
            let turned = T::COMPLEX || columns.given;
            for l in columns.form.first(j)..columns.n {
                let v = self.v(l, j);
                let to = gradients.u.wrapping_add((l * columns.m + j) * self.number + self.lane);
                let mut grad = if first { ops.zero() } else { ops.load(to) };
                for r in 0..R {
                    let back = ops.fma(minus_b[r], v, ops.load(self.at(g, r, l)));
                    ops.store(self.at(g, r, l), back);
                    grad = ops.fma(a[r], back, ops.fma(b[r], ops.load(self.at(x, r, l)), grad));
                    if turned {
                        grad = ops.fma(turn[r], v, grad);
                    }
                }
                ops.store(to, grad);
            }
        }
    }
}
