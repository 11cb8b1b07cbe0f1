//! Gradients of one application.

use super::Prepared;
use super::from_outer::from_outer;
use super::pass::{Pass, empty};
use crate::diagonal::{Diagonal, DiagonalSum};
use crate::error::{Error, Result};
use crate::gradients::Gradients;
use crate::lengths::require;
use crate::memory::{Buffer, filled};
use crate::method::{self, Method};
use crate::product::outer;
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::Context;
use crate::unblocked;
use crate::view::View;
use crate::wy::dense::{self, Dense};

/// Vectors of one pass: enough to keep all threads busy, and few enough for the cache.
const AT_ONCE: usize = 1024;

/// Gradients of `sum <g, W h>` over the rows of `h` and `g`, or of `W* h`.
pub fn backward<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
    method: Option<Method>,
) -> Result<()> {
    let (n, k, rows) = (u.n(), u.count(), gradients.check(u, diagonal, h, g)?);
    if rows == 0 {
        gradients.vanish();
        return Ok(());
    }
    match method.unwrap_or_else(|| method::for_application::<T>(u.form(), (n, k), rows, u.tau().is_some())) {
        Method::Reflections => {
            let source = unblocked::Source::Vectors(h);
            let (isa, mut workspace) = (context.isa, unblocked::Backward::new(n, k, rows)?);
            context.here(|cancel| workspace.run(isa, cancel, u, diagonal, source, g, gradients, adjoint))
        }
        Method::Wy => {
            let prepared = Prepared::new(context, u, rows)?;
            backward_of(context, &prepared, u, diagonal, h, g, gradients, adjoint)
        }
        Method::Dense => {
            let matrix = Dense::new(context, u, diagonal)?;
            backward_by_matrix(context, &matrix, u, diagonal, h, g, gradients, adjoint)
        }
    }
}

/// [`backward`] by compact WY, with what the forward pass of these vectors has kept.
pub fn backward_of<T: Scalar>(
    context: &mut Context<'_>,
    prepared: &Prepared<T>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    let (n, rows, blocks) = (u.n(), gradients.check(u, diagonal, h, g)?, &prepared.blocks);
    prepared.check(u, rows)?;
    if rows == 0 {
        gradients.vanish();
        return Ok(());
    }
    let Gradients { u: mut grad_u, h: mut grad_h, tau: grad_tau, phases: grad_phases } = gradients;
    let (one, several) = (diagonal.is_one(), blocks.list.len() > 1);
    let most = rows.min(AT_ONCE);
    // D h; the inputs of all blocks, one after the other; W_1* g where it is not dL/dh.
    let mut state = Buffer::<T>::scratch(if several || !one { most * n } else { 0 })?;
    let mut back = Buffer::<T>::scratch(if (several || !one) && (adjoint || grad_h.is_none()) { most * n } else { 0 })?;
    let mut sum = DiagonalSum::new(n, diagonal)?;
    let (to_grad_u, grad_tau) = empty(u, grad_u.as_deref_mut(), grad_tau);
    // W* exchanges the roles of h and g.
    let (p, b) = if adjoint { (g, h) } else { (h, g) };
    for begin in (0..rows).step_by(AT_ONCE) {
        let count = AT_ONCE.min(rows - begin);
        let range = begin * n..(begin + count) * n;
        let (p, b) = (&p[range.clone()], &b[range.clone()]);
        let mut grad_h = grad_h.as_deref_mut().map(|x| &mut x[range]);
        if !one {
            state[..p.len()].copy_from_slice(p);
            state.chunks_mut(n).take(count).for_each(|a| diagonal.apply(a, false));
        }
        let view = |x: *const T| View::new(x, n, count);
        let to = grad_h.as_deref_mut().map(|x| view(x.as_mut_ptr()));
        let state = view(state.ptr_mut());
        let pass = Pass {
            blocks,
            u,
            a: if one { view(p.as_ptr()) } else { state },
            state,
            y: prepared.y(begin, begin + count).filter(|_| !adjoint),
            b: view(b.as_ptr()),
            q: to.filter(|_| !adjoint).or_else(|| (!back.is_empty()).then(|| view(back.ptr_mut()))),
            c: to.filter(|_| adjoint),
            grad_u: to_grad_u,
            grad_tau,
            part: (begin == 0, begin + count == rows),
            identity: false,
        };
        // SAFETY: vectors of n numbers of the caller's and of the workspace, and gradients of these reflections.
        unsafe { pass.run(context)? };
        if one {
            continue;
        }
        let q: &mut [T] = match grad_h {
            Some(grad_h) if !adjoint => grad_h,
            _ => &mut back,
        };
        let mut a = filled(n, T::ZERO)?;
        for (q, p) in q.chunks_mut(n).zip(p.chunks(n)) {
            a.copy_from_slice(p);
            diagonal.apply(&mut a, false);
            sum.add(q, &a, p);
            if !adjoint {
                diagonal.apply(q, true);
            }
        }
    }
    sum.write(u, grad_u, grad_phases);
    Ok(())
}

/// [`backward_of`] of `W_1 h`, in the memory of `g`: it becomes `dL/dh`.
pub fn backward_in_place<T: Scalar>(
    context: &mut Context<'_>,
    prepared: &Prepared<T>,
    u: Reflections<'_, T>,
    h: &[T],
    g: &mut [T],
    grad_u: &mut [T],
) -> Result<()> {
    let (n, rows, blocks) = (u.n(), u.vectors("h", h.len(), &[("g", g.len())])?, &prepared.blocks);
    prepared.check(u, rows)?;
    require(&[("dL/dU", Some(grad_u.len()), &[n, u.m()])])?;
    if u.u1().is_some() {
        return Err(Error::InvalidArgument(format!("u: expected fewer than n = {n} columns, got {}", u.m())));
    }
    let several = blocks.list.len() > 1;
    let mut state = Buffer::<T>::scratch(if several { rows.min(AT_ONCE) * n } else { 0 })?;
    if rows == 0 {
        grad_u.fill(T::ZERO);
    }
    let (to_grad_u, _) = empty(u, Some(grad_u), None);
    for begin in (0..rows).step_by(AT_ONCE) {
        let count = AT_ONCE.min(rows - begin);
        let b = View::new(g[begin * n..].as_mut_ptr(), n, count);
        let pass = Pass {
            blocks,
            u,
            a: View::new(h[begin * n..].as_ptr(), n, count),
            state: View::new(state.ptr_mut(), n, count),
            y: prepared.y(begin, begin + count),
            b,
            q: Some(b),
            c: None,
            grad_u: to_grad_u,
            grad_tau: None,
            part: (begin == 0, begin + count == rows),
            identity: false,
        };
        // SAFETY: as above.
        unsafe { pass.run(context)? };
    }
    Ok(())
}

/// [`backward`] with the matrix that the forward pass has kept: `G = sum b p*`, and everything else follows from `G`.
pub fn backward_by_matrix<T: Scalar>(
    context: &mut Context<'_>,
    matrix: &Dense<T>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    gradients.check(u, diagonal, h, g)?;
    matrix.blocks.check(u)?;
    let Gradients { u: grad_u, h: grad_h, tau: grad_tau, phases: grad_phases } = gradients;
    if let Some(grad_h) = grad_h {
        dense::multiply(context, u.n(), &matrix.w, g, grad_h, !adjoint)?;
    }
    if grad_u.is_none() && grad_tau.is_none() && grad_phases.is_none() {
        return Ok(());
    }
    let (p, b) = if adjoint { (g, h) } else { (h, g) };
    let sum = outer(context, u.n(), b, p)?;
    from_outer(context, matrix, u, diagonal, sum, grad_u, grad_tau, grad_phases)
}
