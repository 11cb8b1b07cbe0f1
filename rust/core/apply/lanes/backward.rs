//! Gradients of the applications of a group of problems.

use pulp::Simd;

use super::columns::LaneColumns;
use super::diagonal::Diagonals;
use super::steps::{GradientPlaces, LaneSteps};
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::Operator;
use crate::operator::gradients::Gradients;
use crate::simd::element::Element;
use crate::simd::isa::simd;

/// Vectors of a problem that are taken back at once.
const ROWS: usize = 2;

/// Workspace for gradients.
pub struct LanesBackward<T: Scalar> {
    columns: LaneColumns<T>,
    diagonals: Diagonals<T>,
    /// Every state of the vectors: `x_i` of all of them, then `x_{i+1}`.
    states: Buffer<T::Real>,
    /// `v* x` of every reflection.
    sums: Buffer<T::Real>,
    back: Buffer<T::Real>,
    /// The vectors before the diagonal, if there is one.
    start: Buffer<T::Real>,
    grad_u: Buffer<T::Real>,
    grad_tau: Buffer<T::Real>,
}

impl<T: Scalar> LanesBackward<T> {
    /// For problems like this one, `group` side by side, with `rows` vectors each.
    pub fn new(shape: &Operator<'_, T>, group: usize, rows: usize) -> Result<Self> {
        let (n, m) = (shape.n(), shape.m());
        let (columns, diagonals) = (LaneColumns::new(shape, group)?, Diagonals::new(shape, group)?);
        let (k, number, rows) = (columns.k, T::PARTS * group, rows.min(ROWS));
        Ok(Self {
            states: Buffer::zeroed((k + 1) * rows * n * number)?,
            sums: Buffer::zeroed(k * rows * number)?,
            back: Buffer::zeroed(rows * n * number)?,
            start: Buffer::zeroed(if diagonals.first < n { rows * n * number } else { 0 })?,
            grad_u: Buffer::zeroed(n * m * number)?,
            grad_tau: Buffer::zeroed(if columns.given { m * number } else { 0 })?,
            columns,
            diagonals,
        })
    }
}

simd! {
    /// Gradients of `sum <g, W h>` of each problem, or of `W* h`. The caller has checked all sizes.
    pub fn backward<T: Scalar>(
        s,
        workspace: &mut LanesBackward<T>,
        problems: &Operator<'_, T>,
        vectors: [&[T]; 2],
        gradients: Gradients<'_, T>,
    ) -> () {
        let Gradients { u: grad_u, h: mut grad_h, tau: grad_tau, phases } = gradients;
        let LanesBackward { columns, diagonals, grad_tau: of_tau, .. } = &mut *workspace;
        columns.set(s, problems);
        diagonals.set(s, problems, columns);
        of_tau.fill(T::Real::default());
        let rows = vectors[0].len() / (problems.n() * problems.count());
        assert_eq!(vectors[0].len(), vectors[1].len(), "vectors of a group");
        let mut row = 0;
        while row < rows {
            let grad_h = grad_h.as_deref_mut();
            // SAFETY: these rows are inside all arrays.
            row += unsafe {
                if rows - row >= ROWS {
                    workspace.rows::<S, ROWS>(s, problems, vectors, grad_h, [row, rows])
                } else {
                    workspace.rows::<S, 1>(s, problems, vectors, grad_h, [row, rows])
                }
            };
        }
        workspace.write(s, grad_u, grad_tau, phases);
    }
}

impl<T: Scalar> LanesBackward<T> {
    /// `R` vectors of each problem, from number `row` of `rows` on. Returns `R`.
    ///
    /// # Safety
    /// The caller owns these rows of all arrays.
    #[inline(always)]
    unsafe fn rows<S: Simd, const R: usize>(
        &mut self,
        s: S,
        problems: &Operator<'_, T>,
        [h, g]: [&[T]; 2],
        grad_h: Option<&mut [T]>,
        [row, rows]: [usize; 2],
    ) -> usize {
        let Self { columns, diagonals, states, sums, back, start, grad_u, grad_tau } = self;
        let (n, k, layout, adjoint) = (columns.n, columns.k, columns.layout, problems.is_adjoint());
        let each = n * layout.number::<T>();
        let [states, sums, back] = [states.ptr_mut(), sums.ptr_mut(), back.ptr_mut()];
        layout.take(s, R * n, h.as_ptr().add(row * n), rows * n, states);
        layout.take(s, R * n, g.as_ptr().add(row * n), rows * n, back);
        // W* exchanges the roles of h and g.
        let p = if adjoint { back } else { states };
        if diagonals.first < n {
            start.as_mut_ptr().copy_from(p, R * each);
            (0..R).for_each(|r| diagonals.apply(s, p.add(r * each), false));
        }
        let tau = if columns.given { grad_tau.ptr_mut() } else { std::ptr::null_mut() };
        let gradients = GradientPlaces { u: grad_u.ptr_mut(), tau };
        for lane in (0..layout.group).step_by(T::Real::lanes::<S>()) {
            let steps = LaneSteps::new::<R>(s, columns, lane, adjoint);
            steps.states::<R>(states, sums);
            steps.backward::<R>(states, sums, back, gradients, row == 0);
        }
        if diagonals.first < n {
            let q = if adjoint { states.add(k * R * each) } else { back };
            for r in 0..R {
                diagonals.add(s, q.add(r * each), start.ptr().add(r * each));
                if !adjoint {
                    diagonals.apply(s, back.add(r * each), true);
                }
            }
        }
        if let Some(grad_h) = grad_h {
            layout.give(s, R * n, back, grad_h.as_mut_ptr().add(row * n), rows * n);
        }
        R
    }

    /// Writes the sums over all rows to the gradients that are wanted.
    #[inline(always)]
    fn write<S: Simd>(
        &mut self,
        s: S,
        grad_u: Option<&mut [T]>,
        grad_tau: Option<&mut [T]>,
        phases: Option<&mut [T::Real]>,
    ) {
        let Self { columns, diagonals, grad_u: of_u, grad_tau: of_tau, .. } = self;
        columns.unscale(of_u, of_tau);
        diagonals.write(of_u, phases);
        let (n, m, layout) = (columns.n, columns.m, columns.layout);
        if columns.form.has_ones() {
            for j in 0..columns.k {
                of_u[(j * m + j) * layout.number::<T>()..][..layout.number::<T>()].fill(T::Real::default());
            }
        }
        if let Some(grad_u) = grad_u {
            assert_eq!(grad_u.len(), layout.used * n * m, "dL/dU of a group");
            // SAFETY: gradients of these problems, from those of a group.
            unsafe { layout.give(s, n * m, of_u.ptr(), grad_u.as_mut_ptr(), n * m) };
        }
        if let Some(grad_tau) = grad_tau.filter(|_| columns.given) {
            assert_eq!(grad_tau.len(), layout.used * m, "dL/dtau of a group");
            // SAFETY: as above.
            unsafe { layout.give(s, m, of_tau.ptr(), grad_tau.as_mut_ptr(), m) };
        }
    }
}
