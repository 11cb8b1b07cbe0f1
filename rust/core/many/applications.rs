//! `W h`, `W* h` and their gradients.

use super::{Diagonals, ManyReflections, Stack, StackMut, flops};
use crate::apply::{self, Prepared};
use crate::error::Result;
use crate::gradients::Gradients;
use crate::lengths::require;
use crate::memory::filled;
use crate::method::{self, Method};
use crate::number::Number;
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::Context;
use crate::unblocked;
use crate::wy::dense::{self, Dense};

/// `W h` of each problem, or `W* h`.
pub struct Applications<'a, T: Scalar> {
    /// The reflections.
    pub u: ManyReflections<'a, T>,
    /// `theta (n,)`, which all problems share.
    pub phases: Option<&'a [T::Real]>,
    /// `h (count, rows, n)`.
    pub h: Stack<'a, T>,
    /// Whether `W*` is applied.
    pub adjoint: bool,
    /// The method; `None` lets the shape decide.
    pub method: Option<Method>,
}

/// What the forward pass of a single problem leaves to its backward pass.
pub enum Kept<T: Scalar> {
    /// Factors of the compact WY form.
    Factors(Prepared<T>),
    /// The matrix.
    Matrix(Dense<T>),
}

/// Where the gradients go; what is `None` is not computed.
#[derive(Default)]
pub struct ManyGradients<'a, T: Scalar> {
    /// `dL/dU (count, n, m)`.
    pub u: Option<StackMut<'a, T>>,
    /// `dL/dh (count, rows, n)`.
    pub h: Option<StackMut<'a, T>>,
    /// `dL/dtau (count, m)`.
    pub tau: Option<StackMut<'a, T>>,
    /// `dL/dtheta (n,)`, summed over the problems.
    pub phases: Option<&'a mut [T::Real]>,
}

impl<T: Scalar> Applications<'_, T> {
    /// Writes all results.
    pub fn forward(&self, context: &mut Context<'_>, out: StackMut<'_, T>) -> Result<()> {
        self.u.require(&[("h", Some(self.h.shape())), ("out", Some(out.shape()))], &[self.rows(), self.u.n()])?;
        let (u, adjoint, method) = (self.u, self.adjoint, self.method());
        let (diagonals, isa, flops) = (Diagonals::new(u.n(), self.phases)?, context.isa, self.flops());
        // SAFETY: each problem writes its own part.
        let out = |i: usize| unsafe { out.at(i) };
        if self.is_one_by_one(method) {
            let workspace = || unblocked::Forward::new(u.n(), u.each(), self.rows());
            return unblocked::for_each(context, u.count(), flops, &workspace, &|i, workspace, cancel| {
                let u = u.at(i)?;
                workspace.run(isa, cancel, u, &diagonals.of(u), self.h.at(i), out(i), adjoint)
            });
        }
        context.for_each(u.count(), flops, &|i, context| {
            let u = u.at(i)?;
            apply::forward(context, u, &diagonals.of(u), self.h.at(i), out(i), adjoint, Some(method))
        })
    }

    /// [`Applications::forward`], and what the backward pass can use.
    pub fn forward_and_keep(&self, context: &mut Context<'_>, out: &mut [T]) -> Result<Option<Kept<T>>> {
        let (count, method) = (self.u.count(), self.method());
        if count != 1 || method == Method::Reflections {
            self.forward(context, StackMut::new(out, count))?;
            return Ok(None);
        }
        self.u.require(&[("h", Some(self.h.shape()))], &[self.rows(), self.u.n()])?;
        let (u, h) = (self.u.at(0)?, self.h.at(0));
        let diagonals = Diagonals::new(u.n(), self.phases)?;
        if method == Method::Wy {
            let prepared = apply::forward_and_keep(context, u, &diagonals.of(u), h, out, self.adjoint)?;
            return Ok(Some(Kept::Factors(prepared)));
        }
        let matrix = Dense::new(context, u, &diagonals.of(u))?;
        dense::multiply(context, u.n(), &matrix.w, h, out, self.adjoint)?;
        Ok(Some(Kept::Matrix(matrix)))
    }

    /// Writes the gradients of `sum <g, W h>`, `g (count, rows, n)`. What was kept is used if it belongs to this problem.
    pub fn backward(
        &self,
        context: &mut Context<'_>,
        g: Stack<'_, T>,
        gradients: ManyGradients<'_, T>,
        kept: Option<&Kept<T>>,
    ) -> Result<()> {
        let (u, adjoint, method) = (self.u, self.adjoint, self.method());
        let (diagonals, isa, flops) = (Diagonals::new(u.n(), self.phases)?, context.isa, 3 * self.flops());
        self.check(&g, &gradients)?;
        let kept = kept.filter(|kept| u.count() == 1 && u.at(0).is_ok_and(|u| kept.is_of(u, self.rows())));
        // One gradient of the phases each, summed in order.
        let mut each_phases = filled(if gradients.phases.is_some() { u.count() * u.n() } else { 0 }, T::Real::ZERO)?;
        let phases = gradients.phases.is_some().then(|| StackMut::new(&mut each_phases, u.count()));
        // SAFETY: each problem writes its own parts.
        let of = |i: usize| unsafe {
            Gradients {
                u: gradients.u.as_ref().map(|x| x.at(i)),
                h: gradients.h.as_ref().map(|x| x.at(i)),
                tau: gradients.tau.as_ref().map(|x| x.at(i)),
                phases: phases.as_ref().map(|x| x.at(i)),
            }
        };
        if kept.is_none() && self.is_one_by_one(method) {
            let workspace = || unblocked::Backward::new(u.n(), u.each(), self.rows());
            unblocked::for_each(context, u.count(), flops, &workspace, &|i, workspace, cancel| {
                let (u, source) = (u.at(i)?, unblocked::Source::Vectors(self.h.at(i)));
                workspace.run(isa, cancel, u, &diagonals.of(u), source, g.at(i), of(i), adjoint)
            })?;
        } else {
            context.for_each(u.count(), flops, &|i, context| {
                let (u, h, g, gradients) = (u.at(i)?, self.h.at(i), g.at(i), of(i));
                let diagonal = diagonals.of(u);
                match kept {
                    Some(Kept::Factors(kept)) => {
                        apply::backward_of(context, kept, u, &diagonal, h, g, gradients, adjoint)
                    }
                    Some(Kept::Matrix(kept)) => {
                        apply::backward_by_matrix(context, kept, u, &diagonal, h, g, gradients, adjoint)
                    }
                    None => apply::backward(context, u, &diagonal, h, g, gradients, adjoint, Some(method)),
                }
            })?;
        }
        if let Some(sum) = gradients.phases {
            sum.fill(T::Real::ZERO);
            each_phases.chunks(u.n()).for_each(|each| sum.iter_mut().zip(each).for_each(|(sum, &x)| *sum += x));
        }
        Ok(())
    }

    /// Whether the sizes of all arrays of the backward pass fit; each problem checks those of its phases.
    fn check(&self, g: &Stack<'_, T>, gradients: &ManyGradients<'_, T>) -> Result<()> {
        let (u, rows) = (&self.u, self.rows());
        let shape = |x: &Option<StackMut<'_, T>>| x.as_ref().map(StackMut::shape);
        let vectors = [("h", Some(self.h.shape())), ("g", Some(g.shape())), ("dL/dh", shape(&gradients.h))];
        u.require(&vectors, &[rows, u.n()])?;
        u.require(&[("dL/dU", shape(&gradients.u))], &[u.n(), u.m()])?;
        u.require(&[("dL/dtau", shape(&gradients.tau))], &[if u.are_involutions() { 0 } else { u.m() }])?;
        require(&[("dL/dtheta", gradients.phases.as_ref().map(|x| x.len()), &[self.phases.map_or(0, <[_]>::len)])])
    }

    fn rows(&self) -> usize {
        self.h.each() / self.u.n()
    }

    fn method(&self) -> Method {
        let (n, k) = (self.u.n(), self.u.each());
        let given = !self.u.are_involutions();
        self.method.unwrap_or_else(|| method::for_application::<T>(self.u.form(), (n, k), self.rows(), given))
    }

    /// Whether reflections are applied one after the other. Problems without vectors need no special route.
    fn is_one_by_one(&self, method: Method) -> bool {
        self.rows() > 0 && method == Method::Reflections
    }

    fn flops(&self) -> usize {
        flops(self.u.count(), self.u.n(), self.u.m(), self.rows())
    }
}

impl<T: Scalar> Kept<T> {
    /// Whether it was kept for such reflections, and so many vectors.
    fn is_of(&self, u: Reflections<'_, T>, rows: usize) -> bool {
        match self {
            Self::Factors(kept) => kept.check(u, rows).is_ok(),
            Self::Matrix(kept) => kept.blocks.check(u).is_ok(),
        }
    }
}
