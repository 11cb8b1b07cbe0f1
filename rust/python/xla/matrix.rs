//! `W (count, n, n)` itself, and its gradient: `u (count, n, m)`.

use householder::error::Result;
use householder::many::{self, ManyReflections, Stack, StackMut};
use householder::reflections::Form;
use householder::threads::Context;

use super::frame::Frame;
use crate::array::Number;
use crate::by_element;

pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_forward(frame, context))
}

fn go_forward<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let u = reflections::<T>(frame)?;
    let Some(out) = frame.result(0)? else { return Ok(()) };
    let out = out.write("w", &[u.count(), u.n(), u.n()])?;
    many::matrices(context, u, None, out, false).map(drop)
}

pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_backward(frame, context))
}

fn go_backward<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let u = reflections::<T>(frame)?;
    let (count, n, m) = (u.count(), u.n(), u.m());
    let grad_w = Stack::new(frame.needed(1)?.read("grad_w", &[count, n, n])?, count);
    let Some(grad_u) = frame.result(0)? else { return Ok(()) };
    let grad_u = StackMut::new(grad_u.write("grad_u", &[count, n, m])?, count);
    many::matrices_backward(context, u, grad_w, grad_u, None)
}

fn reflections<'a, T: Number>(frame: &Frame<'a>) -> Result<ManyReflections<'a, T>> {
    let u = frame.needed(0)?;
    let shape = u.shape()?;
    ManyReflections::new(shape, Form::Trapezoidal, u.read("u", &shape)?, None)
}
