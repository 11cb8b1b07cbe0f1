//! Compact WY factors, and the way back from `W` to reflections.

use householder::{apply, factor};

use crate::by_dtype;
use crate::columns::Columns;
use crate::operands::{Arrays, Operands};
use crate::refusal::Reading;

/// The factors `v`, `t` and `s` of `u (n, m)`.
pub fn compact_wy(arrays: &Arrays<'_>, columns: &Columns) -> Reading<()> {
    by_dtype!(arrays.dtype(0), |T| {
        let w = columns.operator::<T>(arrays, 0, None)?;
        let (n, k) = (w.n(), w.reflections());
        let [v, t, s] = [arrays.write(0, &[n, k])?, arrays.write(1, &[k, k])?, arrays.write(2, &[k, k])?];
        let [v, t, s] = [v, t, s].map(Option::unwrap_or_default);
        arrays.run(|context| apply::compact_wy(context, &w, v, t, s))
    })
}

/// The distance of `q (n, n)` from a matrix that is orthogonal.
pub fn departure(arrays: &Arrays<'_>, n: usize) -> Reading<f64> {
    by_dtype!(arrays.dtype(0), |T| {
        let q = arrays.needed::<T>(0, "q", &[n, n])?;
        arrays.run(|context| factor::departure(context, n, q))
    })
}

/// Reflections of `q (n, n)` in `u (n, m)`, and phases, if they are wanted. Returns how far they are from `q`.
pub fn factors(arrays: &Arrays<'_>, [n, m]: [usize; 2], by_columns: bool) -> Reading<f64> {
    by_dtype!(arrays.dtype(0), |T| {
        let (q, u) = (arrays.needed::<T>(0, "q", &[n, n])?, arrays.write(0, &[n, m])?.unwrap_or_default());
        let phases = arrays.write(1, &[n])?;
        let find = if by_columns { factor::by_columns } else { factor::factor };
        arrays.run(|context| find(context, n, m, q, u, phases))
    })
}
