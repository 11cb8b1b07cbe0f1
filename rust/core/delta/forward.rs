//! Outputs and states, chunk by chunk.

use super::chunk::{Decayed, Keys};
use super::number::Exponential;
use super::part::Part;
use super::problem::{CHUNK, Problem};
use super::results::{Places, Results};
use super::solved::Solved;
use super::state::State;
use super::step;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::fetch::prefetch_rows;
use crate::kernel::pack::ROWS;
use crate::threads::{Cancel, Context, num_threads};
use crate::view::View;

/// Runs all sequences.
pub fn forward<T: Exponential>(
    context: &mut Context<'_>,
    problem: &Problem<'_, T>,
    results: Results<'_, T>,
) -> Result<()> {
    results.check(problem)?;
    let places = Places::of(results);
    let (isa, kept_from) = (context.isa, problem.kept_from());
    let parts = Part::all(&problem.sizes, problem.sequences.len(), num_threads(), ROWS);
    context.run(parts.len(), problem.flops(), &|i, cancel| {
        let part = &parts[i];
        if problem.steps(part.sequence) <= step::MOST {
            return step::run(isa, problem, part, places);
        }
        Pass::new(isa, problem, part)?.run(kept_from[part.sequence], places, cancel)
    })
}

/// A task and its workspace.
struct Pass<'a, T: Exponential> {
    isa: InstructionSet,
    problem: &'a Problem<'a, T>,
    part: &'a Part,
    keys: Keys<T>,
    decayed: Decayed<T>,
    states: Vec<State<T>>,
    solved: Solved<T>,
}

impl<'a, T: Exponential> Pass<'a, T> {
    fn new(isa: InstructionSet, problem: &'a Problem<'a, T>, part: &'a Part) -> Result<Self> {
        let states = part.heads.clone().map(|head| State::initial(problem, part, head));
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

    fn run(mut self, kept_from: usize, places: Places<T>, cancel: &Cancel<'_>) -> Result<()> {
        let (isa, problem, part) = (self.isa, self.problem, self.part);
        let (token, steps) = (problem.sequences[part.sequence].start, problem.steps(part.sequence));
        let (interval, column) = (problem.sizes.interval(), part.columns.start);
        let (keys_wide, values_wide) = (problem.sizes.key_width, part.columns.len());
        let chunk = |first: usize| (first, CHUNK.min(steps.saturating_sub(first)));
        for first in (0..steps).step_by(CHUNK) {
            cancel.check()?;
            self.keys.load(isa, problem, token, chunk(first), part.key_head);
            for (state, head) in self.states.iter().zip(part.heads.clone()) {
                if let Some(kept) = places.kept.filter(|_| first > 0 && first % interval == 0) {
                    let at = problem.state_at(kept.get(), kept_from + first / interval - 1, head, column);
                    // SAFETY: tasks write disjoint heads and columns.
                    unsafe { state.write(at) };
                }
                let rows = (token + self.keys.token, self.keys.queries.count);
                let out = places.out.map_or_else(View::none, |out| problem.values_at(out.get(), rows, head, column));
                prefetch_rows(out, values_wide);
                self.decayed.form(isa, problem, &self.keys, token, head)?;
                self.solved.solve(isa, problem, part, head, (&self.keys, &self.decayed), state, !out.ptr.is_null());
                let (of, next) =
                    if head + 1 < part.heads.end { (first, head + 1) } else { (first + CHUNK, part.heads.start) };
                prefetch_rows(problem.values(token, chunk(of), next, column), values_wide);
                if !out.ptr.is_null() {
                    // SAFETY: as above.
                    unsafe { self.solved.outputs(isa, &self.keys, &self.decayed, out) };
                }
                if head == part.heads.start {
                    let next = problem.queries_and_keys(token, chunk(first + CHUNK), part.key_head);
                    next.into_iter().for_each(|rows| prefetch_rows(rows, keys_wide));
                }
                let rows = [self.decayed.to_end(&self.keys), self.solved.d(&self.keys)];
                // SAFETY: workspace of this chunk.
                unsafe { state.advance(isa, &self.keys, &self.decayed, rows, state) };
            }
        }
        if let Some(last) = places.last {
            for (state, head) in self.states.iter().zip(part.heads.clone()) {
                // SAFETY: as above.
                unsafe { state.write(problem.state_at(last.get(), part.sequence, head, column)) };
            }
        }
        Ok(())
    }
}
