//! A recurrence of parameters that stay the same: copies of them, and the weights that the core prepares of them.

use std::any::Any;
use std::sync::OnceLock;

use householder::rnn::{Recurrence, Sequence, Series, States, Steps};

use crate::array::{AnyArray, Header};
use crate::by_dtype;
use crate::dtype::{ArrayNumber, DType};
use crate::operands::{Arrays, Named, Operands, given};
use crate::refusal::{Reading, Refusal};
use crate::rnn::{self, Call, Described, H0, Sizes, X};

/// A recurrence of some number type that takes one step after the other.
pub trait Stepper: Send + Sync {
    /// Whether these are the parameters, bit for bit.
    fn is_of(&self, parameters: &[Named<'_>; 12]) -> Reading<bool>;

    /// Writes the state that follows `x` and `h`.
    fn step(&self, arrays: &Arrays<'_>) -> Reading<()>;

    /// Writes the states of a call of `rnn_forward` with these parameters and options: all of them, and the last ones.
    fn run(&self, arrays: &Arrays<'_>, call: Call<'_>) -> Reading<()>;
}

/// The recurrence of such a call, whose `x` has no steps. `latent` is what `u` was made of, if it was.
pub fn recurrence(
    operands: &[Named<'_>; 12],
    sizes: Sizes,
    options: Described<String>,
    latent: Option<&dyn AnyArray>,
) -> Reading<Box<dyn Stepper>> {
    by_dtype!(operands[X].1.map_or(DType::Other, |x| x.dtype), |T| {
        let parameters = Parameters::<T>::copied(&sizes, operands)?;
        let len = sizes.len(0)?;
        let latent = latent.map(|latent| latent.slice("latent", len)).transpose()?.map(<[T]>::to_vec);
        let owned =
            Owned { sizes, options, parameters, latent, for_steps: OnceLock::new(), for_sequences: OnceLock::new() };
        owned.sequence(&owned.sizes, Steps::uniform(0, 1)?, Series::new(&[]))?;
        Ok(Box::new(owned))
    })
}

/// What the recurrence is of, and what the core makes of it at the first step: who steps once would wait in vain.
struct Owned<T: ArrayNumber<Real: ArrayNumber>> {
    sizes: Sizes,
    options: Described<String>,
    parameters: Parameters<T>,
    /// Known in the place of `u`.
    latent: Option<Vec<T>>,
    /// For single steps, and for sequences of so many states as the first had.
    for_steps: OnceLock<Recurrence<T>>,
    for_sequences: OnceLock<Recurrence<T>>,
}

impl<T: ArrayNumber<Real: ArrayNumber>> Owned<T> {
    /// The core's description of these parameters over such vectors.
    fn sequence<'a>(&'a self, sizes: &Sizes, steps: Steps, x: Series<'a, T>) -> Reading<Sequence<'a, T>> {
        rnn::sequence(&&self.parameters, sizes, &(&self.options).into(), steps, x)
    }
}

impl<T: ArrayNumber<Real: ArrayNumber>> Stepper for Owned<T> {
    fn is_of(&self, parameters: &[Named<'_>; 12]) -> Reading<bool> {
        let known = self.latent.as_deref().or(self.parameters.numbers[0].as_deref());
        let is_same_u = known.zip(parameters[0].1).is_some_and(|(known, u)| same(known, u));
        Ok(is_same_u && (H0 + 1..12).all(|slot| self.parameters.is_same(slot, parameters[slot].1)))
    }

    fn run(&self, arrays: &Arrays<'_>, Call { sizes, steps, .. }: Call<'_>) -> Reading<()> {
        let x = given("x", sizes.series(arrays, X, sizes.d)?)?;
        let h0 = arrays.read(H0, "h0", &sizes.shape(H0))?;
        let sequence = Sequence { h0, ..self.sequence(&sizes, steps, x)? };
        let Some(h) = arrays.write(0, &sizes.states(self.sizes.columns.n))? else { return Ok(()) };
        let states = States { h, last: arrays.write(1, &sizes.shape(H0))?, tape: None };
        let prepared =
            prepared(&self.for_sequences, || arrays.run(|context| Recurrence::for_sequences(context, &sequence)))?;
        arrays.run(|context| prepared.run(context, &sequence, states))
    }

    fn step(&self, arrays: &Arrays<'_>) -> Reading<()> {
        let prepared = prepared(&self.for_steps, || {
            let sequence = self.sequence(&self.sizes, Steps::uniform(0, 1)?, Series::new(&[]))?;
            arrays.run(|context| Recurrence::new(context, &sequence))
        })?;
        let (n, d) = (self.sizes.columns.n, self.sizes.d);
        let sizes = |h: &Header| [h.len / n, h.dims.clamp(1, 2)];
        let [batch, axes] = arrays.operand(1).map_or([0, 2], |h| sizes(h));
        for (slot, (name, width)) in [("x", d), ("h", n)].into_iter().enumerate() {
            let shape = &[batch, width][2 - axes..];
            arrays.operand(slot).map_or(Ok(()), |array| array.require_shape(name, array, (1, 0), shape))?;
        }
        let x = arrays.needed::<T>(0, "x", &[batch, d])?;
        let h = arrays.needed::<T>(1, "h", &[batch, n])?;
        let Some(out) = arrays.write::<T>(0, &[batch, n])? else { return Ok(()) };
        arrays.run_short(|_| prepared.step(x, h, out))
    }
}

/// What is in this place, made if it is empty.
fn prepared<T: ArrayNumber>(
    place: &OnceLock<Recurrence<T>>,
    make: impl FnOnce() -> Reading<Recurrence<T>>,
) -> Reading<&Recurrence<T>> {
    if place.get().is_none() {
        let _ = place.set(make()?); // another thread may have been first, with the same
    }
    place.get().ok_or_else(|| Refusal::invalid("it was not prepared"))
}

/// Copies of the operands: most are of the number type, phases and modReLU's bias of its real numbers.
struct Parameters<T: ArrayNumber<Real: ArrayNumber>> {
    numbers: [Option<Vec<T>>; 12],
    reals: [Option<Vec<T::Real>>; 12],
}

impl<T: ArrayNumber<Real: ArrayNumber>> Parameters<T> {
    fn copied(sizes: &Sizes, operands: &[Named<'_>; 12]) -> Reading<Self> {
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
    fn is_same(&self, slot: usize, array: Option<&dyn AnyArray>) -> bool {
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
fn same<N: ArrayNumber>(known: &[N], array: &dyn AnyArray) -> bool {
    array.slice::<N>("", known.len()).is_ok_and(|given| bytes(given) == bytes(known))
}

/// The memory of numbers.
fn bytes<N: ArrayNumber>(numbers: &[N]) -> &[u8] {
    // SAFETY: all of their memory; numbers have no padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
