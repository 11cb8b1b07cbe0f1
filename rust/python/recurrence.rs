//! A recurrence for single steps: copies of its parameters, and the weights that the core prepares of them.

use std::any::Any;
use std::sync::OnceLock;

use householder::rnn::{self, Sequence, Series, Steps};
use householder_binding::array::AnyArray as _;
use householder_binding::by_dtype;
use householder_binding::dtype::{ArrayNumber, DType};
use householder_binding::operands::{Arrays, Named, Operands};
use householder_binding::refusal::{Reading, Refusal, catch_panic};
use householder_binding::rnn::{self as operation, Call, H0, Sizes, X, operands};
use pyo3::prelude::*;

use crate::array::Array;
use crate::call::{attempt, returned, run};
use crate::sequence::{PyDescribed, PyInputs, read};

/// A recurrence that takes one step after the other.
#[pyclass(name = "Recurrence", frozen, weakref, module = "householder._core")]
pub struct PyRecurrence(Box<dyn Stepper>);

/// That of some number type.
trait Stepper: Send + Sync {
    /// Whether these are the parameters, bit for bit.
    fn is_of(&self, parameters: &Operated<'_, '_, '_>) -> bool;

    /// Writes the state that follows.
    fn step(&self, py: Python<'_>, arrays: &Arrays<'_, Array<'_, '_>, 2, 1>) -> Reading<()>;
}

/// The operands of a sequence; no steps have `x` and `h0`.
type Operated<'x, 'a, 'py> = [Named<'x, Array<'a, 'py>>; 12];

#[pymethods]
impl PyRecurrence {
    /// The recurrence of such a call of `rnn_forward`, whose `x` has no steps. `latent` is what `u` was made of, if it was.
    #[new]
    #[pyo3(signature = (inputs, options, latent=None))]
    fn new(inputs: PyInputs<'_>, options: PyDescribed, latent: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        returned(|| {
            let (inputs, Call { sizes, .. }) = read(&inputs, &options)?;
            let (dtype, latent) = (inputs[X].as_ref().map_or(DType::Other, |x| x.dtype), Array::optional(latent)?);
            let operands = operands(&inputs, [None; 4]);
            by_dtype!(dtype, |T| {
                let parameters = Parameters::<T>::copied(&sizes, &operands)?;
                let len = sizes.len(0)?;
                let latent = latent.map(|latent| latent.slice("latent", len)).transpose()?.map(<[T]>::to_vec);
                let owned = Owned { sizes, options, parameters, latent, prepared: OnceLock::new() };
                owned.sequence()?;
                Ok(Self(Box::new(owned)))
            })
        })
    }

    /// [`PyRecurrence::step`] with `x` and `h0` of these inputs, if the others are its parameters bit for bit, with `latent` in
    /// the place of `u`. Returns whether they are.
    fn step_of(&self, py: Python<'_>, inputs: PyInputs<'_>, out: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        attempt(py, || {
            let (inputs, out) = (Array::each(&inputs)?, Array::read(out)?);
            let is_own = self.0.is_of(&operands(&inputs, [None; 4]));
            if is_own {
                let [x, h] = [X, H0].map(|slot| inputs[slot].as_ref());
                self.0.step(py, &Arrays::new([("x", x), ("h", h)], [("out", Some(&out))])?)?;
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
            self.0.step(py, &Arrays::new([("x", Some(&x)), ("h", Some(&h))], [("out", Some(&out))])?)
        })
    }
}

/// What the recurrence is of, and what the core makes of it at the first step: who steps once would wait in vain.
struct Owned<T: ArrayNumber<Real: ArrayNumber>> {
    sizes: Sizes,
    options: PyDescribed,
    parameters: Parameters<T>,
    /// Known in the place of `u`.
    latent: Option<Vec<T>>,
    prepared: OnceLock<rnn::Recurrence<T>>,
}

impl<T: ArrayNumber<Real: ArrayNumber>> Owned<T> {
    /// The core's description, of no steps.
    fn sequence(&self) -> Reading<Sequence<'_, T>> {
        let options = (&self.options).into();
        operation::sequence(&&self.parameters, &self.sizes, &options, Steps::uniform(0, 1)?, Series::new(&[]))
    }

    fn prepared(&self) -> Reading<&rnn::Recurrence<T>> {
        if self.prepared.get().is_none() {
            let sequence = self.sequence()?;
            let prepared = run(|context| rnn::Recurrence::new(context, &sequence))?;
            let _ = self.prepared.set(prepared); // another thread may have been first, with the same
        }
        self.prepared.get().ok_or_else(|| Refusal::invalid("it was not prepared"))
    }
}

impl<T: ArrayNumber<Real: ArrayNumber>> Stepper for Owned<T> {
    fn is_of(&self, parameters: &Operated<'_, '_, '_>) -> bool {
        let known = self.latent.as_deref().or(self.parameters.numbers[0].as_deref());
        known.zip(parameters[0].1).is_some_and(|(known, u)| same(known, u))
            && (H0 + 1..12).all(|slot| self.parameters.is_same(slot, parameters[slot].1))
    }

    fn step(&self, py: Python<'_>, arrays: &Arrays<'_, Array<'_, '_>, 2, 1>) -> Reading<()> {
        let prepared = self.prepared()?;
        let (n, d) = (self.sizes.columns.n, self.sizes.d);
        let [batch, axes] = arrays.operands()[1].1.map_or([0, 2], |h| [h.len / n, h.dims.clamp(1, 2)]);
        for ((name, array), width) in arrays.operands().iter().zip([d, n]) {
            let shape = &[batch, width][2 - axes..];
            array.map_or(Ok(()), |array| array.require_shape(name, array, (1, 0), shape))?;
        }
        let x = arrays.needed::<T>(0, "x", &[batch, d])?;
        let h = arrays.needed::<T>(1, "h", &[batch, n])?;
        let Some(out) = arrays.write::<T>(0, &[batch, n])? else { return Ok(()) };
        Ok(py.detach(|| catch_panic(|| prepared.step(x, h, out)))?)
    }
}

/// Copies of the operands: most are of the number type, phases and modReLU's bias of its real numbers.
struct Parameters<T: ArrayNumber<Real: ArrayNumber>> {
    numbers: [Option<Vec<T>>; 12],
    reals: [Option<Vec<T::Real>>; 12],
}

impl<T: ArrayNumber<Real: ArrayNumber>> Parameters<T> {
    fn copied(sizes: &Sizes, operands: &Operated<'_, '_, '_>) -> Reading<Self> {
        let mut copies = Self { numbers: [const { None }; 12], reals: [const { None }; 12] };
        for (slot, (name, array)) in operands.iter().enumerate() {
            let Some(array) = array.filter(|_| slot != X && slot != H0) else { continue };
            let len = sizes.len(slot)?;
            if array.dtype == T::Real::DTYPE && T::DTYPE != T::Real::DTYPE {
                copies.reals[slot] = Some(array.slice(name, len)?.to_vec());
            } else {
                copies.numbers[slot] = Some(array.slice(name, len)?.to_vec());
            }
        }
        Ok(copies)
    }

    /// Whether an operand has these bits.
    fn is_same(&self, slot: usize, array: Option<&Array<'_, '_>>) -> bool {
        match (&self.numbers[slot], &self.reals[slot], array) {
            (Some(kept), _, Some(array)) => same(kept, array),
            (_, Some(kept), Some(array)) => same(kept, array),
            (None, None, None) => true,
            _ => false,
        }
    }
}

impl<'a, T: ArrayNumber<Real: ArrayNumber>> Operands<'a> for &'a Parameters<T> {
    fn read<N: ArrayNumber>(&self, slot: usize, name: &str, shape: &[usize]) -> Reading<Option<&'a [N]>> {
        let numbers = self.numbers[slot].as_ref().map(|kept| kept as &dyn Any);
        let Some(kept) = numbers.or(self.reals[slot].as_ref().map(|kept| kept as &dyn Any)) else { return Ok(None) };
        let kept = kept.downcast_ref::<Vec<N>>().filter(|kept| kept.len() == shape.iter().product::<usize>());
        kept.map(|kept| Some(&kept[..])).ok_or_else(|| Refusal::invalid(format!("{name}: not what was copied")))
    }

    fn write<N: ArrayNumber>(&self, _: usize, _: &[usize]) -> Reading<Option<&'a mut [N]>> {
        Ok(None)
    }
}

/// Whether an array has these numbers, bit for bit.
fn same<N: ArrayNumber>(known: &[N], array: &Array<'_, '_>) -> bool {
    array.slice::<N>("", known.len()).is_ok_and(|given| bytes(given) == bytes(known))
}

/// The memory of numbers.
fn bytes<N: ArrayNumber>(numbers: &[N]) -> &[u8] {
    // SAFETY: all of their memory; numbers have no padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
