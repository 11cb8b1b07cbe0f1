//! One problem of a [`Sequence`](super::Sequence), with what its shape decides.

use super::steps::{Series, Steps};
use crate::arrays::lengths::flops;
use crate::arrays::view::{Shape, View};
use crate::error::{Error, Result};
use crate::method::{Costs, Method};
use crate::numbers::scalar::Scalar;
use crate::operator::Transform;
use crate::simd::activation::{Activation, Rest};
use crate::simd::pack::{Part, ROWS};
use crate::threads::slices;

/// Columns of `P` and `Q`, 0 where `W` is formed, and numbers a row of the tape: `z`, which the backward pass can recompute,
/// and the flags of OPLU, which it cannot recompute.
#[derive(Clone, Copy)]
pub struct Layout {
    pub rank: usize,
    pub width: usize,
}

impl Layout {
    pub fn new(
        wanted: Option<Method>,
        (n, m): Shape,
        rows: usize,
        has_phases: bool,
        has_tau: bool,
        flags: usize,
    ) -> Result<Self> {
        let method = match wanted {
            Some(Method::Reflections) => {
                return Err(Error::InvalidArgument("method: a sequence takes 'auto', 'wy' or 'dense'".to_owned()));
            }
            // Phases multiply every state, so the low-rank form would have to keep both the input and the output of W_1.
            _ if has_phases => Method::Dense,
            Some(method) => method,
            None => Costs::of_sequence(n, m, rows).accurate(has_tau).best(),
        };
        let rank = if method == Method::Dense { 0 } else { m };
        Ok(Self { rank, width: rank + flags })
    }
}

/// The recurrence over one batch of sequences; arrays as those of [`Sequence`](super::Sequence), checked.
pub struct Plan<'a, T: Scalar> {
    pub w: Transform<'a, T>,
    pub layout: Layout,
    pub activation: Activation<'a, T>,
    pub steps: &'a Steps,
    pub d: usize,
    pub x: Series<'a, T>,
    pub input_weight: Option<&'a [T]>,
    pub bias: Option<&'a [T]>,
    pub h0: Option<&'a [T]>,
}

impl<'a, T: Scalar> Plan<'a, T> {
    /// Size of the states.
    pub fn n(&self) -> usize {
        self.w.u.n()
    }

    /// Whether steps multiply by `W` itself.
    pub fn forms_matrix(&self) -> bool {
        self.layout.rank == 0
    }

    /// Columns of `V` and of `b` that raw input and ones multiply.
    pub fn input_widths(&self) -> [usize; 2] {
        [if self.input_weight.is_some() { self.d } else { 0 }, usize::from(self.bias.is_some())]
    }

    /// `V` and `b` side by side.
    pub fn input_parts(&self) -> Vec<Part<'a, T>> {
        let column = |x: &'a [T], k: usize| Part { view: View::of(x, k, 0).transposed(k), conjugate: false };
        self.input_weight.map(|v| column(v, self.d)).into_iter().chain(self.bias.map(|b| column(b, 1))).collect()
    }

    /// Parts of the batch, each a task.
    pub fn slices(&self) -> Vec<usize> {
        slices(self.steps.batch(), 12, 16)
    }

    /// Steps whose input is projected at once: several if sequences are too few for reading `V` at each step to pay.
    pub fn projected_at_once(&self) -> usize {
        /// Rows of a product that runs at full speed.
        const ENOUGH: usize = 64;
        let batch = self.steps.batch();
        if self.input_weight.is_some() && self.d >= 16 && batch < 8 { ENOUGH / batch.max(1) } else { 1 }
    }

    /// Parts of the coordinates, each a task at every step: several where `W` is formed for sequences too few to be split.
    /// Bounds, multiples of [`ROWS`].
    pub fn parts(&self) -> Vec<usize> {
        /// Multiplications at a step that are worth a task.
        const TASK: usize = 1 << 17;
        let (n, batch) = (self.n(), self.steps.batch());
        let alone = self.slices().len() > 2 || !self.forms_matrix() || self.activation.scope() == Rest::Vectors;
        let most = if alone { 1 } else { flops(&[n, n, batch]).div_euclid(TASK).clamp(1, 16) };
        slices(n.div_ceil(ROWS), 1, most).into_iter().map(|panel| n.min(panel * ROWS)).collect()
    }

    /// Flops of one pass over all states.
    pub fn flops(&self) -> usize {
        let (n, m) = (self.n(), self.w.u.m());
        flops(&[2, n, n.min(2 * m) + self.d.min(n), self.steps.rows()])
    }

    /// Copies the state in which each sequence ends, `last (batch, n)`, from all states.
    pub fn copy_last(&self, h: &[T], last: &mut [T]) {
        let (n, steps) = (self.n(), self.steps);
        let mut ended = 0;
        for t in (0..steps.count()).rev() {
            let (row, running) = steps.rows_of(t, (ended, steps.batch()));
            last[ended * n..(ended + running) * n].copy_from_slice(&h[row * n..(row + running) * n]);
            ended += running;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::Operator;
    use crate::rnn::Sequence;

    #[test]
    fn coordinates_are_split_where_few_sequences_meet_a_large_matrix() {
        let parts = |n: usize, m: usize, batch: usize, activation| {
            let u = vec![1.0_f32; n * m];
            let (operator, steps) = (Operator::new([1, n, m], &u).unwrap(), Steps::uniform(100, batch).unwrap());
            let sequence = Sequence { activation, ..Sequence::new(operator, steps, Series::new(&[])) };
            sequence.plan(sequence.layout().unwrap(), 0).parts()
        };
        assert_eq!(parts(512, 510, 1, Activation::Relu), [0, 256, 512]);
        assert_eq!(parts(130, 129, 16, Activation::Tanh), [0, 64, 130]);
        assert_eq!(parts(512, 16, 1, Activation::Relu), [0, 512]); // two thin factors
        assert_eq!(parts(512, 510, 50, Activation::Relu), [0, 512]); // sequences are
        assert_eq!(parts(512, 510, 1, Activation::Oplu), [0, 512]); // which pairs coordinates
        assert_eq!(parts(128, 127, 1, Activation::Relu), [0, 128]);
    }
}
