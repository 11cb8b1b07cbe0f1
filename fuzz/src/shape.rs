//! How many sequences there are, how long and how wide they are, and which way time runs.

use householder::rnn::Steps;

use crate::source::{Extent, Source};

/// A batch of sequences.
pub struct Shape {
    pub n: usize,
    pub m: usize,
    /// Width of the input.
    pub d: usize,
    /// Whether a matrix makes `n` numbers of these; else there are as many.
    pub has_weight: bool,
    /// Sequences at each step.
    pub sizes: Vec<i64>,
    /// Whether all have one length.
    pub even: bool,
    /// Whether time runs from the last row to the first.
    pub reversed: bool,
}

impl Shape {
    pub fn any(source: &mut Source, extent: Extent) -> Self {
        let even = source.one_in(2);
        let (n, m, width, sizes) = match extent {
            Extent::Small => {
                let (steps, most) = (source.below(7), 1 + source.below(9));
                (source.size().max(1), source.size(), source.size().max(1), sizes(source, steps, most, even))
            }
            Extent::Many => {
                let (steps, most) = if source.one_in(2) {
                    (1 + source.below(6), 65 + source.below(140))
                } else {
                    (14 + source.below(120), 1 + source.below(9))
                };
                (source.size().max(1), source.size(), source.size().max(1), sizes(source, steps, most, even))
            }
            Extent::Large if source.one_in(2) => few_of_many_numbers(source, even),
            Extent::Large => {
                let (steps, most, n) = (2 + source.below(10), 24 + source.below(140), 40 + source.below(60));
                (n, 1 + source.below(n), 1 + source.below(60), sizes(source, steps, most, even))
            }
        };
        let has_weight = source.one_in(2);
        let reversed = even && source.one_in(2);
        Self { n, m, d: if has_weight { width } else { n }, has_weight, sizes, even, reversed }
    }

    pub fn rows(&self) -> usize {
        self.sizes.iter().sum::<i64>() as usize
    }

    pub fn batch(&self) -> usize {
        self.sizes.first().map_or(0, |&size| size as usize)
    }

    pub fn steps(&self) -> Steps {
        if !self.even {
            return Steps::ragged(&self.sizes).expect("decreasing sizes");
        }
        let steps = Steps::uniform(self.sizes.len(), self.batch()).expect("few rows");
        if self.reversed { steps.reversed().expect("sequences of one length") } else { steps }
    }

    /// Rows of `width` numbers, the earliest step's first.
    pub fn in_time<X: Copy>(&self, rows: &[X], width: usize) -> Vec<X> {
        if !self.reversed {
            return rows.to_vec();
        }
        rows.chunks((self.batch() * width).max(1)).rev().flatten().copied().collect()
    }
}

/// At most `most` sequences at each step, no more than at the step before.
fn sizes(source: &mut Source, steps: usize, most: usize, even: bool) -> Vec<i64> {
    if even {
        let nobody = source.one_in(32);
        return vec![if nobody { 0 } else { most as i64 }; steps];
    }
    let mut sizes: Vec<_> = (0..steps).map(|_| 1 + source.below(most) as i64).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes
}

/// Sequences so few, of so many numbers, that tasks own some of the coordinates, often of the input's as well; so long that
/// they go through several rings of some hundred rows.
fn few_of_many_numbers(source: &mut Source, even: bool) -> (usize, usize, usize, Vec<i64>) {
    /// Multiplications of a step that is worth two tasks.
    const TWO_TASKS: usize = 1 << 18;
    let bound = if source.one_in(2) { 7 } else { 23 }; // below eight, the input of several steps is projected at once
    let most = 1 + source.below(bound);
    let steps = 1 + 97 / most + source.below(1 + 100 / most);
    let sizes = sizes(source, steps, most, even);
    let n = (TWO_TASKS / sizes[0].max(1) as usize).isqrt() + 1 + source.below(40);
    let most_reflections = if source.one_in(4) { 80 } else { 12 };
    (n, 1 + source.below(most_reflections), 1 + source.below(200), sizes)
}
