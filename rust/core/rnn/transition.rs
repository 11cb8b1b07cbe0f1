//! The weights of a step, packed once for a whole sequence.

use std::ops::Range;

use super::plan::{Layout, Plan};
use crate::apply;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::{Buffer, padded};
use crate::numbers::scalar::Scalar;
use crate::operator::{Diagonal, Form, Reflections};
use crate::simd::epilogue::{Step, Store};
use crate::simd::gemm::{gemm, gemm2};
use crate::simd::isa::InstructionSet;
use crate::simd::pack::{Packed, Part, pack};
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

impl<T: Scalar> Transition<T> {
    /// Columns of `P` and `Q`.
    pub fn rank(&self) -> usize {
        match self {
            Self::LowRank { expand, .. } => expand.weights().count,
            Self::Dense(_) => 0,
        }
    }

    /// The step that ends with `step`, for the coordinates `range`: all of them, unless `W` is formed. `inputs` are `[V b]`
    /// and its operand, `z` is memory for `P* a`.
    ///
    /// # Safety
    /// The caller owns a row of each operand and of `z` for each vector of `a`, and all that `step` names.
    pub unsafe fn advance<'a>(
        &self,
        isa: InstructionSet,
        range: Range<usize>,
        a: View<'a, T>,
        z: ViewMut<'_, T>,
        inputs: [View<'_, T>; 2],
        step: Step<'a, T>,
    ) {
        let shape = (range.len(), a.count);
        match self {
            Self::LowRank { project, expand } => {
                gemm(isa, (self.rank(), a.count), project.weights(), a, &Store::new(z));
                gemm2(isa, shape, &[[expand.weights(), z.read()], inputs], &Step { previous: a, ..step });
            }
            Self::Dense(w) => gemm2(isa, shape, &[[w.weights_from(range.start), a], inputs], &step),
        }
    }
}

/// All that both passes need of `U`.
pub enum TransitionFactors<T: Scalar> {
    /// `W = I + Q P*`.
    LowRank {
        /// What `P` and `Q` are made of.
        wy: CompactWy<T>,
        /// `P`, column-major; absent without `u_1`, where it is `V`.
        p: Option<Buffer<T>>,
        /// `Q`, column-major.
        q: Buffer<T>,
    },
    /// `W`.
    Dense(Dense<T>),
    /// `W` of few coordinates.
    Small {
        /// `W`, row-major.
        w: Buffer<T>,
        /// How many columns `U` has.
        m: usize,
        /// And what they consist of.
        form: Form,
    },
}

impl<T: Scalar> TransitionFactors<T> {
    /// Of the transition of a sequence.
    pub fn new(context: &mut Context<'_>, plan: &Plan<'_, T>) -> Result<Self> {
        if plan.forms_matrix() {
            if apply::is_small::<T>(plan.n(), plan.w.u.tau().is_none()) {
                let (u, mut w) = (plan.w.u, Buffer::scratch(plan.n() * plan.n())?);
                apply::matrix_of_one(context, plan.w, &mut w)?;
                return Ok(Self::Small { w, m: u.m(), form: u.form() });
            }
            return Ok(Self::Dense(Dense::rounded(context, plan.w)?));
        }
        let wy = CompactWy::new(context, plan.w.u)?;
        let v_n = expansion(context, &wy)?;
        let Diagonal::Last(u1) = plan.w.diagonal else {
            return Ok(Self::LowRank { wy, p: None, q: v_n });
        };
        let (n, k, ld) = (wy.n, wy.k, wy.ld_n());
        let [mut p, mut q] = [Buffer::zeroed((k + 1) * ld)?, Buffer::zeroed((k + 1) * ld)?];
        p[..k * ld].copy_from_slice(&wy.v[..k * ld]);
        q[..k * ld].copy_from_slice(&v_n[..k * ld]);
        for j in 0..k {
            p[j * ld + n - 1] = p[j * ld + n - 1] * u1;
        }
        p[k * ld + n - 1] = T::ONE;
        q[k * ld + n - 1] = u1 - T::ONE;
        Ok(Self::LowRank { wy, p: Some(p), q })
    }

    /// Whether these are of so many reflections, of this size and form, in the form that the layout asks for.
    pub fn fit(&self, u: Reflections<'_, T>, layout: Layout) -> bool {
        match self {
            Self::LowRank { wy, p, .. } => {
                let same_u = wy.is_like(u) && [wy.n, wy.k] == [u.n(), u.count()] && p.is_some() == u.u1().is_some();
                same_u && layout.rank > 0
            }
            Self::Dense(dense) => dense.blocks.check(u).is_ok() && layout.rank == 0,
            Self::Small { w, m, form } => {
                let same_u = apply::is_small::<T>(u.n(), u.tau().is_none())
                    && w.len() == u.n() * u.n()
                    && (*m, *form) == (u.m(), u.form());
                same_u && layout.rank == 0
            }
        }
    }

    /// The step of the recurrence, or that of its gradients, which is the step with the adjoint.
    pub fn transition(&self, isa: InstructionSet, n: usize, adjoint: bool) -> Result<Transition<T>> {
        let ld = padded::<T>(n);
        // SAFETY: all matrices have columns of n numbers, or rows.
        unsafe {
            let matrix = match self {
                Self::LowRank { .. } => None,
                Self::Dense(dense) => Some((&dense.w, ld, adjoint)),
                Self::Small { w, .. } => Some((w, n, !adjoint)), // rows of a real W are columns of W*
            };
            if let Some((w, ld, adjoint)) = matrix {
                let part = if adjoint { Part::adjoint } else { Part::columns };
                return Ok(Transition::Dense(pack(isa, n, &[part(w, ld, n)])?));
            }
            let (q, rank) = self.thin(!adjoint);
            let expand = pack(isa, n, &[Part::columns(q, ld, rank)])?;
            Ok(Transition::LowRank { project: self.projection(isa, n, adjoint)?, expand })
        }
    }

    /// `P*`, which makes `z`; nothing where `W` is formed.
    pub fn projection(&self, isa: InstructionSet, n: usize, adjoint: bool) -> Result<Packed<T>> {
        let (p, rank) = self.thin(adjoint);
        // SAFETY: `rank` columns of padded(n) numbers.
        unsafe { pack(isa, rank, &[Part::adjoint(p, padded::<T>(n), n)]) }
    }

    /// `P`, or `Q` if asked, and how many columns it has.
    fn thin(&self, q: bool) -> (&[T], usize) {
        match self {
            Self::LowRank { wy, p, q: of_q } => {
                let of_p = p.as_ref().unwrap_or(&wy.v);
                (if q { of_q } else { of_p }, wy.k + usize::from(p.is_some()))
            }
            Self::Dense(_) | Self::Small { .. } => (&[], 0),
        }
    }
}
