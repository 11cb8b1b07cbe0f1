//! Whole sequences and their gradients.
//!
//! Operands: `u (count, n, m)`, `x (count, steps, batch, d)`, and, where given, `h0 (count, batch, n)`,
//! `input_weight (count, n, d)`, `bias (count, n)`, `phases (count, n)` and the bias of modReLU.

use householder::rnn::{Series, Steps};
use householder::threads::Context;

use super::frame::Frame;
use crate::by_dtype;
use crate::call::Reading;
use crate::columns::Columns;
use crate::dtype::Number;
use crate::operands::Operands;
use crate::options;
use crate::sequence::{Backward, Forward, Options, Sizes};

/// The number of operands before those of the states, and of gradients.
const INPUTS: usize = 7;

/// What describes a call.
fn described<'a, T: Number>(frame: &Frame<'a>) -> Reading<(Sizes, Options<'a>, Steps, Series<'a, T>)> {
    let (columns, [_, steps, batch, d]) = (Columns::trapezoidal(frame.shape(0)?), frame.shape(1)?);
    let options = Options {
        nonlinearity: frame.text("nonlinearity")?,
        slope: frame.real("negative_slope")?,
        transpose: frame.flag("transpose")?,
        method: frame.text("method")?,
    };
    let moduli = options::moduli(options.nonlinearity, columns.n, T::COMPLEX)?;
    let sizes = Sizes { columns, d, vectors: (steps, Some(batch)), batch, moduli };
    let (steps, x) = (Steps::uniform(steps, batch)?, Series::new(frame.needed(1, "x", &sizes.states(d))?));
    Ok((sizes, options, if frame.flag("reverse")? { steps.reversed()? } else { steps }, x))
}

/// All states, the last ones and, where wanted, the tape `(count, steps, batch, width)`.
pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number<Real: Number>>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (sizes, options, steps, x) = described::<T>(frame)?;
        let Some(pass) = Forward::read(frame, &sizes, &options, steps, x)? else { return Ok(()) };
        Ok(pass.run(context, false).map(drop)?)
    }
    by_dtype!(frame.dtype(0)?, go(frame, context))
}

/// Gradients of the operands, those that are wanted. Further operands: all states, the tape, and the gradients of all states
/// and of the last ones, where given.
pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number<Real: Number>>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (sizes, options, steps, x) = described::<T>(frame)?;
        let grad_h = frame.read(INPUTS + 2, "grad_h", &sizes.states(sizes.columns.n))?.map(Series::new);
        let pass = Backward::read(frame, INPUTS, &sizes, &options, steps, x, grad_h)?;
        Ok(pass.run(context, None)?)
    }
    by_dtype!(frame.dtype(0)?, go(frame, context))
}
