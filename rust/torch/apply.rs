//! `W h` or `W* h`, and the gradients: `u (*c, n, m)`, `h (*c, *r, n)`, `tau (*c, m)`.

use householder_binding::apply::{self, ApplyCall, GRADIENTS, OPERANDS};
use householder_binding::dtype::DType;
use householder_binding::operands::{Arrays, each, named};
use householder_binding::refusal::{Reading, Refusal};

use crate::arguments::Arguments;
use crate::dtype::name;
use crate::kernel::{Tensors, results};
use crate::saved;
use crate::tensor::{Laid, gradients, optional, tuple};

/// `c`, and what is saved.
pub fn forward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (u, h, tau, save) = (arguments.tensor(), arguments.tensor(), arguments.optional(), arguments.flag());
    let (transpose, method, form) = (arguments.flag(), arguments.text(), arguments.text());
    let (u, h, tau, save) = (u.laid_out()?, h.laid_out()?, optional(tau)?, save && saved::is_possible());
    let (call, c) = (ApplyCall::of(&u, &h, tau.is_some(), transpose, &method?, &form?)?, h.empty_like()?);
    let operands = named(OPERANDS, [Some(&u), tau.as_ref(), Some(&h)]);
    let saved = apply::forward(&Arrays::with_new_results(&operands, &[("c", Some(&c))]), &call, save)?;
    Ok(vec![Some(c.into()), Some(saved::save(save, saved)?)])
}

/// The gradients of `u`, `h` and `tau`, those that are needed.
pub fn backward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (u, h, tau) = (arguments.tensor(), arguments.tensor(), arguments.optional());
    let (saved, grad_c) = (arguments.optional(), arguments.tensor());
    let (wants, transpose) = (arguments.flags::<3>(), arguments.flag());
    let (method, form) = (arguments.text(), arguments.text());
    let (u, h, tau) = (u.laid_out()?, h.laid_out()?, optional(tau)?);
    let (saved, grad_c) = (optional(saved)?, grad_c.laid_out()?);
    require_dtype(h.dtype, [Some(&u), tau.as_ref(), Some(&grad_c)])?;
    if grad_c.shape() != h.shape() {
        let (given, expected) = (tuple(&grad_c.shape()), tuple(&h.shape()));
        return Err(Refusal::invalid(format!("grad_c has shape {given} on cpu, expected {expected} on cpu as h")));
    }
    let call = ApplyCall::of(&u, &h, tau.is_some(), transpose, &method?, &form?)?;
    let [wants_u, wants_h, wants_tau] = wants?;
    let gradients = gradients([Some(&u), tau.as_ref(), Some(&h)], [wants_u, wants_tau, wants_h])?;
    let operands = named(OPERANDS, [Some(&u), tau.as_ref(), Some(&h), Some(&grad_c)]);
    apply::backward(
        &Arrays::with_new_results(&operands, &each(GRADIENTS, &gradients)),
        &call,
        saved::find(saved.as_ref()).as_deref(),
    )?;
    let [u, tau, h] = gradients;
    Ok(results([u, h, tau]))
}

/// Requires that all tensors still have one type.
pub fn require_dtype<'a>(dtype: DType, others: impl IntoIterator<Item = Option<&'a Laid>>) -> Reading<()> {
    match others.into_iter().flatten().find(|other| other.dtype != dtype) {
        None => Ok(()),
        Some(other) => Err(Refusal::Runtime(format!(
            "a saved tensor changed its dtype between forward and backward ({} to {}): convert modules after the backward pass",
            name(dtype),
            name(other.dtype)
        ))),
    }
}
