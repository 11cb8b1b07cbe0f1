//! The sizes and arrays of a call, with all their checks, and the tasks it is cut into.

use std::ops::{Deref, Range};

use crate::arrays::lengths::{self, flops, require};
use crate::arrays::stored::{NumbersMut, StoredRows, StoredRowsMut, Tokens};
use crate::arrays::view::{View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::collected;
use crate::numbers::exponential::Exponential;

/// Steps of a chunk. More steps cost arithmetic within the chunk; fewer steps move the state through memory more often.
pub const CHUNK: usize = 32;
/// Rows of a block of a chunk: pairs within it are decayed one by one where each channel has a gate.
pub const BLOCK: usize = 16;

/// Heads and widths.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Heads of queries and keys.
    pub heads: usize,
    /// Heads of values, gates and states: a multiple of `heads`. Consecutive ones share a key head.
    pub value_heads: usize,
    /// Width of queries and keys.
    pub key_width: usize,
    /// Width of values.
    pub value_width: usize,
    /// Keys, values and, where there are any, betas of a token.
    pub reflections: usize,
}

/// `g`, of each token.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Gate<'a, T> {
    /// Zero.
    None,
    /// One a value head.
    Head(&'a [T]),
    /// One for each row of the state.
    Channel(&'a [T]),
}

impl<'a, T> Gate<'a, T> {
    /// All gates, if there are any.
    pub(super) fn numbers(&self) -> Option<&'a [T]> {
        match self {
            Self::None => None,
            Self::Head(gates) | Self::Channel(gates) => Some(gates),
        }
    }

    /// How many a token and value head has.
    fn channels(&self, key_width: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Head(_) => 1,
            Self::Channel(_) => key_width,
        }
    }
}

/// Sequences of tokens, one after the other. The arrays are row-major and contiguous, but rows of [`Tokens`] may be anywhere
/// and have 16 bits a number. [`Operands::new`] has the defaults:
/// `Operands { gate: Gate::Head(&g), ..Operands::new(sizes, &q, &k, &v, &beta) }`.
#[derive(Clone, Debug)]
pub struct Operands<'a, T> {
    /// Heads and widths.
    pub sizes: Sizes,
    /// The tokens of each sequence.
    pub sequences: Vec<Range<usize>>,
    /// `(tokens, heads, key_width)`.
    pub q: Tokens<'a, T>,
    /// `(tokens * reflections, heads, key_width)`.
    pub k: Tokens<'a, T>,
    /// `(tokens * reflections, value_heads, value_width)`.
    pub v: Tokens<'a, T>,
    /// `(tokens * reflections, value_heads)`; absent: ones, and nothing is erased.
    pub beta: Option<&'a [T]>,
    /// Factors of the values that are added to the outputs, `(value_heads)`; only with one step a token. If given, nothing is
    /// erased: steps write `b_t k_t v_t'`.
    pub skip: Option<&'a [T]>,
    /// `(tokens, value_heads)` or `(tokens, value_heads, key_width)`.
    pub gate: Gate<'a, T>,
    /// `(sequences, value_heads, key_width, value_width)`; absent: zeros.
    pub initial: Option<&'a [T]>,
    /// Factor of the queries.
    pub scale: T,
    /// Whether queries and keys are divided by `sqrt(sum x^2 + 1e-6)`.
    pub normalize: bool,
}

/// Operands that fit together.
#[derive(Debug)]
pub struct Problem<'a, T>(Operands<'a, T>);

impl<'a, T> Deref for Problem<'a, T> {
    type Target = Operands<'a, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Numbers in the arrays of a problem, apart from those that are gradients, which are like their operands.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Outputs.
    pub out: usize,
    /// Final states.
    pub last: usize,
    /// States that the forward pass saves for the backward pass. An array of them may be longer.
    pub saved: usize,
}

/// Steps between two states that the forward pass saves.
pub fn interval(key_width: usize, value_width: usize) -> Result<usize> {
    let sizes = Sizes { heads: 1, value_heads: 1, key_width, value_width, reflections: 1 };
    sizes.check().map(|()| sizes.interval())
}

/// The number of numbers of an array of this shape.
fn product(name: &'static str, shape: &[usize]) -> Result<usize> {
    let fits = |count: &usize| count.checked_mul(size_of::<f64>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    lengths::product(shape).filter(fits).ok_or_else(|| Error::Shape { name, shape: shape.to_vec() })
}

/// Checks the length of an array that may be absent.
pub(super) fn expect<T>(name: &'static str, array: Option<&[T]>, expected: usize) -> Result<()> {
    require(1, &[(name, array.map(<[T]>::len), &[expected])])
}

/// Checks an array of `each` rows a token.
pub(super) fn expect_rows<T>(
    name: &'static str,
    array: &mut Tokens<'_, T>,
    sequences: &[Range<usize>],
    shape: [usize; 3],
    each: usize,
) -> Result<()> {
    array.expect(name, shape)?;
    array.expect_even(name, sequences.iter().map(|sequence| sequence.start * each..sequence.end * each))
}

impl Sizes {
    /// As many heads of values as of keys, and one reflection a token.
    pub fn new(heads: usize, key_width: usize, value_width: usize) -> Self {
        Self { heads, value_heads: heads, key_width, value_width, reflections: 1 }
    }

    fn check(&self) -> Result<()> {
        let Sizes { heads, value_heads, key_width, value_width, reflections } = *self;
        if [heads, value_heads, key_width, value_width, reflections].contains(&0) || !value_heads.is_multiple_of(heads)
        {
            let found = format!("{self:?}");
            return Err(Error::value("sizes", "positive ones and value heads a multiple of heads", found));
        }
        product("a state", &[value_heads, key_width, value_width])?;
        product("a chunk of keys", &[CHUNK, heads, key_width])?;
        product("a chunk of values", &[CHUNK, value_heads, value_width])?;
        Ok(())
    }

    /// Value heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.value_heads / self.heads
    }

    /// Numbers of one state.
    pub(super) fn state(&self) -> usize {
        self.key_width * self.value_width
    }

    /// Chunks between two saved states, so many that the states take no more memory than the keys and values.
    pub(super) fn segment(&self) -> usize {
        self.state().div_ceil((self.key_width + self.value_width) * CHUNK).next_power_of_two()
    }

    /// Steps between two saved states.
    pub(super) fn interval(&self) -> usize {
        self.segment() * CHUNK
    }
}

impl<'a, T: Exponential> Operands<'a, T> {
    /// One sequence of all tokens, without gates, from a state of zeros, with queries divided by `sqrt(key_width)`. Set `beta`
    /// to None for linear attention.
    pub fn new(
        sizes: Sizes,
        q: impl Into<Tokens<'a, T>>,
        k: impl Into<Tokens<'a, T>>,
        v: impl Into<Tokens<'a, T>>,
        beta: &'a [T],
    ) -> Self {
        let q = q.into();
        let numbers = q.len().unwrap_or(usize::MAX); // which `Problem::new` refuses
        let tokens = numbers.checked_div(sizes.heads.saturating_mul(sizes.key_width)).unwrap_or(0);
        Self {
            sizes,
            sequences: std::iter::once(0..tokens).collect(),
            q,
            k: k.into(),
            v: v.into(),
            beta: Some(beta),
            skip: None,
            gate: Gate::None,
            initial: None,
            scale: T::of((sizes.key_width as f64).sqrt().recip()),
            normalize: false,
        }
    }
}

impl<'a, T: Exponential> Problem<'a, T> {
    /// Checks that the operands fit together.
    pub fn new(mut operands: Operands<'a, T>) -> Result<Self> {
        let Operands { ref sizes, ref sequences, ref mut q, ref mut k, ref mut v, beta, gate, initial, skip, .. } =
            operands;
        sizes.check()?;
        let Sizes { heads, value_heads, key_width, value_width, reflections } = *sizes;
        let mut tokens = 0;
        for sequence in sequences {
            if sequence.start != tokens || sequence.end < tokens {
                let found = format!("{sequence:?} at {tokens}");
                return Err(Error::value("sequences", "each to begin where the last one ends", found));
            }
            tokens = sequence.end;
        }
        let steps = product("a sequence", &[tokens, reflections])?;
        let rows = [
            ("q", q, [tokens, heads, key_width], 1),
            ("k", k, [steps, heads, key_width], reflections),
            ("v", v, [steps, value_heads, value_width], reflections),
        ];
        for (name, array, shape, each) in rows {
            product(name, &shape)?;
            expect_rows(name, array, sequences, shape, each)?;
        }
        expect("beta", beta, product("beta", &[steps, value_heads])?)?;
        expect("g", gate.numbers(), product("g", &[tokens, value_heads, gate.channels(key_width)])?)?;
        let states = product("initial_state", &[sequences.len(), value_heads, key_width, value_width])?;
        expect("initial_state", initial, states)?;
        product("out", &[tokens, value_heads, value_width])?;
        expect("skip", skip, value_heads)?;
        if skip.is_some() && reflections > 1 {
            return Err(Error::value("skip", "one step a token", reflections));
        }
        let problem = Self(operands);
        product("saved", &[problem.saved_states(), value_heads, key_width, value_width])?;
        Ok(problem)
    }

    /// Whether keys erase.
    pub(super) fn erases(&self) -> bool {
        self.beta.is_some() && self.skip.is_none()
    }

    /// Numbers in arrays of results.
    pub fn lengths(&self) -> Lengths {
        let Sizes { value_heads, value_width, .. } = self.sizes;
        let state = value_heads * self.sizes.state();
        Lengths {
            out: self.tokens() * value_heads * value_width,
            last: self.sequences.len() * state,
            saved: self.saved_states() * state,
        }
    }

    /// Says which gate is positive.
    pub(super) fn positive_gate(&self) -> Error {
        let mut gates = self.gate.numbers().into_iter().flatten();
        let found = gates.find(|&&gate| gate > T::ZERO).map_or(f64::NAN, |gate| gate.to_f64());
        Error::value("g", "logarithms of decays, which are at most 0", found)
    }

    /// Gates of a token and value head: none, one, or one for each row of the state.
    pub(super) fn channels(&self) -> usize {
        self.gate.channels(self.sizes.key_width)
    }

    /// Tokens of all sequences.
    pub(super) fn tokens(&self) -> usize {
        self.sequences.last().map_or(0, |last| last.end)
    }

    /// Saved states of all sequences, each of all heads. There are no more than steps.
    fn saved_states(&self) -> usize {
        self.sequences.iter().map(|sequence| self.kept_of(sequence)).sum()
    }

    /// Saved states of a sequence, each of all heads.
    fn kept_of(&self, sequence: &Range<usize>) -> usize {
        (sequence.len() * self.sizes.reflections).saturating_sub(1) / self.sizes.interval()
    }

    /// Where the saved states of each sequence begin, counted in states of all heads.
    pub(super) fn saved_from(&self) -> Vec<usize> {
        let counts = self.sequences.iter().map(|sequence| self.kept_of(sequence));
        counts.scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect()
    }

    /// Multiplications and additions of the forward pass.
    pub(super) fn flops(&self) -> usize {
        let Sizes { value_heads, key_width, value_width, reflections, .. } = self.sizes;
        let passes = if self.erases() { 6 } else { 4 };
        let each = flops(&[passes, key_width, value_width]).saturating_add(2 * CHUNK * (2 * key_width + value_width));
        flops(&[self.tokens(), reflections, value_heads, each])
    }

    /// Steps of a sequence.
    pub(super) fn steps(&self, sequence: usize) -> usize {
        self.sequences[sequence].len() * self.sizes.reflections
    }

    /// Rows of queries and of keys of `len` steps from step `first` of a sequence on, whose first token is `token`.
    pub(super) fn queries_and_keys(
        &self,
        token: usize,
        (first, len): (usize, usize),
        head: usize,
    ) -> [StoredRows<'a, T>; 2] {
        let reflections = self.sizes.reflections;
        let begin = first / reflections;
        let queries = (first + len) / reflections - begin;
        [self.q.rows((token + begin, queries), head), self.k.rows((token * reflections + first, len), head)]
    }

    /// `count` rows of one head, from row `first` on, of an array with several heads per row, given as one vector.
    pub(super) fn rows_of(
        array: ViewMut<'_, T>,
        (first, count): (usize, usize),
        heads: usize,
        head: usize,
        width: usize,
    ) -> ViewMut<'_, T> {
        ViewMut { ld: heads * width, count, ..array.from((first * heads + head) * width, 0) }
    }

    /// Rows of the values of `len` steps from step `first` of a sequence on, from a column on.
    pub(super) fn values(
        &self,
        token: usize,
        (first, len): (usize, usize),
        head: usize,
        column: usize,
    ) -> StoredRows<'a, T> {
        self.v.rows((token * self.sizes.reflections + first, len), head).part(0, len, column)
    }

    /// The first of the rows of an array like the outputs or the values, each of all heads.
    pub(super) fn values_in<'r>(&self, array: Option<NumbersMut<'r, T>>) -> StoredRowsMut<'r, T> {
        let width = self.sizes.value_heads * self.sizes.value_width;
        array.map_or_else(StoredRowsMut::none, |array| array.rows(width))
    }

    /// `count` rows of one head in such an array, from row `first` and from a column on.
    pub(super) fn values_of<'r>(
        &self,
        array: StoredRowsMut<'r, T>,
        (first, count): (usize, usize),
        head: usize,
        column: usize,
    ) -> StoredRowsMut<'r, T> {
        if array.is_none() { array } else { array.part(first, count, head * self.sizes.value_width + column) }
    }

    /// All rows of an array of states of all heads.
    pub(super) fn states<'s>(&self, array: &'s [T]) -> View<'s, T> {
        let width = self.sizes.value_width;
        View::of(array, width, array.len() / width)
    }

    /// All rows of an array of states of all heads, to be written.
    pub(super) fn states_mut<'s>(&self, array: &'s mut [T]) -> ViewMut<'s, T> {
        let (width, len) = (self.sizes.value_width, array.len());
        ViewMut::of(array, width, len / width)
    }

    /// A state in such rows, from a column on.
    pub(super) fn state_in<'s>(&self, rows: View<'s, T>, number: usize, head: usize, column: usize) -> View<'s, T> {
        let Range { start, end } = self.rows_of_state(number, head);
        rows.part(start, end).from(column, 0)
    }

    /// A state in such rows, from a column on, to be written.
    pub(super) fn state_in_mut<'s>(
        &self,
        rows: ViewMut<'s, T>,
        number: usize,
        head: usize,
        column: usize,
    ) -> ViewMut<'s, T> {
        let Range { start, end } = self.rows_of_state(number, head);
        rows.part(start, end).from(column, 0)
    }

    fn rows_of_state(&self, number: usize, head: usize) -> Range<usize> {
        let (first, height) = (number * self.sizes.value_heads + head, self.sizes.key_width);
        first * height..(first + 1) * height
    }
}

/// What the forward pass may write.
#[derive(Debug, Default)]
pub struct Results<'a, T> {
    /// `(tokens, value_heads, value_width)`.
    pub out: Option<NumbersMut<'a, T>>,
    /// `(sequences, value_heads, key_width, value_width)`, the states in which sequences end.
    pub last: Option<&'a mut [T]>,
    /// Whether `last` holds the states in which sequences begin. Then the operands have none.
    pub in_place: bool,
    /// `(saved, value_heads, key_width, value_width)`, for the backward pass. It may be longer than [`Lengths::saved`].
    pub saved: Option<&'a mut [T]>,
}

impl<T: Exponential> Results<'_, T> {
    /// Checks their lengths.
    pub(super) fn check(&self, problem: &Problem<'_, T>) -> Result<()> {
        let Lengths { out, last, saved } = problem.lengths();
        require(1, &[("out", self.out.as_ref().map(NumbersMut::len), &[out])])?;
        expect("last", self.last.as_deref(), last)?;
        if self.in_place && (self.last.is_none() || problem.initial.is_some()) {
            return Err(Error::unlike("last", "the initial states there, and nowhere else"));
        }
        check_saved(self.saved.as_deref(), saved)
    }
}

/// Checks that there is room for all saved states.
pub fn check_saved<T>(array: Option<&[T]>, needed: usize) -> Result<()> {
    match array {
        Some(array) if array.len() < needed => Err(Error::Short { name: "saved", needed, found: array.len() }),
        _ => Ok(()),
    }
}

/// Where sequences begin, and where tasks write, each its own heads and columns.
#[derive(Clone, Copy)]
pub struct Places<'a, T> {
    /// The initial states.
    pub initial: Option<View<'a, T>>,
    /// As in [`Results`].
    pub out: StoredRowsMut<'a, T>,
    /// As in [`Results`].
    pub last: Option<ViewMut<'a, T>>,
    /// As in [`Results`].
    pub saved: Option<ViewMut<'a, T>>,
}

impl<'a, T: Exponential> Places<'a, T> {
    pub fn of(problem: &Problem<'a, T>, results: Results<'a, T>) -> Self {
        let last = results.last.map(|states| problem.states_mut(states));
        let given = problem.initial.map(|states| problem.states(states));
        Self {
            initial: if results.in_place { last.map(ViewMut::read) } else { given },
            out: problem.values_in(results.out),
            last,
            saved: results.saved.map(|states| problem.states_mut(states)),
        }
    }
}

/// Gradients of the results; absent ones are zero.
#[derive(Clone, Copy, Debug)]
pub struct Cotangents<'a, T> {
    /// Like the outputs.
    pub out: Option<Tokens<'a, T>>,
    /// Like the final states.
    pub last: Option<&'a [T]>,
}

/// Gradients of the operands, those that are needed.
#[derive(Debug, Default)]
pub struct Gradients<'a, T> {
    /// Like `q`.
    pub q: Option<&'a mut [T]>,
    /// Like `k`.
    pub k: Option<&'a mut [T]>,
    /// Like `v`.
    pub v: Option<NumbersMut<'a, T>>,
    /// Like `beta`.
    pub beta: Option<&'a mut [T]>,
    /// Like `skip`.
    pub skip: Option<&'a mut [T]>,
    /// Like the gates.
    pub gate: Option<&'a mut [T]>,
    /// Like the initial states.
    pub initial: Option<&'a mut [T]>,
}

impl<T: Exponential> Gradients<'_, T> {
    /// Checks that each is like its operand.
    pub(super) fn check(&self, problem: &Problem<'_, T>) -> Result<()> {
        let len = |array: &Option<&mut [T]>| array.as_ref().map(|array| array.len());
        let of = |operand: Option<&[T]>| [operand.map_or(0, <[T]>::len)];
        require(
            1,
            &[
                ("grad_q", len(&self.q), &[problem.q.count()]),
                ("grad_k", len(&self.k), &[problem.k.count()]),
                ("grad_v", self.v.as_ref().map(NumbersMut::len), &[problem.v.count()]),
                ("grad_beta", len(&self.beta), &of(problem.beta)),
                ("grad_skip", len(&self.skip), &of(problem.skip)),
                ("grad_g", len(&self.gate), &of(problem.gate.numbers())),
                ("grad_initial_state", len(&self.initial), &[problem.lengths().last]),
            ],
        )
    }
}

/// Unit of parallel work: a sequence, value heads of one key head, and columns of their states.
#[derive(Clone, Debug)]
pub struct TaskPart {
    /// Number of the sequence.
    pub sequence: usize,
    /// The key head.
    pub key_head: usize,
    /// Its value heads.
    pub heads: Range<usize>,
    /// Columns of the states.
    pub columns: Range<usize>,
}

impl TaskPart {
    /// Parts of all sequences, at least `wanted` if possible: at most `most` value heads of a key head, else one head, else
    /// `slice` columns of one. The larger parts share what they compute from queries and keys.
    pub fn all(sizes: &Sizes, sequences: usize, wanted: usize, most: usize, slice: usize) -> Result<Vec<Self>> {
        let group = sizes.group();
        let shared = (1..=group.min(most)).rfind(|heads| group.is_multiple_of(*heads)).unwrap_or(1);
        let whole = 0..sizes.value_width;
        let parts = |heads: usize, slices: Vec<Range<usize>>| {
            let count = sequences * (sizes.value_heads / heads) * slices.len();
            collected((0..count).map(|i| {
                let (columns, i) = (slices[i % slices.len()].clone(), i / slices.len());
                let (first, sequence) = (i % (sizes.value_heads / heads) * heads, i / (sizes.value_heads / heads));
                Self { sequence, key_head: first / group, heads: first..first + heads, columns }
            }))
        };
        if sequences * (sizes.value_heads / shared) >= wanted {
            parts(shared, vec![whole])
        } else if sequences * sizes.value_heads >= wanted {
            parts(1, vec![whole])
        } else {
            parts(1, slices(whole, slice)?)
        }
    }

    /// The columns of all heads in slices.
    pub fn stripes(&self, slice: usize) -> Result<Vec<Self>> {
        let slices = slices(self.columns.clone(), slice)?;
        let count = self.heads.len() * slices.len();
        collected((0..count).map(|i| {
            let (head, columns) = (self.heads.start + i / slices.len(), slices[i % slices.len()].clone());
            Self { heads: head..head + 1, columns, ..*self }
        }))
    }
}

/// `columns` in pieces of `slice`.
fn slices(columns: Range<usize>, slice: usize) -> Result<Vec<Range<usize>>> {
    let end = columns.end;
    collected(columns.step_by(slice).map(|begin| begin..end.min(begin + slice)))
}
