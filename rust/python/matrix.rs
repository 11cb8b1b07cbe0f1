//! `W` itself, and its gradient.

use householder::apply;
use householder::diagonal::Diagonal;
use householder::kernel::transpose::transpose;
use householder::memory::{Buffer, filled_with, padded};
use householder::reflections::Reflections;
use householder::unblocked;
use householder::wy::dense::{self, Dense};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::application::{Diagonals, flops};
use crate::array::{Array, Number, Parts, Reading, optional, part, size};
use crate::by_dtype;
use crate::call::{attempt, run, to_python};
use crate::kept::Kept;

/// `count`, `n` and `m` of `u (.., n, m)`.
fn problem(u: &Array<'_, '_>) -> PyResult<[usize; 3]> {
    let [_, n, m] = u.last;
    if u.dims < 2 || m < 1 || m > n {
        return Err(PyValueError::new_err(format!("expected u (.., n, m) with 1 <= m <= n, got {}", u.describe()?)));
    }
    Ok([u.len / (n * m), n, m])
}

#[pyfunction]
#[pyo3(signature = (u, out, phases, keep=false))]
pub fn matrix(
    u: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    keep: bool,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        [count, n, m]: [usize; 3],
        [u, out]: [&Array<'_, '_>; 2],
        phases: Option<&Array<'_, '_>>,
        keep: bool,
    ) -> Reading<Option<Kept>> {
        let u = u.slice::<T>("u", size(&[count, n, m])?)?;
        let out = out.slice_mut::<T>("out", size(&[count, n, n])?)?;
        let phases = optional::<T::Real>(phases, "phases", n)?;
        let outs = Parts::new(out, count);
        let keep = keep && n > unblocked::SMALL;
        let mut kept = filled_with(if keep { count } else { 0 }, || None).map_err(to_python)?;
        let each = Parts::<Option<Dense<T>>>::new(&mut kept, count);
        run(py, |context| {
            // SAFETY: each problem writes its own part.
            let out = |i: usize| unsafe { outs.at(i) };
            let (isa, flops, diagonals) = (context.isa, flops(count, n, m, n), Diagonals::new(n, phases)?);
            if n <= unblocked::SMALL {
                let room = || unblocked::Rounded::new(n, m);
                return unblocked::for_each(context, count, flops, &room, &|i, room, _| {
                    let u = Reflections::new(n, m, part(u, i, n * m))?;
                    room.run(isa, u, &diagonals.of(u), out(i))
                });
            }
            context.for_each(count, flops, &|i, context| {
                let u = Reflections::new(n, m, part(u, i, n * m))?;
                // SAFETY: as above.
                let Some(kept) = unsafe { each.at(i) }.first_mut() else {
                    return apply::matrix(context, u, &diagonals.of(u), out(i));
                };
                let matrix = kept.insert(Dense::rounded(context, u, &diagonals.of(u))?);
                dense::write(isa, n, &matrix.w, out(i));
                Ok(())
            })
        })?;
        Ok(keep.then(|| Kept::matrix(kept)))
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, out, phases) = (Array::read(u)?, Array::read(out)?, Array::optional(phases)?);
        by_dtype!(u.dtype, go(py, problem(&u)?, [&u, &out], phases.as_ref(), keep))
    };
    attempt(py, reading())
}

#[pyfunction]
#[pyo3(signature = (u, grad_w, grad_u, kept=None))]
pub fn matrix_backward(
    u: &Bound<'_, PyAny>,
    grad_w: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number>(
        py: Python<'_>,
        [count, n, m]: [usize; 3],
        [u, grad_w, grad_u]: [&Array<'_, '_>; 3],
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let u = u.slice::<T>("u", size(&[count, n, m])?)?;
        let grad_w = grad_w.slice::<T>("grad_w", size(&[count, n, n])?)?;
        let grad_u = grad_u.slice_mut::<T>("grad_u", u.len())?;
        let grads = Parts::new(grad_u, count);
        let kept = kept.and_then(Kept::get::<Vec<Option<Dense<T>>>>);
        let fits = |kept: &&Dense<T>| [kept.blocks.n, kept.blocks.k] == [n, m.min(n - 1)];
        Ok(run(py, |context| {
            // SAFETY: each problem writes its own part.
            let matrices = |i: usize| unsafe { (part(grad_w, i, n * n), grads.at(i)) };
            let (isa, flops) = (context.isa, 3 * flops(count, n, m, n));
            if n <= unblocked::SMALL && !T::COMPLEX {
                let room = || unblocked::FormationBackward::new(n, m.min(n - 1));
                return unblocked::for_each(context, count, flops, &room, &|i, room, _| {
                    let u = Reflections::new(n, m, part(u, i, n * m))?;
                    let (grad_w, grad_u) = matrices(i);
                    room.run(isa, u, &Diagonal::of(u), grad_w, grad_u);
                    Ok(())
                });
            }
            context.for_each(count, flops, &|i, context| {
                let u = Reflections::new(n, m, part(u, i, n * m))?;
                let (grad_w, grad_u) = matrices(i);
                let diagonal = Diagonal::of(u);
                let mut outer = Buffer::zeroed(n * padded::<T>(n))?;
                transpose(context.isa, (n, n), grad_w, n, &mut outer, padded::<T>(n));
                let new;
                let matrix = if let Some(kept) = kept.and_then(|kept| kept.get(i)?.as_ref()).filter(fits) {
                    kept
                } else {
                    new = Dense::rounded(context, u, &diagonal)?;
                    &new
                };
                apply::from_outer(context, matrix, u, &diagonal, outer, Some(grad_u), None)
            })
        })?)
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, grad_w, grad_u) = (Array::read(u)?, Array::read(grad_w)?, Array::read(grad_u)?);
        by_dtype!(u.dtype, go(py, problem(&u)?, [&u, &grad_w, &grad_u], kept.map(Bound::get)))
    };
    attempt(py, reading())
}
