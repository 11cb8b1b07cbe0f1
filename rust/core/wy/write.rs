//! The factors as arrays of the caller's.

use super::CompactWy;
use crate::error::{Error, Result};
use crate::kernel::transpose::transpose;
use crate::operator::Operator;
use crate::scalar::Scalar;
use crate::threads::Context;

/// Writes the compact WY form `W_1 = I - V S V*` of `k` reflections, row-major: unit columns `V (n, k)`, `T (k, k)` and
/// `S = T^-1 (k, k)`. For a single problem without a given `tau`.
pub fn write<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    v: &mut [T],
    t: &mut [T],
    s: &mut [T],
) -> Result<()> {
    let (n, k) = (w.n(), w.reflections());
    w.require(&[("v", Some(v.len()), &[n, k]), ("t", Some(t.len()), &[k, k]), ("s", Some(s.len()), &[k, k])])?;
    if w.count() != 1 || !w.are_involutions() {
        return Err(Error::InvalidArgument("compact WY: expected a single problem without tau".to_owned()));
    }
    let wy = CompactWy::new(context, w.at(0).u)?;
    transpose(context.isa, (n, k), &wy.v, wy.ld_n(), v, k);
    let (wide, ld) = (wy.t(context)?, wy.ld_k());
    context.here(|cancel| {
        for i in 0..k {
            cancel.check()?;
            for j in 0..k {
                let above = i <= j;
                t[i * k + j] = if above { T::narrow(wide[j * ld + i]) } else { T::ZERO };
                s[i * k + j] = if above { -wy.minus_s[j * ld + i] } else { T::ZERO };
            }
        }
        Ok(())
    })
}
