//! `dL/dx = V* delta`, or `delta` itself where there is no `V`.

use std::ops::Range;

use super::plan::Plan;
use super::steps::Steps;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::numbers::scalar::Scalar;
use crate::simd::epilogue::Store;
use crate::simd::gemm::gemm;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::{Packed, Part, ROWS, pack};

/// The gradient of the input, one vector of `d` numbers a row, as it is found from `delta`.
pub struct InputGradient<'a, T: Scalar> {
    isa: InstructionSet,
    steps: &'a Steps,
    n: usize,
    d: usize,
    out: ViewMut<'a, T>,
    route: Route<T>,
}

enum Route<T: Scalar> {
    /// There is no `V`: each step's `delta` is the gradient.
    Copied,
    /// A product with `V*` for each step.
    BySteps(Packed<T>),
    /// A product with `V*` for all rows of a ring, which pays off where those of a step are few.
    ByRings(Packed<T>),
}

impl<'a, T: Scalar> InputGradient<'a, T> {
    /// Of a sequence; tasks write to `out`.
    pub fn new(isa: InstructionSet, plan: &Plan<'a, T>, out: &'a mut [T]) -> Result<Self> {
        let (n, d) = (plan.n(), plan.d);
        let route = match plan.input_weight {
            None => Route::Copied,
            Some(v) => {
                let adjoint = Part { conjugate: true, ..Part::columns(v, d, n) };
                // SAFETY: V has n rows of d numbers.
                let adjoint = unsafe { pack(isa, d, &[adjoint]) }?;
                if plan.projected_at_once() > 1 { Route::ByRings(adjoint) } else { Route::BySteps(adjoint) }
            }
        };
        let (steps, out) = (plan.steps, ViewMut::of(out, d, plan.steps.rows()));
        Ok(Self { isa, steps, n, d, out, route })
    }

    /// Width of the workspace that [`InputGradient::ring`] needs; 0 if single steps do all the work.
    pub fn ring_width(&self) -> usize {
        if matches!(self.route, Route::ByRings(_)) { self.d } else { 0 }
    }

    /// Writes the gradient of step `t`, unless [`InputGradient::ring`] does. A task writes the part that belongs to its
    /// coordinates `range`.
    ///
    /// # Safety
    /// `delta` has a row of `n` numbers for each sequence of the step, and no other task has these coordinates.
    pub unsafe fn step(&self, slice: (usize, usize), t: usize, delta: View<'_, T>, range: &Range<usize>) {
        let (row, count) = self.steps.rows_of(t, slice);
        let out = self.out.part(row, row + count);
        match &self.route {
            Route::Copied => (0..count).for_each(|b| {
                delta.at(range.start, b).copy_to_nonoverlapping(out.at(range.start, b), range.len());
            }),
            Route::BySteps(adjoint) => self.project(adjoint, delta, count, out, self.share(range)),
            Route::ByRings(_) => {}
        }
    }

    /// Writes the gradient for all `rows` rows of a ring, the first step of which is `t`, unless single steps have done so.
    /// `workspace` has as many rows.
    ///
    /// # Safety
    /// `delta` and `workspace` have so many rows, and no other task has these coordinates.
    pub unsafe fn ring(
        &self,
        slice: (usize, usize),
        t: usize,
        rows: usize,
        delta: View<'_, T>,
        workspace: ViewMut<'_, T>,
        range: &Range<usize>,
    ) {
        let Route::ByRings(adjoint) = &self.route else { return };
        let share = self.share(range);
        self.project(adjoint, delta, rows, workspace, share.clone());
        let (mut t, mut base) = (t, rows);
        while base > 0 {
            let (row, count) = self.steps.rows_of(t, slice);
            base -= count;
            for b in 0..count {
                let to = self.out.at(share.start, row + b);
                workspace.at(share.start, base + b).copy_to_nonoverlapping(to, share.len());
            }
            t += 1;
        }
    }

    /// The rows of `V*` that lie as far along as coordinates `range`.
    fn share(&self, range: &Range<usize>) -> Range<usize> {
        let (n, d) = (self.n, self.d);
        let bound = |i: usize| if i == n { d } else { (i * d / n).next_multiple_of(ROWS).min(d) };
        bound(range.start)..bound(range.end)
    }

    /// # Safety
    /// `delta` has `count` rows of `n` numbers, and `out` as many of `d`.
    unsafe fn project(
        &self,
        adjoint: &Packed<T>,
        delta: View<'_, T>,
        count: usize,
        out: ViewMut<'_, T>,
        share: Range<usize>,
    ) {
        let weights = adjoint.weights_from(share.start);
        gemm(self.isa, (share.len(), count), weights, delta, &Store::new(out.from(share.start, 0)));
    }
}
