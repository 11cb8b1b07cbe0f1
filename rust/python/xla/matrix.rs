//! `W (count, n, n)` itself, and its gradient: `u (count, n, m)`.

use householder::apply;
use householder::diagonal::Diagonal;
use householder::error::Result;
use householder::kernel::transpose::transpose;
use householder::memory::{Buffer, padded};
use householder::reflections::Reflections;
use householder::threads::Context;
use householder::unblocked;
use householder::wy::dense::Dense;

use super::frame::{Element, Frame};
use crate::application::flops;
use crate::by_element;

pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_forward(frame, context))
}

fn go_forward<T: Element>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let u = frame.needed(0)?;
    let [count, n, m] = u.shape()?;
    let u = u.read::<T>("u", &[count, n, m])?;
    let Some(out) = frame.result(0)? else { return Ok(()) };
    let out = out.write::<T>("w", &[count, n, n])?;
    let (isa, flops) = (context.isa, flops(count, n, m, n));
    if n <= unblocked::SMALL {
        let room = || unblocked::Rounded::new(n, m.min(n.saturating_sub(1)));
        return unblocked::for_each(context, count, flops, &room, &|i, room, _| {
            let u = Reflections::new(n, m, u.at(i))?;
            // SAFETY: each problem writes its own part.
            room.run(isa, u, &Diagonal::of(u), unsafe { out.at(i) })
        });
    }
    context.for_each(count, flops, &|i, context| {
        let u = Reflections::new(n, m, u.at(i))?;
        // SAFETY: as above.
        apply::matrix(context, u, &Diagonal::of(u), unsafe { out.at(i) })
    })
}

pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    by_element!(frame.needed(0)?, go_backward(frame, context))
}

fn go_backward<T: Element>(frame: &Frame<'_>, context: &mut Context<'_>) -> Result<()> {
    let (u, grad) = (frame.needed(0)?, frame.needed(1)?);
    let [count, n, m] = u.shape()?;
    let (u, grad) = (u.read::<T>("u", &[count, n, m])?, grad.read::<T>("grad_w", &[count, n, n])?);
    let Some(grad_u) = frame.result(0)? else { return Ok(()) };
    let grad_u = grad_u.write::<T>("grad_u", &[count, n, m])?;
    let (isa, flops) = (context.isa, 3 * flops(count, n, m, n));
    if n <= unblocked::SMALL && !T::COMPLEX {
        let room = || unblocked::FormationBackward::new(n, m.min(n.saturating_sub(1)));
        return unblocked::for_each(context, count, flops, &room, &|i, room, _| {
            let u = Reflections::new(n, m, u.at(i))?;
            // SAFETY: each problem writes its own part.
            room.run(isa, u, &Diagonal::of(u), grad.at(i), unsafe { grad_u.at(i) });
            Ok(())
        });
    }
    context.for_each(count, flops, &|i, context| {
        let u = Reflections::new(n, m, u.at(i))?;
        let mut outer = Buffer::zeroed(n * padded::<T>(n))?;
        transpose(isa, (n, n), grad.at(i), n, &mut outer, padded::<T>(n));
        let (diagonal, matrix) = (Diagonal::of(u), Dense::rounded(context, u, &Diagonal::of(u))?);
        // SAFETY: as above.
        apply::from_outer(context, &matrix, u, &diagonal, outer, Some(unsafe { grad_u.at(i) }), None, None)
    })
}
