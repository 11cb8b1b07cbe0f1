//! A vector for each step of each sequence.

use super::Steps;
use crate::error::{Error, Result};
use crate::kernel::fetch::Fetch;
use crate::lengths::require;
use crate::view::View;

/// Vectors that a recurrence reads: row after row, as [`Steps`] count them, or with fixed strides, for example when one
/// sequence is stored after the other.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a, T> {
    numbers: &'a [T],
    /// From a step to the next one, and from a sequence to the next one.
    strides: Option<[usize; 2]>,
}

impl<'a, T> Series<'a, T> {
    /// Row after row.
    pub fn new(numbers: &'a [T]) -> Self {
        Self { numbers, strides: None }
    }

    /// Step `t` of sequence `b` at `t * strides[0] + b * strides[1]`. All sequences have the same length.
    pub fn strided(numbers: &'a [T], strides: [usize; 2]) -> Self {
        Self { numbers, strides: Some(strides) }
    }

    /// How many numbers the vectors of `steps` steps of `batch` sequences span.
    pub fn span([steps, batch, width]: [usize; 3], strides: [usize; 2]) -> usize {
        let last = |count: usize, stride: usize| count.saturating_sub(1).saturating_mul(stride);
        let first = if steps == 0 || batch == 0 { 0 } else { width };
        first.saturating_add(last(steps, strides[0])).saturating_add(last(batch, strides[1]))
    }

    /// Whether there are as many numbers as vectors of this width need.
    pub(super) fn check(&self, name: &str, steps: &Steps, width: usize) -> Result<()> {
        let (len, rows) = (Some(self.numbers.len()), steps.rows());
        let Some(strides) = self.strides else { return require(&[(name, len, &[rows, width])]) };
        if rows != steps.count() * steps.batch() {
            let text = format!("{name}: sequences of different lengths have no strides");
            return Err(Error::InvalidArgument(text));
        }
        require(&[(name, len, &[Self::span([steps.count(), steps.batch(), width], strides)])])
    }

    /// Where the vectors of step `t` begin, those of a slice of the batch, and how far apart they are.
    fn place(&self, steps: &Steps, t: usize, slice: (usize, usize), width: usize) -> [usize; 2] {
        match self.strides {
            None => [steps.rows_of(t, slice).0 * width, width],
            Some([step, sequence]) => [steps.block(t) * step + slice.0 * sequence, sequence],
        }
    }

    /// The vectors of step `t`, those of a slice of the batch.
    pub(super) fn at(&self, steps: &Steps, t: usize, slice: (usize, usize), width: usize) -> View<T> {
        let [first, ld] = self.place(steps, t, slice, width);
        View::new(self.numbers.as_ptr().wrapping_add(first), ld, steps.rows_of(t, slice).1)
    }

    /// The vectors of `count` steps, `t - 1` and those before it, to be brought into the cache.
    pub(super) fn fetch(&self, steps: &Steps, t: usize, slice: (usize, usize), width: usize, count: usize) -> Fetch<T> {
        let count = count.min(t);
        if count == 0 {
            return Fetch::none();
        }
        let [last, ld] = self.place(steps, t - 1, slice, width);
        let [before, _] = self.place(steps, (t - 1).saturating_sub(1), slice, width);
        let (stride, vectors) = (before as isize - last as isize, steps.rows_of(t - 1, slice).1);
        let from = |place: usize| self.numbers.as_ptr().wrapping_add(place);
        if ld == width {
            Fetch::new(from(last), [stride, 0], [count, 1], vectors * width)
        } else if stride.unsigned_abs() == width {
            // One sequence after the other: its steps are one piece.
            let [first, _] = self.place(steps, t - count, slice, width);
            Fetch::new(from(first.min(last)), [ld as isize, 0], [vectors, 1], count * width)
        } else {
            Fetch::new(from(last), [stride, ld as isize], [count, vectors], width)
        }
    }
}
