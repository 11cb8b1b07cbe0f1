//! The causal convolution and its gradients by the definition in double precision, and the library's on the same operands.

use householder::convolution::{Gradients, Operands, Sizes, advance, backward, forward};
use householder::error::Result;
use householder::exponential::Exponential;
use householder::stored::{Numbers, Tokens};
use householder::threads::Context;

/// Operands and the gradient of the outputs.
pub struct Given<T> {
    pub sizes: Sizes,
    pub x: Vec<T>,
    pub weight: Vec<T>,
    pub bias: Vec<T>,
    pub grad: Vec<T>,
    pub silu: bool,
}

/// Outputs, and the gradients of `x`, the weights and the bias.
pub type Found<X> = [Vec<X>; 4];

impl<T: Exponential> Given<T> {
    /// `numbers` draws so many of them.
    pub fn random(mut numbers: impl FnMut(usize) -> Vec<T>, sizes: Sizes, silu: bool) -> Self {
        let Sizes { batch, tokens, channels, taps } = sizes;
        let len = batch * tokens * channels;
        let [x, weight, bias, grad] = [len, channels * taps, channels, len].map(&mut numbers);
        Self { sizes, x, weight, bias, grad, silu }
    }

    pub fn operands<'a>(&'a self, x: Tokens<'a, T>) -> Operands<'a, T> {
        Operands { sizes: self.sizes, x, weight: &self.weight, bias: Some(&self.bias), silu: self.silu }
    }

    pub fn unset(&self) -> Found<T> {
        [&self.x, &self.x, &self.weight, &self.bias].map(|like| vec![T::of(7.0); like.len()])
    }

    pub fn compute(&self, context: &mut Context<'_>) -> Found<T> {
        self.compute_from(context, [&self.x, &self.grad].map(Tokens::from)).expect("operands that fit together")
    }

    /// The same of copies of `x` and of the gradient.
    pub fn compute_from(&self, context: &mut Context<'_>, [x, grad]: [Tokens<'_, T>; 2]) -> Result<Found<T>> {
        let (mut found, operands) = (self.unset(), self.operands(x));
        let [y, x, weight, bias] = &mut found;
        forward(context, operands, y.into())?;
        let gradients = Gradients { x: Some(x.into()), weight: Some(weight), bias: Some(bias) };
        backward(context, operands, grad, gradients)?;
        Ok(found)
    }

    /// The outputs of calls that continue each other. `piece` chooses the tokens of a call from how many are left.
    pub fn continued(&self, context: &mut Context<'_>, mut piece: impl FnMut(usize) -> usize) -> Vec<T> {
        let Sizes { batch, tokens, channels, taps } = self.sizes;
        let (mut y, mut state) = (vec![T::of(7.0); self.x.len()], vec![T::ZERO; batch * (taps - 1) * channels]);
        let mut begin = 0;
        while begin < tokens {
            let count = piece(tokens - begin);
            let sizes = Sizes { tokens: count, ..self.sizes };
            let rest = Numbers::Full(self.x.get(begin * channels..).unwrap_or(&[]));
            let x = Tokens::strided(rest, [batch, count, 1, channels], [tokens * channels, channels, 0]);
            let operands = Operands { sizes, ..self.operands(x.expect("rows of these tokens")) };
            let mut out = vec![T::of(7.0); batch * count * channels];
            advance(context, operands, &mut state, (&mut out).into()).expect("operands that fit together");
            for (out, y) in out.chunks_exact(count * channels).zip(y.chunks_exact_mut(tokens * channels)) {
                y[begin * channels..][..out.len()].copy_from_slice(out);
            }
            begin += count;
        }
        y
    }

    /// Outputs and gradients by the definition.
    pub fn exact(&self) -> Found<f64> {
        let Sizes { batch, tokens, channels, taps } = self.sizes;
        let mut found = self.unset().map(|array| vec![0.0; array.len()]);
        let [y, of_x, of_weight, of_bias] = &mut found;
        for (sequence, token, c) in
            (0..batch * tokens * channels).map(|i| (i / channels / tokens, i / channels % tokens, i % channels))
        {
            let at = |token: usize| (sequence * tokens + token) * channels + c;
            let reached = || (0..taps).filter_map(|j| Some((c * taps + j, at((token + j + 1).checked_sub(taps)?))));
            let products = reached().map(|(j, i)| self.weight[j].to_f64() * self.x[i].to_f64());
            let a = self.bias[c].to_f64() + products.sum::<f64>();
            let sigmoid = if self.silu { 1.0 / (1.0 + (-a).exp()) } else { 1.0 };
            y[at(token)] = a * sigmoid;
            let grad = self.grad[at(token)].to_f64() * sigmoid * (1.0 + a * (1.0 - sigmoid));
            of_bias[c] += grad;
            for (j, i) in reached() {
                of_weight[j] += grad * self.x[i].to_f64();
                of_x[i] += grad * self.weight[j].to_f64();
            }
        }
        found
    }
}
