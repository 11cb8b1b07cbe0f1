//! `W h` and `W* h` of a group of problems.

use super::columns::LaneColumns;
use super::diagonal::Diagonals;
use super::steps::LaneSteps;
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::Operator;
use crate::simd::element::Element;
use crate::simd::isa::simd;

/// Vectors of a problem that are reflected at once.
const ROWS: usize = 4;

/// Workspace for applications.
pub struct LanesForward<T: Scalar> {
    columns: LaneColumns<T>,
    diagonals: Diagonals<T>,
    x: Buffer<T::Real>,
}

impl<T: Scalar> LanesForward<T> {
    /// For problems like this one, `group` side by side, with `rows` vectors each.
    pub fn new(shape: &Operator<'_, T>, group: usize, rows: usize) -> Result<Self> {
        Ok(Self {
            columns: LaneColumns::new(shape, group)?,
            diagonals: Diagonals::new(shape, group)?,
            x: Buffer::zeroed(rows.min(ROWS) * shape.n() * T::PARTS * group)?,
        })
    }
}

simd! {
    /// `out = W h` of each problem, for each of its rows, or `W* h`. The caller has checked all sizes.
    pub fn forward<T: Scalar>(s, workspace: &mut LanesForward<T>, problems: &Operator<'_, T>, h: &[T], out: &mut [T]) -> () {
        let LanesForward { columns, diagonals, .. } = &mut *workspace;
        columns.set(s, problems);
        diagonals.set(s, problems, columns);
        let rows = h.len() / (problems.n() * problems.count());
        assert_eq!(h.len(), out.len(), "vectors of a group");
        let mut row = 0;
        while row < rows {
            // SAFETY: these rows are inside both arrays.
            row += unsafe {
                if rows - row >= ROWS {
                    workspace.rows::<S, ROWS>(s, problems, h, out, [row, rows])
                } else {
                    workspace.rows::<S, 1>(s, problems, h, out, [row, rows])
                }
            };
        }
    }
}

impl<T: Scalar> LanesForward<T> {
    /// `R` vectors of each problem, from number `row` of `rows` on. Returns `R`.
    ///
    /// # Safety
    /// The caller owns these rows of both arrays.
    #[inline(always)]
    unsafe fn rows<S: pulp::Simd, const R: usize>(
        &mut self,
        s: S,
        problems: &Operator<'_, T>,
        h: &[T],
        out: &mut [T],
        [row, rows]: [usize; 2],
    ) -> usize {
        let Self { columns, diagonals, x } = self;
        let (n, layout, adjoint) = (columns.n, columns.layout, problems.is_adjoint());
        let x = x.ptr_mut();
        layout.take(s, R * n, h.as_ptr().add(row * n), rows * n, x);
        let each = n * layout.number::<T>();
        if !adjoint {
            (0..R).for_each(|r| diagonals.apply(s, x.add(r * each), false));
        }
        for lane in (0..layout.group).step_by(T::Real::lanes::<S>()) {
            LaneSteps::new::<R>(s, columns, lane, adjoint).apply::<R>(x);
        }
        if adjoint {
            (0..R).for_each(|r| diagonals.apply(s, x.add(r * each), true));
        }
        layout.give(s, R * n, x, out.as_mut_ptr().add(row * n), rows * n);
        R
    }
}
