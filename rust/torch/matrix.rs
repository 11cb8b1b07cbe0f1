//! `W (*c, n, n)` itself, and its gradient: `u (*c, n, m)`.

use householder_binding::columns::Columns;
use householder_binding::matrix::{self, OPERANDS};
use householder_binding::operands::{Arrays, named};
use householder_binding::refusal::Reading;

use crate::apply::require_dtype;
use crate::arguments::Arguments;
use crate::kernel::Tensors;
use crate::saved;
use crate::tensor::{Laid, optional};

/// `W`, and what is saved.
pub fn forward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (u, save) = (arguments.tensor().laid_out(), arguments.flag() && saved::is_possible());
    let u = u?;
    let columns = Columns::of(&u, "trapezoidal", false)?;
    let mut shape = u.shape();
    shape[columns.axes + 1] = columns.n;
    let w = Laid::empty(&shape, u.dtype)?;
    let saved =
        matrix::forward(&Arrays::with_new_results(&named(OPERANDS, [Some(&u)]), &[("w", Some(&w))]), &columns, save)?;
    Ok(vec![Some(w.into()), Some(saved::save(save, saved)?)])
}

/// The gradient of `u`.
pub fn backward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (u, saved, grad_w) = (arguments.tensor(), arguments.optional(), arguments.tensor());
    let wants = arguments.flags::<1>();
    let (u, saved, grad_w) = (u.laid_out()?, optional(saved)?, grad_w.laid_out()?);
    require_dtype(u.dtype, [Some(&grad_w)])?;
    if !wants?[0] {
        return Ok(vec![None]);
    }
    let (columns, grad_u) = (Columns::of(&u, "trapezoidal", false)?, u.empty_like()?);
    let operands = named(OPERANDS, [Some(&u), Some(&grad_w)]);
    matrix::backward(
        &Arrays::with_new_results(&operands, &[("grad_u", Some(&grad_u))]),
        &columns,
        saved::find(saved.as_ref()).as_deref(),
    )?;
    Ok(vec![Some(grad_u.into())])
}
