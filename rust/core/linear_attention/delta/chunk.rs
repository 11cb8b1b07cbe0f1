//! A chunk of a sequence: the decays within it, what value heads share, and what each makes of it.

use super::decay::{decayed, longer};
use super::gram::{Queries, decay_products, decays, within_blocks};
use super::problem::{BLOCK, CHUNK, Problem};
use crate::arrays::stored::StoredRows;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::filled;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::epilogue::Store;
use crate::simd::gemm::gemm;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::transpose::turned;
use crate::simd::vector::dot;

/// Added to the sum of squares of a row that is normalised.
pub const EPSILON: f64 = 1e-6;

/// Queries and keys of a chunk.
pub struct Keys<T: Exponential> {
    /// Queries, scaled, then keys.
    pub rows: WorkRows<T>,
    /// The factor that each row was multiplied by, without the scale.
    pub factors: [Vec<T>; 2],
    /// Plain products of the rows that read with the keys; only without gates for each channel.
    plain: WorkRows<T>,
    columns: WorkRows<T>,
    /// The positions of the queries.
    pub queries: Queries,
    /// Number of the first query's token in the sequence.
    pub token: usize,
    /// First step.
    pub first: usize,
    /// Steps.
    pub len: usize,
}

impl<T: Exponential> Keys<T> {
    pub fn new(problem: &Problem<'_, T>) -> Result<Self> {
        let width = problem.sizes.key_width;
        Ok(Self {
            rows: WorkRows::scratch(2 * CHUNK, width)?,
            factors: [filled(CHUNK, T::ONE)?, filled(CHUNK, T::ONE)?],
            plain: WorkRows::scratch(2 * CHUNK, CHUNK)?,
            columns: WorkRows::scratch(width, CHUNK)?,
            queries: Queries::within(0, 0, 1, false),
            token: 0,
            first: 0,
            len: 0,
        })
    }

    /// The rows that read the state: queries, then keys that erase.
    pub fn readers(&self) -> View<'_, T> {
        self.rows.view(0, self.queries.rows())
    }

    /// The rows of the keys.
    pub fn keys(&self) -> View<'_, T> {
        self.rows.view(self.queries.count, self.len)
    }

    /// Rows of queries, and of keys that erase, in the second block.
    pub fn second_block(&self) -> [(usize, usize); 2] {
        let (queries, end) = (self.queries, self.queries.rows());
        [(queries.before(BLOCK), queries.count), (end.min(queries.count + BLOCK), end)]
    }

    /// Reads `len` steps from step `first` of a sequence on, whose first token is `token`.
    pub fn load(
        &mut self,
        isa: InstructionSet,
        problem: &Problem<'_, T>,
        token: usize,
        (first, len): (usize, usize),
        head: usize,
    ) {
        let width = problem.sizes.key_width;
        (self.first, self.len, self.token) = (first, len, first / problem.sizes.reflections);
        self.queries = Queries::within(first, len, problem.sizes.reflections, problem.erases());
        let count = self.queries.count;
        let [q, k] = problem.queries_and_keys(token, (first, len), head);
        let normalize = problem.normalize;
        let [of_queries, of_keys] = &mut self.factors;
        // SAFETY: rows of the operands, and of workspace.
        unsafe {
            load(isa, width, q, self.rows.view_mut(0, count), of_queries, normalize, problem.scale);
            load(isa, width, k, self.rows.view_mut(count, len), of_keys, normalize, T::ONE);
        }
        if problem.channels() <= 1 {
            let (readers, keys) = (self.rows.view(0, self.queries.rows()), self.rows.view(count, len));
            let (columns, plain) = (self.columns.view_mut(0, width), self.plain.view_mut(0, readers.count));
            // SAFETY: workspace of these rows.
            unsafe {
                turned(isa, (width, len), keys, columns);
                gemm(isa, (len, readers.count), columns.read(), readers, &Store::new(plain));
            }
        }
    }
}

/// Copies rows, each multiplied by `scale` and, if asked, divided by its norm, the inverse of which is kept.
///
/// # Safety
/// The caller owns the rows, and nothing else writes them meanwhile.
unsafe fn load<T: Exponential>(
    isa: InstructionSet,
    width: usize,
    from: StoredRows<'_, T>,
    to: ViewMut<'_, T>,
    factors: &mut [T],
    normalize: bool,
    scale: T,
) {
    from.read(isa, width, to);
    if normalize {
        for (i, factor) in factors.iter_mut().enumerate().take(to.count) {
            let row = to.read().vector(i, width);
            *factor = T::ONE / (dot(isa, row, row) + T::of(EPSILON)).sqrt();
        }
    }
    if normalize || scale != T::ONE {
        scaled(isa, width, factors, scale, to);
    }
}

simd! {
    /// Multiplies row `i` by `factor_i scale`.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn scaled<T: Exponential>(_s, width: usize, factors: &[T], scale: T, rows: ViewMut<'_, T>) -> () {
        for (i, &factor) in factors.iter().enumerate().take(rows.count) {
            let factor = factor * scale;
            // SAFETY: rows of the caller's.
            unsafe { rows.vector_mut(i, width) }.iter_mut().for_each(|x| *x = *x * factor);
        }
    }

    /// `to_i = from_i decay_i`, with a decay of one number or of `width`; `decay` has as many rows as there are to write.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn decay_rows<T: Exponential>(
        _s, width: usize, from: View<'_, T>, decay: View<'_, T>, channels: usize, to: ViewMut<'_, T>,
    ) -> () {
        for i in 0..decay.count {
            // SAFETY: rows of the caller's; where both are one, each number is read before it is written.
            unsafe {
                let (from, to, decay) = (from.at(0, i), to.at(0, i), decay.at(0, i));
                if channels == 1 {
                    let by = *decay;
                    for x in 0..width {
                        *to.add(x) = decayed(*from.add(x), by);
                    }
                } else {
                    for x in 0..width {
                        *to.add(x) = decayed(*from.add(x), *decay.add(x));
                    }
                }
            }
        }
    }
}

/// Rows of a chunk as one value head's gates decay them.
pub struct Decayed<T: Exponential> {
    /// The decays.
    pub decay: Decay<T>,
    /// `Q'` and `K'`; only with a gate for each channel.
    stack: WorkRows<T>,
    /// `H`; only with a gate for each channel.
    to_end: WorkRows<T>,
    /// Rows decayed from and to the second block's first row; only with a gate for each channel.
    pub near: WorkRows<T>,
    near_columns: WorkRows<T>,
    /// `exp(c_i - c_j)`; not with a gate for each channel.
    pub pairs: WorkRows<T>,
    /// Decayed products with the keys: `P` for queries, `M` for keys that erase.
    pub table: WorkRows<T>,
    workspace: Vec<T>,
}

impl<T: Exponential> Decayed<T> {
    pub fn new(problem: &Problem<'_, T>) -> Result<Self> {
        let (width, channels) = (problem.sizes.key_width, problem.channels());
        let by_channel = usize::from(channels > 1);
        Ok(Self {
            decay: Decay::new(problem)?,
            stack: WorkRows::scratch(by_channel * 2 * CHUNK, width)?,
            to_end: WorkRows::scratch(by_channel * CHUNK, width)?,
            near: WorkRows::scratch(by_channel * 2 * CHUNK, width)?,
            near_columns: WorkRows::scratch(by_channel * width, BLOCK)?,
            pairs: WorkRows::scratch((1 - by_channel) * CHUNK, CHUNK)?,
            table: WorkRows::scratch(2 * CHUNK, CHUNK)?,
            workspace: filled(width, T::ZERO)?,
        })
    }

    /// Decays the chunk in `keys`. `token` is the first token of its sequence.
    pub fn form(
        &mut self,
        isa: InstructionSet,
        problem: &Problem<'_, T>,
        keys: &Keys<T>,
        token: usize,
        head: usize,
    ) -> Result<()> {
        self.decay.form(isa, problem, token, (keys.first, keys.len), head)?;
        // SAFETY: workspace for a chunk of these widths.
        unsafe { self.pairs(isa, problem.sizes.key_width, keys) };
        Ok(())
    }

    /// Decays rows and products of pairs.
    ///
    /// # Safety
    /// `keys` has been loaded, and rows have `width` numbers.
    unsafe fn pairs(&mut self, isa: InstructionSet, width: usize, keys: &Keys<T>) {
        let (channels, len, queries) = (self.decay.width, keys.len, keys.queries);
        let (readers, of_chunk) = (keys.readers(), keys.keys());
        let (count, table) = (readers.count, self.table.view_mut(0, readers.count));
        if channels <= 1 {
            let step = if channels == 0 { View::none() } else { self.decay.step.view(0, len) };
            let pairs = self.pairs.view_mut(0, len);
            decays(isa, len, step, pairs);
            decay_products(isa, len, queries, keys.plain.view(0, count), pairs.read(), table);
            return;
        }
        let [of_queries, of_keys] = self.decay.start_decays(keys);
        let (stack, of_erasing) = (self.stack.view_mut(0, count), of_keys.part(0, queries.erasing));
        decay_rows(isa, width, readers, of_queries, channels, stack);
        decay_rows(isa, width, of_chunk, of_erasing, channels, stack.from(0, queries.count));
        decay_rows(isa, width, of_chunk, self.decay.to_end.view(0, len), channels, self.to_end.view_mut(0, len));
        within_blocks(isa, width, len, queries, readers, self.decay.step.view(0, len), &mut self.workspace, table);
        if len > BLOCK {
            let [of_queries, of_keys] = self.decay.middle_decays(keys);
            let (near, second) = (self.near.all_mut(), queries.before(BLOCK));
            let (near_keys, of_keys) =
                (near.part(queries.count, queries.count + BLOCK), of_keys.part(0, BLOCK.max(queries.erasing)));
            decay_rows(isa, width, readers.from(0, second), of_queries, channels, near.from(0, second));
            decay_rows(isa, width, of_chunk, of_keys, channels, near_keys);
            let columns = self.near_columns.view_mut(0, width);
            turned(isa, (width, BLOCK), near_keys.read(), columns);
            for (begin, end) in keys.second_block() {
                let out = Store::new(table.part(begin, end));
                gemm(isa, (BLOCK, end - begin), columns.read(), near.read().part(begin, end), &out);
            }
        }
    }

    /// One decay a row of `Q'` and of `K'`, which multiplies products of these rows. Absent without gates, and where each
    /// channel has its own.
    pub fn start_factors(&self, keys: &Keys<T>) -> [View<'_, T>; 2] {
        if self.decay.width == 1 { self.decay.start_decays(keys) } else { [View::none(); 2] }
    }

    /// The same for the rows of `H`.
    pub fn end_factors(&self, keys: &Keys<T>) -> View<'_, T> {
        if self.decay.width == 1 { self.decay.to_end.view(0, keys.len) } else { View::none() }
    }

    /// `Q'`, then `K'` of keys that erase, apart from the [`Self::start_factors`].
    pub fn stack<'a>(&'a self, keys: &'a Keys<T>) -> View<'a, T> {
        if self.decay.width > 1 { &self.stack } else { &keys.rows }.view(0, keys.queries.rows())
    }

    /// `H`, apart from the [`Self::end_factors`].
    pub fn to_end<'a>(&'a self, keys: &'a Keys<T>) -> View<'a, T> {
        if self.decay.width > 1 { self.to_end.view(0, keys.len) } else { keys.keys() }
    }
}

/// The rows at the queries from `first` on.
fn at_queries<T>(rows: View<'_, T>, queries: Queries, first: usize) -> View<'_, T> {
    let count = queries.count - first;
    let begin = if count > 0 { queries.position(first) } else { 0 };
    View { ld: rows.ld * queries.every, count, ..rows.from(0, begin) }
}

/// What a value head's gates do to a chunk. Rows are one number wide, or a channel each; none without gates.
pub struct Decay<T: Exponential> {
    /// `exp g_i`.
    pub step: WorkRows<T>,
    /// `exp c_i`, from before the chunk's first step to after step `i`.
    pub from_start: WorkRows<T>,
    /// `exp(c_end - c_i)`, from after step `i` to after the last.
    pub to_end: WorkRows<T>,
    /// `exp(c_i - c_m)` for `i >= m`, `exp(c_m - c_i)` for `i < m`, with `m` the first row of the second block.
    pub middle: WorkRows<T>,
    /// Width of the rows.
    pub width: usize,
}

impl<T: Exponential> Decay<T> {
    pub fn new(problem: &Problem<'_, T>) -> Result<Self> {
        let width = problem.channels();
        let rows = || WorkRows::scratch(CHUNK, width);
        Ok(Self { step: rows()?, from_start: rows()?, to_end: rows()?, middle: rows()?, width })
    }

    /// Decays from the chunk's beginning, of queries and of keys.
    pub fn start_decays(&self, keys: &Keys<T>) -> [View<'_, T>; 2] {
        let rows = self.from_start.view(0, keys.len);
        [at_queries(rows, keys.queries, 0), rows]
    }

    /// Decays from and to the second block's first row, of the queries in the second block and of keys.
    pub fn middle_decays(&self, keys: &Keys<T>) -> [View<'_, T>; 2] {
        let rows = self.middle.view(0, keys.len);
        [at_queries(rows, keys.queries, keys.queries.before(BLOCK)), rows]
    }

    /// Computes the decays of `len` steps of a value head from step `first` on. `token` is the sequence's first token. A
    /// positive gate is an error.
    pub fn form(
        &mut self,
        isa: InstructionSet,
        problem: &Problem<'_, T>,
        token: usize,
        (first, len): (usize, usize),
        head: usize,
    ) -> Result<()> {
        let Some(gate) = problem.gate.numbers() else { return Ok(()) };
        let (width, reflections) = (self.width, problem.sizes.reflections);
        let at = |i: usize| (token + (first + i) / reflections) * problem.sizes.value_heads + head;
        let begins = |i: usize| (first + i).is_multiple_of(reflections);
        if width == 1 {
            let (mut gates, mut decays) = ([T::ZERO; CHUNK], [T::ONE; CHUNK]);
            (0..len).filter(|&i| begins(i)).for_each(|i| gates[i] = gate[at(i)]);
            exponentials(isa, problem, &gates[..len], &mut decays[..len])?;
            (0..len).for_each(|i| self.step.row_mut(i)[0] = decays[i]);
        } else {
            for i in 0..len {
                let row = self.step.row_mut(i);
                if begins(i) {
                    exponentials(isa, problem, &gate[at(i) * width..][..width], row)?;
                } else {
                    row.fill(T::ONE);
                }
            }
        }
        self.from_start.row_mut(0).copy_from_slice(self.step.row(0));
        self.to_end.row_mut(len - 1).fill(T::ONE);
        let step = self.step.view(0, len);
        // SAFETY: workspace of these rows.
        unsafe {
            forwards(isa, width, step, self.from_start.view_mut(0, len));
            backwards(isa, width, step, self.to_end.view_mut(0, len));
        }
        if width > 1 && len > BLOCK {
            self.middle.row_mut(BLOCK).fill(T::ONE);
            // SAFETY: as above.
            unsafe {
                forwards(isa, width, step.part(BLOCK, len), self.middle.view_mut(BLOCK, len - BLOCK));
                backwards(isa, width, step.part(0, BLOCK + 1), self.middle.view_mut(0, BLOCK + 1));
            }
        }
        Ok(())
    }
}

/// `out = exp g`, at most one.
pub fn exponentials<T: Exponential>(
    isa: InstructionSet,
    problem: &Problem<'_, T>,
    g: &[T],
    out: &mut [T],
) -> Result<()> {
    if exp_and_signs(isa, g, out) { Ok(()) } else { Err(problem.positive_gate()) }
}

simd! {
    /// `out = exp g`; whether no gate is positive.
    fn exp_and_signs<T: Exponential>(s, g: &[T], out: &mut [T]) -> bool {
        let mut positive = false;
        for (out, &g) in out.iter_mut().zip(g) {
            *out = g.exp(s);
            positive |= g > T::ZERO;
        }
        !positive
    }

    /// Row `i` of `out` becomes row `i - 1` of it times step `i`; the first row is there.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn forwards<T: Exponential>(_s, width: usize, step: View<'_, T>, out: ViewMut<'_, T>) -> () {
        for i in 1..out.count {
            // SAFETY: rows of workspace, the written one is none of those that are read.
            let (by, from, to) =
                unsafe { (step.vector(i, width), out.read().vector(i - 1, width), out.vector_mut(i, width)) };
            for x in 0..width {
                to[x] = longer(from[x], by[x]);
            }
        }
    }

    /// Row `i` of `out` becomes row `i + 1` of it times step `i + 1`; the last row is there.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn backwards<T: Exponential>(_s, width: usize, step: View<'_, T>, out: ViewMut<'_, T>) -> () {
        for i in (1..out.count).rev() {
            // SAFETY: as above.
            let (by, from, to) =
                unsafe { (step.vector(i, width), out.read().vector(i, width), out.vector_mut(i - 1, width)) };
            for x in 0..width {
                to[x] = longer(from[x], by[x]);
            }
        }
    }
}
