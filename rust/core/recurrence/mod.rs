//! Whole sequences `h_t = phi(W h_{t-1} + x_t)`, `t = 1..T`, in one call.
//!
//! `x_t` is given, or made from raw input inside the same products, `x_t = V x_t + b`. Four choices make it fast:
//!
//! * the transition is two thin products a step, `z = P* h` and `h + Q z`, since `W = I + Q P*` with `P = V`, `Q = V N`
//!   (and one more column each for `u_1`: `W_1 D = I + [V N | (u_1 - 1) e_n] [D V | e_n]*`), or one product with `W`;
//! * a step back is the same with `P` and `Q` exchanged, and only `delta_t = dL/da_t` travels: parameter gradients are
//!   products over many steps at once, `sum delta z*` and `sum h q*` (or `sum delta h*`);
//! * `V` and `b` are further columns of the weights `Q`, `x_t` and a one further entries of the operand `z`, and their
//!   gradients further columns of `sum delta z*`;
//! * a thread owns a slice of the batch for the whole sequence: no synchronisation at a step. Where sequences are too few
//!   for that and `W` is large, it owns some of the coordinates, and threads go through the steps as phases.

mod backward;
mod forward;
mod grad_x;
mod gradients;
mod ring;
mod series;
mod sums;
mod transition;

pub use backward::backward;
pub use forward::{forward, forward_and_keep};
pub use gradients::SequenceGradients;
pub use series::Series;
pub use transition::Prepared;

use crate::diagonal::Diagonal;
use crate::error::{Error, Result};
pub use crate::kernel::activation::{Activation, moduli};
use crate::kernel::pack::{Part, ROWS};
use crate::lengths::require;
use crate::memory::filled;
use crate::method::{Costs, Method};
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::slices;
use crate::view::{Shape, View};

/// A batch of sequences and the recurrence that runs over it.
pub struct Sequence<'a, T: Scalar> {
    /// `U`.
    pub u: Reflections<'a, T>,
    /// `D`.
    pub diagonal: Diagonal<T>,
    /// The recurrence runs with `W*`.
    pub adjoint: bool,
    /// `phi`.
    pub activation: Activation<'a, T>,
    /// `wy` or `dense`; `None` lets the shape decide.
    pub method: Option<Method>,
    /// Which rows belong to which step.
    pub steps: Steps,
    /// Width of the input.
    pub d: usize,
    /// Vectors of `d` numbers.
    pub x: Series<'a, T>,
    /// `V (n, d)`; absent: `d == n` and `x` is added as it is.
    pub input_weight: Option<&'a [T]>,
    /// `b (n,)`.
    pub bias: Option<&'a [T]>,
    /// `h_0 (batch, n)`; absent: zeros.
    pub h0: Option<&'a [T]>,
}

/// How states of so many rows are computed.
fn method(wanted: Option<Method>, (n, m): Shape, rows: usize, has_phases: bool, has_tau: bool) -> Result<Method> {
    match wanted {
        Some(Method::Reflections) => {
            Err(Error::InvalidArgument("method: a sequence takes 'auto', 'wy' or 'dense'".to_owned()))
        }
        // Phases multiply every state, so the low-rank form would have to keep both the input and the output of W_1.
        _ if has_phases => Ok(Method::Dense),
        Some(method) => Ok(method),
        None => Ok(Costs::of_sequence(n, m, rows).accurate(has_tau).best()),
    }
}

/// Columns of `P` and `Q`; 0 where `W` is formed.
fn rank(method: Method, m: usize) -> usize {
    if method == Method::Dense { 0 } else { m }
}

/// [`Sequence::tape_width`] before the sequence exists.
pub fn tape_width<T: Scalar>(
    wanted: Option<Method>,
    shape: Shape,
    rows: usize,
    has_phases: bool,
    has_tau: bool,
    activation: &Activation<'_, T>,
) -> Result<usize> {
    Ok(rank(method(wanted, shape, rows, has_phases, has_tau)?, shape.1) + activation.flag_width(shape.0))
}

impl<T: Scalar> Sequence<'_, T> {
    /// Whether the sizes of all arrays fit.
    fn check(&self) -> Result<()> {
        let (n, d, steps) = (self.u.n(), self.d, &self.steps);
        let invalid = |what: String| Err(Error::InvalidArgument(what));
        let len = |x: Option<&[T]>| x.map(<[T]>::len);
        if self.activation.pairs() && !T::COMPLEX && !n.is_multiple_of(2) {
            return invalid(format!("activation: expected an even n for pairs of numbers, got {n}"));
        }
        if matches!(self.activation, Activation::Oplu | Activation::RealModRelu(_)) && T::COMPLEX {
            return invalid("activation: expected one of complex numbers, got one of real numbers".to_owned());
        }
        if self.input_weight.is_none() && d != n {
            return invalid(format!("d: expected n = {n} where there is no V, got {d}"));
        }
        self.diagonal.check(self.u)?;
        self.x.check("x", steps, d)?;
        require(&[
            ("the bias of modReLU", self.activation.bias().map(<[_]>::len), &[self.activation.moduli(n)]),
            ("V", len(self.input_weight), &[n, d]),
            ("b", len(self.bias), &[n]),
            ("h_0", len(self.h0), &[steps.batch(), n]),
        ])
    }

    fn method(&self) -> Result<Method> {
        let has_phases = matches!(self.diagonal, Diagonal::Phases(_));
        method(self.method, (self.u.n(), self.u.m()), self.steps.rows(), has_phases, self.u.tau().is_some())
    }

    fn rank(&self) -> Result<usize> {
        Ok(rank(self.method()?, self.u.m()))
    }

    /// Numbers per row that the forward pass leaves on the tape: `z`, which the backward pass can recompute, and the flags
    /// of OPLU, which it cannot recompute; 0 if there are none.
    pub fn tape_width(&self) -> Result<usize> {
        Ok(self.rank()? + self.activation.flag_width(self.u.n()))
    }

    /// Columns of `V` and of `b` that raw input and ones multiply.
    fn input_widths(&self) -> [usize; 2] {
        [if self.input_weight.is_some() { self.d } else { 0 }, usize::from(self.bias.is_some())]
    }

    /// `V` and `b` side by side.
    fn input_parts(&self) -> Vec<Part<T>> {
        let column = |x: &[T], k: usize| Part { view: View::new(x.as_ptr(), k, 0).transposed(k), conjugate: false };
        self.input_weight.map(|v| column(v, self.d)).into_iter().chain(self.bias.map(|b| column(b, 1))).collect()
    }

    /// Copies the state in which each sequence ends, `last (batch, n)`, from all states.
    pub fn copy_last(&self, h: &[T], last: &mut [T]) -> Result<()> {
        let (n, steps) = (self.u.n(), &self.steps);
        if steps.count() == 0 {
            match self.h0 {
                Some(h0) => {
                    require(&[("the last states", Some(last.len()), &[h0.len()])])?;
                    last.copy_from_slice(h0);
                }
                None => last.fill(T::ZERO),
            }
            return Ok(());
        }
        require(&[
            ("h", Some(h.len()), &[steps.rows(), n]),
            ("the last states", Some(last.len()), &[steps.batch(), n]),
        ])?;
        let mut ended = 0;
        for t in (0..steps.count()).rev() {
            let (row, running) = steps.rows_of(t, (ended, steps.batch()));
            last[ended * n..(ended + running) * n].copy_from_slice(&h[row * n..(row + running) * n]);
            ended += running;
        }
        Ok(())
    }

    /// Parts of the batch, each a task.
    fn slices(&self) -> Vec<usize> {
        slices(self.steps.batch(), 12, 16)
    }

    /// Steps whose input is projected at once: several if sequences are too few for reading `V` at each step to pay.
    fn projected_at_once(&self) -> usize {
        /// Rows of a product that runs at full speed.
        const ENOUGH: usize = 64;
        let batch = self.steps.batch();
        if self.input_weight.is_some() && self.d >= 16 && batch < 8 { ENOUGH / batch.max(1) } else { 1 }
    }

    /// Parts of the coordinates, each a task at every step: several where `W` is formed for sequences too few to be split.
    /// Bounds, multiples of [`ROWS`].
    fn parts(&self) -> Result<Vec<usize>> {
        /// Multiplications at a step that are worth a task.
        const TASK: usize = 1 << 17;
        let (n, batch) = (self.u.n(), self.steps.batch());
        let alone =
            self.slices().len() > 2 || self.method()? != Method::Dense || self.activation.waits_for_whole_vectors();
        let most = if alone { 1 } else { (n * n).saturating_mul(batch).div_euclid(TASK).clamp(1, 16) };
        Ok(slices(n.div_ceil(ROWS), 1, most).into_iter().map(|panel| n.min(panel * ROWS)).collect())
    }

    /// Flops of one pass over all states.
    pub(crate) fn flops(&self) -> usize {
        let n = self.u.n();
        (2 * n * (n.min(2 * self.u.m()) + self.d.min(n))).saturating_mul(self.steps.rows())
    }
}

/// Rows of the arrays `(rows, ..)`: those of step `t` are `offsets[t]..offsets[t + 1]`, one for each sequence that is still
/// running, the longest sequences first.
pub struct Steps {
    offsets: Vec<usize>,
    /// Whether time runs from the last of these rows to the first.
    reversed: bool,
}

impl Steps {
    /// `steps` steps of `batch` sequences each.
    pub fn uniform(steps: usize, batch: usize) -> Result<Self> {
        let rows = steps.checked_mul(batch);
        let fits = rows.is_some_and(|rows| isize::try_from(rows).is_ok());
        if !fits {
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
                return Err(Error::InvalidArgument(format!(
                    "batch_sizes: expected positive numbers that never increase, got {size} at step {t}"
                )));
            }
            let sum = offsets[t].checked_add(size as usize).filter(|&sum| isize::try_from(sum).is_ok());
            offsets[t + 1] = sum.ok_or_else(|| Error::InvalidArgument("batch_sizes: too many rows".to_owned()))?;
        }
        Ok(Self { offsets, reversed: false })
    }

    /// From the last row to the first: step `t` stands where step `T - 1 - t` stood. Not for sequences of different lengths.
    pub fn reversed(self) -> Result<Self> {
        if self.rows() != self.count() * self.batch() {
            let text = "reverse: sequences of different lengths have ends of their own";
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

    /// Which block of rows belongs to step `t`.
    fn block(&self, t: usize) -> usize {
        if self.reversed { self.count() - 1 - t } else { t }
    }

    /// First row of step `t` that belongs to a slice beginning at sequence `begin`, and how many do, up to `end`.
    fn rows_of(&self, t: usize, (begin, end): (usize, usize)) -> (usize, usize) {
        let block = self.block(t);
        let size = self.offsets[block + 1] - self.offsets[block];
        (self.offsets[block] + begin, size.min(end).saturating_sub(begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_split_where_few_sequences_meet_a_large_matrix() {
        let parts = |n: usize, m: usize, batch: usize, activation| {
            let u = vec![1.0_f32; n * m];
            let u = Reflections::new(n, m, &u).unwrap();
            let (diagonal, steps) = (Diagonal::of(u), Steps::uniform(100, batch).unwrap());
            let (adjoint, method, x, d) = (false, None, Series::new(&[]), n);
            let (input_weight, bias, h0) = (None, None, None);
            let sequence = Sequence { u, diagonal, adjoint, activation, method, steps, d, x, input_weight, bias, h0 };
            sequence.parts().unwrap()
        };
        assert_eq!(parts(512, 510, 1, Activation::Relu), [0, 256, 512]);
        assert_eq!(parts(130, 129, 16, Activation::Tanh), [0, 64, 130]);
        assert_eq!(parts(512, 16, 1, Activation::Relu), [0, 512]); // two thin factors
        assert_eq!(parts(512, 510, 50, Activation::Relu), [0, 512]); // sequences are
        assert_eq!(parts(512, 510, 1, Activation::Oplu), [0, 512]); // which pairs coordinates
        assert_eq!(parts(128, 127, 1, Activation::Relu), [0, 128]);
    }
}
