//! Whole sequences and their gradients.

use householder_binding::operands::{Arrays, Named, each, named};
use householder_binding::refusal::{Reading, Refusal};
use householder_binding::rnn::{self, Call, Described, GRADIENTS, H, H0, Inputs, NONLINEARITY_BIAS, PHASES, operands};

use crate::arguments::Arguments;
use crate::dtype::name;
use crate::kernel::{Tensors, results};
use crate::saved;
use crate::tensor::{Laid, Tensor, gradients, optional, tuple};

fn described(arguments: &mut Arguments) -> Reading<Described<String>> {
    let (nonlinearity, slope) = (arguments.text(), arguments.real());
    let (transpose, reverse) = (arguments.flag(), arguments.flag());
    let (form, method) = (arguments.text(), arguments.text());
    Ok((nonlinearity?, slope, transpose, reverse, form?, method?))
}

fn laid_out(u: Tensor, x: Tensor, others: [Option<Tensor>; 7]) -> Reading<Inputs<Laid>> {
    let mut inputs = [const { None }; 9];
    for (input, tensor) in inputs.iter_mut().zip([Some(u), Some(x)].into_iter().chain(others)) {
        *input = optional(tensor)?;
    }
    Ok(inputs)
}

/// All states, the last ones, and what is saved.
pub fn forward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (u, x, others, save) = (arguments.tensor(), arguments.tensor(), arguments.optionals(), arguments.flag());
    let (described, inputs, save) = (described(arguments)?, laid_out(u, x, others)?, save && saved::is_possible());
    let call = Call::of(&inputs, (&described).into())?;
    call.require(&inputs)?;
    let [Some(u), Some(x), ..] = &inputs else { unreachable!("a call has both") };
    let (axes, n) = (call.sizes.columns.axes, call.sizes.columns.n);
    let h = Laid::empty(&[&x.shape()[..x.dims - 1], &[n]].concat(), x.dtype)?;
    let last = Laid::empty(&[&u.shape()[..axes], &[call.sizes.batch, n]].concat(), u.dtype)?;
    let results = named(["h", "last", "tape"], [Some(&h), Some(&last)]);
    let saved = rnn::forward(&Arrays::with_new_results(&operands(&inputs, [None; 4]), &results), call, save)?;
    Ok(vec![Some(h.into()), Some(last.into()), Some(saved::save(save, saved)?)])
}

/// The gradients of the operands but `batch_sizes`, those that are needed.
pub fn backward(arguments: &mut Arguments) -> Reading<Tensors> {
    let (u, x, others) = (arguments.tensor(), arguments.tensor(), arguments.optionals());
    let (h, saved, grads) = (arguments.tensor(), arguments.optional(), arguments.optionals::<2>());
    let (wants, described) = (arguments.flags::<8>(), described(arguments)?);
    let (inputs, h, saved, [grad_h, grad_last]) = (laid_out(u, x, others)?, h.laid_out()?, optional(saved)?, grads);
    let call = Call::of(&inputs, (&described).into())?;
    let (grad_h, grad_last) = (optional(grad_h)?, optional(grad_last)?);
    let operands = operands(&inputs, [Some(&h), None, grad_h.as_ref(), grad_last.as_ref()]);
    require_unchanged(&call, &operands)?;
    let gradients = gradients(inputs.iter().map(Option::as_ref), wants?)?;
    rnn::backward(
        &Arrays::with_new_results(&operands, &each(GRADIENTS, &gradients)),
        call,
        saved::find(saved.as_ref()).as_deref(),
        true,
    )?;
    Ok(results(gradients))
}

/// Refuses tensors that were replaced or converted since the forward pass.
fn require_unchanged(call: &Call<'_>, operands: &[Named<'_>; 12]) -> Reading<()> {
    let [(_, Some(u)), ..] = operands else { return Ok(()) };
    let is_parameter = |slot: usize| (H0..H).contains(&slot);
    let given = || operands.iter().enumerate().filter_map(|(slot, (_, tensor))| Some((slot, (*tensor)?)));
    for (slot, tensor) in given().filter(|(slot, _)| is_parameter(*slot)) {
        let dtype = if matches!(slot, PHASES | NONLINEARITY_BIAS) { u.dtype.real() } else { u.dtype };
        let lead = u.leading(call.sizes.columns.axes).unwrap_or_default();
        let given = tensor.leading(tensor.dims).unwrap_or_default();
        let expected = [&lead, &call.sizes.shape(slot)[1..]].concat();
        if given != expected || tensor.dtype != dtype {
            let (given, expected, of, dtype) = (tuple(&given), tuple(&expected), name(tensor.dtype), name(dtype));
            return Err(Refusal::Runtime(format!(
                "a tensor is {of} of shape {given} on cpu, but in the forward pass it was {dtype} of shape {expected} on cpu: \
                 change parameters after the backward pass"
            )));
        }
    }
    if given().all(|(slot, tensor)| is_parameter(slot) || tensor.dtype == u.dtype) {
        return Ok(());
    }
    let text = format!("states or their gradients were not {} on cpu in the forward pass", name(u.dtype));
    Err(Refusal::Runtime(text))
}
