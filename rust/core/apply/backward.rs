//! Gradients of one application.

use super::diagonal::DiagonalSum;
use super::products::{Products, Rows};
use super::{CHUNK, Diagonal};
use crate::dense::Dense;
use crate::error::Result;
use crate::gradient;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm, gemm2, line};
use crate::memory::{Buffer, Shared, padded};
use crate::parallel::{Context, slices};
use crate::plan::{self, Method};
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::sequential;
use crate::wy::CompactWy;

/// Where the gradients go; what is `None` is not computed.
pub struct Gradients<'a, T: Scalar> {
    /// `dL/dU (n, m)`, the gradient of `u_1` last.
    pub u: Option<&'a mut [T]>,
    /// `dL/dh (rows, n)`.
    pub h: Option<&'a mut [T]>,
    /// `dL/dtheta (n,)`.
    pub phases: Option<&'a mut [T::Real]>,
}

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
    if h.is_empty() {
        gradients.u.into_iter().for_each(|x| x.fill(T::ZERO));
        gradients.phases.into_iter().for_each(|x| x.fill(T::Real::ZERO));
        return Ok(());
    }
    match method.unwrap_or_else(|| plan::for_application(u.n(), u.count(), h.len() / u.n())) {
        Method::Reflections => sequential::backward(context.isa, u, diagonal, h, g, gradients, adjoint),
        Method::Wy => compact(context, u, diagonal, h, g, gradients, adjoint),
        Method::Dense => dense(context, u, diagonal, h, g, gradients, adjoint),
    }
}

/// Everything one slice of the batch sums up, and its workspace.
struct Slice<'a, T: Scalar> {
    wy: &'a CompactWy<T>,
    diagonal: &'a Diagonal<T>,
    adjoint: bool,
    wants_u: bool,
    /// `sum b y* + a w*`, column-major.
    grad_v: Buffer<T>,
    /// `sum y w*`, column-major.
    yw: Buffer<T>,
    diagonal_sum: DiagonalSum<T>,
    from_a: Products<T>,
    from_b: Products<T>,
    a_copy: Buffer<T>,
    b_copy: Buffer<T>,
    q: Buffer<T>,
}

impl<'a, T: Scalar> Slice<'a, T> {
    fn new(wy: &'a CompactWy<T>, diagonal: &'a Diagonal<T>, adjoint: bool, wants_u: bool, rows: usize) -> Result<Self> {
        let rows = rows.min(CHUNK);
        let sums = if wants_u { wy.k } else { 0 };
        let copy = |needed| Buffer::scratch(if needed { rows * padded::<T>(wy.n) } else { 0 });
        let ragged = !wy.n.is_multiple_of(line::<T>());
        Ok(Self {
            wy,
            diagonal,
            adjoint,
            wants_u,
            grad_v: Buffer::zeroed(sums * wy.ld_n())?,
            yw: Buffer::zeroed(sums * wy.ld_k())?,
            diagonal_sum: DiagonalSum::new(wy.n, diagonal)?,
            from_a: Products::new(wy, rows)?,
            from_b: Products::new(wy, rows)?,
            a_copy: copy(ragged || !diagonal.is_one())?,
            b_copy: copy(ragged)?,
            q: Buffer::zeroed(if diagonal.is_one() { 0 } else { rows * wy.n })?,
        })
    }

    /// Adds the gradients of a chunk of rows and writes its `dL/dh`.
    fn add(&mut self, isa: InstructionSet, p: &[T], b: &[T], mut grad_h: Option<&mut [T]>) {
        let (wy, n, k) = (self.wy, self.wy.n, self.wy.k);
        let (ld_n, ld_k) = (wy.ld_n(), wy.ld_k());
        let a = Rows::padded(p, n, self.diagonal, &mut self.a_copy);
        let b = Rows::padded(b, n, &Diagonal::One, &mut self.b_copy);
        // SAFETY: `a` and `b` are as many rows of n numbers, readable to whole registers; y, w and the sums are padded
        // buffers of the sizes the products name; dL/dh has as many rows of n numbers.
        unsafe {
            self.from_a.project(isa, wy, a, false);
            self.from_b.project(isa, wy, b, true);
            if self.wants_u {
                let (y, w) = (&self.from_a, &self.from_b);
                let out = Columns::new(self.grad_v.ptr_mut(), ld_n);
                let weights = [Weights::strided(b.ptr, b.ld, b.count), Weights::strided(a.ptr, a.ld, a.count)];
                let operands = [Operand::rows(y.y_conjugate(), ld_k), Operand::rows(w.y_conjugate(), ld_k)];
                gemm2(isa, n, k, weights, operands, &Store { out, add: out });
                let out = Columns::new(self.yw.ptr_mut(), ld_k);
                let weights = Weights::strided(y.y(), ld_k, a.count);
                gemm(isa, k, k, weights, Operand::rows(w.y_conjugate(), ld_k), &Store { out, add: out });
            }
            if self.diagonal.is_one() {
                if let Some(grad_h) = grad_h {
                    // q = b + V w, or a + V y for W*.
                    let (products, rows) = if self.adjoint { (&self.from_a, a) } else { (&self.from_b, b) };
                    products.expand(isa, wy, rows, grad_h.as_mut_ptr());
                }
                return;
            }
            self.from_b.expand(isa, wy, b, self.q.ptr_mut());
            for i in 0..a.count {
                let q = &mut self.q[i * n..(i + 1) * n];
                self.diagonal_sum.add(q, a.row(i, n), &p[i * n..(i + 1) * n]);
                if let (false, Some(grad_h)) = (self.adjoint, grad_h.as_deref_mut()) {
                    self.diagonal.apply(q, true);
                    grad_h[i * n..(i + 1) * n].copy_from_slice(q);
                }
            }
            if let (true, Some(grad_h)) = (self.adjoint, grad_h) {
                self.from_a.expand(isa, wy, a, grad_h.as_mut_ptr());
            }
        }
    }
}

fn compact<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    let wy = CompactWy::new(context.isa, u)?;
    let (n, isa) = (wy.n, context.isa);
    let rows = h.len() / n;
    let bounds = slices(rows, CHUNK / 2, 8);
    let (p, b) = if adjoint { (g, h) } else { (h, g) };
    let Gradients { u: grad_u, h: grad_h, phases: grad_phases } = gradients;
    let mut parts = Vec::with_capacity(bounds.len());
    for bound in bounds.windows(2) {
        parts.push(Slice::new(&wy, diagonal, adjoint, grad_u.is_some(), bound[1] - bound[0])?);
    }
    let grad_h = grad_h.map(|x| Shared(x.as_mut_ptr()));
    let shared = Shared(parts.as_mut_ptr());
    context.run(bounds.len() - 1, 10 * n * wy.k * rows, &|i, cancel| {
        // SAFETY: task i alone uses part i.
        let part = unsafe { &mut *shared.get().add(i) };
        for begin in (bounds[i]..bounds[i + 1]).step_by(CHUNK) {
            cancel.check()?;
            let (from, to) = (begin * n, (begin + CHUNK).min(bounds[i + 1]) * n);
            // SAFETY: slices of the batch are disjoint.
            let grad_h = grad_h.map(|x| unsafe { std::slice::from_raw_parts_mut(x.get().add(from), to - from) });
            part.add(isa, &p[from..to], &b[from..to], grad_h);
        }
        Ok(())
    })?;
    let mut parts = parts.into_iter();
    let mut total = parts.next().expect("a batch has at least one slice");
    for part in parts {
        total.grad_v.iter_mut().zip(part.grad_v.iter()).for_each(|(a, b)| *a += *b);
        total.yw.iter_mut().zip(part.yw.iter()).for_each(|(a, b)| *a += *b);
        total.diagonal_sum.merge(&part.diagonal_sum);
    }
    let mut grad_u = grad_u;
    if let Some(grad_u) = grad_u.as_deref_mut() {
        gradient::finish(isa, &wy, &mut total.yw, &mut total.grad_v);
        wy.write_gradient(&total.grad_v, u, grad_u);
    }
    total.diagonal_sum.write(u, grad_u, grad_phases);
    Ok(())
}

/// From the matrix: `G = sum b p*`, everything else follows from it.
fn dense<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    let wy = CompactWy::new(context.isa, u)?;
    let Gradients { u: grad_u, h: grad_h, phases: grad_phases } = gradients;
    if let Some(grad_h) = grad_h {
        Dense::new(context, &wy, diagonal)?.multiply(context, g, grad_h, !adjoint)?;
    }
    if grad_u.is_none() && grad_phases.is_none() {
        return Ok(());
    }
    let (p, b) = if adjoint { (g, h) } else { (h, g) };
    let outer = gradient::outer(context, wy.n, b, p)?;
    gradient::from_outer(context, &wy, u, diagonal, outer, grad_u, grad_phases)
}
