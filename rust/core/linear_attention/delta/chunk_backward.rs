//! A chunk backwards, for some columns of one head's state.
//!
//! With `dO` and `dS` given, and `X = -diag(b) dE`:
//!
//! ```text
//! dD = P' dO + H dS,   dE = dD + M' X,   dV = -X,   db_i = dE_i E_i
//! [dP; dM] = [dO; X] D',   [dQ'; dK'] = [dO; X] S_0',   dH = D dS',   dS_0 = exp(c_end) dS + [Q'; K']' [dO; X]
//! ```
//!
//! If nothing is erased, `dV = diag(b) dD`, and all that has `X` or `K'` is absent.

use super::chunk::{Decayed, Keys, decay_rows};
use super::gram::decay_products;
use super::gram_backward::{Channels, between_blocks_back, channel_gates, pair_gates, within_blocks_back};
use super::problem::{BLOCK, CHUNK, Problem};
use super::solve::{Finite, Solved, State, Sweep, add_rows, sweep_back};
use crate::arrays::stored::StoredRows;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::filled;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::epilogue::Store;
use crate::simd::fetch::Fetch;
use crate::simd::gemm::{gemm, gemm2};
use crate::simd::isa::InstructionSet;
use crate::simd::transpose::turned;
use crate::simd::vector::dot;

/// Workspace and the gradients of a chunk.
pub struct ChunkBackward<T: Exponential> {
    /// `dO`, then `X` where keys erase.
    sources: WorkRows<T>,
    /// The same times [`Decayed::start_factors`].
    reading: WorkRows<T>,
    sources_turned: WorkRows<T>,
    /// `dD`, then `dE` where keys erase.
    errors: WorkRows<T>,
    solution_turned: WorkRows<T>,
    later_turned: WorkRows<T>,
    earlier_turned: WorkRows<T>,
    table: WorkRows<T>,
    later: WorkRows<T>,
    earlier: WorkRows<T>,
    gates: WorkRows<T>,
    between: WorkRows<T>,
    finite: Finite<T>,
    whole: Vec<T>,
    beta: [T; CHUNK],
}

/// Gradients of a chunk's rows, decays undone, of its betas and of its gates. Those of rows may be changed in place.
pub struct ChunkGradients<'a, T> {
    /// Gradients of scaled queries, then of keys that erase as the later of a pair.
    pub later: ViewMut<'a, T>,
    /// Gradients of keys as the earlier of a pair.
    pub earlier: ViewMut<'a, T>,
    /// Of the values, negative where keys erase.
    pub values: ViewMut<'a, T>,
    /// Of the gates.
    pub gates: View<'a, T>,
    /// Of the betas, if there are any.
    pub beta: &'a [T],
    /// Of the factor of the values in the outputs.
    pub skip: T,
}

impl<T: Exponential> ChunkBackward<T> {
    /// For columns up to `width`.
    pub fn new(problem: &Problem<'_, T>, width: usize) -> Result<Self> {
        let (keys, channels) = (problem.sizes.key_width, problem.channels());
        let by_channel = usize::from(channels > 1);
        Ok(Self {
            sources: WorkRows::scratch(2 * CHUNK, width)?,
            reading: WorkRows::scratch(2 * CHUNK, width)?,
            sources_turned: WorkRows::scratch(width, 2 * CHUNK)?,
            errors: WorkRows::scratch(CHUNK, width)?,
            solution_turned: WorkRows::scratch(width, CHUNK)?,
            later_turned: WorkRows::scratch(keys, 2 * CHUNK)?,
            earlier_turned: WorkRows::scratch(keys, CHUNK)?,
            table: WorkRows::scratch(2 * CHUNK, CHUNK)?,
            later: WorkRows::scratch(2 * CHUNK, keys)?,
            earlier: WorkRows::scratch(CHUNK, keys)?,
            gates: WorkRows::scratch(CHUNK, channels.max(1))?,
            between: WorkRows::scratch(by_channel * 3 * CHUNK, keys)?,
            finite: Finite::new(width.max(keys))?,
            whole: filled(keys, T::ZERO)?,
            beta: [T::ZERO; CHUNK],
        })
    }

    /// `out`: rows of `dO`, absent where there is none; `grad`: `dS`, which becomes `dS_0`; `state`: `S_0`.
    ///
    /// # Safety
    /// The caller owns a row of `out` for each query, `width` numbers each.
    pub unsafe fn run(
        &mut self,
        isa: InstructionSet,
        width: usize,
        (keys, decayed): (&Keys<T>, &Decayed<T>),
        (state, solved): (&State<T>, &Solved<T>),
        (out, skip): (StoredRows<'_, T>, Option<T>),
        grad: &mut State<T>,
    ) -> ChunkGradients<'_, T> {
        let (queries, len, count) = (keys.queries.count, keys.len, keys.queries.rows());
        let height = state.view().count;
        if out.is_none() {
            (0..queries).for_each(|i| self.sources.row_mut(i).fill(T::ZERO));
        } else {
            out.read(isa, width, self.sources.view_mut(0, queries));
        }
        let (sources, errors) = (self.sources.view_mut(0, count), self.errors.view_mut(0, len));
        let (of_out, solution) = (sources.read().part(0, queries), sources.from(0, queries));
        let (d, table, stack) = (solved.d(keys), self.table.view_mut(0, count), decayed.stack(keys));
        let factors = decayed.table.view(0, count);
        let p = factors.part(0, queries).transposed(len);
        let terms = self.finite.terms(isa, width, of_out);
        gemm(isa, (width, len), grad.view(), decayed.to_end(keys), &Store::new(errors));
        gemm(isa, (width, len), terms.finite, p, &Store::plus_scaled(errors, errors.read(), decayed.end_factors(keys)));
        terms.add_others(width, p, errors, |key, query| key <= keys.queries.position(query));
        if keys.queries.erasing > 0 {
            let (m, beta, none) = (factors.from(0, queries), solved.beta(), View::none());
            let system = Sweep { m, beta, rhs: errors.read(), other: none, factor: none, e: errors, x: solution };
            sweep_back(isa, width, len, system);
        }
        let betas = solved.beta();
        row_dots(isa, width, errors.read(), solved.values(keys), &mut self.beta[..betas.len()]);
        if keys.queries.erasing == 0 {
            decay_rows(isa, width, errors.read(), View::of(betas, 1, betas.len()), 1, errors);
        }
        let mut of_skip = T::ZERO;
        if let Some(by) = skip {
            of_skip = (0..queries)
                .fold(of_skip, |sum, i| sum + dot(isa, of_out.vector(i, width), solved.values(keys).vector(i, width)));
            add_rows(isa, width, of_out, by, errors);
        }
        let mut reading = sources.read();
        if decayed.decay.width == 1 {
            let to = self.reading.view_mut(0, count);
            let [of_queries, of_keys] = decayed.start_factors(keys);
            decay_rows(isa, width, sources.read(), of_queries, 1, to);
            decay_rows(isa, width, solution.read(), of_keys.part(0, keys.queries.erasing), 1, to.from(0, queries));
            reading = to.read();
        }
        let (by_columns, turned_d) = (self.sources_turned.view_mut(0, width), self.solution_turned.view_mut(0, width));
        turned(isa, (width, count), reading, by_columns);
        turned(isa, (width, len), d, turned_d);
        let (later, earlier) = (self.later.view_mut(0, count), self.earlier.view_mut(0, len));
        let later_turned = self.later_turned.view_mut(0, height);
        let earlier_turned = self.earlier_turned.view_mut(0, height);
        gemm(isa, (len, count), turned_d.read(), sources.read(), &Store::new(table));
        gemm(isa, (count, height), by_columns.read(), state.view(), &Store::new(later_turned));
        gemm(isa, (len, height), turned_d.read(), grad.view(), &Store::new(earlier_turned));
        turned(isa, (count, height), later_turned.read(), later);
        turned(isa, (len, height), earlier_turned.read(), earlier);
        let channels = decayed.decay.width;
        if channels > 0 {
            row_dots(isa, width, grad.view(), state.view(), &mut self.whole);
        }
        grad.advance(isa, keys, decayed, [stack, reading], Fetch::none());
        if channels > 0 {
            decay_rows(isa, height, earlier.read(), decayed.decay.to_end.view(0, len), channels, earlier);
        }
        if channels > 1 {
            let [of_queries, of_keys] = decayed.decay.start_decays(keys);
            decay_rows(isa, height, later.read(), of_queries, channels, later);
            let of_erasing = later.from(0, queries);
            decay_rows(isa, height, of_erasing.read(), of_keys, channels, of_erasing);
            self.by_channel(isa, keys, decayed);
        } else {
            self.by_head(isa, keys, decayed);
        }
        let erases = keys.queries.erasing > 0;
        ChunkGradients {
            later: self.later.view_mut(0, count),
            earlier: self.earlier.view_mut(0, len),
            values: if erases { self.sources.view_mut(queries, len) } else { self.errors.view_mut(0, len) },
            gates: self.gates.view(0, len),
            beta: &self.beta[..solved.beta().len()],
            skip: of_skip,
        }
    }

    /// Products of pairs that decay alike in all channels.
    ///
    /// # Safety
    /// The chunk's other gradients have been formed.
    unsafe fn by_head(&mut self, isa: InstructionSet, keys: &Keys<T>, decays: &Decayed<T>) {
        let (queries, len, count, width) = (keys.queries.count, keys.len, keys.queries.rows(), self.whole.len());
        let (readers, of_chunk, table) = (keys.readers(), keys.keys(), self.table.view_mut(0, count));
        let (later, earlier) = (self.later.view_mut(0, count), self.earlier.view_mut(0, len));
        if decays.decay.width > 0 {
            let whole = decays.decay.from_start.row(len - 1)[0] * self.whole.iter().fold(T::ZERO, |sum, &x| sum + x);
            let (mut by_rows, mut by_keys) = ([T::ZERO; 2 * CHUNK], [T::ZERO; CHUNK]);
            row_dots(isa, width, readers, later.read(), &mut by_rows[..count]);
            row_dots(isa, width, of_chunk, earlier.read(), &mut by_keys[..len]);
            let (mut gates, mut sum) = ([T::ZERO; CHUNK], whole);
            for l in (0..len).rev() {
                sum = keys.queries.rows_at(l).fold(sum, |sum, row| sum + by_rows[row]);
                gates[l] = sum;
            }
            let mut sum = T::ZERO;
            for l in 0..len {
                gates[l] += sum;
                sum += by_keys[l];
            }
            pair_gates(isa, len, keys.queries, table.read(), decays.table.view(0, count), &mut gates);
            (0..len).for_each(|l| self.gates.row_mut(l)[0] = gates[l]);
        }
        decay_products(isa, len, keys.queries, table.read(), decays.pairs.view(0, len), table);
        let table = table.read();
        let depends = |row: usize, key: usize| match row.checked_sub(queries) {
            Some(later) => key < later,
            None => key <= keys.queries.position(row),
        };
        let terms = self.finite.terms(isa, width, of_chunk);
        gemm(isa, (width, count), terms.finite, table, &Store::plus(later, later.read()));
        terms.add_others(width, table, later, depends);
        let (terms, table) = (self.finite.terms(isa, width, readers), table.transposed(len));
        gemm(isa, (width, len), terms.finite, table, &Store::plus(earlier, earlier.read()));
        terms.add_others(width, table, earlier, |key, row| depends(row, key));
    }

    /// Products of pairs whose channels decay each in its own way.
    ///
    /// # Safety
    /// The chunk's other gradients have been formed.
    unsafe fn by_channel(&mut self, isa: InstructionSet, keys: &Keys<T>, decays: &Decayed<T>) {
        let (queries, len, count, width) = (keys.queries, keys.len, keys.queries.rows(), self.whole.len());
        let parts = Channels {
            rows: keys.rows.view(0, queries.count + len),
            step: decays.decay.step.view(0, len),
            table: self.table.view(0, count),
            later: self.later.view_mut(0, count),
            earlier: self.earlier.view_mut(0, len),
            gates: self.gates.view_mut(0, len),
        };
        let whole = decays.decay.from_start.row(len - 1);
        self.whole.iter_mut().zip(whole).for_each(|(x, &by)| *x = *x * by);
        channel_gates(isa, width, len, queries, &self.whole, &parts);
        within_blocks_back(isa, width, len, queries, &parts);
        if len > BLOCK {
            let (near, between) = (decays.near.view(0, count), self.between.all_mut());
            let (later, earlier) = (between.part(0, count), between.part(2 * CHUNK, 2 * CHUNK + BLOCK));
            let spans = keys.second_block();
            let [of_queries, of_keys] = spans.map(|(begin, end)| {
                let (table, near) = (parts.table.part(begin, end), near.part(begin, end));
                let first = decays.near.view(queries.count, BLOCK);
                gemm(isa, (width, end - begin), first, table, &Store::new(later.part(begin, end)));
                [near, table.transposed(BLOCK)]
            });
            gemm2(isa, (width, BLOCK), &[of_queries, of_keys], &Store::new(earlier));
            let (middle, later, earlier) = (decays.decay.middle.view(0, len), later.read(), earlier.read());
            between_blocks_back(isa, width, len, queries, middle, later, earlier, &parts);
        }
    }
}

/// `out_i = a_i b_i`.
///
/// # Safety
/// The caller owns as many rows as there are results, `width` numbers each.
unsafe fn row_dots<T: Exponential>(isa: InstructionSet, width: usize, a: View<'_, T>, b: View<'_, T>, out: &mut [T]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = dot(isa, a.vector(i, width), b.vector(i, width));
    }
}
