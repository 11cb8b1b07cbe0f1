//! Gradients of applications.

use super::forward::{Formed, Prepared, Saved};
use super::matrix::from_outer;
use super::pass::{Pass, empty};
use super::{lanes, sequential};
use crate::arrays::rows::Rows;
use crate::arrays::stack::{Stack, StackMut};
use crate::arrays::view::{View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, filled};
use crate::method::Method;
use crate::numbers::scalar::Scalar;
use crate::operator::diagonal::DiagonalSum;
use crate::operator::gradients::Gradients;
use crate::operator::{Operator, Transform};
use crate::product::outer;
use crate::threads::Context;
use crate::wy::dense::{self, Dense};

/// Vectors of one pass: enough to keep all threads busy, and few enough for the cache.
const AT_ONCE: usize = 1024;

/// Gradients of `sum <g, W h>` over all rows of `h (count, rows, n)` and `g`, or of `W* h`. `saved` is what the forward pass of
/// the same problems left, if it is still there.
#[inline]
pub fn backward<'h, 'g, T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: impl Into<Rows<'h, T>>,
    g: impl Into<Rows<'g, T>>,
    gradients: Gradients<'_, T>,
    saved: Option<&Saved<T>>,
) -> Result<()> {
    T::apply_backward(context, w, &h.into().read("h", w.n())?, &g.into().read("g", w.n())?, gradients, saved)
}

/// [`backward`], to be compiled for each type.
pub(crate) fn contiguous<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    saved: Option<&Saved<T>>,
) -> Result<()> {
    let rows = gradients.check(w, &[("h", h.len()), ("g", g.len())])?;
    saved.map_or(Ok(()), |saved| saved.check(w, rows))?;
    if rows == 0 {
        gradients.vanish();
        return Ok(());
    }
    let (count, isa, method, flops) =
        (w.count(), context.isa, w.method_for(context.isa, rows, true), w.flops(rows).saturating_mul(3));
    let (h, g) = (Stack::new(h, count), Stack::new(g, count));
    if saved.is_none() && lanes::suit(w, rows, isa) {
        let group = lanes::group::<T>(isa);
        let workspace = || lanes::LanesBackward::new(w, group, rows);
        return gradients.by_problems(w, |of| {
            context.for_each_with(count.div_ceil(group), flops, &workspace, &|i, workspace, _| {
                let problems = lanes::problems(group, i, count);
                let [h, g] = [&h, &g].map(|x| x.part(problems.clone()));
                lanes::backward(isa, workspace, &w.problems(problems.clone()), [h, g], of(problems));
                Ok(())
            })
        });
    }
    let method = saved.and_then(Saved::method).unwrap_or(method);
    // A slice of vectors goes through all reflections alone.
    let is_shared = rows > sequential::SLICE && context.shares(count, flops);
    gradients.by_problem(w, |of| {
        let source = |i: usize| match saved.map(|saved| &saved.0[i]) {
            Some(Formed::Swept(swept)) => sequential::Source::Swept(h.at(i), swept.read()),
            _ => sequential::Source::Vectors(h.at(i)),
        };
        if method == Method::Reflections && !is_shared {
            let workspace = || sequential::Backward::new(w.n(), w.reflections(), rows, saved.is_none());
            return context.for_each_with(count, flops, &workspace, &|i, workspace, cancel| {
                sequential::backward(isa, workspace, cancel, w.at(i), source(i), g.at(i), of(i))
            });
        }
        context.for_each(count, flops, &|i, context| {
            let (w, h, g, mut gradients) = (w.at(i), h.at(i), g.at(i), of(i));
            if method == Method::Reflections {
                return sequential::backward_on_threads(context, w, source(i), g, gradients);
            }
            let formed = saved.map(|saved| &saved.0[i]);
            if let Some(Formed::Matrix(matrix)) = formed {
                return by_matrix(context, matrix, w, h, g, gradients);
            }
            if method == Method::Dense {
                let matrix = Dense::new(context, w)?;
                return by_matrix(context, &matrix, w, h, g, gradients);
            }
            let (n, grad_h) = (w.u.n(), gradients.h.take());
            let (h, g, grad_h) = (View::of(h, n, rows), View::of(g, n, rows), grad_h.map(|x| ViewMut::of(x, n, rows)));
            // SAFETY: rows of the caller's, those of dL/dh apart from the others.
            unsafe { by_factors(context, formed, w, h, g, grad_h, gradients) }
        })
    })
}

/// [`backward`] of `W h` by compact WY, in the memory of `g`: it becomes `dL/dh`.
pub fn backward_in_place<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: &[T],
    g: &mut [T],
    gradients: Gradients<'_, T>,
    saved: Option<&Saved<T>>,
) -> Result<()> {
    T::apply_backward_in_place(context, w, h, g, gradients, saved)
}

/// [`backward_in_place`], to be compiled for each type.
pub(crate) fn in_place<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: &[T],
    g: &mut [T],
    gradients: Gradients<'_, T>,
    saved: Option<&Saved<T>>,
) -> Result<()> {
    let rows = gradients.check(w, &[("h", h.len()), ("g", g.len())])?;
    saved.map_or(Ok(()), |saved| saved.check(w, rows))?;
    if w.is_adjoint() || gradients.h.is_some() || !saved.is_none_or(Saved::has_factors) {
        return Err(Error::unlike("in place", "W by its factors, and no other place for dL/dh"));
    }
    if rows == 0 {
        gradients.vanish();
        return Ok(());
    }
    let count = w.count();
    let (h, g) = (Stack::new(h, count), StackMut::new(g, count));
    gradients.by_problem(w, |of| {
        context.for_each(count, w.flops(rows).saturating_mul(3), &|i, context| {
            let (formed, w) = (saved.map(|saved| &saved.0[i]), w.at(i));
            let (n, h) = (w.u.n(), h.at(i));
            // SAFETY: rows of the caller's; each problem has its own part of g.
            unsafe {
                let g = ViewMut::of(g.at(i), n, rows);
                by_factors(context, formed, w, View::of(h, n, rows), g.read(), Some(g), of(i))
            }
        })
    })
}

/// Gradients by compact WY. Those of `h` go to `grad_h`, which may be `g` except for `W*`; `gradients` has the others.
///
/// # Safety
/// The caller owns as many vectors of `n` numbers in `h`, `g` and `grad_h`.
unsafe fn by_factors<T: Scalar>(
    context: &mut Context<'_>,
    formed: Option<&Formed<T>>,
    Transform { u, diagonal, adjoint }: Transform<'_, T>,
    h: View<'_, T>,
    g: View<'_, T>,
    grad_h: Option<ViewMut<'_, T>>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    let (n, rows) = (u.n(), h.count);
    let new;
    let prepared = if let Some(Formed::Factors(prepared)) = formed {
        prepared
    } else {
        new = Prepared::new(context, u, rows)?;
        &new
    };
    let blocks = &prepared.blocks;
    let Gradients { u: mut grad_u, tau: grad_tau, phases: grad_phases, .. } = gradients;
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
        let end = begin + count;
        let (p, b, grad_h) = (p.part(begin, end), b.part(begin, end), grad_h.map(|x| x.part(begin, end)));
        let state = ViewMut::of(&mut state, n, count);
        if !one {
            p.copy_to(state, n);
            (0..count).for_each(|i| diagonal.apply(state.vector_mut(i, n), false));
        }
        let to = grad_h.filter(|_| !adjoint);
        let q = to.or_else(|| (!back.is_empty()).then(|| ViewMut::of(&mut back, n, count)));
        let pass = Pass {
            blocks,
            u,
            a: if one { p } else { state.read() },
            state,
            y: prepared.y(begin, end).filter(|_| !adjoint),
            b,
            q,
            c: grad_h.filter(|_| adjoint),
            grad_u: to_grad_u,
            grad_tau,
            first_chunk: begin == 0,
            last_chunk: end == rows,
            identity: false,
        };
        pass.run(context)?;
        let Some(q) = q.filter(|_| !one) else { continue };
        let mut a = filled(n, T::ZERO)?;
        for i in 0..count {
            let (q, p) = (q.vector_mut(i, n), p.vector(i, n));
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

/// Gradients with the matrix: `G = sum b p*`, and everything else follows from `G`.
fn by_matrix<T: Scalar>(
    context: &mut Context<'_>,
    matrix: &Dense<T>,
    w: Transform<'_, T>,
    h: &[T],
    g: &[T],
    mut gradients: Gradients<'_, T>,
) -> Result<()> {
    let n = w.u.n();
    if let Some(grad_h) = gradients.h.take() {
        dense::multiply(context, n, &matrix.w, g, grad_h, !w.adjoint)?;
    }
    if gradients.u.is_none() && gradients.tau.is_none() && gradients.phases.is_none() {
        return Ok(());
    }
    let (p, b) = if w.adjoint { (g, h) } else { (h, g) };
    let sum = outer(context, n, b, p)?;
    from_outer(context, matrix, w, sum, gradients)
}
