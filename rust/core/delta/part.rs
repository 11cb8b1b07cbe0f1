//! What a task takes: a sequence, value heads of one key head, and columns of their states.

use std::ops::Range;

use super::problem::Sizes;

/// A task.
#[derive(Clone, Debug)]
pub struct Part {
    /// Number of the sequence.
    pub sequence: usize,
    /// The key head.
    pub key_head: usize,
    /// Its value heads.
    pub heads: Range<usize>,
    /// Columns of the states.
    pub columns: Range<usize>,
}

impl Part {
    /// Parts of all sequences, at least `wanted` if possible: all value heads of a key head, else one head, else `slice`
    /// columns of one. The larger parts share what they compute from queries and keys.
    pub fn all(sizes: &Sizes, sequences: usize, wanted: usize, slice: usize) -> Vec<Self> {
        let group = sizes.group();
        let whole = 0..sizes.value_width;
        let parts = |heads: usize, slices: Vec<Range<usize>>| {
            let count = sequences * (sizes.value_heads / heads) * slices.len();
            (0..count)
                .map(|i| {
                    let (columns, i) = (slices[i % slices.len()].clone(), i / slices.len());
                    let (first, sequence) = (i % (sizes.value_heads / heads) * heads, i / (sizes.value_heads / heads));
                    Self { sequence, key_head: first / group, heads: first..first + heads, columns }
                })
                .collect()
        };
        if sequences * sizes.heads >= wanted {
            parts(group, vec![whole])
        } else if sequences * sizes.value_heads >= wanted {
            parts(1, vec![whole])
        } else {
            parts(1, slices(whole, slice))
        }
    }

    /// One head's columns in slices.
    pub fn strands(&self, head: usize, slice: usize) -> impl Iterator<Item = Self> {
        let heads = head..head + 1;
        slices(self.columns.clone(), slice).into_iter().map(move |columns| Self {
            heads: heads.clone(),
            columns,
            ..*self
        })
    }
}

/// `columns` in pieces of `slice`.
fn slices(columns: Range<usize>, slice: usize) -> Vec<Range<usize>> {
    let end = columns.end;
    columns.step_by(slice).map(|begin| begin..end.min(begin + slice)).collect()
}
