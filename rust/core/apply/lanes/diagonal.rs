//! The diagonal factors of a group of problems, and their gradients.

use pulp::Simd;

use super::LaneLayout;
use super::arithmetic::Arithmetic;
use super::columns::LaneColumns;
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::Operator;
use crate::simd::element::Element;

/// `D` of a group: which coordinates it changes, and by which factors.
pub struct Diagonals<T: Scalar> {
    /// All coordinates before it stay.
    pub first: usize,
    n: usize,
    layout: LaneLayout,
    factors: Buffer<T::Real>,
    /// `dL/du_1`, or `conj(q) a` for each coordinate.
    sums: Buffer<T::Real>,
}

impl<T: Scalar> Diagonals<T> {
    /// Memory for problems like this one, `group` side by side.
    pub fn new(shape: &Operator<'_, T>, group: usize) -> Result<Self> {
        let n = shape.n();
        let first = match shape {
            _ if !shape.units.is_empty() => 0,
            _ if shape.form.reflections(n, shape.m()) < shape.m() => n - 1,
            _ => n,
        };
        let layout = LaneLayout { group, used: 0 };
        let len = if first < n { n * layout.number::<T>() } else { 0 };
        Ok(Self { first, n, layout, factors: Buffer::zeroed(len)?, sums: Buffer::zeroed(len)? })
    }

    /// Takes those of these problems, once `columns` has them.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, problems: &Operator<'_, T>, columns: &LaneColumns<T>) {
        self.layout = columns.layout;
        assert!(problems.units.is_empty() || self.first == 0, "workspace without phases");
        self.sums.fill(T::Real::ZERO);
        let (n, layout, units) = (self.n, self.layout, &*problems.units);
        if units.len() == n {
            for (factor, unit) in self.factors.chunks_exact_mut(layout.number::<T>()).zip(units) {
                factor[..layout.group].fill(unit.re());
                factor[layout.group..].fill(unit.im());
            }
        } else if !units.is_empty() {
            assert_eq!(units.len(), problems.count() * n, "phases of a group");
            // SAFETY: phases of these problems, and memory for those of a group.
            unsafe { layout.take(s, n, units.as_ptr(), n, self.factors.ptr_mut()) };
        } else if self.first < n {
            let at = self.first * layout.number::<T>();
            // SAFETY: the last entry of U, which no workspace for another shape has.
            unsafe { columns.at(n - 1, n - 1).copy_to(self.factors[at..].as_mut_ptr(), layout.number::<T>()) };
        }
    }

    /// `x <- D x`, or `D* x`.
    ///
    /// # Safety
    /// The caller owns vectors of a group.
    #[inline(always)]
    pub unsafe fn apply<S: Simd>(&self, s: S, x: *mut T::Real, adjoint: bool) {
        let ops = Arithmetic::<S, T>::new(s, self.layout.group);
        self.each::<S>(
            #[inline(always)]
            |at| {
                let factor = ops.conj_if(adjoint, ops.load(self.factors.ptr().add(at)));
                ops.store(x.add(at), ops.times(factor, ops.load(x.add(at))));
            },
        );
    }

    /// Adds to the gradient, from `q = W_1* b` and `p`: `q_n p_n`, or `conj(q) D p`.
    ///
    /// # Safety
    /// The caller owns both vectors of a group.
    #[inline(always)]
    pub unsafe fn add<S: Simd>(&mut self, s: S, q: *const T::Real, p: *const T::Real) {
        let ops = Arithmetic::<S, T>::new(s, self.layout.group);
        self.each::<S>(
            #[inline(always)]
            |at| {
                let sum = self.sums.ptr().add(at).cast_mut();
                let p = ops.load(p.add(at));
                let a = if T::COMPLEX { ops.times(ops.load(self.factors.ptr().add(at)), p) } else { p };
                ops.store(sum, ops.fma(ops.conj_if(true, ops.load(q.add(at))), a, ops.load(sum)));
            },
        );
    }

    /// Calls `f` with the place of every number that `D` changes, in whole registers.
    #[inline(always)]
    fn each<S: Simd>(&self, f: impl Fn(usize)) {
        for i in self.first..self.n {
            for lane in (0..self.layout.group).step_by(T::Real::lanes::<S>()) {
                f(i * self.layout.number::<T>() + lane);
            }
        }
    }

    /// Writes `dL/du_1` to its place in the gradient of `U` of a group, or `dL/dtheta = -Im(conj(q) a)` to `phases`.
    pub fn write(&self, grad_u: &mut [T::Real], phases: Option<&mut [T::Real]>) {
        let (number, group) = (self.layout.number::<T>(), self.layout.group);
        if !T::COMPLEX && self.first < self.n && !grad_u.is_empty() {
            let last = grad_u.len() - number;
            grad_u[last..].copy_from_slice(&self.sums[self.first * number..]);
        }
        for (problem, phases) in phases.into_iter().flat_map(|x| x.chunks_exact_mut(self.n)).enumerate() {
            for (phase, sum) in phases.iter_mut().zip(self.sums.chunks_exact(number)) {
                *phase = -sum[group + problem];
            }
        }
    }
}
