//! All gradients from `G = sum b p*`, which sequences and products with a formed `W` compute.
//!
//! `G` is the gradient of `W`, so this is the backward pass of an application to unit vectors.

use super::pass::{Pass, empty};
use crate::diagonal::Diagonal;
use crate::error::Result;
use crate::kernel::vector::dot;
use crate::memory::{Buffer, padded};
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::Context;
use crate::view::View;
use crate::wy::blocks::Scratch;
use crate::wy::dense::Dense;

/// All gradients of `U`, `tau` and the diagonal from `G = sum b p*` (column-major), `p` before the diagonal: the loss is
/// `Re tr(G* W_1 D)`, whose gradient is that of `W_1` applied to unit vectors, `D*` behind `G`.
pub fn from_outer<T: Scalar>(
    context: &mut Context<'_>,
    dense: &Dense<T>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    mut outer: Buffer<T>,
    mut grad_u: Option<&mut [T]>,
    grad_tau: Option<&mut [T]>,
    grad_phases: Option<&mut [T::Real]>,
) -> Result<()> {
    let (n, blocks) = (u.n(), &dense.blocks);
    blocks.check(u)?;
    diagonal.check(u)?;
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
            let rows = View::new(last.as_mut_ptr(), n, 1);
            // SAFETY: one row of n numbers.
            unsafe { blocks.apply(context.isa, rows, rows, &mut Scratch::new(blocks, 1)?, None, false) };
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
    let (state, outer) = (View::new(state.ptr_mut(), ld, n), View::new(outer.ptr_mut(), ld, n));
    let (grad_u, grad_tau) = empty(u, grad_u, grad_tau);
    let pass = Pass {
        blocks,
        u,
        a: state,
        state,
        y: Some(dense.coefficients()),
        b: outer,
        q: Some(outer),
        c: None,
        grad_u,
        grad_tau,
        part: (true, true),
        identity: true,
    };
    // SAFETY: two matrices of n padded columns, and gradients of these reflections.
    unsafe { pass.run(context) }
}
