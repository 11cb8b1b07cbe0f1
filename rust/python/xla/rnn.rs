//! Whole sequences and their gradients.
//!
//! Operands: `u (count, n, m)`, `x (count, steps, batch, d)`, and, where given, `h0 (count, batch, n)`,
//! `input_weight (count, n, d)`, `bias (count, n)`, `phases (count, n)` and the bias of modReLU.

use householder::diagonal::Diagonal;
use householder::error::Result;
use householder::kernel::activation::Activation;
use householder::method::Method;
use householder::number::Real;
use householder::recurrence::{self, Sequence, SequenceGradients, Series, Steps};
use householder::reflections::Reflections;
use householder::threads::Context;

use super::frame::{Element, Frame, Room, Stack, invalid};
use crate::by_element;
use crate::sequence::moduli;

/// Operands, and the results of the backward pass, before those of the states.
const INPUTS: usize = 7;

/// The problems of a call.
struct Problems<'a, T: Element> {
    /// count, n, m, steps, batch and d.
    sizes: [usize; 6],
    u: Stack<'a, T>,
    x: Stack<'a, T>,
    h0: Option<Stack<'a, T>>,
    input_weight: Option<Stack<'a, T>>,
    bias: Option<Stack<'a, T>>,
    phases: Option<Stack<'a, T::Real>>,
    moduli: Option<Stack<'a, T::Real>>,
    nonlinearity: &'a str,
    slope: f64,
    adjoint: bool,
    reverse: bool,
    method: Option<Method>,
}

/// Shapes of the operands.
fn shapes([count, n, m, steps, batch, d]: [usize; 6], moduli: usize) -> [Vec<usize>; INPUTS] {
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

impl<'a, T: Element<Real: Element>> Problems<'a, T> {
    fn read(frame: &Frame<'a>) -> Result<Self> {
        let [count, n, m] = frame.needed(0)?.shape()?;
        let [_, steps, batch, d] = frame.needed(1)?.shape()?;
        let sizes = [count, n, m, steps, batch, d];
        let moduli = moduli(frame.text("nonlinearity")?, n, T::COMPLEX);
        let shapes = shapes(sizes, moduli);
        let given = |slot: usize, name: &str| -> Result<Option<Stack<'a, T>>> {
            frame.operand(slot)?.map(|buffer| buffer.read(name, &shapes[slot])).transpose()
        };
        let real = |slot: usize, name: &str| -> Result<Option<Stack<'a, T::Real>>> {
            frame.operand(slot)?.map(|buffer| buffer.read(name, &shapes[slot])).transpose()
        };
        let input_weight = given(3, "input_weight")?;
        if input_weight.is_none() && d != n {
            return Err(invalid(format!("x: expected width n = {n}, got {d}")));
        }
        Ok(Self {
            sizes,
            u: frame.needed(0)?.read("u", &shapes[0])?,
            x: frame.needed(1)?.read("x", &shapes[1])?,
            h0: given(2, "h0")?,
            input_weight,
            bias: given(4, "bias")?,
            phases: real(5, "phases")?,
            moduli: real(6, "nonlinearity_bias")?,
            nonlinearity: frame.text("nonlinearity")?,
            slope: frame.real("negative_slope")?,
            adjoint: frame.flag("transpose")?,
            reverse: frame.flag("reverse")?,
            method: Method::parse(frame.text("method")?)?,
        })
    }

    fn sequence(&self, i: usize) -> Result<Sequence<'a, T>> {
        let [_, n, m, steps, batch, d] = self.sizes;
        let u = Reflections::new(n, m, self.u.at(i))?;
        let steps = Steps::uniform(steps, batch)?;
        Ok(Sequence {
            u,
            diagonal: Diagonal::new(u, self.phases.map(|phases| phases.at(i)))?,
            adjoint: self.adjoint,
            activation: self.activation(i)?,
            method: self.method,
            steps: if self.reverse { steps.reversed() } else { steps },
            d,
            x: Series::new(self.x.at(i)),
            input_weight: self.input_weight.map(|weight| weight.at(i)),
            bias: self.bias.map(|bias| bias.at(i)),
            h0: self.h0.map(|h0| h0.at(i)),
        })
    }

    fn activation(&self, i: usize) -> Result<Activation<'a, T>> {
        let slope = T::Real::of(self.slope);
        let even = self.sizes[1].is_multiple_of(2);
        match (self.nonlinearity, self.moduli) {
            ("identity", None) => Ok(Activation::Identity),
            ("relu", None) => Ok(Activation::Relu),
            ("tanh", None) => Ok(Activation::Tanh),
            ("oplu", None) if even && !T::COMPLEX => Ok(Activation::Oplu),
            ("modrelu", Some(moduli)) if even || T::COMPLEX => Ok(Activation::ModRelu(moduli.at(i))),
            ("real_modrelu", Some(moduli)) if !T::COMPLEX => Ok(Activation::RealModRelu(moduli.at(i))),
            ("leaky_relu", None) if self.slope == 0.0 => Ok(Activation::Relu),
            ("leaky_relu", None) if self.slope == 1.0 => Ok(Activation::Identity),
            // Both parts: the slope multiplies real and imaginary parts alike.
            ("leaky_relu", None) if self.slope > 0.0 => Ok(Activation::LeakyRelu(T::from_parts(slope, slope))),
            (name, _) => {
                Err(invalid(format!("nonlinearity: got '{name}', which does not go with the other arguments")))
            }
        }
    }

    /// All sequences, numbers on the tape for each state, and flops of all of them.
    fn sequences(&self) -> Result<(Vec<Sequence<'a, T>>, usize, usize)> {
        let sequences: Vec<_> = (0..self.sizes[0]).map(|i| self.sequence(i)).collect::<Result<_>>()?;
        let width = sequences.first().map_or(Ok(0), Sequence::tape_width)?;
        let flops = sequences.iter().map(Sequence::flops).fold(0, usize::saturating_add);
        Ok((sequences, width, flops))
    }
}

/// All states, the last ones and, where wanted, the tape `(count, steps, batch, width)`.
pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_forward(frame, context))
}

fn go_forward<T: Element<Real: Element>>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let problems = Problems::<T>::read(frame)?;
    let [count, n, _, steps, batch, _] = problems.sizes;
    let (sequences, width, flops) = problems.sequences()?;
    let room = |slot: usize, name: &str, shape: &[usize]| -> Result<Option<Room<'_, T>>> {
        frame.result(slot)?.map(|buffer| buffer.write(name, shape)).transpose()
    };
    let Some(h) = room(0, "h", &[count, steps, batch, n])? else { return Ok(()) };
    let (last, tape) = (room(1, "last", &[count, batch, n])?, room(2, "tape", &[count, steps, batch, width])?);
    context.for_each(count, flops, &|i, context| {
        // SAFETY: each problem writes its own parts.
        let (h, last, tape) =
            unsafe { (h.at(i), last.as_ref().map(|last| last.at(i)), tape.as_ref().map(|tape| tape.at(i))) };
        recurrence::forward(context, &sequences[i], h, tape)?;
        if let Some(last) = last {
            last_states(&sequences[i], batch, h, last);
        }
        Ok(())
    })
}

/// Copies the states in which sequences end.
fn last_states<T: Element>(sequence: &Sequence<'_, T>, batch: usize, h: &[T], last: &mut [T]) {
    // Steps count no sequences where there are no steps.
    match sequence.h0 {
        None if sequence.steps.batch() != batch => last.fill(T::ZERO),
        _ => sequence.copy_last(h, last),
    }
}

/// Gradients of the operands, those that are wanted. Further operands: all states, the tape, and the gradients of all states
/// and of the last ones, where given.
pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_backward(frame, context))
}

fn go_backward<T: Element<Real: Element>>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let problems = Problems::<T>::read(frame)?;
    let [count, n, _, steps, batch, _] = problems.sizes;
    let (sequences, width, flops) = problems.sequences()?;
    let given = |slot: usize, name: &str, shape: &[usize]| -> Result<Option<Stack<'_, T>>> {
        frame.operand(INPUTS + slot)?.map(|buffer| buffer.read(name, shape)).transpose()
    };
    let h = frame.needed(INPUTS)?.read::<T>("h", &[count, steps, batch, n])?;
    let tape = given(1, "tape", &[count, steps, batch, width])?;
    let grad_h = given(2, "grad_h", &[count, steps, batch, n])?;
    let grad_last = given(3, "grad_last", &[count, batch, n])?;
    let shapes = shapes(problems.sizes, moduli(problems.nonlinearity, problems.sizes[1], T::COMPLEX));
    let wanted = |slot: usize| -> Result<Option<Room<'_, T>>> {
        frame.result(slot)?.map(|buffer| buffer.write("a gradient", &shapes[slot])).transpose()
    };
    let real = |slot: usize| -> Result<Option<Room<'_, T::Real>>> {
        frame.result(slot)?.map(|buffer| buffer.write("a gradient", &shapes[slot])).transpose()
    };
    let (u, x, h0, input_weight, bias) = (wanted(0)?, wanted(1)?, wanted(2)?, wanted(3)?, wanted(4)?);
    let (phases, moduli) = (real(5)?, real(6)?);
    context.for_each(count, flops.saturating_mul(2), &|i, context| {
        // SAFETY: each problem writes its own parts.
        let gradients = unsafe {
            SequenceGradients {
                u: u.as_ref().map(|x| x.at(i)),
                x: x.as_ref().map(|x| x.at(i)),
                h0: h0.as_ref().map(|x| x.at(i)),
                input_weight: input_weight.as_ref().map(|x| x.at(i)),
                bias: bias.as_ref().map(|x| x.at(i)),
                tau: None,
                phases: phases.as_ref().map(|x| x.at(i)),
                activation_bias: moduli.as_ref().map(|x| x.at(i)),
            }
        };
        let (tape, grad_last) = (tape.map(|tape| tape.at(i)), grad_last.map(|grad| grad.at(i)));
        let grad_h = grad_h.map(|grad| Series::new(grad.at(i)));
        recurrence::backward(context, &sequences[i], None, h.at(i), tape, grad_h, grad_last, gradients)
    })
}
