//! `W (.., n, n)` itself, and its gradient: `u (.., n, m)`, `tau (.., m)`, `phases (n)`.

use householder::apply::{self, Saved};

use crate::by_dtype;
use crate::columns::Columns;
use crate::operands::{Arrays, Operands};
use crate::refusal::Reading;
use crate::saved::{AnySaved, Held, fitting};

/// Slots of operands.
pub const OPERANDS: [&str; 4] = ["u", "grad_w", "tau", "phases"];
const TAU: usize = 2;
const PHASES: usize = 3;

/// `W`, and what is saved.
pub fn forward(arrays: &Arrays<'_>, columns: &Columns, save: bool) -> Reading<Option<AnySaved>> {
    by_dtype!(arrays.dtype(0), |T| {
        let w = columns.operator::<T>(arrays, TAU, Some((PHASES, &[columns.n])))?;
        let Some(out) = arrays.write(0, &[columns.count, columns.n, columns.n])? else { return Ok(None) };
        let saved = arrays.run(|context| {
            if save {
                return apply::matrix_and_save(context, &w, out);
            }
            apply::matrix(context, &w, out).map(|()| None)
        })?;
        Ok(saved.map(|saved| AnySaved::new(true, saved)))
    })
}

/// The gradient of `u`.
pub fn backward(arrays: &Arrays<'_>, columns: &Columns, saved: Option<&Held>) -> Reading<()> {
    by_dtype!(arrays.dtype(0), |T| {
        let (w, n) = (columns.operator::<T>(arrays, TAU, None)?, columns.n);
        let grad_w = arrays.needed(1, "grad_w", &[columns.count, n, n])?;
        let Some(grad_u) = arrays.write(0, &columns.shape())? else { return Ok(()) };
        let saved = fitting(saved, |saved: &Saved<T>| saved.check(&w, n).is_ok());
        arrays.run(|context| apply::matrix_backward(context, &w, grad_w, grad_u, saved))
    })
}
