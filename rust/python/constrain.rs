//! A sign or a number in [-1, 1] in the place of a latent `u_1`.

use householder_binding::array::Array as _;
use householder_binding::by_dtype;
use householder_binding::dtype::Number;
use householder_binding::refusal::{Reading, Refusal};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::attempt;

/// Replaces a latent `u_1` of each problem of a real `u (.., n, n)` in place: by 1 if it is positive and else by -1, or, if
/// `soft`, by the nearest number in [-1, 1].
#[pyfunction]
pub fn constrain(u: &Bound<'_, PyAny>, soft: bool) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real = T> + PartialOrd>(u: &Array<'_, '_>, soft: bool) -> Reading<()> {
        let [_, n, m] = u.last;
        if n != m || n == 0 {
            return Err(Refusal::invalid(format!("expected u (.., n, n), got {}", u.describe()?)));
        }
        for u in u.slice_mut::<T>("u", u.len)?.chunks_exact_mut(n * n) {
            let latent = &mut u[n * n - 1];
            let is_inside = soft && !(*latent > T::ONE || *latent < -T::ONE);
            if !is_inside {
                *latent = if *latent > T::ZERO { T::ONE } else { -T::ONE };
            }
        }
        Ok(())
    }
    attempt(u.py(), || {
        let u = Array::read(u)?;
        by_dtype!(real u.dtype, go(&u, soft))
    })
}
