//! Outputs and states, chunk by chunk. A few steps are taken one after the other, so the state is read and written once.

use super::chunk::{Decayed, EPSILON, Keys, exponentials};
use super::problem::{CHUNK, Gate, Places, Problem, Results, TaskPart};
use super::solve::{Solved, State};
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::lanes::{Lanes, max_rows, unroll};
use crate::simd::pack::ROWS;
use crate::simd::vector::dot;
use crate::threads::{Cancel, Context, num_threads};

/// Runs all sequences.
pub fn forward<T: Exponential>(
    context: &mut Context<'_>,
    problem: &Problem<'_, T>,
    results: Results<'_, T>,
) -> Result<()> {
    T::delta(context, problem, results)
}

/// [`forward`], to be compiled for each type.
pub(crate) fn run<T: Exponential>(
    context: &mut Context<'_>,
    problem: &Problem<'_, T>,
    results: Results<'_, T>,
) -> Result<()> {
    results.check(problem)?;
    let places = Places::of(problem, results);
    let (isa, saved_from) = (context.isa, problem.saved_from());
    let most = STATES / (problem.sizes.state() * size_of::<T>());
    let parts = TaskPart::all(&problem.sizes, problem.sequences.len(), num_threads(), most, ROWS)?;
    context.run(parts.len(), problem.flops(), &|i, cancel| {
        let part = &parts[i];
        if problem.steps(part.sequence) <= FEW_STEPS {
            return by_steps(isa, problem, part, places);
        }
        ForwardPass::new(isa, problem, part, &places)?.run(saved_from[part.sequence], places, cancel)
    })
}

/// Bytes of states that a task goes through chunk by chunk: they stay in the second-level cache.
const STATES: usize = 1 << 19;

/// A task and its workspace.
struct ForwardPass<'a, T: Exponential> {
    isa: InstructionSet,
    problem: &'a Problem<'a, T>,
    part: &'a TaskPart,
    keys: Keys<T>,
    decayed: Decayed<T>,
    states: Vec<State<T>>,
    solved: Solved<T>,
}

impl<'a, T: Exponential> ForwardPass<'a, T> {
    fn new(
        isa: InstructionSet,
        problem: &'a Problem<'a, T>,
        part: &'a TaskPart,
        places: &Places<'_, T>,
    ) -> Result<Self> {
        let states = part.heads.clone().map(|head| State::initial(problem, part, places, head));
        Ok(Self {
            isa,
            problem,
            part,
            keys: Keys::new(problem)?,
            decayed: Decayed::new(problem)?,
            states: states.collect::<Result<_>>()?,
            solved: Solved::new(part.columns.len())?,
        })
    }

    fn run(mut self, saved_from: usize, places: Places<'_, T>, cancel: &Cancel<'_>) -> Result<()> {
        let (isa, problem, part) = (self.isa, self.problem, self.part);
        let (token, steps) = (problem.sequences[part.sequence].start, problem.steps(part.sequence));
        let (interval, column) = (problem.sizes.interval(), part.columns.start);
        let (keys_wide, values_wide) = (problem.sizes.key_width, part.columns.len());
        let chunk = |first: usize| (first, CHUNK.min(steps.saturating_sub(first)));
        for first in (0..steps).step_by(CHUNK) {
            cancel.check()?;
            self.keys.load(isa, problem, token, chunk(first), part.key_head);
            for (state, head) in self.states.iter_mut().zip(part.heads.clone()) {
                if let Some(saved) = places.saved.filter(|_| first > 0 && first % interval == 0) {
                    let at = problem.state_in_mut(saved, saved_from + first / interval - 1, head, column);
                    // SAFETY: tasks write disjoint heads and columns.
                    unsafe { state.write(at) };
                }
                let rows = (token + self.keys.token, self.keys.queries.count);
                let out = problem.values_of(places.out, rows, head, column);
                self.decayed.form(isa, problem, &self.keys, token, head)?;
                self.solved.solve(isa, problem, part, head, (&self.keys, &self.decayed), state, !out.is_none());
                let (of, next) =
                    if head + 1 < part.heads.end { (first, head + 1) } else { (first + CHUNK, part.heads.start) };
                if !out.is_none() {
                    let skip = problem.skip.map(|by| by[head]);
                    let fetch = problem.values_of(places.out, rows, next, column).fetch(values_wide);
                    // SAFETY: as above.
                    unsafe { self.solved.outputs(isa, (&self.keys, &self.decayed), skip, (out, fetch)) };
                }
                if head == part.heads.start {
                    let next = problem.queries_and_keys(token, chunk(first + CHUNK), part.key_head);
                    next.into_iter().for_each(|rows| rows.prefetch(keys_wide));
                }
                let rows = [self.decayed.to_end(&self.keys), self.solved.written(&self.keys, &self.decayed)];
                let fetch = problem.values(token, chunk(of), next, column).fetch(values_wide);
                // SAFETY: workspace of this chunk.
                unsafe { state.advance(isa, &self.keys, &self.decayed, rows, fetch) };
            }
        }
        if let Some(last) = places.last {
            for (state, head) in self.states.iter().zip(part.heads.clone()) {
                // SAFETY: as above.
                unsafe { state.write(problem.state_in_mut(last, part.sequence, head, column)) };
            }
        }
        Ok(())
    }
}

/// Most steps of a sequence for which single steps are faster than a chunk.
const FEW_STEPS: usize = 4;

/// The operands of one step.
struct TokenStep<'a, T> {
    /// `exp g`, `k`, `exp(g) k` and `q`, a row each; `q` is zero where no output is asked for.
    rows: View<'a, T>,
    /// Absent: one.
    beta: Option<T>,
    erases: bool,
    /// Factor of the value in the output.
    skip: Option<T>,
    v: View<'a, T>,
    out: ViewMut<'a, T>,
    /// Whether a token ends, and its output is asked for.
    reads: bool,
}

/// Runs the sequence of a part, step by step.
fn by_steps<T: Exponential>(
    isa: InstructionSet,
    problem: &Problem<'_, T>,
    part: &TaskPart,
    places: Places<'_, T>,
) -> Result<()> {
    let (steps, width) = (problem.steps(part.sequence), part.columns.len());
    if steps == 0 {
        return unchanged(problem, part, places);
    }
    let mut rows = WorkRows::scratch(4 * steps, problem.sizes.key_width)?;
    let mut values = WorkRows::scratch(2 * steps, width)?;
    let mut workspace = State::new(problem, if places.last.is_none() { width } else { 0 })?;
    for head in part.heads.clone() {
        let column = part.columns.start;
        let state = match places.last {
            Some(last) => problem.state_in_mut(last, part.sequence, head, column),
            None => workspace.view_mut(),
        };
        let initial = places.initial.map(|states| problem.state_in(states, part.sequence, head, column));
        let from = initial.unwrap_or(View::none());
        let steps = rows.groups(4).zip(values.groups(2)).enumerate();
        let steps = steps
            .map(|(i, (rows, values))| prepare(isa, problem, part, head, i, [rows, values], !places.out.is_none()));
        let steps = steps.collect::<Result<Vec<_>>>()?;
        // SAFETY: states of this part, and rows made for it; tasks write disjoint heads and columns.
        unsafe { all(isa, width, from, state, &steps) };
        let first = problem.sequences[part.sequence].start;
        for (token, step) in steps.iter().filter(|step| step.reads).enumerate() {
            let out = problem.values_of(places.out, (first + token, 1), head, column);
            // SAFETY: as above.
            unsafe { out.write(isa, width, step.out.read()) };
        }
    }
    Ok(())
}

/// A sequence without steps ends where it begins.
fn unchanged<T: Exponential>(problem: &Problem<'_, T>, part: &TaskPart, places: Places<'_, T>) -> Result<()> {
    let Some(last) = places.last else { return Ok(()) };
    for head in part.heads.clone() {
        let state = State::initial(problem, part, &places, head)?;
        // SAFETY: tasks write disjoint heads and columns.
        unsafe { state.write(problem.state_in_mut(last, part.sequence, head, part.columns.start)) };
    }
    Ok(())
}

/// Step `i` of the sequence, in four rows of keys and two of values. With `outputs`, those of tokens are read.
fn prepare<'a, T: Exponential>(
    isa: InstructionSet,
    problem: &Problem<'_, T>,
    part: &TaskPart,
    head: usize,
    i: usize,
    [rows, values]: [ViewMut<'a, T>; 2],
    outputs: bool,
) -> Result<TokenStep<'a, T>> {
    let sizes = problem.sizes;
    let (width, reflections) = (sizes.key_width, sizes.reflections);
    let first = problem.sequences[part.sequence].start;
    let (token, step) = (first + i / reflections, first * reflections + i);
    let factor = |x: &[T]| {
        if problem.normalize { T::ONE / (dot(isa, x, x) + T::of(EPSILON)).sqrt() } else { T::ONE }
    };
    let (begins, reads) = (i.is_multiple_of(reflections), outputs && (i + 1).is_multiple_of(reflections));
    // SAFETY: rows of the operands, and six rows of this step's own.
    let [decay, key, by_key, query] = unsafe {
        problem.k.rows((step, 1), part.key_head).read(isa, width, rows.part(1, 2));
        problem.q.rows((token, 1), part.key_head).read(isa, width, rows.part(3, 4));
        problem.values(first, (i, 1), head, part.columns.start).read(isa, part.columns.len(), values.part(0, 1));
        [0, 1, 2, 3].map(|j| rows.vector_mut(j, width))
    };
    match problem.gate {
        Gate::Head(gate) if begins => {
            let (first, others) = decay.split_at_mut(1);
            exponentials(isa, problem, &gate[token * sizes.value_heads + head..][..1], first)?;
            others.fill(first[0]);
        }
        Gate::Channel(gate) if begins => {
            exponentials(isa, problem, &gate[(token * sizes.value_heads + head) * width..][..width], decay)?;
        }
        _ => decay.fill(T::ONE),
    }
    let of_query = if reads { factor(query) * problem.scale } else { T::ZERO };
    let of_key = factor(key);
    for x in 0..width {
        key[x] = key[x] * of_key;
        by_key[x] = decay[x] * key[x];
        query[x] = if reads { query[x] * of_query } else { T::ZERO };
    }
    Ok(TokenStep {
        rows: rows.read(),
        beta: problem.beta.map(|beta| beta[step * sizes.value_heads + head]),
        erases: problem.erases(),
        skip: problem.skip.map(|by| by[head]),
        v: values.read(),
        out: values.part(1, 2),
        reads,
    })
}

simd! {
    /// All steps on `width` columns of a state, from `from`, or from zero, to `to`.
    ///
    /// # Safety
    /// States and rows have `width` columns from these addresses on; the caller owns what is written.
    unsafe fn all<T: Exponential>(
        s, width: usize, from: View<'_, T>, to: ViewMut<'_, T>, steps: &[TokenStep<'_, T>],
    ) -> () {
        const TALL: usize = 8; // whole rows of 128 columns: memory is read in the order in which it lies
        const LOW: usize = 2;
        let lanes = T::lanes::<S>();
        let mut begin = 0;
        // SAFETY: states and rows of so many columns; the task's own where they are written.
        unsafe {
            while max_rows::<S>() > 2 && begin + TALL * lanes <= width {
                stripe::<S, T, TALL>(s, begin, Lanes::first(s, lanes), from, to, steps);
                begin += TALL * lanes;
            }
            while begin + LOW * lanes <= width {
                stripe::<S, T, LOW>(s, begin, Lanes::first(s, lanes), from, to, steps);
                begin += LOW * lanes;
            }
            while begin < width {
                stripe::<S, T, 1>(s, begin, Lanes::first(s, width - begin), from, to, steps);
                begin += lanes;
            }
        }
    }
}

/// The columns of `N` registers. They are read and written once a step, and read once more before, from a cache, where the step
/// erases what its key reads.
#[inline(always)]
unsafe fn stripe<S: pulp::Simd, T: Exponential, const N: usize>(
    s: S,
    begin: usize,
    lanes: Lanes<S, T, N>,
    from: View<'_, T>,
    to: ViewMut<'_, T>,
    steps: &[TokenStep<'_, T>],
) {
    let zero = [T::splat(s, T::ZERO); N];
    let height = to.count;
    let mut from = from;
    for TokenStep { rows, beta, erases, skip, v, out, .. } in steps {
        let [e, k, ek, q] = [0, 1, 2, 3].map(|row| rows.at(0, row));
        let mut of_keys = zero;
        if *erases && !from.ptr.is_null() {
            for x in 0..height {
                let (state, ek) = (lanes.load(from.at(begin, x)), T::splat(s, *ek.add(x)));
                unroll!(for i in 0..N {
                    of_keys[i] = T::fma(s, state[i], ek, of_keys[i]);
                });
            }
        }
        let v = lanes.load(v.at(begin, 0));
        let (mut d, mut o) = (v, zero);
        for i in 0..N {
            if *erases {
                d[i] = T::fma(s, of_keys[i], T::splat(s, -T::ONE), d[i]);
            }
            if let Some(beta) = beta {
                d[i] = T::fma(s, d[i], T::splat(s, *beta), zero[i]);
            }
            if let Some(skip) = skip {
                o[i] = T::fma(s, v[i], T::splat(s, *skip), o[i]);
            }
        }
        for x in 0..height {
            let [e, k, q] = [e, k, q].map(|row| T::splat(s, *row.add(x)));
            let mut state = zero;
            if !from.ptr.is_null() {
                state = lanes.load(from.at(begin, x));
            }
            unroll!(for i in 0..N {
                state[i] = T::fma(s, d[i], k, T::fma(s, state[i], e, zero[i]));
                o[i] = T::fma(s, state[i], q, o[i]);
            });
            lanes.store(to.at(begin, x), state);
        }
        lanes.store(out.at(begin, 0), o);
        from = to.read();
    }
}
