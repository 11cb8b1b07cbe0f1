//! A sign or a number in [-1, 1] in the place of a latent `u_1`.

use crate::array::AnyArray;
use crate::by_dtype;
use crate::refusal::{Reading, Refusal};

/// Replaces a latent `u_1` of each problem of a real `u (.., n, n)` in place: by 1 if it is positive and else by -1, or, if
/// `soft`, by the nearest number in [-1, 1].
pub fn constrain(u: &dyn AnyArray, soft: bool) -> Reading<()> {
    by_dtype!(u.dtype, real, |T| {
        let [_, n, m] = u.last;
        if n != m || n == 0 {
            return Err(Refusal::invalid(format!("expected u (.., n, n), got {}", u.describe()?)));
        }
        for u in u.slice_mut::<T>("u", u.len)?.chunks_exact_mut(n * n) {
            let latent = &mut u[n * n - 1];
            let is_inside = soft && !(*latent > 1.0 || *latent < -1.0);
            if !is_inside {
                *latent = if *latent > 0.0 { 1.0 } else { -1.0 };
            }
        }
        Ok(())
    })
}
