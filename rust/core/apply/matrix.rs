//! `W` itself, and gradients that come through it.

use super::forward::{Formed, Saved};
use super::pass::{Pass, empty};
use super::small;
use crate::arrays::rows::RowsMut;
use crate::arrays::stack::{Stack, StackMut};
use crate::arrays::view::ViewMut;
use crate::error::{Error, Result};
use crate::memory::{Buffer, collected, padded};
use crate::numbers::scalar::Scalar;
use crate::operator::gradients::Gradients;
use crate::operator::{Diagonal, Operator, Transform};
use crate::simd::isa::InstructionSet;
use crate::simd::transpose::transpose;
use crate::simd::vector::dot;
use crate::threads::Context;
use crate::wy::blocks::Scratch;
use crate::wy::dense::{self, Dense};

/// Writes `W (count, n, n)`, row by row.
#[inline]
pub fn matrix<'o, T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    out: impl Into<RowsMut<'o, T>>,
) -> Result<()> {
    out.into().write("W", w.n(), |out| T::matrix(context, w, out, false).map(drop))
}

/// [`matrix`], and what the backward pass can use, if there is anything.
#[inline]
pub fn matrix_and_save<'o, T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    out: impl Into<RowsMut<'o, T>>,
) -> Result<Option<Saved<T>>> {
    out.into().write("W", w.n(), |out| T::matrix(context, w, out, true))
}

/// The matrix of one problem.
pub(crate) fn matrix_of_one<T: Scalar>(context: &mut Context<'_>, w: Transform<'_, T>, out: &mut [T]) -> Result<()> {
    let n = w.u.n();
    if n <= small::SMALL {
        return small::Rounded::new(n, w.u.count())?.run(context.isa, w, out);
    }
    dense::write_matrix(context, w, out)
}

/// Whether the gradient of `U` from that of `W` undoes reflections in registers. They must be their own inverses.
pub(crate) fn is_small<T: Scalar>(n: usize, are_involutions: bool) -> bool {
    n <= small::SMALL && !T::COMPLEX && are_involutions
}

/// Writes `dL/dU` of one problem from `dL/dW`, both row-major, where [`is_small`].
pub(crate) fn small_matrix_backward<T: Scalar>(
    isa: InstructionSet,
    w: Transform<'_, T>,
    grad_w: &[T],
    grad_u: &mut [T],
) -> Result<()> {
    small::form_back(isa, &mut small::FormationBackward::new(w.u.n(), w.u.count())?, w, grad_w, grad_u);
    Ok(())
}

/// [`matrix_and_save`], to be compiled for each type.
pub(crate) fn write_and_save<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    out: &mut [T],
    save: bool,
) -> Result<Option<Saved<T>>> {
    let (count, n, isa, flops) = (w.count(), w.n(), context.isa, w.flops(w.n()));
    w.require(&[("W", Some(out.len()), &[n, n])])?;
    if w.is_adjoint() {
        return Err(Error::unlike("W", "an operator that is not an adjoint"));
    }
    let out = StackMut::new(out, count);
    // SAFETY: each problem writes its own part.
    let out = |i: usize| unsafe { out.at(i) };
    if n <= small::SMALL {
        let workspace = || small::Rounded::new(n, w.reflections());
        context.for_each_with(count, flops, &workspace, &|i, workspace, _| workspace.run(isa, w.at(i), out(i)))?;
        return Ok(None);
    }
    let mut saved = collected((0..if save { count } else { 0 }).map(|_| None))?;
    let each = StackMut::new(&mut saved, count);
    context.for_each(count, flops, &|i, context| {
        // SAFETY: as above.
        let Some(saved) = unsafe { each.at(i) }.first_mut() else {
            return dense::write_matrix(context, w.at(i), out(i));
        };
        let matrix = Dense::rounded(context, w.at(i))?;
        dense::write(isa, n, &matrix.w, out(i));
        *saved = Some(Formed::Matrix(matrix));
        Ok(())
    })?;
    Ok(save.then(|| Saved(saved.into_iter().flatten().collect())))
}

/// Writes `dL/dU (count, n, m)`, given `dL/dW (count, n, n)`, for matrices without phases. `saved` is what [`matrix_and_save`]
/// left of the same problems, if it is still there.
pub fn matrix_backward<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    grad_w: &[T],
    grad_u: &mut [T],
    saved: Option<&Saved<T>>,
) -> Result<()> {
    T::matrix_backward(context, w, grad_w, grad_u, saved)
}

/// [`matrix_backward`], to be compiled for each type.
pub(crate) fn gradient<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    grad_w: &[T],
    grad_u: &mut [T],
    saved: Option<&Saved<T>>,
) -> Result<()> {
    let (count, n) = (w.count(), w.n());
    w.require(&[("dL/dW", Some(grad_w.len()), &[n, n]), ("dL/dU", Some(grad_u.len()), &[n, w.m()])])?;
    saved.map_or(Ok(()), |saved| saved.check(w, n))?;
    if w.angles() > 0 || w.is_adjoint() {
        return Err(Error::unlike("dL/dW", "that of W, without phases"));
    }
    let (isa, flops) = (context.isa, w.flops(n).saturating_mul(3));
    let (grad_w, grad_u) = (Stack::new(grad_w, count), StackMut::new(grad_u, count));
    // SAFETY: each problem writes its own part.
    let grad_u = |i: usize| unsafe { grad_u.at(i) };
    if is_small::<T>(n, w.are_involutions()) {
        let workspace = || small::FormationBackward::new(n, w.reflections());
        return context.for_each_with(count, flops, &workspace, &|i, workspace, _| {
            small::form_back(isa, workspace, w.at(i), grad_w.at(i), grad_u(i));
            Ok(())
        });
    }
    context.for_each(count, flops, &|i, context| {
        let w = w.at(i);
        let mut outer = Buffer::zeroed(n * padded::<T>(n))?;
        transpose(isa, (n, n), grad_w.at(i), n, &mut outer, padded::<T>(n));
        let gradients = Gradients { u: Some(grad_u(i)), ..Gradients::default() };
        if let Some(Formed::Matrix(matrix)) = saved.map(|saved| &saved.0[i]) {
            return from_outer(context, matrix, w, outer, gradients);
        }
        let matrix = Dense::rounded(context, w)?;
        from_outer(context, &matrix, w, outer, gradients)
    })
}

/// All gradients from `G = sum b p*` (column-major), `p` before the diagonal, which sequences and products with a formed `W`
/// compute. The loss is `Re tr(G* W_1 D)`, whose gradient is that of `W_1` applied to unit vectors, `D*` behind `G`. That of
/// `h` is not among them.
pub(crate) fn from_outer<T: Scalar>(
    context: &mut Context<'_>,
    dense: &Dense<T>,
    Transform { u, diagonal, .. }: Transform<'_, T>,
    mut outer: Buffer<T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    let Gradients { u: mut grad_u, tau: grad_tau, phases: grad_phases, .. } = gradients;
    let (n, blocks) = (u.n(), &dense.blocks);
    let ld = padded::<T>(n);
    let column = |j: usize| j * ld..j * ld + n;
    assert!(outer.len() >= n * ld, "G of {n} columns");
    let mut state = Buffer::<T>::scratch(n * ld)?;
    state.copy_from_slice(&dense.w);
    // From W to W_1, and dL/dd_j = sum_i conj(w_ij) g_ij, W_1's column j times G's.
    match diagonal {
        Diagonal::One => {}
        Diagonal::Last(_) => {
            let last = &mut state[column(n - 1)];
            last.fill(T::ZERO);
            last[n - 1] = T::ONE;
            let row = ViewMut::of(last, n, 1);
            // SAFETY: one row of n numbers.
            unsafe { blocks.apply(context.isa, row.read(), row, &mut Scratch::new(blocks, 1)?, None, false) };
            if let Some(grad_u) = grad_u.as_deref_mut() {
                grad_u[n * u.m() - 1] = dot(context.isa, last, &outer[column(n - 1)]);
            }
        }
        Diagonal::Phases(units) => {
            let mut grads = grad_phases.into_iter().flatten();
            for (j, unit) in units.iter().enumerate() {
                diagonal.scale(j, &mut state[column(j)], true);
                if let Some(grad) = grads.next() {
                    let sum = dot(context.isa, &state[column(j)], &outer[column(j)]);
                    *grad = -(sum.conj() * *unit).im();
                }
            }
        }
    }
    if grad_u.is_none() && grad_tau.is_none() {
        return Ok(());
    }
    for (j, column) in outer.chunks_mut(ld).take(n).enumerate() {
        diagonal.scale(j, &mut column[..n], true);
    }
    let (state, outer) = (ViewMut::of(&mut state, ld, n), ViewMut::of(&mut outer, ld, n));
    let (grad_u, grad_tau) = empty(u, grad_u, grad_tau);
    let pass = Pass {
        blocks,
        u,
        a: state.read(),
        state,
        y: Some(dense.coefficients()),
        b: outer.read(),
        q: Some(outer),
        c: None,
        grad_u,
        grad_tau,
        first_chunk: true,
        last_chunk: true,
        identity: true,
    };
    // SAFETY: two matrices of n padded columns, and gradients of these reflections.
    unsafe { pass.run(context) }
}
