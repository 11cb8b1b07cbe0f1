//! A sign or a number in [-1, 1] in the place of a latent `u_1`.

use householder_binding::array::AnyArray as _;
use householder_binding::by_dtype;
use householder_binding::refusal::Refusal;
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::attempt;

/// Replaces a latent `u_1` of each problem of a real `u (.., n, n)` in place: by 1 if it is positive and else by -1, or, if
/// `soft`, by the nearest number in [-1, 1].
#[pyfunction]
pub fn constrain(u: &Bound<'_, PyAny>, soft: bool) -> PyResult<Py<PyAny>> {
    attempt(u.py(), || {
        let u = Array::read(u)?;
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
    })
}
