//! The causal convolution of each channel: `x (B, T, C)`, which may have a half type, `weight (C, taps)` and `bias (C,)`.

use householder::convolution::{self, Gradients, Operands, Sizes};
use householder::exponential::Exponential;

use crate::arguments::Arguments;
use crate::call::{Reading, Refusal};
use crate::dtype::{Number, by_dtype};
use crate::kernel::{Results, run};
use crate::tensor::{Tensor, gradient, optional, optional_numbers, wanted};

/// The operands, laid out.
struct Inputs {
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Inputs {
    fn laid_out(x: Tensor, weight: Tensor, bias: Option<Tensor>) -> Reading<Self> {
        Ok(Self { x: x.laid_out()?, weight: weight.laid_out()?, bias: optional(bias)? })
    }

    fn sizes(&self) -> Reading<Sizes> {
        let (&[batch, tokens, channels], &[_, taps]) = (&self.x.shape()?[..], &self.weight.shape()?[..]) else {
            let (x, weight) = (self.x.describe()?, self.weight.describe()?);
            return Err(Refusal::invalid(format!("expected x (B, T, C) and weight (C, taps), got {x} and {weight}")));
        };
        Ok(Sizes { batch, tokens, channels, taps })
    }

    fn operands<T: Number>(&self, silu: bool) -> Reading<Operands<'_, T>> {
        let sizes = self.sizes()?;
        let Sizes { batch, tokens, channels, taps } = sizes;
        Ok(Operands {
            sizes,
            x: self.x.tokens("x", batch * tokens * channels)?,
            weight: self.weight.numbers("weight", channels * taps)?,
            bias: optional_numbers(self.bias.as_ref(), "bias", channels)?,
            silu,
        })
    }
}

/// The outputs, like `x`.
pub fn forward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number + Exponential>(inputs: &Inputs, silu: bool, y: &mut Tensor) -> Reading<()> {
        let (operands, y) = (inputs.operands::<T>(silu)?, y.stored_mut()?);
        run(|context| convolution::forward(context, operands, y))
    }
    let (x, weight, bias, silu) = (arguments.tensor(), arguments.tensor(), arguments.optional(), arguments.flag());
    let inputs = Inputs::laid_out(x, weight, bias)?;
    let mut y = inputs.x.empty_like()?;
    by_dtype!(real inputs.weight.dtype()?, go(&inputs, silu, &mut y))?;
    Ok(vec![Some(y)])
}

/// The gradients of `x`, the weights and the bias, those that are wanted.
pub fn backward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number + Exponential>(
        inputs: &Inputs,
        silu: bool,
        grad_y: &Tensor,
        gradients: &mut [Option<Tensor>; 3],
    ) -> Reading<()> {
        let (operands, grad_y) = (inputs.operands::<T>(silu)?, grad_y.tokens("grad_y", inputs.x.len()?)?);
        let [x, weight, bias] = gradients.each_mut().map(Option::as_mut);
        let x = x.map(Tensor::stored_mut).transpose()?;
        let gradients = Gradients { x, weight: wanted(weight)?, bias: wanted(bias)? };
        run(|context| convolution::backward(context, operands, grad_y, gradients))
    }
    let (x, weight, bias, grad_y) = (arguments.tensor(), arguments.tensor(), arguments.optional(), arguments.tensor());
    let (wants, silu) = (arguments.flags::<3>(), arguments.flag());
    let (inputs, grad_y, wants) = (Inputs::laid_out(x, weight, bias)?, grad_y.laid_out()?, wants?);
    let mut gradients = [
        gradient(Some(&inputs.x), wants[0])?,
        gradient(Some(&inputs.weight), wants[1])?,
        gradient(inputs.bias.as_ref(), wants[2])?,
    ];
    by_dtype!(real inputs.weight.dtype()?, go(&inputs, silu, &grad_y, &mut gradients))?;
    Ok(gradients.into())
}
