//! Gradients, segment by segment: forward through its chunks once more, then backward.

use super::chunk::{Decayed, Keys};
use super::chunk_backward::{ChunkBackward, ChunkGradients};
use super::forward::forward;
use super::problem::{CHUNK, Cotangents, Gradients, Problem, Results, TaskPart, check_saved, expect, expect_rows};
use super::solve::{Solved, State};
use crate::arrays::stored::{StoredRows, StoredRowsMut};
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::Result;
use crate::memory::{Buffer, filled};
use crate::numbers::exponential::Exponential;
use crate::simd::fetch::prefetch_rows;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::vector::{axpy, plain_dot};
use crate::threads::{Cancel, Context, num_threads, slices};

/// Columns of the state that are taken together. Sums over more of them are sums of these sums.
const SLICE: usize = 128;

/// Computes the gradients of all operands from the states that the forward pass saved. Without these, it recomputes them.
pub fn backward<T: Exponential>(
    context: &mut Context<'_>,
    problem: &Problem<'_, T>,
    saved: Option<&[T]>,
    cotangents: Cotangents<'_, T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    T::delta_backward(context, problem, saved, cotangents, gradients)
}

/// [`backward`], to be compiled for each type.
pub(crate) fn run<T: Exponential>(
    context: &mut Context<'_>,
    problem: &Problem<'_, T>,
    saved: Option<&[T]>,
    mut cotangents: Cotangents<'_, T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    let (sizes, lengths) = (problem.sizes, problem.lengths());
    check_saved(saved, lengths.saved)?;
    if let Some(out) = &mut cotangents.out {
        let shape = [problem.tokens(), sizes.value_heads, sizes.value_width];
        expect_rows("grad_out", out, &problem.sequences, shape, 1)?;
    }
    expect("grad_last", cotangents.last, lengths.last)?;
    gradients.check(problem)?;
    let mut recomputed;
    let saved = if let Some(saved) = saved {
        saved
    } else {
        recomputed = Buffer::scratch(lengths.saved)?;
        forward(context, problem, Results { saved: Some(&mut recomputed), ..Results::default() })?;
        &recomputed
    };
    let (isa, saved_from) = (context.isa, problem.saved_from());
    let parts = TaskPart::all(&sizes, problem.sequences.len(), num_threads(), sizes.group(), SLICE)?;
    let whole = parts.iter().all(|part| part.heads.len() == sizes.group() && part.columns.len() == sizes.value_width);
    let count = sizes.value_width.div_ceil(SLICE);
    let Gradients { q, k, v, beta, skip, gate, initial } = gradients;
    let mut of_skip = Buffer::scratch(problem.sequences.len() * count * sizes.value_heads)?;
    let [q, k] = [q, k].map(|array| Sum::new(array, if whole { 1 } else { sizes.group().saturating_mul(count) }));
    let [beta, gate] = [beta, gate].map(|array| Sum::new(array, if whole { 1 } else { count }));
    let (mut q, mut k, mut beta, mut gate) = (q?, k?, beta?, gate?);
    let targets = Targets {
        q: q.target(),
        k: k.target(),
        beta: beta.target(),
        gate: gate.target(),
        v: problem.values_in(v),
        initial: initial.map(|states| problem.states_mut(states)),
        skip: ViewMut::of(&mut of_skip, sizes.value_heads, problem.sequences.len() * count),
    };
    context.run(parts.len(), problem.flops().saturating_mul(7) / 2, &|i, cancel| {
        let pass = BackwardPass { isa, problem, part: &parts[i], cotangents, targets: &targets };
        pass.run((saved, saved_from[parts[i].sequence]), cancel)
    })?;
    for sum in [q, k, beta, gate] {
        sum.finish(context)?;
    }
    for (head, skip) in skip.into_iter().flatten().enumerate() {
        *skip = of_skip.iter().skip(head).step_by(sizes.value_heads).fold(T::ZERO, |sum, &part| sum + part);
    }
    Ok(())
}

/// A gradient to which several parts of the state contribute in order. Each part adds to the array, or has an array of its
/// own where several parts are computed at the same time.
struct Sum<'a, T: Exponential> {
    array: Option<&'a mut [T]>,
    others: Buffer<T>,
}

impl<'a, T: Exponential> Sum<'a, T> {
    fn new(array: Option<&'a mut [T]>, arrays: usize) -> Result<Self> {
        let others = Buffer::scratch((arrays - 1).saturating_mul(array.as_ref().map_or(0, |array| array.len())))?;
        Ok(Self { array, others })
    }

    fn target(&mut self) -> Option<GradientTarget<'_, T>> {
        let array = self.array.as_deref_mut()?;
        let (len, all) = (array.len(), self.others.len());
        let others = if all == 0 { None } else { Some(ViewMut::of(&mut self.others, len, all / len)) };
        Some(GradientTarget { array: ViewMut::of(array, len, 1), others })
    }

    fn finish(self, context: &mut Context<'_>) -> Result<()> {
        let Some(array) = self.array else { return Ok(()) };
        if self.others.is_empty() {
            return Ok(());
        }
        let (isa, len, others) = (context.isa, array.len(), &self.others);
        let (bounds, array) = (slices(len, 1 << 14, 64), Shared(array.as_mut_ptr()));
        context.run(bounds.len() - 1, others.len(), &|i, _| {
            let (begin, count) = (bounds[i], bounds[i + 1] - bounds[i]);
            // SAFETY: each task has numbers of its own.
            let sum = unsafe { std::slice::from_raw_parts_mut(array.get().add(begin), count) };
            for other in others.chunks_exact(len) {
                axpy(isa, T::ONE, &other[begin..begin + count], sum);
            }
            Ok(())
        })
    }
}

/// Where the contributions to a [`Sum`] go: arrays as one vector each.
#[derive(Clone, Copy)]
struct GradientTarget<'a, T> {
    array: ViewMut<'a, T>,
    others: Option<ViewMut<'a, T>>,
}

impl<'a, T: Copy> GradientTarget<'a, T> {
    /// Of contribution `number`: an array, and whether to add to it.
    fn of(&self, number: usize) -> (ViewMut<'a, T>, bool) {
        match self.others {
            Some(others) if number > 0 => (others.part(number - 1, number), false),
            _ => (self.array, number > 0),
        }
    }
}

/// Where tasks write.
struct Targets<'a, T> {
    q: Option<GradientTarget<'a, T>>,
    k: Option<GradientTarget<'a, T>>,
    beta: Option<GradientTarget<'a, T>>,
    gate: Option<GradientTarget<'a, T>>,
    v: StoredRowsMut<'a, T>,
    initial: Option<ViewMut<'a, T>>,
    /// Sums of each sequence, slice of columns and head.
    skip: ViewMut<'a, T>,
}

/// A chunk of a segment.
struct Slot<T: Exponential> {
    keys: Keys<T>,
    decayed: Decayed<T>,
    state: State<T>,
    solved: Solved<T>,
}

impl<T: Exponential> Slot<T> {
    fn new(problem: &Problem<'_, T>, width: usize) -> Result<Self> {
        Ok(Self {
            keys: Keys::new(problem)?,
            decayed: Decayed::new(problem)?,
            state: State::new(problem, width)?,
            solved: Solved::new(width)?,
        })
    }
}

/// A task.
struct BackwardPass<'a, T: Exponential> {
    isa: InstructionSet,
    problem: &'a Problem<'a, T>,
    part: &'a TaskPart,
    cotangents: Cotangents<'a, T>,
    targets: &'a Targets<'a, T>,
}

impl<T: Exponential> BackwardPass<'_, T> {
    fn run(&self, saved: (&[T], usize), cancel: &Cancel<'_>) -> Result<()> {
        let (isa, problem, part) = (self.isa, self.problem, self.part);
        let (token, steps) = (problem.sequences[part.sequence].start, problem.steps(part.sequence));
        let (chunks, segment) = (steps.div_ceil(CHUNK), problem.sizes.segment());
        let width = SLICE.min(part.columns.len());
        let stripes = part.stripes(SLICE)?;
        let mut grads = Vec::new();
        for stripe in &stripes {
            let mut grad = State::new(problem, stripe.columns.len())?;
            // SAFETY: the array has a state for each sequence and head.
            unsafe { grad.read(self.cotangents.last.map(|last| self.state_at(last, part.sequence, stripe))) };
            grads.push(grad);
        }
        let slots = (0..segment.min(chunks)).map(|_| Slot::new(problem, width));
        let mut slots = slots.collect::<Result<Vec<_>>>()?;
        let mut of_skip = filled(stripes.len(), T::ZERO)?;
        let mut chunk = ChunkBackward::new(problem, width)?;
        for number in (0..chunks.div_ceil(segment)).rev() {
            let first = number * segment;
            let slots = &mut slots[..segment.min(chunks - first)];
            for (i, slot) in slots.iter_mut().enumerate() {
                let begin = (first + i) * CHUNK;
                slot.keys.load(isa, problem, token, (begin, CHUNK.min(steps - begin)), part.key_head);
            }
            for ((stripe, grad), of_skip) in stripes.iter().zip(&mut grads).zip(&mut of_skip) {
                cancel.check()?;
                if stripe.columns.start == part.columns.start {
                    for slot in &mut *slots {
                        slot.decayed.form(isa, problem, &slot.keys, token, stripe.heads.start)?;
                    }
                }
                self.recall(slots, stripe, number, saved);
                for (i, slot) in slots.iter().enumerate().rev() {
                    let (keys, out) = (&slot.keys, self.outputs(stripe, &slot.keys));
                    self.fetch(stripe, keys);
                    if let Some(before) = i.checked_sub(1) {
                        self.outputs(stripe, &slots[before].keys).prefetch(stripe.columns.len());
                    }
                    if let Some(before) = (first + i).checked_sub(segment) {
                        let steps = (before * CHUNK, CHUNK);
                        let rows = problem.queries_and_keys(token, steps, part.key_head);
                        rows.into_iter().for_each(|rows| rows.prefetch(problem.sizes.key_width));
                    }
                    let (width, skip) = (stripe.columns.len(), problem.skip.map(|by| by[stripe.heads.start]));
                    let results = (&slot.state, &slot.solved);
                    // SAFETY: rows of the outputs' gradients at this chunk's queries, or none.
                    let gradients = unsafe { chunk.run(isa, width, (keys, &slot.decayed), results, (out, skip), grad) };
                    *of_skip += gradients.skip;
                    self.write(stripe, keys, &gradients);
                }
            }
        }
        for ((stripe, grad), of_skip) in stripes.iter().zip(&grads).zip(of_skip) {
            let slices = problem.sizes.value_width.div_ceil(SLICE);
            let slice = part.sequence * slices + stripe.columns.start / SLICE;
            // SAFETY: tasks write disjoint heads and columns.
            unsafe { *self.targets.skip.at(stripe.heads.start, slice) = of_skip };
            if let Some(initial) = self.targets.initial {
                let (head, column) = (stripe.heads.start, stripe.columns.start);
                // SAFETY: tasks write disjoint heads and columns.
                unsafe { grad.write(problem.state_in_mut(initial, part.sequence, head, column)) };
            }
        }
        Ok(())
    }

    /// Goes forward through a segment.
    fn recall(&self, slots: &mut [Slot<T>], stripe: &TaskPart, segment: usize, (saved, from): (&[T], usize)) {
        let (isa, problem, head) = (self.isa, self.problem, stripe.heads.start);
        let begin = match segment.checked_sub(1) {
            Some(before) => Some(self.state_at(saved, from + before, stripe)),
            None => problem.initial.map(|initial| self.state_at(initial, stripe.sequence, stripe)),
        };
        for slot in &mut *slots {
            slot.state.narrow(stripe.columns.len());
            slot.solved.narrow(stripe.columns.len());
        }
        // SAFETY: a state that was given or saved.
        unsafe { slots[0].state.read(begin) };
        let token = problem.sequences[stripe.sequence].start;
        for i in 0..slots.len() {
            if let Some(next) = slots.get(i + 1) {
                let steps = (next.keys.first, next.keys.len);
                problem.values(token, steps, head, stripe.columns.start).prefetch(stripe.columns.len());
            }
            let (before, after) = slots.split_at_mut(i + 1);
            let Slot { keys, decayed, state, solved } = &mut before[i];
            solved.solve(isa, problem, stripe, head, (keys, decayed), state, false);
            if let Some(next) = after.first_mut() {
                // SAFETY: workspace of this chunk.
                unsafe {
                    let rows = [decayed.to_end(keys), solved.written(keys, decayed)];
                    state.advance_to(isa, keys, decayed, rows, &mut next.state);
                }
            }
        }
    }

    fn state_at<'s>(&self, states: &'s [T], number: usize, stripe: &TaskPart) -> View<'s, T> {
        self.problem.state_in(self.problem.states(states), number, stripe.heads.start, stripe.columns.start)
    }

    /// Rows of `dO`.
    fn outputs(&self, stripe: &TaskPart, keys: &Keys<T>) -> StoredRows<'_, T> {
        let Some(out) = self.cotangents.out else { return StoredRows::none() };
        let (first, count) = (self.problem.sequences[stripe.sequence].start + keys.token, keys.queries.count);
        out.rows((first, count), stripe.heads.start).part(0, count, stripe.columns.start)
    }

    /// Rows of a chunk's `dQ` and `dK`, absent where not wanted, and whether to add to them.
    fn of_pairs(&self, stripe: &TaskPart, keys: &Keys<T>) -> [(ViewMut<'_, T>, bool); 2] {
        let (sizes, targets) = (self.problem.sizes, self.targets);
        let (head, slice) = (stripe.heads.start, stripe.columns.start / SLICE);
        let number = head % sizes.group() * sizes.value_width.div_ceil(SLICE) + slice;
        let token = self.problem.sequences[stripe.sequence].start;
        let of_queries = (token + keys.token, keys.queries.count);
        let of_keys = (token * sizes.reflections + keys.first, keys.len);
        [(targets.q, of_queries), (targets.k, of_keys)].map(|(target, rows)| {
            target.map_or((ViewMut::none(), false), |target| {
                let (array, add) = target.of(number);
                (Problem::rows_of(array, rows, sizes.heads, stripe.key_head, sizes.key_width), add)
            })
        })
    }

    /// Rows of a chunk's `dV`, absent where not wanted.
    fn of_values(&self, stripe: &TaskPart, keys: &Keys<T>) -> StoredRowsMut<'_, T> {
        let problem = self.problem;
        let first = problem.sequences[stripe.sequence].start * problem.sizes.reflections + keys.first;
        problem.values_of(self.targets.v, (first, keys.len), stripe.heads.start, stripe.columns.start)
    }

    /// Fetches what a chunk will be written to.
    fn fetch(&self, stripe: &TaskPart, keys: &Keys<T>) {
        for (rows, _) in self.of_pairs(stripe, keys) {
            prefetch_rows(rows.read(), self.problem.sizes.key_width);
        }
        self.of_values(stripe, keys).prefetch(stripe.columns.len());
    }

    /// Writes a chunk's gradients, or adds them to those of other parts of the state.
    fn write(&self, stripe: &TaskPart, keys: &Keys<T>, gradients: &ChunkGradients<'_, T>) {
        let (isa, problem, targets) = (self.isa, self.problem, self.targets);
        let (sizes, head) = (problem.sizes, stripe.heads.start);
        let token = problem.sequences[stripe.sequence].start;
        let (steps, slice) = (token * sizes.reflections + keys.first, stripe.columns.start / SLICE);
        let (queries, erases) = (keys.queries.count, keys.queries.erasing > 0);
        let [of_queries, of_keys] = &keys.factors;
        let (of_rows, others) = if erases {
            (gradients.later.from(0, queries), gradients.earlier.read())
        } else {
            (gradients.earlier, View::none())
        };
        let sources = [
            RowGradients {
                gradients: gradients.later.part(0, queries),
                others: View::none(),
                unit: keys.rows.view(0, queries),
                factors: problem.normalize.then_some(of_queries),
                scale: problem.scale,
            },
            RowGradients {
                gradients: of_rows,
                others,
                unit: keys.keys(),
                factors: problem.normalize.then_some(of_keys),
                scale: T::ONE,
            },
        ];
        for (source, (to, add)) in sources.iter().zip(self.of_pairs(stripe, keys)) {
            // SAFETY: rows of workspace, and of gradients that only this task writes.
            unsafe { collect(isa, sizes.key_width, source, add, to) };
        }
        let (values, width) = (self.of_values(stripe, keys), stripe.columns.len());
        if !values.is_none() {
            // SAFETY: as above.
            unsafe {
                if erases {
                    negate(isa, width, gradients.values);
                }
                values.write(isa, width, gradients.values.read());
            }
        }
        let put = |to: *mut T, x: T, add: bool| {
            // SAFETY: tasks write to heads of their own, or to arrays of their own.
            unsafe { *to = if add { *to + x } else { x } }
        };
        if let Some(beta) = targets.beta {
            let (array, add) = beta.of(slice);
            for (i, &x) in gradients.beta.iter().enumerate() {
                put(array.at((steps + i) * sizes.value_heads + head, 0), x, add);
            }
        }
        if let Some(gate) = targets.gate {
            let ((array, add), channels) = (gate.of(slice), problem.channels());
            for i in (0..keys.len).filter(|i| (keys.first + i).is_multiple_of(sizes.reflections)) {
                let at = (token + (keys.first + i) / sizes.reflections) * sizes.value_heads + head;
                for x in 0..channels {
                    // SAFETY: rows of workspace.
                    put(array.at(at * channels + x, 0), unsafe { *gradients.gates.at(x, i) }, add);
                }
            }
        }
    }
}

/// Gradients of a chunk's rows, and how these rows were made from the operands.
struct RowGradients<'a, T> {
    /// Of the rows, to be changed in place.
    gradients: ViewMut<'a, T>,
    /// Added to these; may be absent.
    others: View<'a, T>,
    /// The rows.
    unit: View<'a, T>,
    /// Inverse norms, if they were normalised.
    factors: Option<&'a Vec<T>>,
    /// What else they were multiplied by.
    scale: T,
}

simd! {
    /// Changes the signs of rows.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn negate<T: Exponential>(_s, width: usize, rows: ViewMut<'_, T>) -> () {
        for i in 0..rows.count {
            // SAFETY: rows of workspace.
            unsafe { rows.vector_mut(i, width) }.iter_mut().for_each(|x| *x = -*x);
        }
    }

    /// Writes gradients of rows before they were normalised and scaled, or adds them.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn collect<T: Exponential>(
        _s, width: usize, source: &RowGradients<'_, T>, add: bool, to: ViewMut<'_, T>,
    ) -> () {
        let RowGradients { gradients, others, unit, factors, scale } = *source;
        for i in 0..to.count {
            // SAFETY: rows of workspace and of the caller's.
            unsafe {
                let (gradient, unit, to) =
                    (gradients.vector_mut(i, width), unit.vector(i, width), to.vector_mut(i, width));
                if !others.ptr.is_null() {
                    let other = others.vector(i, width);
                    for x in 0..width {
                        gradient[x] += other[x];
                    }
                }
                // Of n = s u / |u|: du = (s dn - n (n dn) / s) / |u|.
                match factors {
                    Some(factors) => {
                        let by = scale * factors[i];
                        let along = if scale == T::ZERO { scale } else { plain_dot(unit, gradient) * factors[i] / scale };
                        for x in 0..width {
                            gradient[x] = gradient[x] * by - unit[x] * along;
                        }
                    }
                    None => {
                        gradient.iter_mut().for_each(|x| *x = *x * scale);
                    }
                }
                for x in 0..width {
                    to[x] = if add { to[x] + gradient[x] } else { gradient[x] };
                }
            }
        }
    }
}
