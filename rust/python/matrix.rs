//! `W` itself, and its gradient.

use householder::apply;
use householder::diagonal::Diagonal;
use householder::kernel::transpose::transpose;
use householder::memory::{Buffer, filled_with, padded};
use householder::unblocked;
use householder::wy::dense::{self, Dense};
use pyo3::prelude::*;

use crate::application::{Diagonals, flops};
use crate::array::{Array, Number, Parts, Reading, optional, outputs, part, size};
use crate::by_dtype;
use crate::call::{attempt, run, to_python};
use crate::columns::Headers;
use crate::kept::Kept;

#[pyfunction]
#[pyo3(signature = (u, out, phases, keep=false, shape="trapezoidal", tau=None))]
pub fn matrix(
    u: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    phases: Option<&Bound<'_, PyAny>>,
    keep: bool,
    shape: &str,
    tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        u: &Headers<'_, '_>,
        out: &Array<'_, '_>,
        phases: Option<&Array<'_, '_>>,
        keep: bool,
    ) -> Reading<Option<Kept>> {
        let &Headers { count, n, m, .. } = u;
        let u = u.columns::<T>()?;
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
                let room = || unblocked::Rounded::new(n, u.count());
                return unblocked::for_each(context, count, flops, &room, &|i, room, _| {
                    let u = u.of(i)?;
                    room.run(isa, u, &diagonals.of(u), out(i))
                });
            }
            context.for_each(count, flops, &|i, context| {
                let u = u.of(i)?;
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
        let (u, out, phases) = (Headers::read(u, shape, tau)?, Array::read(out)?, Array::optional(phases)?);
        by_dtype!(u.u.dtype, go(py, &u, &out, phases.as_ref(), keep))
    };
    attempt(py, reading())
}

#[pyfunction]
#[pyo3(signature = (u, grad_w, grad_u, kept=None, shape="trapezoidal", tau=None, grad_tau=None))]
pub fn matrix_backward(
    u: &Bound<'_, PyAny>,
    grad_w: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    kept: Option<&Bound<'_, Kept>>,
    shape: &str,
    tau: Option<&Bound<'_, PyAny>>,
    grad_tau: Option<&Bound<'_, PyAny>>,
) -> PyResult<Py<PyAny>> {
    fn go<T: Number>(
        py: Python<'_>,
        u: &Headers<'_, '_>,
        [grad_w, grad_u]: [&Array<'_, '_>; 2],
        grad_tau: Option<&Array<'_, '_>>,
        kept: Option<&Kept>,
    ) -> Reading<()> {
        let &Headers { count, n, m, .. } = u;
        let u = u.columns::<T>()?;
        let grad_w = grad_w.slice::<T>("grad_w", size(&[count, n, n])?)?;
        let grad_u = grad_u.slice_mut::<T>("grad_u", size(&[count, n, m])?)?;
        let grad_tau = outputs::<T>(grad_tau, "grad_tau", count, m)?;
        let grads = Parts::new(grad_u, count);
        let kept = kept.and_then(Kept::get::<Vec<Option<Dense<T>>>>);
        let fits = |kept: &&Dense<T>| [kept.blocks.n, kept.blocks.k] == [n, u.count()];
        Ok(run(py, |context| {
            // SAFETY: each problem writes its own part.
            let matrices = |i: usize| unsafe { (part(grad_w, i, n * n), grads.at(i)) };
            let (isa, flops) = (context.isa, 3 * flops(count, n, m, n));
            if n <= unblocked::SMALL && !T::COMPLEX && u.are_involutions() {
                let room = || unblocked::FormationBackward::new(n, u.count());
                return unblocked::for_each(context, count, flops, &room, &|i, room, _| {
                    let u = u.of(i)?;
                    let (grad_w, grad_u) = matrices(i);
                    room.run(isa, u, &Diagonal::of(u), grad_w, grad_u);
                    Ok(())
                });
            }
            context.for_each(count, flops, &|i, context| {
                let u = u.of(i)?;
                let (grad_w, grad_u) = matrices(i);
                // SAFETY: as above.
                let grad_tau = grad_tau.as_ref().map(|x| unsafe { x.at(i) });
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
                apply::from_outer(context, matrix, u, &diagonal, outer, Some(grad_u), grad_tau, None)
            })
        })?)
    }
    let py = u.py();
    let reading = || -> Reading<_> {
        let (u, grad_w, grad_u) = (Headers::read(u, shape, tau)?, Array::read(grad_w)?, Array::read(grad_u)?);
        let grad_tau = Array::optional(grad_tau)?;
        by_dtype!(u.u.dtype, go(py, &u, [&grad_w, &grad_u], grad_tau.as_ref(), kept.map(Bound::get)))
    };
    attempt(py, reading())
}
