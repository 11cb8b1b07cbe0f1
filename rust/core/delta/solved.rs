//! What a chunk adds to some columns of the state: `D = diag(b) E` with `E = V - K' S - M D`.

use super::causal::Finite;
use super::chunk::{Decayed, Keys};
use super::number::Exponential;
use super::part::Part;
use super::problem::{CHUNK, Problem};
use super::rows::Rows;
use super::state::State;
use super::sweep::{Sweep, sweep};
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::Store;
use crate::kernel::gemm::gemm;
use crate::view::View;

/// The systems of a chunk, solved.
pub struct Solved<T: Exponential> {
    /// `Q' S`, then `K' S`.
    y: Rows<T>,
    e: Rows<T>,
    d: Rows<T>,
    finite: Finite<T>,
    beta: [T; CHUNK],
    width: usize,
}

impl<T: Exponential> Solved<T> {
    pub fn new(width: usize) -> Result<Self> {
        let [y, e, d] = [2 * CHUNK, CHUNK, CHUNK].map(|rows| Rows::new(rows, width));
        Ok(Self { y: y?, e: e?, d: d?, finite: Finite::new(width)?, beta: [T::ZERO; CHUNK], width })
    }

    /// Uses `width` columns, at most as many as it was made for.
    pub fn narrow(&mut self, width: usize) {
        self.width = width;
    }

    /// Solves for a part's columns of one head, from the state before the chunk. Forms `Q' S` only if it is wanted.
    pub fn solve(
        &mut self,
        isa: InstructionSet,
        problem: &Problem<'_, T>,
        part: &Part,
        head: usize,
        (keys, decayed): (&Keys<T>, &Decayed<T>),
        state: &State<T>,
        with_queries: bool,
    ) {
        let (queries, len) = (keys.queries.count, keys.len);
        let begin = if with_queries { 0 } else { queries };
        let (token, heads) = (problem.sequences[part.sequence].start, problem.sizes.value_heads);
        let first = token * problem.sizes.reflections + keys.first;
        let v = problem.values(token, (keys.first, len), head, part.columns.start);
        let (beta, of_tokens) = (&mut self.beta[..len], &problem.beta[first * heads + head..]);
        beta.iter_mut().zip(of_tokens.iter().step_by(heads)).for_each(|(to, beta)| *to = *beta);
        let count = queries + len - begin;
        let m = decayed.table.view(queries, len);
        // SAFETY: rows of the values and of workspace.
        unsafe {
            let out = Store::new(self.y.view(begin, count));
            gemm(isa, (self.width, count), state.view(), decayed.stack(keys).from(0, begin), &out);
            let other = self.y.view(queries, len);
            sweep(
                isa,
                self.width,
                len,
                Sweep { m, beta, rhs: v, other, e: self.e.view(0, len), x: self.d.view(0, len) },
            );
        }
    }

    /// `O = Q' S + P D`, written to rows.
    ///
    /// # Safety
    /// The caller owns a row for each query of the chunk.
    pub unsafe fn outputs(&mut self, isa: InstructionSet, keys: &Keys<T>, decayed: &Decayed<T>, out: View<T>) {
        let (queries, width) = (keys.queries, self.width);
        let p = decayed.table.view(0, queries.count);
        let terms = self.finite.terms(isa, width, self.d.view(0, keys.len));
        gemm(isa, (width, queries.count), terms.finite, p, &Store::plus(out, self.y.view(0, queries.count)));
        terms.add_others(width, p, out, |query, key| key <= queries.position(query));
    }

    /// `D`.
    pub fn d(&self, keys: &Keys<T>) -> View<T> {
        self.d.view(0, keys.len)
    }

    /// `E`.
    pub fn e(&self, keys: &Keys<T>) -> View<T> {
        self.e.view(0, keys.len)
    }

    /// Betas of the chunk.
    pub fn beta(&self, keys: &Keys<T>) -> &[T] {
        &self.beta[..keys.len]
    }
}
