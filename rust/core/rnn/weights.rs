//! The weights of a step, packed: `W` or its factors, and `[V b]`.

use std::fmt;

use super::plan::Plan;
use super::transition::{Transition, TransitionFactors};
use crate::error::{Error, Result};
use crate::numbers::scalar::Scalar;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::{Packed, pack};

/// What a step multiplies by.
pub struct StepWeights<T: Scalar> {
    /// For which they are packed.
    pub(super) isa: InstructionSet,
    pub(super) n: usize,
    pub(super) d: usize,
    /// Absent where `W h_0` stands in the place of `h_0`.
    pub(super) transition: Option<Transition<T>>,
    /// `[V b]`, and how many columns each of the two has. Without `V` inputs are added as they are.
    pub(super) inputs: Packed<T>,
    pub(super) widths: [usize; 2],
    pub(super) is_projected: bool,
}

impl<T: Scalar> fmt::Debug for StepWeights<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepWeights").field("n", &self.n).field("d", &self.d).finish_non_exhaustive()
    }
}

impl<T: Scalar> StepWeights<T> {
    /// Those of one problem.
    pub(super) fn new(isa: InstructionSet, plan: &Plan<'_, T>, factors: Option<&TransitionFactors<T>>) -> Result<Self> {
        let n = plan.n();
        Ok(Self {
            isa,
            n,
            d: plan.d,
            transition: factors.map(|factors| factors.transition(isa, n, plan.w.adjoint)).transpose()?,
            // SAFETY: V and b are the sequence's.
            inputs: unsafe { pack(isa, n, &plan.input_parts()) }?,
            widths: plan.input_widths(),
            is_projected: plan.input_weight.is_some(),
        })
    }

    /// Columns of `P` and `Q`.
    pub(super) fn rank(&self) -> usize {
        self.transition.as_ref().map_or(0, Transition::rank)
    }

    /// Refuses `count` problems like this one whose weights have other sizes.
    pub(super) fn check(&self, plan: &Plan<'_, T>, count: usize) -> Result<()> {
        let sizes = (plan.n(), plan.d, plan.input_widths(), plan.input_weight.is_some(), plan.layout.rank);
        if count == 1 && sizes == (self.n, self.d, self.widths, self.is_projected, self.rank()) {
            return Ok(());
        }
        Err(Error::InvalidArgument("prepared for another sequence".to_owned()))
    }
}
