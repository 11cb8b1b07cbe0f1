//! A recurrence for single steps: copies of its parameters, and the weights that the core prepares of them.

use std::any::Any;
use std::sync::OnceLock;

use householder::rnn::{self, Sequence, Series, Steps};
use pyo3::prelude::*;

use crate::array::Array;
use crate::by_dtype;
use crate::call::{Reading, Refusal, attempt, catch_panic, run};
use crate::dtype::Number;
use crate::operands::{Arrays, Operands, named};
use crate::sequence::{self, Call, Described, Inputs, OPERANDS, Options, Sizes};

/// A recurrence that takes one step after the other.
#[pyclass(frozen, weakref, module = "householder._core")]
pub struct Recurrence(Box<dyn Stepper>);

/// That of some number type.
trait Stepper: Send + Sync {
    /// Whether these are the parameters, bit for bit.
    fn is_of(&self, parameters: &Operated<'_, '_>) -> bool;

    /// Writes the state that follows.
    fn step(&self, py: Python<'_>, arrays: &Arrays<'_, '_, 2, 1>) -> Reading<()>;
}

/// The operands of a sequence; no steps have `x` and `h0`.
type Operated<'a, 'py> = [Option<Array<'a, 'py>>; 8];

#[pymethods]
impl Recurrence {
    /// The recurrence of such a call of `rnn_forward`, whose `x` has no steps. `latent` is what `u` was made of, if it was.
    #[new]
    #[pyo3(signature = (inputs, options, latent=None))]
    fn new(inputs: Inputs<'_>, options: Described, latent: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        fn go<T: Number<Real: Number>>(
            sizes: Sizes,
            options: Described,
            operands: &Operated<'_, '_>,
            latent: Option<&Array<'_, '_>>,
        ) -> Reading<Box<dyn Stepper>> {
            let parameters = Parameters::<T>::copied(&sizes, operands)?;
            let len = sizes.len(0)?;
            let latent = latent.map(|latent| latent.slice("latent", len)).transpose()?.map(<[T]>::to_vec);
            let owned = Owned { sizes, options, parameters, latent, prepared: OnceLock::new() };
            owned.sequence()?;
            Ok(Box::new(owned))
        }
        let (Call { sizes, dtype, .. }, operands) = Call::read(&inputs, &options)?;
        let latent = Array::optional(latent)?;
        Ok(Self(by_dtype!(dtype, go(sizes, options, &operands, latent.as_ref()))?))
    }

    /// Whether it is the recurrence of these parameters, with `latent` in the place of `u`, bit for bit; `x` and `h0` do not
    /// matter.
    fn is_of(&self, inputs: Inputs<'_>) -> bool {
        let parameters = |[u, _, _, v, b, phases, bias, tau, _]: [_; 9]| [u, None, None, v, b, phases, bias, tau];
        Array::each(&inputs).is_ok_and(|arrays| self.0.is_of(&parameters(arrays)))
    }

    /// Writes `phi(W h + V x + b)` to `out`, like `h`: of `x (B, d)` and `h (B, n)`, or of `x (d,)` and `h (n,)`.
    fn step(
        &self,
        py: Python<'_>,
        x: &Bound<'_, PyAny>,
        h: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let reading = || -> Reading<()> {
            let operands = named(["x", "h"], [Some(Array::read(x)?), Some(Array::read(h)?)]);
            self.0.step(py, &Arrays::new(operands, [("out", Some(Array::read(out)?))])?)
        };
        attempt(py, reading())
    }
}

/// What the recurrence is of, and what the core makes of it at the first step: who steps once would wait in vain.
struct Owned<T: Number<Real: Number>> {
    sizes: Sizes,
    options: Described,
    parameters: Parameters<T>,
    /// Known in the place of `u`.
    latent: Option<Vec<T>>,
    prepared: OnceLock<rnn::Recurrence<T>>,
}

impl<T: Number<Real: Number>> Owned<T> {
    /// The core's description, of no steps.
    fn sequence(&self) -> Reading<Sequence<'_, T>> {
        let (nonlinearity, slope, transpose, _, _, method) = &self.options;
        let options = Options { nonlinearity, slope: *slope, transpose: *transpose, method };
        sequence::sequences(&&self.parameters, &self.sizes, &options, Steps::uniform(0, 1)?, Series::new(&[]))
    }

    fn prepared(&self, py: Python<'_>) -> Reading<&rnn::Recurrence<T>> {
        if self.prepared.get().is_none() {
            let sequence = self.sequence()?;
            let prepared = run(py, |context| rnn::Recurrence::new(context, &sequence))?;
            let _ = self.prepared.set(prepared); // another thread may have been first, with the same
        }
        self.prepared.get().ok_or_else(|| Refusal::invalid("it was not prepared"))
    }
}

impl<T: Number<Real: Number>> Stepper for Owned<T> {
    fn is_of(&self, parameters: &Operated<'_, '_>) -> bool {
        let [u, others @ ..] = parameters;
        let known = self.latent.as_deref().or(self.parameters.numbers[0].as_deref());
        let is_same = |slot, array: &Option<_>| self.parameters.is_same(slot, array.as_ref());
        known.zip(u.as_ref()).is_some_and(|(known, u)| same(known, u))
            && others.iter().zip(1..).all(|(array, slot)| is_same(slot, array))
    }

    fn step(&self, py: Python<'_>, arrays: &Arrays<'_, '_, 2, 1>) -> Reading<()> {
        let prepared = self.prepared(py)?;
        let (n, d) = (self.sizes.columns.n, self.sizes.d);
        let [batch, axes] = arrays.operands[1].1.as_ref().map_or([0, 2], |h| [h.len / n, h.dims.clamp(1, 2)]);
        for ((name, array), width) in arrays.operands.iter().zip([d, n]) {
            let shape = &[batch, width][2 - axes..];
            array.as_ref().map_or(Ok(()), |array| array.require_shape(name, (1, 0), shape))?;
        }
        let x = arrays.needed::<T>(0, "x", &[batch, d])?;
        let h = arrays.needed::<T>(1, "h", &[batch, n])?;
        let Some(out) = arrays.write::<T>(0, &[batch, n])? else { return Ok(()) };
        Ok(py.detach(|| catch_panic(|| prepared.step(x, h, out)))?)
    }
}

/// Copies of the operands: most are of the number type, phases and modReLU's bias of its real numbers.
struct Parameters<T: Number<Real: Number>> {
    numbers: [Option<Vec<T>>; 8],
    reals: [Option<Vec<T::Real>>; 8],
}

impl<T: Number<Real: Number>> Parameters<T> {
    fn copied(sizes: &Sizes, operands: &Operated<'_, '_>) -> Reading<Self> {
        let mut copies = Self { numbers: [const { None }; 8], reals: [const { None }; 8] };
        for (slot, array) in operands.iter().enumerate() {
            let Some(array) = array.as_ref().filter(|_| slot != sequence::X && slot != sequence::H0) else { continue };
            let (name, len) = (OPERANDS[slot], sizes.len(slot)?);
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

impl<'a, T: Number<Real: Number>> Operands<'a> for &'a Parameters<T> {
    fn read<N: Number>(&self, slot: usize, name: &str, shape: &[usize]) -> Reading<Option<&'a [N]>> {
        let numbers = self.numbers[slot].as_ref().map(|kept| kept as &dyn Any);
        let Some(kept) = numbers.or(self.reals[slot].as_ref().map(|kept| kept as &dyn Any)) else { return Ok(None) };
        let kept = kept.downcast_ref::<Vec<N>>().filter(|kept| kept.len() == shape.iter().product::<usize>());
        kept.map(|kept| Some(&kept[..])).ok_or_else(|| Refusal::invalid(format!("{name}: not what was copied")))
    }

    fn write<N: Number>(&self, _: usize, _: &[usize]) -> Reading<Option<&'a mut [N]>> {
        Ok(None)
    }
}

/// Whether an array has these numbers, bit for bit.
fn same<N: Number>(known: &[N], array: &Array<'_, '_>) -> bool {
    array.slice::<N>("", known.len()).is_ok_and(|given| bytes(given) == bytes(known))
}

/// The memory of numbers.
fn bytes<N: Number>(numbers: &[N]) -> &[u8] {
    // SAFETY: all of their memory; numbers have no padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
