//! Which rows belong to which step of which sequence, and vectors for each of them.

use crate::arrays::lengths;
use crate::arrays::stack::Stack;
use crate::arrays::view::View;
use crate::error::{Error, Result};
use crate::memory::filled;
use crate::simd::fetch::Fetch;

/// Rows of the arrays `(rows, ..)`: those of step `t` are `offsets[t]..offsets[t + 1]`, one for each sequence that is still
/// running, the longest sequences first.
#[derive(Debug)]
pub struct Steps {
    offsets: Vec<usize>,
    /// Whether time runs from the last of these rows to the first.
    reversed: bool,
}

impl Steps {
    /// `steps` steps of `batch` sequences each.
    pub fn uniform(steps: usize, batch: usize) -> Result<Self> {
        let sizes = [Some(steps), steps.checked_mul(batch)];
        if sizes.iter().any(|size| size.is_none_or(|size| isize::try_from(size).is_err())) {
            return Err(Error::InvalidArgument(format!("{steps} steps of {batch} sequences are too many")));
        }
        let mut offsets = filled(steps + 1, 0)?;
        offsets.iter_mut().enumerate().for_each(|(t, offset)| *offset = t * batch);
        Ok(Self { offsets, reversed: false })
    }

    /// `sizes[t]` sequences at step `t`, positive and never increasing.
    pub fn ragged(sizes: &[i64]) -> Result<Self> {
        let mut offsets = filled(sizes.len() + 1, 0_usize)?;
        for (t, &size) in sizes.iter().enumerate() {
            if size <= 0 || (t > 0 && size > sizes[t - 1]) {
                let found = format!("{size} at step {t}");
                return Err(Error::value("steps", "positive numbers that never increase", found));
            }
            let sum = offsets[t].checked_add(size as usize).filter(|&sum| isize::try_from(sum).is_ok());
            offsets[t + 1] = sum.ok_or_else(|| Error::InvalidArgument("steps: too many rows".to_owned()))?;
        }
        Ok(Self { offsets, reversed: false })
    }

    /// From the last row to the first: step `t` stands where step `T - 1 - t` stood. Not for sequences of different lengths.
    pub fn reversed(self) -> Result<Self> {
        if !self.are_uniform() {
            let text = "steps: sequences of different lengths have ends of their own";
            return Err(Error::InvalidArgument(text.to_owned()));
        }
        Ok(Self { reversed: !self.reversed, ..self })
    }

    /// Number of steps `T`.
    pub fn count(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Rows in all.
    pub fn rows(&self) -> usize {
        self.offsets[self.count()]
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        if self.count() == 0 { 0 } else { self.offsets[1] }
    }

    /// Whether all sequences have one length.
    fn are_uniform(&self) -> bool {
        self.count().checked_mul(self.batch()) == Some(self.rows())
    }

    /// Which block of rows belongs to step `t`.
    pub(super) fn block(&self, t: usize) -> usize {
        if self.reversed { self.count() - 1 - t } else { t }
    }

    /// First row of step `t` that belongs to a slice beginning at sequence `begin`, and how many do, up to `end`.
    pub(super) fn rows_of(&self, t: usize, (begin, end): (usize, usize)) -> (usize, usize) {
        let block = self.block(t);
        let size = self.offsets[block + 1] - self.offsets[block];
        (self.offsets[block] + begin, size.min(end).saturating_sub(begin))
    }
}

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

    /// Step `t` of sequence `b` at `t * strides[0] + b * strides[1]`. All sequences have the same length. The stride of a single
    /// step or sequence is never used.
    pub fn strided(numbers: &'a [T], strides: [usize; 2]) -> Self {
        Self { numbers, strides: Some(strides) }
    }

    /// How many numbers the vectors of `steps` steps of `batch` sequences span.
    pub fn span([steps, batch, width]: [usize; 3], strides: [usize; 2]) -> usize {
        let last = |count: usize, stride: usize| count.saturating_sub(1).saturating_mul(stride);
        let first = if steps == 0 || batch == 0 { 0 } else { width };
        first.saturating_add(last(steps, strides[0])).saturating_add(last(batch, strides[1]))
    }

    /// Whether there are as many numbers as vectors of this width need, for `count` problems.
    pub(super) fn check(&self, name: &'static str, count: usize, steps: &Steps, width: usize) -> Result<()> {
        let len = Some(self.numbers.len());
        let Some(strides) = self.strides else {
            return lengths::require(count, &[(name, len, &[steps.rows(), width])]);
        };
        if count != 1 {
            return Err(Error::InvalidArgument(format!("{name}: strides are for a single problem")));
        }
        if !steps.are_uniform() {
            let text = format!("{name}: sequences of different lengths have no strides");
            return Err(Error::InvalidArgument(text));
        }
        lengths::require(1, &[(name, len, &[Self::span([steps.count(), steps.batch(), width], strides)])])
    }

    /// The vectors of problem `i` of `count`, which have been checked.
    pub(super) fn of_problem(self, i: usize, count: usize, steps: &Steps) -> Self {
        let used = |count: usize, stride: usize| if count > 1 { stride } else { 0 };
        let strides = self.strides.map(|[step, sequence]| [used(steps.count(), step), used(steps.batch(), sequence)]);
        Self { numbers: Stack::new(self.numbers, count).at(i), strides }
    }

    /// Where the vectors of step `t` begin, those of a slice of the batch, and how far apart they are.
    fn place(&self, steps: &Steps, t: usize, slice: (usize, usize), width: usize) -> [usize; 2] {
        match self.strides {
            None => [steps.rows_of(t, slice).0 * width, width],
            Some([step, sequence]) => [steps.block(t) * step + slice.0 * sequence, sequence],
        }
    }

    /// The vectors of step `t`, those of a slice of the batch.
    pub(super) fn at(&self, steps: &Steps, t: usize, slice: (usize, usize), width: usize) -> View<'a, T> {
        let [first, ld] = self.place(steps, t, slice, width);
        View::of(self.numbers, ld, steps.rows_of(t, slice).1).from(first, 0)
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
