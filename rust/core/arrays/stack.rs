//! Arrays of one size, one for each problem, one after the other in memory.

use std::marker::PhantomData;
use std::ops::Range;

use crate::arrays::view::Shared;

/// What problems read.
#[derive(Clone, Copy)]
pub struct Stack<'a, T> {
    numbers: &'a [T],
    each: usize,
}

impl<'a, T> Stack<'a, T> {
    /// Divides `numbers` among `count` problems.
    pub fn new(numbers: &'a [T], count: usize) -> Self {
        Self { numbers, each: numbers.len() / count.max(1) }
    }

    /// Those of problem `i`.
    pub fn at(&self, i: usize) -> &'a [T] {
        self.part(i..i + 1)
    }

    /// Those of some problems.
    pub fn part(&self, problems: Range<usize>) -> &'a [T] {
        &self.numbers[problems.start * self.each..problems.end * self.each]
    }
}

/// What problems write.
pub struct StackMut<'a, T> {
    numbers: Shared<T>,
    count: usize,
    each: usize,
    owner: PhantomData<&'a mut [T]>,
}

impl<'a, T> StackMut<'a, T> {
    /// Divides `numbers` among `count` problems.
    pub fn new(numbers: &'a mut [T], count: usize) -> Self {
        let each = numbers.len() / count.max(1);
        Self { numbers: Shared(numbers.as_mut_ptr()), count, each, owner: PhantomData }
    }

    /// The part of problem `i`.
    ///
    /// # Safety
    /// Nothing else uses the part of problem `i` at the same time.
    pub unsafe fn at(&self, i: usize) -> &'a mut [T] {
        self.part(i..i + 1)
    }

    /// The parts of some problems.
    ///
    /// # Safety
    /// Nothing else uses these parts at the same time.
    pub unsafe fn part(&self, problems: Range<usize>) -> &'a mut [T] {
        let Range { start, end } = problems;
        assert!(start <= end && end <= self.count, "problems {start} to {end} of {}", self.count);
        std::slice::from_raw_parts_mut(self.numbers.get().add(start * self.each), (end - start) * self.each)
    }
}
