//! The sizes and operands of a call.

use std::ops::Range;

use super::number::Exponential;
use crate::error::{Error, Result};
use crate::view::View;

/// Steps of a chunk. More steps cost arithmetic within the chunk; fewer steps move the state through memory more often.
pub const CHUNK: usize = 32;

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
    /// Keys, values and betas of a token.
    pub reflections: usize,
}

/// `g`, of each token.
#[derive(Clone, Copy)]
pub enum Gate<'a, T> {
    /// Zero.
    None,
    /// One a value head.
    Head(&'a [T]),
    /// One for each row of the state.
    Channel(&'a [T]),
}

/// Sequences of tokens, one after the other. The arrays are row-major and contiguous.
pub struct Problem<'a, T> {
    /// Heads and widths.
    pub sizes: Sizes,
    /// The tokens of each sequence.
    pub sequences: Vec<Range<usize>>,
    /// `(tokens, heads, key_width)`.
    pub q: &'a [T],
    /// `(tokens * reflections, heads, key_width)`.
    pub k: &'a [T],
    /// `(tokens * reflections, value_heads, value_width)`.
    pub v: &'a [T],
    /// `(tokens * reflections, value_heads)`.
    pub beta: &'a [T],
    /// `(tokens, value_heads)` or `(tokens, value_heads, key_width)`.
    pub gate: Gate<'a, T>,
    /// `(sequences, value_heads, key_width, value_width)`; absent: zeros.
    pub initial: Option<&'a [T]>,
    /// Factor of the queries.
    pub scale: T,
    /// Whether queries and keys are divided by `sqrt(sum x^2 + 1e-6)`.
    pub normalize: bool,
}

impl Sizes {
    /// Value heads that share a key head.
    pub fn group(&self) -> usize {
        self.value_heads / self.heads
    }

    /// Numbers of one state.
    pub fn state(&self) -> usize {
        self.key_width * self.value_width
    }

    /// Chunks between two kept states, so many that the states take no more memory than the keys and values.
    pub fn segment(&self) -> usize {
        self.state().div_ceil((self.key_width + self.value_width) * CHUNK).max(1).next_power_of_two()
    }

    /// Steps between two kept states.
    pub fn interval(&self) -> usize {
        self.segment() * CHUNK
    }

    /// Kept states, each of all heads, that suffice for `tokens` tokens, however these are split into sequences.
    pub fn kept(&self, tokens: usize) -> usize {
        tokens * self.reflections / self.interval()
    }
}

impl<T: Exponential> Problem<'_, T> {
    /// Checks that the operands fit together.
    pub fn checked(self) -> Result<Self> {
        let Sizes { heads, value_heads, key_width, value_width, reflections } = self.sizes;
        let fail = |what: String| Err(Error::InvalidArgument(what));
        if [heads, value_heads, key_width, value_width, reflections].contains(&0) || !value_heads.is_multiple_of(heads)
        {
            return fail(format!(
                "sizes: expected positive ones and value heads a multiple of heads, got {:?}",
                self.sizes
            ));
        }
        let (tokens, mut at) = (self.q.len() / (heads * key_width), 0);
        for sequence in &self.sequences {
            if sequence.start != at || sequence.end < at {
                return fail(format!(
                    "sequences: expected each to begin where the last one ends, got {sequence:?} at {at}"
                ));
            }
            at = sequence.end;
        }
        let steps = tokens * reflections;
        let gates = match self.gate {
            Gate::None => (0, 0),
            Gate::Head(g) => (g.len(), tokens * value_heads),
            Gate::Channel(g) => (g.len(), tokens * value_heads * key_width),
        };
        let states = self.sequences.len() * value_heads * self.sizes.state();
        let lengths = [
            ("q", (self.q.len(), tokens * heads * key_width)),
            ("k", (self.k.len(), steps * heads * key_width)),
            ("v", (self.v.len(), steps * value_heads * value_width)),
            ("beta", (self.beta.len(), steps * value_heads)),
            ("g", gates),
            ("initial_state", (self.initial.map_or(states, <[T]>::len), states)),
            ("sequences", (at, tokens)),
        ];
        match lengths.iter().find(|(_, (got, expected))| got != expected) {
            Some((name, (got, expected))) => fail(format!("{name}: expected {expected} numbers, got {got}")),
            None => Ok(self),
        }
    }

    /// Gates of a token and value head: none, one, or one for each row of the state.
    pub fn channels(&self) -> usize {
        match self.gate {
            Gate::None => 0,
            Gate::Head(_) => 1,
            Gate::Channel(_) => self.sizes.key_width,
        }
    }

    /// Tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.sequences.last().map_or(0, |last| last.end)
    }

    /// Where the kept states of each sequence begin, counted in states of all heads.
    pub fn kept_from(&self) -> Vec<usize> {
        let interval = self.sizes.interval();
        let counts = self.sequences.iter().map(|s| (s.len() * self.sizes.reflections).saturating_sub(1) / interval);
        counts.scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect()
    }

    /// Multiplications and additions of the forward pass.
    pub fn flops(&self) -> usize {
        let Sizes { value_heads, key_width, value_width, reflections, .. } = self.sizes;
        let each = 6 * key_width * value_width + 2 * CHUNK * (2 * key_width + value_width);
        (self.tokens() * reflections).saturating_mul(value_heads).saturating_mul(each)
    }

    /// Steps of a sequence.
    pub fn steps(&self, sequence: usize) -> usize {
        self.sequences[sequence].len() * self.sizes.reflections
    }

    /// Rows of queries and of keys of `len` steps from step `first` of a sequence on, whose first token is `token`.
    pub fn queries_and_keys(&self, token: usize, (first, len): (usize, usize), head: usize) -> [View<T>; 2] {
        let Sizes { heads, key_width, reflections, .. } = self.sizes;
        let begin = first / reflections;
        let queries = (first + len) / reflections - begin;
        let q = Self::rows_of(self.q.as_ptr(), (token + begin, queries), heads, head, key_width);
        let k = Self::rows_of(self.k.as_ptr(), (token * reflections + first, len), heads, head, key_width);
        [q, k]
    }

    /// `count` rows of one head, from row `first` on, of an array with several heads per row.
    pub fn rows_of(
        array: *const T,
        (first, count): (usize, usize),
        heads: usize,
        head: usize,
        width: usize,
    ) -> View<T> {
        View::new(array.wrapping_add((first * heads + head) * width), heads * width, count)
    }

    /// Rows of the values of `len` steps from step `first` of a sequence on, from a column on.
    pub fn values(&self, token: usize, (first, len): (usize, usize), head: usize, column: usize) -> View<T> {
        self.values_at(self.v.as_ptr(), (token * self.sizes.reflections + first, len), head, column)
    }

    /// Rows of values, or of what is like them, from a column on.
    pub fn values_at(&self, array: *const T, rows: (usize, usize), head: usize, column: usize) -> View<T> {
        let Sizes { value_heads, value_width, .. } = self.sizes;
        Self::rows_of(array, rows, value_heads, head, value_width).from(column, 0)
    }

    /// A state in an array of states of all heads, from a column on.
    pub fn state_at(&self, array: *const T, number: usize, head: usize, column: usize) -> View<T> {
        let Sizes { value_heads, key_width, value_width, .. } = self.sizes;
        let at = (number * value_heads + head) * self.sizes.state() + column;
        View::new(array.wrapping_add(at), value_width, key_width)
    }
}
