//! The delta rule and its gradients token by token in double precision, and the library's on the same operands.

use std::ops::Range;

use householder::delta::{self, Cotangents, Gate, Gradients, Lengths, Operands, Problem, Results, Sizes};
use householder::exponential::Exponential;
use householder::stored::Tokens;
use householder::threads::Context;

use super::apart::Apart;

/// Operands, and the gradients of the results.
#[derive(Clone)]
pub struct Given<T> {
    pub sizes: Sizes,
    pub sequences: Vec<Range<usize>>,
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
    /// Empty if there are none.
    pub beta: Vec<T>,
    /// Whether betas erase.
    pub erases: bool,
    /// Factors of the values in the outputs, with betas that erase nothing.
    pub skip: Option<Vec<T>>,
    /// Gates of a token and value head: none, one or `key_width`.
    pub channels: usize,
    pub gate: Vec<T>,
    pub initial: Option<Vec<T>>,
    pub scale: f64,
    pub normalize: bool,
    pub grad_out: Option<Vec<T>>,
    pub grad_last: Option<Vec<T>>,
}

/// Results, and the gradients of the operands.
pub struct Found<X> {
    pub out: Vec<X>,
    pub last: Vec<X>,
    pub q: Vec<X>,
    pub k: Vec<X>,
    pub v: Vec<X>,
    pub beta: Vec<X>,
    pub gate: Vec<X>,
    pub initial: Vec<X>,
    pub skip: Vec<X>,
}

impl<X> Found<X> {
    /// All arrays, with their names.
    pub fn arrays(&self) -> [(&'static str, &Vec<X>); 9] {
        [
            ("out", &self.out),
            ("last", &self.last),
            ("grad_q", &self.q),
            ("grad_k", &self.k),
            ("grad_v", &self.v),
            ("grad_beta", &self.beta),
            ("grad_g", &self.gate),
            ("grad_initial", &self.initial),
            ("grad_skip", &self.skip),
        ]
    }
}

impl<T: Exponential> Given<T> {
    /// Keys of at most unit length, betas between 0 and 2, and gates down to `-strength`; `random` gives numbers in [-1, 1).
    pub fn random(
        mut random: impl FnMut() -> f64,
        sizes: Sizes,
        lengths: &[usize],
        channels: usize,
        strength: f64,
    ) -> Self {
        let Sizes { heads, value_heads, key_width, value_width, reflections } = sizes;
        let ends: Vec<usize> =
            lengths.iter().scan(0, |sum, length| Some(std::mem::replace(sum, *sum + length))).collect();
        let sequences: Vec<_> = ends.iter().zip(lengths).map(|(&begin, &length)| begin..begin + length).collect();
        let tokens: usize = lengths.iter().sum();
        let (steps, states) = (tokens * reflections, lengths.len() * value_heads * key_width * value_width);
        let mut numbers =
            |len: usize, of: &dyn Fn(f64) -> f64| -> Vec<T> { (0..len).map(|_| T::of(of(random()))).collect() };
        let short = 1.0 / (key_width as f64).sqrt();
        Self {
            sizes,
            sequences,
            q: numbers(tokens * heads * key_width, &|x| x),
            k: numbers(steps * heads * key_width, &|x| x * short),
            v: numbers(steps * value_heads * value_width, &|x| x),
            beta: numbers(steps * value_heads, &|x| 1.0 + x),
            erases: true,
            skip: None,
            channels,
            gate: numbers(tokens * value_heads * channels, &|x| -x.abs() * strength),
            initial: Some(numbers(states, &|x| x)),
            scale: 0.5,
            normalize: false,
            grad_out: Some(numbers(tokens * value_heads * value_width, &|x| x)),
            grad_last: Some(numbers(states, &|x| x)),
        }
    }

    /// The same problem, with nothing erased: linear attention.
    pub fn without_erasing(self) -> Self {
        Self { beta: Vec::new(), erases: false, ..self }
    }

    /// The same problem, with betas that erase nothing, and with values in the outputs.
    pub fn with_skip(self) -> Self {
        let skip = (0..self.sizes.value_heads).map(|head| T::of(0.5 - head as f64)).collect();
        Self { skip: Some(skip), erases: false, ..self }
    }

    fn has_betas(&self) -> bool {
        self.erases || self.skip.is_some()
    }

    pub fn problem(&self) -> Problem<'_, T> {
        Problem::new(self.operands()).expect("operands that fit together")
    }

    pub fn operands(&self) -> Operands<'_, T> {
        let gate = match self.channels {
            0 => Gate::None,
            1 if self.sizes.key_width > 1 => Gate::Head(&self.gate),
            _ => Gate::Channel(&self.gate),
        };
        Operands {
            sizes: self.sizes,
            sequences: self.sequences.clone(),
            q: (&self.q).into(),
            k: (&self.k).into(),
            v: (&self.v).into(),
            beta: self.has_betas().then_some(&self.beta),
            skip: self.skip.as_deref(),
            gate,
            initial: self.initial.as_deref(),
            scale: T::of(self.scale),
            normalize: self.normalize,
        }
    }

    /// The library's results; with `keep`, the forward pass saves states for the backward pass.
    pub fn compute(&self, context: &mut Context<'_>, keep: bool) -> Found<T> {
        self.compute_from(context, keep, &self.problem(), self.grad_out.as_ref().map(Tokens::from))
    }

    /// The same of a problem whose operands are copies of these.
    pub fn compute_from(
        &self,
        context: &mut Context<'_>,
        keep: bool,
        problem: &Problem<'_, T>,
        grad_out: Option<Tokens<'_, T>>,
    ) -> Found<T> {
        let lengths = problem.lengths();
        let unset = |len: usize| vec![T::of(7.0); len];
        let mut found = Found {
            out: unset(lengths.out),
            last: unset(lengths.last),
            q: unset(self.q.len()),
            k: unset(self.k.len()),
            v: unset(self.v.len()),
            beta: unset(self.beta.len()),
            gate: unset(self.gate.len()),
            initial: unset(lengths.last),
            skip: unset(self.skip.as_ref().map_or(0, Vec::len)),
        };
        let mut saved = unset(lengths.saved);
        let Found { out, last, q, k, v, beta, gate, initial, skip } = &mut found;
        let kept_here = keep.then_some(&mut saved[..]);
        let results = Results { out: Some(out.into()), last: Some(last), saved: kept_here, in_place: false };
        delta::forward(context, problem, results).expect("forward");
        let cotangents = Cotangents { out: grad_out, last: self.grad_last.as_deref() };
        let gradients = Gradients {
            q: Some(q),
            k: Some(k),
            v: Some(v.into()),
            beta: self.has_betas().then_some(beta),
            skip: self.skip.as_ref().map(|_| &mut skip[..]),
            gate: Some(gate),
            initial: Some(initial),
        };
        delta::backward(context, problem, keep.then_some(&saved), cotangents, gradients).expect("backward");
        found
    }

    /// [`Given::compute`] of rows that lie apart. Sequences of one length are the batches of some arrays.
    pub fn compute_apart(
        &self,
        context: &mut Context<'_>,
        keep: bool,
        mut below: impl FnMut(usize) -> usize,
    ) -> Found<T> {
        let Sizes { heads, value_heads, key_width, value_width, reflections } = self.sizes;
        let tokens = self.sequences.last().map_or(0, |last| last.end);
        let each = self.sequences[0].len();
        let are_even = self.sequences.iter().all(|sequence| sequence.len() == each);
        let mut apart = |rows: &[T], [steps, heads, width]: [usize; 3]| {
            let batch = if are_even && below(3) > 0 { self.sequences.len() } else { 1 };
            Apart::any(&mut below, rows, [batch, tokens * steps / batch, heads, width])
        };
        let q = apart(&self.q, [1, heads, key_width]);
        let k = apart(&self.k, [reflections, heads, key_width]);
        let v = apart(&self.v, [reflections, value_heads, value_width]);
        let grad_out = self.grad_out.as_ref().map(|grad| apart(grad, [1, value_heads, value_width]));
        let operands = Operands { q: q.tokens(), k: k.tokens(), v: v.tokens(), ..self.operands() };
        let problem = Problem::new(operands).expect("operands that fit together");
        self.compute_from(context, keep, &problem, grad_out.as_ref().map(Apart::tokens))
    }

    /// The outputs and the states in which sequences end, of calls on some tokens of one sequence each, which update states in
    /// place. `piece` chooses the tokens of a call from how many are left.
    pub fn in_pieces(&self, context: &mut Context<'_>, mut piece: impl FnMut(usize) -> usize) -> [Vec<T>; 2] {
        let Lengths { out, last, .. } = self.problem().lengths();
        let (mut out, mut states) =
            (Vec::with_capacity(out), self.initial.clone().unwrap_or_else(|| vec![T::ZERO; last]));
        for (sequence, state) in self.sequences.iter().zip(states.chunks_mut(last / self.sequences.len())) {
            let mut begin = sequence.start;
            while begin < sequence.end {
                let end = begin + piece(sequence.end - begin);
                let part = self.part(begin..end);
                let mut of_part = vec![T::of(7.0); part.problem().lengths().out];
                let results =
                    Results { out: Some((&mut of_part).into()), last: Some(state), in_place: true, saved: None };
                delta::forward(context, &part.problem(), results).expect("forward");
                out.append(&mut of_part);
                begin = end;
            }
        }
        [out, states]
    }

    /// Some tokens as a sequence of their own, without gradients and without the state in which it begins.
    fn part(&self, tokens: Range<usize>) -> Self {
        let all = self.sequences.last().map_or(0, |last| last.end);
        let of = |array: &[T]| {
            let each = array.len() / all;
            array[tokens.start * each..tokens.end * each].to_vec()
        };
        Self {
            sequences: std::iter::once(0..tokens.len()).collect(),
            q: of(&self.q),
            k: of(&self.k),
            v: of(&self.v),
            beta: of(&self.beta),
            skip: self.skip.clone(),
            gate: of(&self.gate),
            initial: None,
            grad_out: None,
            grad_last: None,
            ..*self
        }
    }

    /// The same, step by step.
    pub fn exact(&self) -> Found<f64> {
        let Sizes { heads, value_heads, key_width: height, value_width: width, reflections } = self.sizes;
        let zeros = |like: &[T]| vec![0.0; like.len()];
        let states = vec![0.0; self.sequences.len() * value_heads * height * width];
        let mut found = Found {
            out: vec![0.0; self.q.len() / (heads * height) * value_heads * width],
            last: states.clone(),
            q: zeros(&self.q),
            k: zeros(&self.k),
            v: zeros(&self.v),
            beta: zeros(&self.beta),
            gate: zeros(&self.gate),
            initial: states,
            skip: vec![0.0; self.skip.as_ref().map_or(0, Vec::len)],
        };
        for (number, sequence) in self.sequences.iter().enumerate() {
            for head in 0..value_heads {
                let key_head = head / (value_heads / heads);
                let state = (number * value_heads + head) * height * width;
                let of_query = |token: usize| (token * heads + key_head) * height;
                let of_key = |step: usize| (step * heads + key_head) * height;
                let of_beta = |step: usize| step * value_heads + head;
                let of_gate = |token: usize| (token * value_heads + head) * self.channels;
                let decay = |step: usize, x: usize| match self.channels {
                    0 => 1.0,
                    _ if !step.is_multiple_of(reflections) => 1.0,
                    1 => self.gate[of_gate(step / reflections)].to_f64().exp(),
                    _ => self.gate[of_gate(step / reflections) + x].to_f64().exp(),
                };
                let mut s = match &self.initial {
                    Some(initial) => wide(&initial[state..][..height * width]),
                    None => vec![0.0; height * width],
                };
                let steps = sequence.start * reflections..sequence.end * reflections;
                let erased = f64::from(u8::from(self.erases));
                let mut before = Vec::new(); // decayed states, errors, and states after each step
                for step in steps.clone() {
                    let (token, (key, _)) = (step / reflections, self.row(&self.k[of_key(step)..][..height]));
                    let beta = self.beta_at(of_beta(step));
                    (0..height * width).for_each(|i| s[i] *= decay(step, i / width));
                    let (decayed, along) = (s.clone(), product(&key, &s, width));
                    let v = &self.v[of_beta(step) * width..][..width];
                    let error: Vec<f64> = v.iter().zip(&along).map(|(v, along)| v.to_f64() - erased * along).collect();
                    (0..height * width).for_each(|i| s[i] += beta * key[i / width] * error[i % width]);
                    if (step + 1) % reflections == 0 {
                        let (query, _) = self.row(&self.q[of_query(token)..][..height]);
                        let out = &mut found.out[(token * value_heads + head) * width..][..width];
                        product(&query, &s, width).iter().zip(&mut *out).for_each(|(x, out)| *out = self.scale * x);
                        v.iter().zip(out).for_each(|(v, out)| *out += self.skip_of(head) * v.to_f64());
                    }
                    before.push((decayed, error, s.clone()));
                }
                found.last[state..][..height * width].copy_from_slice(&s);
                let mut g = match &self.grad_last {
                    Some(grad) => wide(&grad[state..][..height * width]),
                    None => vec![0.0; height * width],
                };
                for step in steps.rev() {
                    let (decayed, error, after) = before.pop().expect("a step");
                    let token = step / reflections;
                    if let Some(grad) = self.grad_out.as_ref().filter(|_| (step + 1) % reflections == 0) {
                        let grad = wide(&grad[(token * value_heads + head) * width..][..width]);
                        let (query, factor) = self.row(&self.q[of_query(token)..][..height]);
                        let of_row: Vec<f64> =
                            transposed_product(&after, &grad).iter().map(|x| self.scale * x).collect();
                        add_row(&mut found.q[of_query(token)..][..height], &of_row, &query, factor, self.normalize);
                        (0..height * width).for_each(|i| g[i] += self.scale * query[i / width] * grad[i % width]);
                    }
                    let (key, factor) = self.row(&self.k[of_key(step)..][..height]);
                    let beta = self.beta_at(of_beta(step));
                    let along = product(&key, &g, width);
                    if self.has_betas() {
                        found.beta[of_beta(step)] = along.iter().zip(&error).map(|(a, e)| a * e).sum();
                    }
                    let values = of_beta(step) * width..(of_beta(step) + 1) * width;
                    along.iter().zip(&mut found.v[values.clone()]).for_each(|(along, to)| *to = beta * along);
                    if let (Some(_), Some(grad)) = (&self.skip, &self.grad_out) {
                        for i in values {
                            found.v[i] += self.skip_of(head) * grad[i].to_f64();
                            found.skip[head] += self.v[i].to_f64() * grad[i].to_f64();
                        }
                    }
                    let [first, second] = [transposed_product(&g, &error), transposed_product(&decayed, &along)];
                    let of_row: Vec<f64> = first.iter().zip(second).map(|(a, b)| beta * (a - erased * b)).collect();
                    add_row(&mut found.k[of_key(step)..][..height], &of_row, &key, factor, self.normalize);
                    (0..height * width).for_each(|i| g[i] -= erased * beta * key[i / width] * along[i % width]);
                    if step % reflections == 0 {
                        for i in 0..if self.channels == 0 { 0 } else { height * width } {
                            let x = if self.channels == 1 { 0 } else { i / width };
                            found.gate[of_gate(token) + x] += g[i] * decayed[i];
                        }
                        (0..height * width).for_each(|i| g[i] *= decay(step, i / width));
                    }
                }
                found.initial[state..][..height * width].copy_from_slice(&g);
            }
        }
        found
    }

    fn beta_at(&self, at: usize) -> f64 {
        if self.has_betas() { self.beta[at].to_f64() } else { 1.0 }
    }

    fn skip_of(&self, head: usize) -> f64 {
        self.skip.as_ref().map_or(0.0, |skip| skip[head].to_f64())
    }

    /// A query or key as it is used, and what it was multiplied by.
    fn row(&self, row: &[T]) -> (Vec<f64>, f64) {
        let row = wide(row);
        let square: f64 = row.iter().map(|x| x * x).sum();
        let factor = if self.normalize { (square + 1e-6).sqrt().recip() } else { 1.0 };
        (row.iter().map(|x| x * factor).collect(), factor)
    }
}

fn wide<T: Exponential>(array: &[T]) -> Vec<f64> {
    array.iter().map(|x| x.to_f64()).collect()
}

/// `k' S`.
fn product(k: &[f64], s: &[f64], width: usize) -> Vec<f64> {
    (0..width).map(|c| k.iter().enumerate().map(|(x, k)| k * s[x * width + c]).sum()).collect()
}

/// `S e`.
fn transposed_product(s: &[f64], e: &[f64]) -> Vec<f64> {
    s.chunks(e.len()).map(|row| row.iter().zip(e).map(|(s, e)| s * e).sum()).collect()
}

/// Adds the gradient of a row from that of `unit`, which is the row times `factor`.
fn add_row(to: &mut [f64], gradient: &[f64], unit: &[f64], factor: f64, normalized: bool) {
    let along: f64 = if normalized { gradient.iter().zip(unit).map(|(g, u)| g * u).sum() } else { 0.0 };
    for (x, to) in to.iter_mut().enumerate() {
        *to += factor * (gradient[x] - unit[x] * along);
    }
}
