//! `W h`, `W* h` and their gradients: `u (count, n, m)`, `h (count, rows, n)`.

use householder::apply;
use householder::diagonal::Diagonal;
use householder::error::Result;
use householder::gradients::Gradients;
use householder::method::{self, Method};
use householder::reflections::{Form, Reflections};
use householder::threads::Context;
use householder::unblocked;

use super::frame::{Element, Frame};
use crate::application::flops;
use crate::by_element;

/// The method, and whether it is to apply reflections one after the other.
fn method<T: Element>(frame: &Frame<'_>, n: usize, k: usize, rows: usize) -> Result<(Method, bool)> {
    let given = Method::parse(frame.text("method")?)?;
    let method = given.unwrap_or_else(|| method::for_application::<T>(Form::Trapezoidal, (n, k), rows));
    Ok((method, rows > 0 && method == Method::Reflections))
}

pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_forward(frame, context))
}

fn go_forward<T: Element>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let (u, h) = (frame.needed(0)?, frame.needed(1)?);
    let ([count, n, m], [_, rows, _]) = (u.shape()?, h.shape()?);
    let (u, h) = (u.read::<T>("u", &[count, n, m])?, h.read::<T>("h", &[count, rows, n])?);
    let Some(out) = frame.result(0)? else { return Ok(()) };
    let out = out.write::<T>("c", &[count, rows, n])?;
    let (adjoint, k) = (frame.flag("transpose")?, m.min(n.saturating_sub(1)));
    let (method, one_by_one) = method::<T>(frame, n, k, rows)?;
    let (isa, flops) = (context.isa, flops(count, n, m, rows));
    if one_by_one {
        return unblocked::for_each(context, count, flops, &|| unblocked::Forward::new(n, k), &|i, room, cancel| {
            let u = Reflections::new(n, m, u.at(i))?;
            // SAFETY: each problem writes its own part.
            room.run(isa, cancel, u, &Diagonal::of(u), h.at(i), unsafe { out.at(i) }, adjoint)
        });
    }
    context.for_each(count, flops, &|i, context| {
        let u = Reflections::new(n, m, u.at(i))?;
        // SAFETY: as above.
        apply::forward(context, u, &Diagonal::of(u), h.at(i), unsafe { out.at(i) }, adjoint, Some(method))
    })
}

pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_backward(frame, context))
}

fn go_backward<T: Element>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let (u, h, grad) = (frame.needed(0)?, frame.needed(1)?, frame.needed(2)?);
    let ([count, n, m], [_, rows, _]) = (u.shape()?, h.shape()?);
    let (of_u, of_h) = ([count, n, m], [count, rows, n]);
    let (u, h, grad) = (u.read::<T>("u", &of_u)?, h.read::<T>("h", &of_h)?, grad.read::<T>("grad_c", &of_h)?);
    let grad_u = frame.result(0)?.map(|room| room.write::<T>("grad_u", &of_u)).transpose()?;
    let grad_h = frame.result(1)?.map(|room| room.write::<T>("grad_h", &of_h)).transpose()?;
    let (adjoint, k) = (frame.flag("transpose")?, m.min(n.saturating_sub(1)));
    let (method, one_by_one) = method::<T>(frame, n, k, rows)?;
    // SAFETY: each problem writes its own parts.
    let gradients = |i: usize| unsafe {
        Gradients { u: grad_u.as_ref().map(|x| x.at(i)), h: grad_h.as_ref().map(|x| x.at(i)), tau: None, phases: None }
    };
    let (isa, flops) = (context.isa, 3 * flops(count, n, m, rows));
    if one_by_one {
        return unblocked::for_each(context, count, flops, &|| unblocked::Backward::new(n, k), &|i, room, cancel| {
            let u = Reflections::new(n, m, u.at(i))?;
            let source = unblocked::Source::Vectors(h.at(i));
            room.run(isa, cancel, u, &Diagonal::of(u), source, grad.at(i), gradients(i), adjoint)
        });
    }
    context.for_each(count, flops, &|i, context| {
        let u = Reflections::new(n, m, u.at(i))?;
        apply::backward(context, u, &Diagonal::of(u), h.at(i), grad.at(i), gradients(i), adjoint, Some(method))
    })
}
