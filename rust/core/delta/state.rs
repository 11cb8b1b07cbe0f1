//! Columns of one head's state, and how a chunk moves them on.

use super::chunk::{Decayed, Keys};
use super::number::Exponential;
use super::part::Part;
use super::problem::Problem;
use super::rows::Rows;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::Store;
use crate::kernel::gemm::gemm;
use crate::view::View;

/// `S`, or its gradient.
pub struct State<T: Exponential> {
    /// One for each channel of the keys.
    pub rows: Rows<T>,
    shape: (usize, usize),
}

impl<T: Exponential> State<T> {
    /// So many columns, to be written before they are read.
    pub fn new(problem: &Problem<'_, T>, columns: usize) -> Result<Self> {
        let height = problem.sizes.key_width;
        Ok(Self { rows: Rows::new(height, columns)?, shape: (height, columns) })
    }

    /// The state in which a part's sequence begins.
    pub fn initial(problem: &Problem<'_, T>, part: &Part, head: usize) -> Result<Self> {
        let mut state = Self::new(problem, part.columns.len())?;
        let at = |states: &[T]| problem.state_at(states.as_ptr(), part.sequence, head, part.columns.start);
        // SAFETY: a problem's array has a state for each sequence and head.
        unsafe { state.read(problem.initial.map(at)) };
        Ok(state)
    }

    /// Uses `columns` columns, at most as many as it was made for.
    pub fn narrow(&mut self, columns: usize) {
        self.shape.1 = columns;
    }

    /// All rows.
    pub fn view(&self) -> View<T> {
        self.rows.view(0, self.shape.0)
    }

    /// Takes the numbers of an array, or zeros.
    ///
    /// # Safety
    /// The array has a state there, which nothing writes meanwhile.
    pub unsafe fn read(&mut self, from: Option<View<T>>) {
        match from {
            Some(from) => from.copy_to(self.view(), self.shape.1),
            None => self.rows.fill(T::ZERO),
        }
    }

    /// Writes its numbers to `to`, a state in an array.
    ///
    /// # Safety
    /// The array has a state there, which only this task may write.
    pub unsafe fn write(&self, to: View<T>) {
        self.view().copy_to(to, self.shape.1);
    }

    /// `exp(c_end) S + a b'`, written to a state, for rows of `a`, one number a channel, and of `b`.
    ///
    /// # Safety
    /// The caller owns the rows of `a` and `b`.
    pub unsafe fn advance(
        &self,
        isa: InstructionSet,
        keys: &Keys<T>,
        decayed: &Decayed<T>,
        [a, b]: [View<T>; 2],
        to: &Self,
    ) {
        let (height, columns) = self.shape;
        let whole = decayed.decay.from_start.view(keys.len - 1, 1);
        let factor = match decayed.decay.width {
            0 => View::none(),
            1 => View { ld: 0, count: height, ..whole },
            _ => whole.transposed(height),
        };
        let store = Store::plus_scaled(to.view(), self.view(), factor);
        gemm(isa, (columns, height), b, a.transposed(height), &store);
    }
}
