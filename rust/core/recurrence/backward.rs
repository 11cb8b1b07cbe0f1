//! Gradients of a sequence: one pass back in time.
//!
//! ```text
//! delta_t = phi'(h_t) o (dL/dh_t + W* delta_{t+1}),    dL/dh_0 = W* delta_1
//! low rank: q_t = Q* delta_t,   W* delta = delta + P q;    C1 = sum delta z*,  C2 = sum h_{t-1} q*
//! dense:    G = sum delta_t h_{t-1}*
//! dL/dV = sum delta x*,   dL/db = sum delta,   dL/dx = V* delta
//! ```
//!
//! `delta`, `q` and copies of `h_{t-1}`, `z` and `x` of some steps lie in a ring that stays in the cache; the sums take
//! the whole ring at a time.

use super::Sequence;
use super::sums::Sums;
use super::transition::{Prepared, Transition};
use crate::error::{Error, Result};
use crate::kernel::activation::Activation;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, StepBack, Store};
use crate::kernel::fetch::Fetch;
use crate::kernel::gemm::{Operand, Weights, gemm};
use crate::kernel::pack::{Packed, Part, pack};
use crate::kernel::vector::{activation_gradient, copy_columns};
use crate::memory::{Buffer, Shared, advise_huge_pages, padded};
use crate::parallel::{Cancel, Context};
use crate::scalar::Scalar;

/// Rows of the ring, more or less: enough for the sums to run at full speed, few enough for the cache.
const RING_ROWS: usize = 96;

/// Where the gradients go; what is `None` is not computed.
pub struct SequenceGradients<'a, T: Scalar> {
    /// `dL/dU (n, m)`.
    pub u: Option<&'a mut [T]>,
    /// `dL/dx (rows, d)`.
    pub x: Option<&'a mut [T]>,
    /// `dL/dh_0 (batch, n)`.
    pub h0: Option<&'a mut [T]>,
    /// `dL/dV (n, d)`.
    pub input_weight: Option<&'a mut [T]>,
    /// `dL/db (n,)`.
    pub bias: Option<&'a mut [T]>,
    /// `dL/dtheta (n,)`.
    pub phases: Option<&'a mut [T::Real]>,
    /// Gradient of modReLU's bias.
    pub activation_bias: Option<&'a mut [T::Real]>,
}

/// Gradients of a loss given by `grad_h (rows, n)`, its gradient of every state, and `grad_last (batch, n)`, its gradient
/// of each sequence's last state; what is `None` is zero. `prepared` and `tape` are what the forward pass left; without
/// them `W` or its factors and `z` are made again, and OPLU is refused.
pub fn backward<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    prepared: Option<&Prepared<T>>,
    h: &[T],
    tape: Option<&[T]>,
    grad_h: Option<&[T]>,
    grad_last: Option<&[T]>,
    mut gradients: SequenceGradients<'_, T>,
) -> Result<()> {
    if sequence.steps.rows() == 0 {
        let SequenceGradients { u, x, h0, input_weight, bias, phases, activation_bias } = gradients;
        for gradient in [u, x, h0, input_weight, bias].into_iter().flatten() {
            gradient.fill(T::ZERO);
        }
        phases.into_iter().chain(activation_bias).for_each(|x| x.fill(T::Real::ZERO));
        return Ok(());
    }
    if sequence.activation == Activation::Oplu && tape.is_none() {
        return Err(Error::InvalidArgument("oplu: the backward pass needs the tape of the forward pass".to_owned()));
    }
    let (n, d, isa) = (sequence.u.n(), sequence.d, context.isa);
    if let Some(grad_x) = gradients.x.as_deref_mut() {
        advise_huge_pages(grad_x);
    }
    let formed;
    let Prepared { factors, matrices } = if let Some(prepared) = prepared {
        prepared
    } else {
        formed = Prepared::new(context, sequence)?;
        &formed
    };
    let back = matrices.transition(isa, n, !sequence.adjoint)?;
    let wants_u = gradients.u.is_some() || gradients.phases.is_some();
    let project = if wants_u && tape.is_none() { Some(matrices.projection(isa, n, sequence.adjoint)?) } else { None };
    let input_adjoint = match (&gradients.x, sequence.input_weight) {
        (Some(_), Some(v)) => {
            let adjoint = Part { ptr: v.as_ptr(), k: n, row_step: 1, k_step: d, conjugate: true };
            // SAFETY: V has n rows of d numbers.
            Some(unsafe { pack(isa, d, &[adjoint]) }?)
        }
        _ => None,
    };
    let run = Run {
        isa,
        sequence,
        back,
        project,
        input_adjoint,
        rank: sequence.rank()?,
        width: sequence.tape_width()?,
        h,
        tape,
        grad_h,
        grad_last,
        grad_x: gradients.x.as_deref_mut().map(|x| Shared(x.as_mut_ptr())),
        grad_h0: gradients.h0.as_deref_mut().map(|x| Shared(x.as_mut_ptr())),
    };
    let bounds = sequence.slices();
    let wanted = [wants_u, gradients.input_weight.is_some(), gradients.bias.is_some()];
    let mut parts = Vec::with_capacity(bounds.len());
    for _ in 1..bounds.len() {
        parts.push(Sums::new(sequence, wanted)?);
    }
    let shared = Shared(parts.as_mut_ptr());
    context.run(bounds.len() - 1, 2 * sequence.flops(), &|i, cancel| {
        // SAFETY: task i alone uses part i.
        let sums = unsafe { &mut *shared.get().add(i) };
        run.slice((bounds[i], bounds[i + 1]), sums, cancel)
    })?;
    let mut parts = parts.into_iter();
    let mut total = parts.next().expect("a batch has at least one slice");
    parts.for_each(|part| total.merge(&part));
    total.write_inputs(context.isa, n, gradients.input_weight, gradients.bias);
    if let Some(activation_bias) = gradients.activation_bias {
        activation_bias.copy_from_slice(&total.activation_bias);
    }
    total.finish(context, factors, sequence, gradients.u, gradients.phases)
}

struct Run<'a, T: Scalar> {
    isa: InstructionSet,
    sequence: &'a Sequence<'a, T>,
    /// The step with the adjoint.
    back: Transition<T>,
    /// `P*`, to make `z` again.
    project: Option<Packed<T>>,
    /// `V*`.
    input_adjoint: Option<Packed<T>>,
    rank: usize,
    /// Numbers a row of the tape: `z`, then OPLU's flags.
    width: usize,
    h: &'a [T],
    tape: Option<&'a [T]>,
    grad_h: Option<&'a [T]>,
    grad_last: Option<&'a [T]>,
    grad_x: Option<Shared<T>>,
    grad_h0: Option<Shared<T>>,
}

/// Some steps' worth of rows, the latest step first.
struct Ring<T: Scalar> {
    delta: Buffer<T>,
    q: Buffer<T>,
    h: Buffer<T>,
    /// `[z x 1]`, without `z` where `W` is formed: what `delta` is multiplied by.
    operand: Buffer<T>,
    /// Distance between its rows.
    ld: usize,
    /// Width of `z` in it.
    rank: usize,
}

impl<T: Scalar> Run<'_, T> {
    /// All steps of the sequences `slice.0..slice.1`, backwards.
    fn slice(&self, slice: (usize, usize), sums: &mut Sums<T>, cancel: &Cancel<'_>) -> Result<()> {
        let n = self.sequence.u.n();
        let steps = &self.sequence.steps;
        let (ld, ld_q) = (padded::<T>(n), padded::<T>(self.rank));
        let batch = slice.1 - slice.0;
        let block = (RING_ROWS / batch).max(1);
        let rows = block * batch;
        let [_, inputs, ones] = sums.widths;
        let rank = if sums.c2.is_empty() { 0 } else { self.rank };
        let ld_operand = padded::<T>(rank + inputs + ones);
        let mut ring = Ring {
            delta: Buffer::zeroed((rows + batch) * ld)?,
            q: Buffer::zeroed(rows * ld_q)?,
            h: Buffer::zeroed(rows * ld)?,
            operand: Buffer::zeroed(rows * ld_operand)?,
            ld: ld_operand,
            rank,
        };
        if ones > 0 {
            ring.operand.chunks_mut(ld_operand).for_each(|row| row[rank + inputs] = T::ONE);
        }
        let mut last = steps.count() - 1;
        while steps.rows_of(last, slice).1 == 0 {
            last -= 1;
        }
        self.enter(slice, last, 0, ring.delta.ptr_mut());
        self.finish_activation(slice, last, ring.delta.ptr_mut(), sums);
        let mut high = last + 1;
        while high > 0 {
            cancel.check()?;
            let low = high.saturating_sub(block);
            let mut base = 0;
            for t in (low..high).rev() {
                let count = self.step(slice, t, base, inputs, &mut ring);
                base += count;
                if t > 0 {
                    self.finish_activation(slice, t - 1, ring.delta.ptr_mut().wrapping_add(base * ld), sums);
                }
            }
            self.sum(base, &mut ring, sums, self.ahead(slice, low, block));
            if low > 0 {
                let carried = steps.rows_of(low - 1, slice).1;
                ring.delta.copy_within(base * ld..(base + carried) * ld, 0);
            }
            high = low;
        }
        Ok(())
    }

    /// `delta = phi'(h) o dL/dh` for the sequences from `first` (within the slice) on that end at step `t`.
    fn enter(&self, slice: (usize, usize), t: usize, first: usize, delta: *mut T) {
        let n = self.sequence.u.n();
        let ld = padded::<T>(n);
        let (row, count) = self.sequence.steps.rows_of(t, slice);
        for b in first..count {
            // SAFETY: delta has room.
            let delta = unsafe { std::slice::from_raw_parts_mut(delta.add(b * ld), n) };
            match self.grad_h {
                Some(grad_h) => delta.copy_from_slice(&grad_h[(row + b) * n..][..n]),
                None => delta.fill(T::ZERO),
            }
            if let Some(grad_last) = self.grad_last {
                delta.iter_mut().zip(&grad_last[(slice.0 + b) * n..]).for_each(|(g, &x)| *g += x);
            }
            activation_gradient(self.isa, self.sequence.activation, delta, &self.h[(row + b) * n..][..n]);
        }
    }

    /// The part of `phi'` that pairs entries, for all `delta` of step `t`.
    fn finish_activation(&self, slice: (usize, usize), t: usize, delta: *mut T, sums: &mut Sums<T>) {
        if !self.sequence.activation.pairs() {
            return;
        }
        let n = self.sequence.u.n();
        let ld = padded::<T>(n);
        let (row, count) = self.sequence.steps.rows_of(t, slice);
        for b in 0..count {
            let h = self.h[(row + b) * n..].as_ptr();
            let flags = self.tape.map_or(std::ptr::null(), |tape| tape[(row + b) * self.width + self.rank..].as_ptr());
            // SAFETY: rows of n numbers, and n / 2 bytes of flags for OPLU.
            unsafe {
                let delta = delta.add(b * ld);
                self.sequence.activation.finish_gradient(delta, h, n, flags.cast(), &mut sums.activation_bias);
            }
        }
    }

    /// From `delta_t` in ring rows `base..` to `delta_{t-1}` behind them, with `inputs` numbers of each `x`. Returns how
    /// many rows step `t` has.
    fn step(&self, slice: (usize, usize), t: usize, base: usize, inputs: usize, ring: &mut Ring<T>) -> usize {
        let Sequence { steps, activation, h0, x, d, .. } = self.sequence;
        let (n, d) = (self.sequence.u.n(), *d);
        let (ld, ld_q) = (padded::<T>(n), padded::<T>(self.rank));
        let (row, count) = steps.rows_of(t, slice);
        let delta = ring.delta.ptr().wrapping_add(base * ld);
        let next_delta = ring.delta.ptr_mut().wrapping_add((base + count) * ld);
        let h_copy = ring.h.ptr_mut().wrapping_add(base * ld);
        let q = ring.q.ptr_mut().wrapping_add(base * ld_q);
        let z_copy = Columns::new(ring.operand.ptr_mut().wrapping_add(base * ring.ld), ring.ld);
        let x_copy = Columns::new(z_copy.ptr.wrapping_add(ring.rank), ring.ld);
        // SAFETY: the ring has room for one step more than a block holds; rows row.. of the user's arrays belong to this
        // slice and step.
        unsafe {
            let before = if t > 0 { steps.rows_of(t - 1, slice).0 } else { row };
            let copy = |width: usize, len: usize, from: &[T], to: Columns<T>| {
                let rows = from.as_ptr();
                let next = rows.wrapping_add(before * width);
                copy_columns(self.isa, (len, count), Columns::new(rows.wrapping_add(row * width), width), to, next);
            };
            if let Some(tape) = self.tape {
                copy(self.width, ring.rank, tape, z_copy);
            }
            copy(d, inputs, x, x_copy);
            match (self.grad_x, &self.input_adjoint) {
                (Some(grad_x), Some(input_adjoint)) => {
                    let store = Store::new(Columns::new(grad_x.get().add(row * d), d));
                    gemm(self.isa, d, count, input_adjoint.weights(), Operand::columns(delta, ld), &store);
                }
                (Some(grad_x), None) => {
                    for b in 0..count {
                        std::ptr::copy_nonoverlapping(delta.add(b * ld), grad_x.get().add((row + b) * n), n);
                    }
                }
                _ => {}
            }
            let operand = Operand::columns(delta, ld);
            let (weights, operand, next) = match &self.back {
                Transition::LowRank { project, expand } => {
                    let [_, fetch] = self.rows(self.h, slice, t, 1).halves();
                    let store = Store { fetch, ..Store::new(Columns::new(q, ld_q)) };
                    gemm(self.isa, self.rank, count, project.weights(), operand, &store);
                    (expand.weights(), Operand::columns(q.cast_const(), ld_q), Columns::new(delta, ld))
                }
                Transition::Dense(w) => (w.weights(), operand, Columns::none()),
            };
            if t == 0 {
                if let Some(h0) = h0 {
                    for b in 0..count {
                        let from = h0.as_ptr().add((slice.0 + b) * n);
                        std::ptr::copy_nonoverlapping(from, h_copy.add(b * ld), n);
                    }
                } else {
                    ring.h[base * ld..(base + count) * ld].fill(T::ZERO);
                }
                if let Some(grad_h0) = self.grad_h0 {
                    let out = Columns::new(grad_h0.get().add(slice.0 * n), n);
                    gemm(self.isa, n, count, weights, operand, &Store::plus(out, next));
                }
                return count;
            }
            let fetch = self.rows(self.h, slice, t - 1, 1);
            let grad = self.grad_h.map_or(Columns::none(), |g| Columns::new(g.as_ptr().add(before * n), n));
            let epilogue = StepBack {
                out: Columns::new(next_delta, ld),
                next,
                grad,
                h: Columns::new(self.h.as_ptr().add(before * n), n),
                h_copy: Columns::new(h_copy, ld),
                activation: *activation,
                fetch: if next.ptr.is_null() { fetch } else { fetch.halves()[0] },
            };
            gemm(self.isa, n, count, weights, operand, &epilogue);
        }
        self.enter(slice, t - 1, count, next_delta);
        count
    }

    /// The rows of `from (rows, n)` that `count` steps read, `t - 1` and those before it.
    fn rows(&self, from: &[T], slice: (usize, usize), t: usize, count: usize) -> Fetch<T> {
        let count = count.min(t);
        if count == 0 {
            return Fetch::none();
        }
        let (n, steps) = (self.sequence.u.n(), &self.sequence.steps);
        let (row, rows) = steps.rows_of(t - 1, slice);
        let stride = if count > 1 { (steps.rows_of(t - 2, slice).0 as isize - row as isize) * n as isize } else { 0 };
        Fetch::new(from[row * n..].as_ptr(), stride, count, rows * n)
    }

    /// The loss's gradients that the next `block` steps read, in two halves.
    fn ahead(&self, slice: (usize, usize), t: usize, block: usize) -> [Fetch<T>; 2] {
        let first = block.div_ceil(2).min(t);
        self.grad_h.map_or([Fetch::none(); 2], |g| {
            [self.rows(g, slice, t, first), self.rows(g, slice, t - first, block - first)]
        })
    }

    /// Adds `rows` rows of the ring to the sums.
    fn sum(&self, rows: usize, ring: &mut Ring<T>, sums: &mut Sums<T>, ahead: [Fetch<T>; 2]) {
        let (n, rank) = (self.sequence.u.n(), ring.rank);
        let (ld, ld_q) = (padded::<T>(n), padded::<T>(self.rank));
        let delta = Weights::strided(ring.delta.ptr(), ld, rows);
        let h = Weights::strided(ring.h.ptr(), ld, rows);
        let add = |sum: *mut T, fetch: Fetch<T>| {
            let out = Columns::new(sum, ld);
            Store { fetch, ..Store::plus(out, out) }
        };
        let [lead, inputs, ones] = sums.widths;
        // SAFETY: `rows` rows of padded buffers; the sums have as many columns as their operands.
        unsafe {
            if rank > 0
                && let Some(project) = &self.project
            {
                let store = Store::new(Columns::new(ring.operand.ptr(), ring.ld));
                gemm(self.isa, rank, rows, project.weights(), Operand::columns(ring.h.ptr(), ld), &store);
            }
            if T::COMPLEX {
                // The operands of the sums are conjugates; nothing else needs these rows any more.
                let other = if rank > 0 { &mut ring.q } else { &mut ring.h };
                other.iter_mut().chain(ring.operand.iter_mut()).for_each(|x| *x = x.conj());
            }
            let mut c1 = sums.c1.ptr_mut();
            if rank > 0 {
                gemm(self.isa, n, rank, h, Operand::rows(ring.q.ptr(), ld_q), &add(sums.c2.ptr_mut(), ahead[1]));
            } else if lead > 0 {
                gemm(self.isa, n, n, delta, Operand::rows(ring.h.ptr(), ld), &add(c1, Fetch::none()));
                c1 = c1.add(n * ld);
            }
            let operand = Operand::rows(ring.operand.ptr(), ring.ld);
            gemm(self.isa, n, rank + inputs + ones, delta, operand, &add(c1, ahead[0]));
        }
    }
}
