//! `W` itself, and its gradient.

use super::{Diagonals, ManyReflections, Stack, StackMut, flops};
use crate::apply;
use crate::diagonal::Diagonal;
use crate::error::Result;
use crate::kernel::transpose::transpose;
use crate::memory::{Buffer, collected, padded};
use crate::scalar::Scalar;
use crate::threads::Context;
use crate::unblocked;
use crate::wy::dense::{self, Dense};

/// Writes `W (count, n, n)`, row-major. If asked to keep it, returns what the backward pass can use, if there is anything.
pub fn matrices<T: Scalar>(
    context: &mut Context<'_>,
    u: ManyReflections<'_, T>,
    phases: Option<&[T::Real]>,
    out: &mut [T],
    keep: bool,
) -> Result<Option<Vec<Option<Dense<T>>>>> {
    let (count, n) = (u.count(), u.n());
    u.require(&[("W", Some((count, out.len())))], &[n, n])?;
    let (isa, flops, diagonals) = (context.isa, flops(count, n, u.m(), n), Diagonals::new(n, phases)?);
    let out = StackMut::new(out, count);
    // SAFETY: each problem writes its own part.
    let out = |i: usize| unsafe { out.at(i) };
    if n <= unblocked::SMALL {
        let workspace = || unblocked::Rounded::new(n, u.each());
        unblocked::for_each(context, count, flops, &workspace, &|i, workspace, _| {
            let u = u.at(i)?;
            workspace.run(isa, u, &diagonals.of(u), out(i))
        })?;
        return Ok(None);
    }
    let mut kept = collected((0..if keep { count } else { 0 }).map(|_| None))?;
    let each = StackMut::new(&mut kept, count);
    context.for_each(count, flops, &|i, context| {
        let u = u.at(i)?;
        // SAFETY: as above.
        let Some(kept) = unsafe { each.at(i) }.first_mut() else {
            return apply::matrix(context, u, &diagonals.of(u), out(i));
        };
        let matrix = kept.insert(Dense::rounded(context, u, &diagonals.of(u))?);
        dense::write(isa, n, &matrix.w, out(i));
        Ok(())
    })?;
    Ok(keep.then_some(kept))
}

/// Writes `dL/dU (count, n, m)`, given `dL/dW (count, n, n)`. Kept matrices serve if they are of these problems.
pub fn matrices_backward<T: Scalar>(
    context: &mut Context<'_>,
    u: ManyReflections<'_, T>,
    grad_w: Stack<'_, T>,
    grad_u: StackMut<'_, T>,
    kept: Option<&[Option<Dense<T>>]>,
) -> Result<()> {
    let (count, n) = (u.count(), u.n());
    u.require(&[("dL/dW", Some(grad_w.shape()))], &[n, n])?;
    u.require(&[("dL/dU", Some(grad_u.shape()))], &[n, u.m()])?;
    let (isa, flops) = (context.isa, 3 * flops(count, n, u.m(), n));
    if n <= unblocked::SMALL && !T::COMPLEX && u.are_involutions() {
        let workspace = || unblocked::FormationBackward::new(n, u.each());
        return unblocked::for_each(context, count, flops, &workspace, &|i, workspace, _| {
            let u = u.at(i)?;
            // SAFETY: each problem writes its own part.
            workspace.run(isa, u, &Diagonal::of(u), grad_w.at(i), unsafe { grad_u.at(i) });
            Ok(())
        });
    }
    context.for_each(count, flops, &|i, context| {
        let u = u.at(i)?;
        // SAFETY: as above.
        let grad_u = unsafe { grad_u.at(i) };
        let diagonal = Diagonal::of(u);
        let mut outer = Buffer::zeroed(n * padded::<T>(n))?;
        transpose(isa, (n, n), grad_w.at(i), n, &mut outer, padded::<T>(n));
        let new;
        let matrix = if let Some(kept) =
            kept.and_then(|kept| kept.get(i)?.as_ref()).filter(|kept| kept.blocks.check(u).is_ok())
        {
            kept
        } else {
            new = Dense::rounded(context, u, &diagonal)?;
            &new
        };
        apply::from_outer(context, matrix, u, &diagonal, outer, Some(grad_u), None, None)
    })
}
