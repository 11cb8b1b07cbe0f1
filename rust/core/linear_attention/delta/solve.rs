//! What a chunk adds to some columns of the state: `D = diag(b) E` with `E = V - K' S - M D` or, if nothing is erased, `E = V`.
//!
//! In products over the pairs of a chunk nothing of a row reaches the rows that do not depend on it. The matrices of pairs are
//! triangular, and products take their zeros along: a zero times infinity or NaN would be NaN. So rows that are not finite
//! enter a product as zeros. What they contribute is added to the rows that depend on them.

use super::chunk::{Decayed, Keys, decay_rows};
use super::problem::{CHUNK, Places, Problem, TaskPart};
use crate::arrays::stored::StoredRowsMut;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::element::sum_of_lanes;
use crate::simd::epilogue::Store;
use crate::simd::fetch::Fetch;
use crate::simd::gemm::gemm;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::lanes::Lanes;

/// The systems of a chunk, solved.
pub struct Solved<T: Exponential> {
    /// `Q' S`, then `K' S` of keys that erase, apart from [`Decayed::start_factors`].
    y: WorkRows<T>,
    /// `V` with betas that erase nothing.
    e: WorkRows<T>,
    d: WorkRows<T>,
    /// `D` times [`Decayed::end_factors`].
    written: WorkRows<T>,
    finite: Finite<T>,
    beta: [T; CHUNK],
    betas: usize,
    width: usize,
}

impl<T: Exponential> Solved<T> {
    pub fn new(width: usize) -> Result<Self> {
        let [y, e, d, written] = [2 * CHUNK, CHUNK, CHUNK, CHUNK].map(|rows| WorkRows::scratch(rows, width));
        let (finite, beta) = (Finite::new(width)?, [T::ZERO; CHUNK]);
        Ok(Self { y: y?, e: e?, d: d?, written: written?, finite, beta, betas: 0, width })
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
        part: &TaskPart,
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
        let count = keys.queries.rows() - begin;
        // SAFETY: rows of the values and of workspace.
        unsafe {
            let out = Store::new(self.y.view_mut(begin, count));
            gemm(isa, (self.width, count), state.view(), decayed.stack(keys).from(0, begin), &out);
            let (e, d) = (self.e.view_mut(0, len), self.d.view_mut(0, len));
            if let Some(betas) = problem.beta {
                v.read(isa, self.width, e);
                self.betas = len;
                let (beta, of_tokens) = (&mut self.beta[..len], &betas[first * heads + head..]);
                beta.iter_mut().zip(of_tokens.iter().step_by(heads)).for_each(|(to, beta)| *to = *beta);
                if problem.erases() {
                    let (m, other) = (decayed.table.view(queries, len), self.y.view(queries, len));
                    let [_, factor] = decayed.start_factors(keys);
                    sweep(isa, self.width, len, Sweep { m, beta, rhs: e.read(), other, factor, e, x: d });
                } else {
                    decay_rows(isa, self.width, e.read(), View::of(beta, 1, len), 1, d);
                }
            } else {
                v.read(isa, self.width, d);
            }
            decay_rows(isa, self.width, d.read(), decayed.end_factors(keys), 1, self.written.view_mut(0, len));
        }
    }

    /// `O = Q' S + P D`, and the values times `skip`, written to rows. It takes the place of `Q' S`.
    ///
    /// # Safety
    /// The caller owns a row for each query of the chunk.
    pub unsafe fn outputs(
        &mut self,
        isa: InstructionSet,
        (keys, decayed): (&Keys<T>, &Decayed<T>),
        skip: Option<T>,
        (out, fetch): (StoredRowsMut<'_, T>, Fetch<T>),
    ) {
        let (queries, width) = (keys.queries, self.width);
        let (p, y) = (decayed.table.view(0, queries.count), self.y.view_mut(0, queries.count));
        let terms = self.finite.terms(isa, width, self.d.view(0, keys.len));
        let [factor, _] = decayed.start_factors(keys);
        let store = Store { fetch, ..Store::plus_scaled(y, y.read(), factor) };
        gemm(isa, (width, queries.count), terms.finite, p, &store);
        terms.add_others(width, p, y, |query, key| key <= queries.position(query));
        if let Some(by) = skip {
            let values = if self.betas > 0 { &self.e } else { &self.d };
            add_rows(isa, width, values.view(0, keys.len), by, y);
        }
        out.write(isa, width, y.read());
    }

    /// `D`.
    pub fn d(&self, keys: &Keys<T>) -> View<'_, T> {
        self.d.view(0, keys.len)
    }

    /// `D` times [`Decayed::end_factors`], which [`Decayed::to_end`] lacks.
    pub fn written(&self, keys: &Keys<T>, decayed: &Decayed<T>) -> View<'_, T> {
        if decayed.decay.width == 1 { self.written.view(0, keys.len) } else { self.d(keys) }
    }

    /// `E` where keys erase, else `V`.
    pub fn values(&self, keys: &Keys<T>) -> View<'_, T> {
        if self.betas > 0 { self.e.view(0, keys.len) } else { self.d(keys) }
    }

    /// Betas of the chunk, if there are any.
    pub fn beta(&self) -> &[T] {
        &self.beta[..self.betas]
    }
}

/// `S`, or its gradient.
pub struct State<T: Exponential> {
    /// One for each channel of the keys.
    pub rows: WorkRows<T>,
    shape: (usize, usize),
}

impl<T: Exponential> State<T> {
    /// So many columns, to be written before they are read.
    pub fn new(problem: &Problem<'_, T>, columns: usize) -> Result<Self> {
        let height = problem.sizes.key_width;
        Ok(Self { rows: WorkRows::scratch(height, columns)?, shape: (height, columns) })
    }

    /// The state in which a part's sequence begins.
    pub fn initial(problem: &Problem<'_, T>, part: &TaskPart, places: &Places<'_, T>, head: usize) -> Result<Self> {
        let mut state = Self::new(problem, part.columns.len())?;
        let from = places.initial.map(|states| problem.state_in(states, part.sequence, head, part.columns.start));
        // SAFETY: the array has a state for each sequence and head, which only this task may write.
        unsafe { state.read(from) };
        Ok(state)
    }

    /// Uses `columns` columns, at most as many as it was made for.
    pub fn narrow(&mut self, columns: usize) {
        self.shape.1 = columns;
    }

    /// All rows.
    pub fn view(&self) -> View<'_, T> {
        self.rows.view(0, self.shape.0)
    }

    /// All rows, to be written.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        self.rows.view_mut(0, self.shape.0)
    }

    /// Takes the numbers of an array, or zeros.
    ///
    /// # Safety
    /// The array has a state there, which nothing writes meanwhile.
    pub unsafe fn read(&mut self, from: Option<View<'_, T>>) {
        let columns = self.shape.1;
        match from {
            Some(from) => from.copy_to(self.view_mut(), columns),
            None => self.rows.fill(T::ZERO),
        }
    }

    /// Writes its numbers to `to`, a state in an array.
    ///
    /// # Safety
    /// The array has a state there, which only this task may write.
    pub unsafe fn write(&self, to: ViewMut<'_, T>) {
        self.view().copy_to(to, self.shape.1);
    }

    /// `S = exp(c_end) S + a b'`, for rows of `a`, one number a channel, and of `b`.
    ///
    /// # Safety
    /// The caller owns the rows of `a` and `b`.
    pub unsafe fn advance(
        &mut self,
        isa: InstructionSet,
        keys: &Keys<T>,
        decayed: &Decayed<T>,
        rows: [View<'_, T>; 2],
        fetch: Fetch<T>,
    ) {
        let (columns, state) = (self.shape.1, self.view_mut());
        advance(isa, columns, keys, decayed, rows, state.read(), &Store { fetch, ..Store::new(state) });
    }

    /// [`State::advance`], written to another state.
    ///
    /// # Safety
    /// As of that.
    pub unsafe fn advance_to(
        &self,
        isa: InstructionSet,
        keys: &Keys<T>,
        decayed: &Decayed<T>,
        rows: [View<'_, T>; 2],
        to: &mut Self,
    ) {
        advance(isa, self.shape.1, keys, decayed, rows, self.view(), &Store::new(to.view_mut()));
    }
}

/// `exp(c_end) S + a b'` of so many columns, stored.
///
/// # Safety
/// The caller owns the rows of `a` and `b`, and the states have so many columns.
unsafe fn advance<T: Exponential>(
    isa: InstructionSet,
    columns: usize,
    keys: &Keys<T>,
    decayed: &Decayed<T>,
    [a, b]: [View<'_, T>; 2],
    state: View<'_, T>,
    store: &Store<'_, T>,
) {
    let height = state.count;
    let whole = decayed.decay.from_start.view(keys.len - 1, 1);
    let factor = match decayed.decay.width {
        0 => View::none(),
        1 => View { ld: 0, count: height, ..whole },
        _ => whole.transposed(height),
    };
    gemm(isa, (columns, height), b, a.transposed(height), &Store { add: state, factor, ..*store });
}

/// `e_t = rhs_t - factor_t other_t + sign sum_j m_tj x_j` over the rows before `t`, and `x_t = -sign beta_t e_t`.
#[derive(Clone, Copy)]
pub struct Sweep<'a, T> {
    /// The matrix, of which the entries below the diagonal count.
    pub m: View<'a, T>,
    /// Factors of the rows.
    pub beta: &'a [T],
    /// The right-hand side.
    pub rhs: View<'a, T>,
    /// Subtracted from it; may be absent.
    pub other: View<'a, T>,
    /// Factors of `other`, one a row; absent: ones.
    pub factor: View<'a, T>,
    /// May be `rhs`.
    pub e: ViewMut<'a, T>,
    /// The solution.
    pub x: ViewMut<'a, T>,
}

simd! {
    /// Forward substitution of `width` columns, with `sign` -1: `E = V - K' S - M D`, `D = diag(b) E`.
    ///
    /// # Safety
    /// The views have `len` rows of `width` numbers, `m` of `len`, which the caller owns; there are `len` betas.
    pub unsafe fn sweep<T: Exponential>(s, width: usize, len: usize, system: Sweep<'_, T>) -> () {
        // SAFETY: rows of the caller's, `width` numbers each.
        unsafe { columns::<S, T, false>(s, width, len, system) }
    }

    /// Backward substitution with `M'`, and `sign` 1: `dE = dD - M' (diag(b) dE)`, `x = -diag(b) dE`.
    ///
    /// # Safety
    /// As of [`sweep`].
    pub unsafe fn sweep_back<T: Exponential>(s, width: usize, len: usize, system: Sweep<'_, T>) -> () {
        // SAFETY: as above.
        unsafe { columns::<S, T, true>(s, width, len, system) }
    }
}

#[inline(always)]
unsafe fn columns<S: pulp::Simd, T: Exponential, const BACK: bool>(
    s: S,
    width: usize,
    len: usize,
    system: Sweep<'_, T>,
) {
    const TALL: usize = 4;
    let lanes = T::lanes::<S>();
    let mut begin = 0;
    while begin + TALL * lanes <= width {
        stripe::<S, T, TALL, BACK>(s, begin, Lanes::first(s, lanes), len, system);
        begin += TALL * lanes;
    }
    while begin < width {
        stripe::<S, T, 1, BACK>(s, begin, Lanes::first(s, width - begin), len, system);
        begin += lanes;
    }
}

/// Two rows at a time, which share what they read of the rows before.
#[inline(always)]
unsafe fn stripe<S: pulp::Simd, T: Exponential, const N: usize, const BACK: bool>(
    s: S,
    begin: usize,
    lanes: Lanes<S, T, N>,
    len: usize,
    Sweep { m, beta, rhs, other, factor, e, x }: Sweep<'_, T>,
) {
    let sign = if BACK { T::ONE } else { -T::ONE };
    let at = |i: usize| if BACK { len - 1 - i } else { i };
    let coefficient = |t: usize, j: usize| sign * if BACK { *m.at(t, j) } else { *m.at(j, t) };
    macro_rules! begun {
        ($t:expr) => {{
            let mut sum = lanes.load(rhs.at(begin, $t));
            if !other.ptr.is_null() {
                let other = lanes.load(other.at(begin, $t));
                let by = if factor.ptr.is_null() { T::ONE } else { *factor.at(0, $t) };
                for i in 0..N {
                    sum[i] = T::fma(s, other[i], T::splat(s, -by), sum[i]);
                }
            }
            sum
        }};
    }
    macro_rules! finished {
        ($t:expr, $sum:expr) => {{
            lanes.store(e.at(begin, $t), $sum);
            let factor = T::splat(s, -sign * beta[$t]);
            let mut solution = $sum;
            for i in 0..N {
                solution[i] = T::fma(s, $sum[i], factor, T::splat(s, T::ZERO));
            }
            lanes.store(x.at(begin, $t), solution);
            solution
        }};
    }
    for i in (0..len).step_by(2) {
        let (t, u, both) = (at(i), at((i + 1).min(len - 1)), i + 1 < len);
        let (mut first, mut second) = (begun!(t), begun!(u));
        for j in (0..i).map(at) {
            let before = lanes.load(x.at(begin, j));
            let (a, b) = (T::splat(s, coefficient(t, j)), T::splat(s, coefficient(u, j)));
            for i in 0..N {
                first[i] = T::fma(s, before[i], a, first[i]);
                second[i] = T::fma(s, before[i], b, second[i]);
            }
        }
        let solution = finished!(t, first);
        if both {
            let b = T::splat(s, coefficient(u, t));
            for i in 0..N {
                second[i] = T::fma(s, solution[i], b, second[i]);
            }
            finished!(u, second);
        }
    }
}

/// Room for the finite numbers of the rows of a chunk.
pub struct Finite<T: Exponential> {
    rows: WorkRows<T>,
}

/// Rows of a product, and the same without what is not finite.
#[derive(Clone, Copy)]
pub struct FiniteTerms<'a, T> {
    given: View<'a, T>,
    /// To be multiplied with all coefficients.
    pub finite: View<'a, T>,
}

impl<T: Exponential> Finite<T> {
    /// For rows of up to `width` numbers.
    pub fn new(width: usize) -> Result<Self> {
        Ok(Self { rows: WorkRows::scratch(2 * CHUNK, width)? })
    }

    /// At most two chunks of rows.
    ///
    /// # Safety
    /// The caller owns the rows, `width` numbers each.
    pub unsafe fn terms<'a>(&'a mut self, isa: InstructionSet, width: usize, given: View<'a, T>) -> FiniteTerms<'a, T> {
        if are_finite(isa, width, given) {
            return FiniteTerms { given, finite: given };
        }
        let finite = self.rows.view_mut(0, given.count);
        for i in 0..given.count {
            let (from, to) = (given.vector(i, width), finite.vector_mut(i, width));
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = if is_finite(from) { from } else { T::ZERO });
        }
        FiniteTerms { given, finite: finite.read() }
    }
}

impl<T: Exponential> FiniteTerms<'_, T> {
    /// Adds what is not finite to the rows of `out`: row `j` to row `i` times entry `j` of coefficients `i`, if `depends(i, j)`.
    ///
    /// # Safety
    /// The caller owns the rows, `width` numbers each, and coefficients for all pairs.
    pub unsafe fn add_others(
        self,
        width: usize,
        coefficients: View<'_, T>,
        out: ViewMut<'_, T>,
        depends: impl Fn(usize, usize) -> bool,
    ) {
        if self.finite.ptr == self.given.ptr {
            return;
        }
        for i in 0..out.count {
            for j in (0..self.given.count).filter(|&j| depends(i, j)) {
                let (by, from, to) = (*coefficients.at(j, i), self.given.vector(j, width), out.vector_mut(i, width));
                let others = to.iter_mut().zip(from).filter(|(_, from)| !is_finite(**from));
                others.for_each(|(to, &from)| *to += by * from);
            }
        }
    }
}

fn is_finite<T: Exponential>(x: T) -> bool {
    x * T::ZERO == T::ZERO
}

simd! {
    /// `to_i += by from_i`.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    pub unsafe fn add_rows<T: Exponential>(_s, width: usize, from: View<'_, T>, by: T, to: ViewMut<'_, T>) -> () {
        for i in 0..to.count {
            // SAFETY: different rows of workspace.
            let (from, to) = unsafe { (from.vector(i, width), to.vector_mut(i, width)) };
            for x in 0..width {
                to[x] += by * from[x];
            }
        }
    }

    /// Whether all numbers of the rows are finite.
    ///
    /// # Safety
    /// The caller owns the rows, and nothing else writes them meanwhile.
    unsafe fn are_finite<T: Exponential>(s, width: usize, rows: View<'_, T>) -> bool {
        let lanes = T::lanes::<S>();
        let zero = T::splat(s, T::ZERO);
        let mut sums = [zero; 4];
        for i in 0..rows.count {
            for (part, begin) in (0..width).step_by(lanes).enumerate() {
                // SAFETY: lanes of the caller's rows.
                let [x] = unsafe { Lanes::<S, T, 1>::first(s, width - begin).load(rows.at(begin, i)) };
                sums[part % 4] = T::fma(s, x, zero, sums[part % 4]);
            }
        }
        is_finite(sum_of_lanes::<T, S>(s, T::plus(s, T::plus(s, sums[0], sums[1]), T::plus(s, sums[2], sums[3]))))
    }
}
