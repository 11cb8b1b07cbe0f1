//! Many small problems side by side: each has a lane of its own, so no sum crosses lanes and no register is partly empty.
//!
//! A group of problems is transposed into scratch memory of the first-level cache, where the same number of all of them is
//! contiguous, real and imaginary parts apart:
//!
//! ```text
//! number e of U, h or c:    re of problem 0, 1, .., G - 1,   im of problem 0, 1, .., G - 1
//! ```
//!
//! Algorithm 1, as in [`super::sequential`], then computes with these registers, one reflection after the other, and the
//! results are transposed back. A last group with fewer problems computes with what an earlier group left in the other
//! lanes. What a problem gives depends neither on its lane nor on the problems beside it.

mod arithmetic;
mod backward;
mod columns;
mod diagonal;
mod forward;
mod steps;

use std::ops::Range;

use pulp::Simd;

pub use backward::{LanesBackward, backward};
pub use forward::{LanesForward, forward};

use crate::method::Method;
use crate::numbers::scalar::Scalar;
use crate::operator::Operator;
use crate::simd::isa::InstructionSet;
use crate::simd::transpose::transpose_at;

/// Largest problems, and most vectors of each: up to here a group stays in the cache and takes less time than its problems
/// one after the other, by whatever method.
const LARGEST: usize = 40;
const ROWS: usize = 16;

/// Problems whose columns are measured at once; groups are multiples of it.
const PIECE: usize = 8;

/// How many problems are side by side: at least one register, and at least a piece.
pub fn group<T: Scalar>(isa: InstructionSet) -> usize {
    isa.tile_height::<T::Real>().0.max(PIECE)
}

/// Whether problems with so many vectors each are solved side by side, if Algorithm 1 or none is asked for: enough of them,
/// in few enough registers.
pub fn suit<T: Scalar>(w: &Operator<'_, T>, rows: usize, isa: InstructionSet) -> bool {
    let (group, lanes) = (group::<T>(isa), isa.tile_height::<T::Real>().0);
    // A group costs as much as 5/8 or 7/8 of its problems one after the other.
    let eighths = if group == lanes { 5 } else { 7 };
    matches!(w.requested_method(), None | Some(Method::Reflections))
        && (1..=ROWS).contains(&rows)
        && w.n().max(w.m()) <= LARGEST
        && T::PARTS * group / lanes <= 2
        && w.count() >= w.count().div_ceil(group) * group * eighths / 8
        && w.count() > 0
}

/// The problems of group `i`, of `count` in all.
pub fn problems(group: usize, i: usize, count: usize) -> Range<usize> {
    i * group..count.min((i + 1) * group)
}

/// Arrays of a group in scratch memory.
#[derive(Clone, Copy)]
struct LaneLayout {
    /// Problems side by side.
    group: usize,
    /// Problems that there are.
    used: usize,
}

impl LaneLayout {
    /// Distance between the numbers of a problem.
    #[inline(always)]
    fn number<T: Scalar>(self) -> usize {
        T::PARTS * self.group
    }

    /// Takes `len` numbers of each problem, which begin `stride` numbers apart.
    ///
    /// # Safety
    /// The caller owns these numbers, and as many of a whole group at `to`.
    #[inline(always)]
    unsafe fn take<S: Simd, T: Scalar>(self, s: S, len: usize, from: *const T, stride: usize, to: *mut T::Real) {
        let shape = (len * T::PARTS, self.used);
        transpose_at(s, shape, from.cast::<T::Real>(), stride * T::PARTS, to, self.group);
    }

    /// The reverse of [`LaneLayout::take`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn give<S: Simd, T: Scalar>(self, s: S, len: usize, from: *const T::Real, to: *mut T, stride: usize) {
        let shape = (self.used, len * T::PARTS);
        transpose_at(s, shape, from, self.group, to.cast::<T::Real>(), stride * T::PARTS);
    }
}
