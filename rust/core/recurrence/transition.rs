//! The weights of a step, packed once for a whole sequence.

use super::Sequence;
use crate::diagonal::Diagonal;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::pack::{Packed, Part, pack};
use crate::lengths::product;
use crate::memory::{Buffer, padded};
use crate::method::Method;
use crate::scalar::Scalar;
use crate::threads::Context;
use crate::wy::CompactWy;
use crate::wy::dense::Dense;
use crate::wy::gradient::expansion;

/// `a -> W a` in one direction.
pub enum Transition<T: Scalar> {
    /// `a + Q (P* a)`.
    LowRank {
        /// `P*`, `rank` rows.
        project: Packed<T>,
        /// `Q`, `n` rows.
        expand: Packed<T>,
    },
    /// `W`.
    Dense(Packed<T>),
}

/// What the forward pass leaves to the backward pass: all that both need of `U`, and the tape where that is kept.
pub struct Prepared<T: Scalar> {
    pub(super) factors: Factors<T>,
    /// Empty where it is not kept, and where there is nothing to keep.
    pub(super) tape: Buffer<T>,
}

/// The transition in one of two forms.
pub enum Factors<T: Scalar> {
    /// `W = I + Q P*`.
    LowRank {
        /// What `P` and `Q` are made of.
        wy: CompactWy<T>,
        /// `P`, column-major.
        p: Buffer<T>,
        /// `Q`, column-major.
        q: Buffer<T>,
        /// Columns of each.
        rank: usize,
    },
    /// `W`.
    Dense(Dense<T>),
}

impl<T: Scalar> Prepared<T> {
    pub(super) fn new(context: &mut Context<'_>, sequence: &Sequence<'_, T>) -> Result<Self> {
        Ok(Self { factors: Factors::new(context, sequence)?, tape: Buffer::zeroed(0)? })
    }

    /// Whether this is of the sequence's size, form of `U` and method.
    pub fn fits(&self, sequence: &Sequence<'_, T>) -> bool {
        let len = |width: usize| product(&[sequence.steps.rows(), width]);
        let tape_fits = || sequence.tape_width().is_ok_and(|width| len(width) == Some(self.tape.len()));
        self.factors.fit(sequence) && (self.tape.is_empty() || tape_fits())
    }

    /// The tape, where it is kept.
    pub(super) fn tape(&self) -> Option<&[T]> {
        (!self.tape.is_empty()).then_some(&self.tape[..])
    }
}

impl<T: Scalar> Factors<T> {
    fn new(context: &mut Context<'_>, sequence: &Sequence<'_, T>) -> Result<Self> {
        let u = sequence.u;
        sequence.diagonal.check(u)?;
        if sequence.method()? == Method::Dense {
            return Ok(Self::Dense(Dense::rounded(context, u, &sequence.diagonal)?));
        }
        let wy = CompactWy::new(context, u)?;
        let (n, k, ld, rank) = (wy.n, wy.k, wy.ld_n(), u.m());
        let (mut p, mut q) = (Buffer::zeroed(rank * ld)?, Buffer::zeroed(rank * ld)?);
        p[..k * ld].copy_from_slice(&wy.v[..k * ld]);
        q[..k * ld].copy_from_slice(&expansion(context, &wy)?[..k * ld]);
        if let Diagonal::Last(u1) = sequence.diagonal {
            for j in 0..k {
                p[j * ld + n - 1] = p[j * ld + n - 1] * u1;
            }
            p[k * ld + n - 1] = T::ONE;
            q[k * ld + n - 1] = u1 - T::ONE;
        }
        Ok(Self::LowRank { wy, p, q, rank })
    }

    fn fit(&self, sequence: &Sequence<'_, T>) -> bool {
        let u = sequence.u;
        let (dense, fits) = match self {
            Self::LowRank { wy, rank, .. } => {
                (false, wy.is_like(u) && [wy.n, wy.k, *rank] == [u.n(), u.count(), u.m()])
            }
            Self::Dense(dense) => (true, dense.blocks.check(u).is_ok()),
        };
        fits && sequence.method().is_ok_and(|method| (method == Method::Dense) == dense)
    }

    /// The step of the recurrence, or that of its gradients, which is the step with the adjoint.
    pub fn transition(&self, isa: InstructionSet, n: usize, adjoint: bool) -> Result<Transition<T>> {
        let ld = padded::<T>(n);
        // SAFETY: all matrices have columns of n numbers.
        unsafe {
            match self {
                Self::LowRank { p, q, rank, .. } => {
                    let q = if adjoint { p } else { q };
                    let q = Part::columns(q.ptr(), ld, *rank);
                    let project = self.projection(isa, n, adjoint)?;
                    Ok(Transition::LowRank { project, expand: pack(isa, n, &[q])? })
                }
                Self::Dense(dense) => {
                    let part = if adjoint { Part::adjoint } else { Part::columns };
                    Ok(Transition::Dense(pack(isa, n, &[part(dense.w.ptr(), ld, n)])?))
                }
            }
        }
    }

    /// `P*`, which makes `z`; nothing where `W` is formed.
    pub fn projection(&self, isa: InstructionSet, n: usize, adjoint: bool) -> Result<Packed<T>> {
        let (p, rank) = match self {
            Self::LowRank { p, q, rank, .. } => (if adjoint { q } else { p }.ptr(), *rank),
            Self::Dense(_) => (std::ptr::null(), 0),
        };
        let adjoint = Part::adjoint(p, padded::<T>(n), n);
        // SAFETY: `rank` columns of padded(n) numbers.
        unsafe { pack(isa, rank, &[adjoint]) }
    }
}
