//! `W h`, `W* h` and their gradients: `u (count, n, m)`, `h (count, rows, n)`.

use householder::error::Result;
use householder::many::{Applications, ManyGradients, ManyReflections, Stack, StackMut};
use householder::method::Method;
use householder::reflections::Form;
use householder::threads::Context;

use super::frame::Frame;
use crate::array::Number;
use crate::by_element;

/// The problems, and the shapes of `u` and `h`.
type Problems<'a, T> = (Applications<'a, T>, [usize; 3], [usize; 3]);

fn problems<'a, T: Number>(frame: &Frame<'a>) -> Result<Problems<'a, T>> {
    let (u, h) = (frame.needed(0)?, frame.needed(1)?);
    let ([count, n, m], [_, rows, _]) = (u.shape()?, h.shape()?);
    let (of_u, of_h) = ([count, n, m], [count, rows, n]);
    let applications = Applications {
        u: ManyReflections::new(of_u, Form::Trapezoidal, u.read("u", &of_u)?, None)?,
        phases: None,
        h: Stack::new(h.read("h", &of_h)?, count),
        adjoint: frame.flag("transpose")?,
        method: Method::parse(frame.text("method")?)?,
    };
    Ok((applications, of_u, of_h))
}

pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_forward(frame, context))
}

fn go_forward<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let (applications, _, of_h) = problems::<T>(frame)?;
    let Some(out) = frame.result(0)? else { return Ok(()) };
    applications.forward(context, StackMut::new(out.write("c", &of_h)?, of_h[0]))
}

pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_backward(frame, context))
}

fn go_backward<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let (applications, of_u, of_h) = problems::<T>(frame)?;
    let grad = Stack::new(frame.needed(2)?.read("grad_c", &of_h)?, of_h[0]);
    let (grad_u, grad_h) = (frame.wanted_stack(0, &of_u)?, frame.wanted_stack(1, &of_h)?);
    let gradients = ManyGradients { u: grad_u, h: grad_h, tau: None, phases: None };
    applications.backward(context, grad, gradients, None)
}
