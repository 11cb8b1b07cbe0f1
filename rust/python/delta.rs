//! The delta rule, and linear attention.

use householder::delta::{self, Sizes};
use householder_binding::delta::{DeltaCall, GRADIENTS, slots, steps};
use householder_binding::operands::{Arrays, each, named};
use householder_binding::refusal::Reading;
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::{attempt, returned};
use crate::library::library;

/// Operands `q`, `k`, `v`, `beta`, `g`, the initial states and `skip`, or their gradients.
type DeltaArrays<'py> = [Option<Bound<'py, PyAny>>; 7];

/// Sizes, offsets of the sequences, whether gates are by channel, the scale, and whether queries and keys are normalised.
type DeltaOptions = ([usize; 5], Vec<usize>, bool, f64, bool);

fn call((sizes, offsets, by_channel, scale, normalize): DeltaOptions) -> Reading<DeltaCall> {
    let [heads, value_heads, key_width, value_width, reflections] = sizes;
    let tokens = offsets.last().copied().unwrap_or(0);
    let steps = steps(tokens, reflections)?;
    Ok(DeltaCall {
        sizes: Sizes { heads, value_heads, key_width, value_width, reflections },
        sequences: offsets.windows(2).map(|pair| pair[0]..pair[1]).collect(),
        tokens: [1, tokens],
        steps: [1, steps],
        saved: [1, steps / delta::interval(key_width, value_width)?],
        by_channel,
        scale,
        normalize,
    })
}

/// Steps between two states that the forward pass saves.
#[pyfunction]
pub fn delta_interval(key_width: usize, value_width: usize) -> PyResult<usize> {
    returned(|| Ok(delta::interval(key_width, value_width)?))
}

#[pyfunction]
pub fn delta_forward(
    py: Python<'_>,
    operands: DeltaArrays<'_>,
    options: DeltaOptions,
    out: Option<&Bound<'_, PyAny>>,
    last: Option<&Bound<'_, PyAny>>,
    saved: Option<&Bound<'_, PyAny>>,
    in_place: bool,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (operands, call) = (Array::each(&operands)?, call(options)?);
        let (out, last, saved) = (Array::optional(out)?, Array::optional(last)?, Array::optional(saved)?);
        let results = named(["out", "last", "saved"], [out.as_ref(), last.as_ref(), saved.as_ref()]);
        (library().delta_rule)(&Arrays::new(&slots(&operands, [None; 3]), &results)?, call, in_place)
    })
}

#[pyfunction]
pub fn delta_backward(
    py: Python<'_>,
    operands: DeltaArrays<'_>,
    options: DeltaOptions,
    saved: Option<&Bound<'_, PyAny>>,
    grad_out: Option<&Bound<'_, PyAny>>,
    grad_last: Option<&Bound<'_, PyAny>>,
    gradients: DeltaArrays<'_>,
) -> PyResult<Py<PyAny>> {
    attempt(py, || {
        let (operands, call) = (Array::each(&operands)?, call(options)?);
        let others = [Array::optional(saved)?, Array::optional(grad_out)?, Array::optional(grad_last)?];
        let gradients = Array::each(&gradients)?;
        let others = others.each_ref().map(Option::as_ref);
        (library().delta_rule_backward)(&Arrays::new(&slots(&operands, others), &each(GRADIENTS, &gradients))?, call)
    })
}
