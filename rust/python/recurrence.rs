//! A recurrence of parameters that stay the same.

use householder_binding::array::AnyArray;
use householder_binding::operands::{Arrays, named};
use householder_binding::recurrence::Stepper;
use householder_binding::rnn::{Call, H0, X, operands};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::{attempt, returned};
use crate::library::library;
use crate::sequence::{PyDescribed, PyInputs, read};

/// A recurrence whose weights are prepared once.
#[pyclass(name = "Recurrence", frozen, weakref, module = "householder._core")]
pub struct PyRecurrence(Box<dyn Stepper>);

#[pymethods]
impl PyRecurrence {
    /// The recurrence of such a call of `rnn_forward`, whose `x` has no steps. `latent` is what `u` was made of, if it was.
    #[new]
    #[pyo3(signature = (inputs, options, latent=None))]
    fn new(inputs: PyInputs<'_>, options: PyDescribed, latent: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        returned(|| {
            let (inputs, Call { sizes, .. }) = read(&inputs, &options)?;
            let (nonlinearity, slope, transpose, reverse, shape, method) = &options;
            let [nonlinearity, shape, method] = [nonlinearity, shape, method].map(ToString::to_string);
            let owned = (nonlinearity, *slope, *transpose, *reverse, shape, method);
            let latent = Array::optional(latent)?;
            let latent = latent.as_ref().map(|latent| latent as &dyn AnyArray);
            (library().recurrence)(&operands(&inputs, [None; 4]), sizes, owned, latent).map(Self)
        })
    }

    /// [`PyRecurrence::step`] with `x` and `h0` of these inputs, if the others are its parameters bit for bit, with `latent` in
    /// the place of `u`. Returns whether they are.
    fn step_of(&self, py: Python<'_>, inputs: PyInputs<'_>, out: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        attempt(py, || {
            let (inputs, out) = (Array::each(&inputs)?, Array::read(out)?);
            let is_own = (library().recurrence_is_of)(&*self.0, &operands(&inputs, [None; 4]))?;
            if is_own {
                let operands = named(["x", "h"], [X, H0].map(|slot| inputs[slot].as_ref()));
                (library().recurrence_step)(&*self.0, &Arrays::new(&operands, &[("out", Some(&out))])?)?;
            }
            Ok(is_own)
        })
    }

    /// `rnn_forward`, if the other inputs are its parameters bit for bit, with `latent` in the place of `u`. Returns whether they
    /// are. The options must be its own.
    fn run_of(
        &self,
        py: Python<'_>,
        inputs: PyInputs<'_>,
        options: PyDescribed,
        h: &Bound<'_, PyAny>,
        last: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        attempt(py, || {
            let (inputs, call) = read(&inputs, &options)?;
            let (h, last) = (Array::read(h)?, Array::read(last)?);
            let operands = operands(&inputs, [None; 4]);
            let is_own = (library().recurrence_is_of)(&*self.0, &operands)?;
            if is_own {
                let results = named(["h", "last"], [Some(&h), Some(&last)]);
                (library().recurrence_run)(&*self.0, &Arrays::new(&operands, &results)?, call)?;
            }
            Ok(is_own)
        })
    }

    /// Writes `phi(W h + V x + b)` to `out`, like `h`: of `x (B, d)` and `h (B, n)`, or of `x (d,)` and `h (n,)`.
    fn step(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        h: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        attempt(py, || {
            let [x, h, out] = [Array::read(x)?, Array::read(h)?, Array::read(out)?];
            (library().recurrence_step)(
                &*self.0,
                &Arrays::new(&[("x", Some(&x)), ("h", Some(&h))], &[("out", Some(&out))])?,
            )
        })
    }
}
