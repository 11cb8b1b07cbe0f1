//! The arrays of a call, wherever they come from.

use householder::error::{Error, Result, catch_panic};
use householder::rnn::Series;
use householder::stored::{NumbersMut, Tokens};
use householder::threads::Context;

use crate::array::{AnyArray, Origin, size};
use crate::dtype::{ArrayNumber, DType};
use crate::refusal::{Reading, Refusal};

/// Operands and results, by the slots that an operation has for them. Shapes begin with the number of problems.
pub trait Operands<'a> {
    /// The numbers of an operand, if it is given.
    fn read<T: ArrayNumber>(&self, slot: usize, name: &str, shape: &[usize]) -> Reading<Option<&'a [T]>>;

    /// The memory for a result, if it is wanted, which is asked for only once.
    fn write<T: ArrayNumber>(&self, slot: usize, shape: &[usize]) -> Reading<Option<&'a mut [T]>>;

    /// The numbers of an operand that is always given.
    fn needed<T: ArrayNumber>(&self, slot: usize, name: &str, shape: &[usize]) -> Reading<&'a [T]> {
        given(name, self.read(slot, name, shape)?)
    }

    /// The rows of an operand, if it is given.
    fn tokens<T: ArrayNumber>(&self, slot: usize, name: &str, shape: &[usize]) -> Reading<Option<Tokens<'a, T>>> {
        Ok(self.read(slot, name, shape)?.map(Tokens::from))
    }

    /// The memory for a result whose numbers may have 16 bits, if it is wanted.
    fn numbers_mut<T: ArrayNumber>(&self, slot: usize, shape: &[usize]) -> Reading<Option<NumbersMut<'a, T>>> {
        Ok(self.write(slot, shape)?.map(NumbersMut::from))
    }

    /// Vectors of all steps, if they are given. Those `(steps, batch, width)` of one problem may lie at fixed strides.
    fn series<T: ArrayNumber>(
        &self,
        slot: usize,
        name: &str,
        shape: &[usize],
        _of_one: Option<[usize; 3]>,
    ) -> Reading<Option<Series<'a, T>>> {
        Ok(self.read(slot, name, shape)?.map(Series::new))
    }
}

/// Requires an operand.
pub fn given<A>(name: &str, operand: Option<A>) -> Reading<A> {
    operand.ok_or_else(|| Refusal::invalid(format!("{name}: expected an array, got None")))
}

/// Sizes of up to four axes, which a small call has no time to allocate.
pub struct Axes([usize; 4], usize);

impl Axes {
    pub fn new<const N: usize>(sizes: [usize; N]) -> Self {
        let mut shape = Self([1; 4], N);
        shape.0[..N].copy_from_slice(&sizes);
        shape
    }
}

impl std::ops::Deref for Axes {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0[..self.1]
    }
}

/// An array of a call, and its name.
pub type Named<'x> = (&'static str, Option<&'x dyn AnyArray>);

/// The arrays of a call, by slots. Each result has memory of its own.
pub struct Arrays<'x> {
    operands: &'x [Named<'x>],
    results: &'x [Named<'x>],
}

impl<'x> Arrays<'x> {
    /// Requires that each result shares no memory with another array of the call.
    pub fn new(operands: &'x [Named<'x>], results: &'x [Named<'x>]) -> Reading<Self> {
        for (i, (name, array)) in results.iter().enumerate() {
            let Some(own) = array.map(|array| array.memory()) else { continue };
            for (other, array) in operands.iter().chain(&results[..i]) {
                let meets = |memory: std::ops::Range<usize>| memory.start < own.end && own.start < memory.end;
                if array.is_some_and(|array| meets(array.memory())) {
                    let text = format!("{name}: expected memory of its own, got an array that overlaps {other}");
                    return Err(Refusal::invalid(text));
                }
            }
        }
        Ok(Self { operands, results })
    }

    /// Results that were allocated for this call share no memory with anything.
    pub fn with_new_results(operands: &'x [Named<'x>], results: &'x [Named<'x>]) -> Self {
        Self { operands, results }
    }

    /// The operand of a slot.
    pub fn operand(&self, slot: usize) -> Option<&'x dyn AnyArray> {
        self.operands[slot].1
    }

    /// The type of an operand.
    pub fn dtype(&self, slot: usize) -> DType {
        self.operand(slot).map_or(DType::Other, |array| array.dtype)
    }

    /// Runs `work` as a call of the library that the arrays are of.
    pub fn run<R: Send>(&self, work: impl FnOnce(&mut Context<'_>) -> Result<R> + Send) -> Reading<R> {
        self.run_short(|poll| work(&mut Context::new(poll)))
    }

    /// The same for work that asks seldom or never whether to stop.
    pub fn run_short<R: Send>(&self, work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<R> + Send) -> Reading<R> {
        let (mut work, mut result) = (Some(work), None);
        given(self.operands[0].0, self.operand(0))?.run(&mut |poll| {
            // Before it reaches the caller's library, which may have a Rust of its own.
            let outcome = work.take().map(|work| catch_panic(|| work(poll)));
            result = outcome.transpose()?;
            Ok(())
        })?;
        Ok(result.ok_or_else(|| Error::Internal("the work did not run".to_owned()))?)
    }
}

/// Names arrays, one for each. There are none for the last names.
pub fn named<'x, A: AnyArray + 'x, const N: usize>(
    names: [&'static str; N],
    arrays: impl IntoIterator<Item = Option<&'x A>>,
) -> [Named<'x>; N] {
    let mut arrays = arrays.into_iter();
    names.map(|name| (name, arrays.next().flatten().map(|array| array as &dyn AnyArray)))
}

/// Names arrays that lie together.
pub fn each<'x, A: AnyArray, const N: usize>(names: [&'static str; N], arrays: &'x [Option<A>]) -> [Named<'x>; N] {
    named(names, arrays.iter().map(Option::as_ref))
}

fn require(name: &str, array: &dyn AnyArray, dtype: DType, shape: &[usize]) -> Reading<()> {
    if array.origin == Origin::Xla { array.require_exactly(name, dtype, shape) } else { Ok(()) }
}

impl Operands<'static> for Arrays<'_> {
    fn read<T: ArrayNumber>(&self, slot: usize, _: &str, shape: &[usize]) -> Reading<Option<&'static [T]>> {
        let (name, Some(array)) = self.operands[slot] else { return Ok(None) };
        require(name, array, T::DTYPE, shape)?;
        array.slice(name, size(shape)?).map(Some)
    }

    fn write<T: ArrayNumber>(&self, slot: usize, shape: &[usize]) -> Reading<Option<&'static mut [T]>> {
        let (name, Some(array)) = self.results[slot] else { return Ok(None) };
        require(name, array, T::DTYPE, shape)?;
        array.slice_mut(name, size(shape)?).map(Some)
    }

    fn tokens<T: ArrayNumber>(&self, slot: usize, _: &str, shape: &[usize]) -> Reading<Option<Tokens<'static, T>>> {
        let (name, Some(array)) = self.operands[slot] else { return Ok(None) };
        require(name, array, T::DTYPE, shape)?;
        array.tokens(name, size(shape)?).map(Some)
    }

    fn numbers_mut<T: ArrayNumber>(&self, slot: usize, shape: &[usize]) -> Reading<Option<NumbersMut<'static, T>>> {
        let (name, Some(array)) = self.results[slot] else { return Ok(None) };
        require(name, array, T::DTYPE, shape)?;
        array.numbers_mut(name, size(shape)?).map(Some)
    }

    fn series<T: ArrayNumber>(
        &self,
        slot: usize,
        _: &str,
        shape: &[usize],
        of_one: Option<[usize; 3]>,
    ) -> Reading<Option<Series<'static, T>>> {
        let (name, Some(array)) = self.operands[slot] else { return Ok(None) };
        let len = size(shape)?;
        require(name, array, T::DTYPE, shape)?;
        if let Some(shape) = of_one {
            array.require_shape(name, array, (1, 0), &shape)?;
            let strided = array.strided::<T>(name, len, |strides| Series::<T>::span(shape, strides))?;
            if let Some((memory, strides)) = strided {
                return Ok(Some(Series::strided(memory, strides)));
            }
        }
        Ok(Some(Series::new(array.slice(name, len)?)))
    }
}
