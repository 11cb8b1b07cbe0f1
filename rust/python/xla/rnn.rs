//! Whole sequences and their gradients.
//!
//! Operands: `u (count, n, m)`, `x (count, steps, batch, d)`, and, where given, `h0 (count, batch, n)`,
//! `input_weight (count, n, d)`, `bias (count, n)`, `phases (count, n)` and the bias of modReLU.

use householder::diagonal::Diagonal;
use householder::error::Result;
use householder::many::{ManyReflections, ManySequenceGradients, ManySequences, Stack};
use householder::method::Method;
use householder::recurrence::{Activation, Sequence, Series, Steps, moduli};
use householder::reflections::Form;
use householder::threads::Context;

use super::frame::{Frame, invalid};
use crate::array::Number;
use crate::by_element;

/// The number of operands before those of the states, and of gradients.
const INPUTS: usize = 7;

/// Sizes of the problems.
struct Sizes {
    count: usize,
    n: usize,
    m: usize,
    steps: usize,
    batch: usize,
    d: usize,
    moduli: usize,
}

impl Sizes {
    fn read<T: Number>(frame: &Frame<'_>) -> Result<Self> {
        let ([count, n, m], [_, steps, batch, d]) = (frame.needed(0)?.shape()?, frame.needed(1)?.shape()?);
        Ok(Self { count, n, m, steps, batch, d, moduli: moduli(frame.text("nonlinearity")?, n, T::COMPLEX) })
    }

    /// Shapes of the operands.
    fn shapes(&self) -> [Vec<usize>; INPUTS] {
        let &Self { count, n, m, steps, batch, d, moduli } = self;
        [
            vec![count, n, m],
            vec![count, steps, batch, d],
            vec![count, batch, n],
            vec![count, n, d],
            vec![count, n],
            vec![count, n],
            vec![count, moduli],
        ]
    }

    /// Shape of an array with so many numbers for each state.
    fn states(&self, width: usize) -> [usize; 4] {
        [self.count, self.steps, self.batch, width]
    }
}

fn sequences<'a, T: Number<Real: Number>>(frame: &Frame<'a>, sizes: &Sizes) -> Result<ManySequences<'a, T>> {
    let (shapes, &Sizes { count, n, m, steps, batch, d, .. }) = (sizes.shapes(), sizes);
    let u = ManyReflections::new([count, n, m], Form::Trapezoidal, frame.needed(0)?.read("u", &shapes[0])?, None)?;
    let x = Stack::new(frame.needed(1)?.read("x", &shapes[1])?, count);
    let operand = |slot: usize, name: &str| frame.given_stack::<T>(slot, name, &shapes[slot]);
    let real = |slot: usize, name: &str| frame.given_stack::<T::Real>(slot, name, &shapes[slot]);
    let (h0, input_weight, bias) = (operand(2, "h0")?, operand(3, "input_weight")?, operand(4, "bias")?);
    let (phases, moduli) = (real(5, "phases")?, real(6, "nonlinearity_bias")?);
    if input_weight.is_none() && d != n {
        return Err(invalid(format!("x: expected width n = {n}, got {d}")));
    }
    let (nonlinearity, slope) = (frame.text("nonlinearity")?, frame.real("negative_slope")?);
    let (adjoint, reverse) = (frame.flag("transpose")?, frame.flag("reverse")?);
    let method = Method::parse(frame.text("method")?)?;
    let sequence = |i: usize| -> Result<Sequence<'a, T>> {
        let (u, steps) = (u.at(i)?, Steps::uniform(steps, batch)?);
        Ok(Sequence {
            u,
            diagonal: Diagonal::new(u, phases.map(|phases| phases.at(i)))?,
            adjoint,
            activation: Activation::parse(nonlinearity, slope, n, moduli.map(|moduli| moduli.at(i)))?,
            method,
            steps: if reverse { steps.reversed()? } else { steps },
            d,
            x: Series::new(x.at(i)),
            input_weight: input_weight.map(|weight| weight.at(i)),
            bias: bias.map(|bias| bias.at(i)),
            h0: h0.map(|h0| h0.at(i)),
        })
    };
    Ok(ManySequences((0..count).map(sequence).collect::<Result<_>>()?))
}

/// All states, the last ones and, where wanted, the tape `(count, steps, batch, width)`.
pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_forward(frame, context))
}

fn go_forward<T: Number<Real: Number>>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let sizes = Sizes::read::<T>(frame)?;
    let sequences = sequences::<T>(frame, &sizes)?;
    let [_, width] = sequences.tape_shape()?;
    let Some(h) = frame.wanted_stack(0, &sizes.states(sizes.n))? else { return Ok(()) };
    let last = frame.wanted_stack(1, &[sizes.count, sizes.batch, sizes.n])?;
    let tape = frame.wanted_stack(2, &sizes.states(width))?;
    sequences.forward(context, h, last, tape, false).map(drop)
}

/// Gradients of the operands, those that are wanted. Further operands: all states, the tape, and the gradients of all states
/// and of the last ones, where given.
pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_backward(frame, context))
}

fn go_backward<T: Number<Real: Number>>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let sizes = Sizes::read::<T>(frame)?;
    let sequences = sequences::<T>(frame, &sizes)?;
    let (of_states, [_, width]) = (sizes.states(sizes.n), sequences.tape_shape()?);
    let h = Stack::new(frame.needed(INPUTS)?.read("h", &of_states)?, sizes.count);
    let tape = frame.given_stack(INPUTS + 1, "tape", &sizes.states(width))?;
    let grad_h = frame.given_stack(INPUTS + 2, "grad_h", &of_states)?;
    let grad_last = frame.given_stack(INPUTS + 3, "grad_last", &[sizes.count, sizes.batch, sizes.n])?;
    let series: Vec<_> = (0..sizes.count).map(|i| grad_h.map(|grad| Series::new(grad.at(i)))).collect();
    let shapes = sizes.shapes();
    let gradients = ManySequenceGradients {
        u: frame.wanted_stack(0, &shapes[0])?,
        x: frame.wanted_stack(1, &shapes[1])?,
        h0: frame.wanted_stack(2, &shapes[2])?,
        input_weight: frame.wanted_stack(3, &shapes[3])?,
        bias: frame.wanted_stack(4, &shapes[4])?,
        tau: None,
        phases: frame.wanted_stack(5, &shapes[5])?,
        activation_bias: frame.wanted_stack(6, &shapes[6])?,
    };
    sequences.backward(context, (h, tape), &series, grad_last, &gradients, None)
}
