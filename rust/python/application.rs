//! `W h` and its gradients.

use std::borrow::Cow;

use householder::apply::{self, Prepared};
use householder::diagonal::Diagonal;
use householder::error::Error;
use householder::gradients::Gradients;
use householder::memory::filled;
use householder::method::{self, Method};
use householder::number::Number as _;
use householder::reflections::Reflections;
use householder::scalar::Scalar;
use householder::unblocked;
use householder::wy::dense::{self, Dense};
use pyo3::prelude::*;

use crate::by_dtype;
use crate::kept::Kept;
use crate::operand::{Number, Operand, Parts, optional, optional_mut, outputs, part, run, size, to_python};
use crate::tensor::{Tensor, problem};

/// Flops of `count` applications to `rows` vectors, roughly, with what it takes to normalise the columns: decides how work
/// is spread, nothing else.
pub fn flops(count: usize, n: usize, m: usize, rows: usize) -> usize {
    (n * m).saturating_mul(8 * rows + 32).saturating_mul(count)
}

/// Whether reflections are applied one after the other; problems without vectors are not worth a special way.
fn one_by_one<T: Number>(method: Option<Method>, n: usize, k: usize, rows: usize) -> bool {
    rows > 0 && method.unwrap_or_else(|| method::for_application::<T>(n, k, rows)) == Method::Reflections
}

/// The diagonals of many matrices: phases, which they share, become numbers once.
pub struct Diagonals<T: Scalar>(Option<Diagonal<T>>);

impl<T: Scalar> Diagonals<T> {
    pub fn new(n: usize, phases: Option<&[T::Real]>) -> Result<Self, Error> {
        Ok(Self(phases.map(|theta| Diagonal::phases(n, theta)).transpose()?))
    }

    /// The diagonal of one matrix.
    #[inline(always)]
    pub fn of(&self, u: Reflections<'_, T>) -> Cow<'_, Diagonal<T>> {
        self.0.as_ref().map_or_else(|| Cow::Owned(Diagonal::of(u)), Cow::Borrowed)
    }
}

#[pyfunction]
#[pyo3(signature = (dtype, count, n, m, rows, u, h, out, phases, transpose, method, keep=false))]
pub fn forward(
    py: Python<'_>,
    dtype: &str,
    count: usize,
    n: usize,
    m: usize,
    rows: usize,
    u: Operand<'_>,
    h: Operand<'_>,
    out: Operand<'_>,
    phases: Option<Operand<'_>>,
    transpose: bool,
    method: &str,
    keep: bool,
) -> PyResult<Option<Kept>> {
    let method = Method::parse(method).map_err(to_python)?;
    by_dtype!(
        dtype,
        forward_problems(py, [count, n, m, rows], [&u, &h, &out], phases.as_ref(), transpose, method, keep)
    )
}

/// [`forward`] of torch's tensors `u (.., n, m)` and `h (.., n)`; `out` is like `h`.
#[pyfunction]
pub fn forward_tensors(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    transpose: bool,
    method: &str,
    keep: bool,
) -> PyResult<Option<Kept>> {
    let (py, method) = (u.py(), Method::parse(method).map_err(to_python)?);
    let (u, h, out) = (Tensor::read(u)?, Tensor::read(h)?, Tensor::read(out)?);
    let (dtype, problem) = (h.dtype, problem(&u, &h)?);
    u.require_type_of(&h)?;
    let operands = [&u.operand("u", dtype, u.len)?, &h.operand("h", dtype, h.len)?, &out.operand("out", dtype, h.len)?];
    by_dtype!(dtype, forward_problems(py, problem, operands, None, transpose, method, keep))
}

fn forward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    [count, n, m, rows]: [usize; 4],
    [u, h, out]: [&Operand<'_>; 3],
    phases: Option<&Operand<'_>>,
    adjoint: bool,
    method: Option<Method>,
    keep: bool,
) -> PyResult<Option<Kept>> {
    let u = u.slice::<T>("u", size(&[count, n, m])?)?;
    let h = h.slice::<T>("h", size(&[count, rows, n])?)?;
    let out = out.slice_mut::<T>("out", h.len())?;
    let phases = optional::<T::Real>(phases, "phases", n)?;
    let outs = Parts::new(out, count);
    run(py, |context| {
        let (k, diagonals) = (m.min(n - 1), Diagonals::new(n, phases)?);
        let method = Some(method.unwrap_or_else(|| method::for_application::<T>(n, k, rows)));
        if keep && count == 1 && method != Some(Method::Reflections) {
            let u = Reflections::new(n, m, u)?;
            let diagonal = diagonals.of(u);
            if method == Some(Method::Wy) {
                let prepared = apply::forward_and_keep(context, u, &diagonal, h, out, adjoint)?;
                return Ok(Some(Kept::factors(prepared)));
            }
            let matrix = Dense::new(context, u, &diagonal)?;
            dense::multiply(context, n, &matrix.w, h, out, adjoint)?;
            return Ok(Some(Kept::matrix(matrix)));
        }
        // SAFETY: each problem writes its own part.
        let vectors = |i: usize| unsafe { (part(h, i, rows * n), outs.at(i)) };
        let (isa, flops) = (context.isa, flops(count, n, m, rows));
        if one_by_one::<T>(method, n, k, rows) {
            unblocked::for_each(context, count, flops, &|| unblocked::Forward::new(n, k), &|i, room, cancel| {
                let u = Reflections::new(n, m, part(u, i, n * m))?;
                let (h, out) = vectors(i);
                room.run(isa, cancel, u, &diagonals.of(u), h, out, adjoint)
            })?;
            return Ok(None);
        }
        context.for_each(count, flops, &|i, context| {
            let u = Reflections::new(n, m, part(u, i, n * m))?;
            let (h, out) = vectors(i);
            apply::forward(context, u, &diagonals.of(u), h, out, adjoint, method)
        })?;
        Ok(None)
    })
}

#[pyfunction]
#[pyo3(signature = (dtype, count, n, m, rows, u, h, grad_c, grad_u, grad_h, phases, grad_phases, transpose, method, kept=None))]
pub fn backward(
    py: Python<'_>,
    dtype: &str,
    count: usize,
    n: usize,
    m: usize,
    rows: usize,
    u: Operand<'_>,
    h: Operand<'_>,
    grad_c: Operand<'_>,
    grad_u: Option<Operand<'_>>,
    grad_h: Option<Operand<'_>>,
    phases: Option<Operand<'_>>,
    grad_phases: Option<Operand<'_>>,
    transpose: bool,
    method: &str,
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<()> {
    let method = Method::parse(method).map_err(to_python)?;
    let gradients = [grad_u.as_ref(), grad_h.as_ref(), grad_phases.as_ref()];
    let kept = kept.map(Bound::get);
    by_dtype!(
        dtype,
        backward_problems(
            py,
            [count, n, m, rows],
            [&u, &h, &grad_c],
            phases.as_ref(),
            gradients,
            transpose,
            method,
            kept
        )
    )
}

/// [`backward`] of torch's tensors; `grad_u` is like `u`, `grad_c` and `grad_h` are like `h`.
#[pyfunction]
pub fn backward_tensors(
    u: &Bound<'_, PyAny>,
    h: &Bound<'_, PyAny>,
    grad_c: &Bound<'_, PyAny>,
    grad_u: &Bound<'_, PyAny>,
    grad_h: Option<&Bound<'_, PyAny>>,
    transpose: bool,
    method: &str,
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<()> {
    let (py, method) = (u.py(), Method::parse(method).map_err(to_python)?);
    let (u, h) = (Tensor::read(u)?, Tensor::read(h)?);
    let (dtype, problem) = (h.dtype, problem(&u, &h)?);
    let of = |name: &str, tensor: &Bound<'_, PyAny>, len: usize| Tensor::read(tensor)?.operand(name, dtype, len);
    let operands = [&u.operand("u", dtype, u.len)?, &h.operand("h", dtype, h.len)?, &of("grad_c", grad_c, h.len)?];
    let grad_u = of("grad_u", grad_u, u.len)?;
    let grad_h = grad_h.map(|grad_h| of("grad_h", grad_h, h.len)).transpose()?;
    let (gradients, kept) = ([Some(&grad_u), grad_h.as_ref(), None], kept.map(Bound::get));
    by_dtype!(dtype, backward_problems(py, problem, operands, None, gradients, transpose, method, kept))
}

fn backward_problems<T: Number<Real: Number>>(
    py: Python<'_>,
    [count, n, m, rows]: [usize; 4],
    [u, h, grad_c]: [&Operand<'_>; 3],
    phases: Option<&Operand<'_>>,
    [grad_u, grad_h, grad_phases]: [Option<&Operand<'_>>; 3],
    adjoint: bool,
    method: Option<Method>,
    kept: Option<&Kept>,
) -> PyResult<()> {
    let u = u.slice::<T>("u", size(&[count, n, m])?)?;
    let h = h.slice::<T>("h", size(&[count, rows, n])?)?;
    let grad_c = grad_c.slice::<T>("grad_c", h.len())?;
    let phases = optional::<T::Real>(phases, "phases", n)?;
    let grad_u = outputs::<T>(grad_u, "grad_u", count, n * m)?;
    let grad_h = outputs::<T>(grad_h, "grad_h", count, rows * n)?;
    let grad_phases = optional_mut::<T::Real>(grad_phases, "grad_phases", n)?;
    // The matrices share the phases: one gradient each, summed in order.
    let mut each_phases =
        filled(if grad_phases.is_some() { count * n } else { 0 }, T::Real::ZERO).map_err(to_python)?;
    let phases_parts = grad_phases.is_some().then(|| Parts::new(&mut each_phases, count));
    let (k, kept) = (m.min(n - 1), kept.filter(|_| count == 1));
    let prepared = kept.and_then(Kept::get::<Prepared<T>>).filter(|kept| kept.shape() == [n, k, rows]);
    let matrix = kept.and_then(Kept::get::<Dense<T>>).filter(|kept| [kept.blocks.n, kept.blocks.k] == [n, k]);
    run(py, |context| {
        let (isa, flops) = (context.isa, 3 * flops(count, n, m, rows));
        let diagonals = Diagonals::new(n, phases)?;
        // SAFETY: each problem writes its own parts.
        let gradients = |i: usize| unsafe {
            Gradients {
                u: grad_u.as_ref().map(|x| x.at(i)),
                h: grad_h.as_ref().map(|x| x.at(i)),
                phases: phases_parts.as_ref().map(|x| x.at(i)),
            }
        };
        if prepared.is_none() && matrix.is_none() && one_by_one::<T>(method, n, k, rows) {
            return unblocked::for_each(
                context,
                count,
                flops,
                &|| unblocked::Backward::new(n, k),
                &|i, room, cancel| {
                    let u = Reflections::new(n, m, part(u, i, n * m))?;
                    let source = unblocked::Source::Vectors(part(h, i, rows * n));
                    let grad_c = part(grad_c, i, rows * n);
                    room.run(isa, cancel, u, &diagonals.of(u), source, grad_c, gradients(i), adjoint)
                },
            );
        }
        context.for_each(count, flops, &|i, context| {
            let u = Reflections::new(n, m, part(u, i, n * m))?;
            let (h, grad_c, gradients) = (part(h, i, rows * n), part(grad_c, i, rows * n), gradients(i));
            let diagonal = diagonals.of(u);
            match (prepared, matrix) {
                (Some(prepared), _) => {
                    apply::backward_of(context, prepared, u, &diagonal, h, grad_c, gradients, adjoint)
                }
                (_, Some(matrix)) => {
                    apply::backward_by_matrix(context, matrix, u, &diagonal, h, grad_c, gradients, adjoint)
                }
                _ => apply::backward(context, u, &diagonal, h, grad_c, gradients, adjoint, method),
            }
        })
    })?;
    if let Some(grad_phases) = grad_phases {
        grad_phases.fill(T::Real::ZERO);
        each_phases.chunks(n).for_each(|each| grad_phases.iter_mut().zip(each).for_each(|(sum, &x)| *sum += x));
    }
    Ok(())
}

#[pyfunction]
pub fn backward_in_place(
    py: Python<'_>,
    dtype: &str,
    n: usize,
    m: usize,
    rows: usize,
    u: Operand<'_>,
    h: Operand<'_>,
    grad: Operand<'_>,
    grad_u: Operand<'_>,
    kept: Option<&Bound<'_, Kept>>,
) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        [n, m, rows]: [usize; 3],
        [u, h, grad, grad_u]: [&Operand<'_>; 4],
        kept: Option<&Kept>,
    ) -> PyResult<()> {
        let u = Reflections::new(n, m, u.slice::<T>("u", size(&[n, m])?)?).map_err(to_python)?;
        if u.u1().is_some() {
            return Err(to_python(Error::InvalidArgument(format!("m: expected less than n = {n}, got {m}"))));
        }
        let h = h.slice::<T>("h", size(&[rows, n])?)?;
        let grad = grad.slice_mut::<T>("grad", h.len())?;
        let grad_u = grad_u.slice_mut::<T>("grad_u", n * m)?;
        let kept = kept.and_then(Kept::get::<Prepared<T>>).filter(|kept| kept.shape() == [n, m, rows]);
        run(py, |context| {
            if let Some(kept) = kept {
                return apply::backward_in_place(context, kept, u, h, grad, grad_u);
            }
            let prepared = Prepared::new(context, u, rows)?;
            apply::backward_in_place(context, &prepared, u, h, grad, grad_u)
        })
    }
    by_dtype!(dtype, go(py, [n, m, rows], [&u, &h, &grad, &grad_u], kept.map(Bound::get)))
}

#[pyfunction]
pub fn forward_tape(
    py: Python<'_>,
    dtype: &str,
    n: usize,
    m: usize,
    rows: usize,
    u: Operand<'_>,
    h: Operand<'_>,
    tape: Operand<'_>,
    phases: Option<Operand<'_>>,
    transpose: bool,
) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        [n, m, rows]: [usize; 3],
        [u, h, tape]: [&Operand<'_>; 3],
        phases: Option<&Operand<'_>>,
        adjoint: bool,
    ) -> PyResult<()> {
        let u = Reflections::new(n, m, u.slice::<T>("u", size(&[n, m])?)?).map_err(to_python)?;
        let h = h.slice("h", size(&[rows, n])?)?;
        let tape = tape.slice_mut("tape", size(&[rows, m + 1, n])?)?;
        let diagonal = Diagonal::new(u, optional(phases, "phases", n)?).map_err(to_python)?;
        run(py, |context| unblocked::forward_tape(context, u, &diagonal, h, tape, adjoint))
    }
    by_dtype!(dtype, go(py, [n, m, rows], [&u, &h, &tape], phases.as_ref(), transpose))
}

#[pyfunction]
pub fn backward_tape(
    py: Python<'_>,
    dtype: &str,
    n: usize,
    m: usize,
    rows: usize,
    u: Operand<'_>,
    tape: Operand<'_>,
    grad_c: Operand<'_>,
    grad_u: Operand<'_>,
    grad_h: Operand<'_>,
    phases: Option<Operand<'_>>,
    grad_phases: Option<Operand<'_>>,
    transpose: bool,
) -> PyResult<()> {
    fn go<T: Number<Real: Number>>(
        py: Python<'_>,
        [n, m, rows]: [usize; 3],
        [u, tape, grad_c, grad_u, grad_h]: [&Operand<'_>; 5],
        phases: Option<&Operand<'_>>,
        grad_phases: Option<&Operand<'_>>,
        adjoint: bool,
    ) -> PyResult<()> {
        let u = Reflections::new(n, m, u.slice::<T>("u", size(&[n, m])?)?).map_err(to_python)?;
        let tape = tape.slice("tape", size(&[rows, m + 1, n])?)?;
        let grad_c = grad_c.slice("grad_c", size(&[rows, n])?)?;
        let diagonal = Diagonal::new(u, optional(phases, "phases", n)?).map_err(to_python)?;
        let gradients = Gradients {
            u: Some(grad_u.slice_mut("grad_u", n * m)?),
            h: Some(grad_h.slice_mut("grad_h", rows * n)?),
            phases: optional_mut(grad_phases, "grad_phases", n)?,
        };
        run(py, |context| unblocked::backward_tape(context, u, &diagonal, tape, grad_c, gradients, adjoint))
    }
    let operands = [&u, &tape, &grad_c, &grad_u, &grad_h];
    by_dtype!(dtype, go(py, [n, m, rows], operands, phases.as_ref(), grad_phases.as_ref(), transpose))
}
