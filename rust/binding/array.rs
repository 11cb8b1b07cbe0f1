//! Arrays and tensors in memory: one header for all, whose numbers are read and written in place.

use std::ffi::c_void;
use std::ops::{Deref, Range};

use householder::advise_huge_pages;
use householder::error::Result;
use householder::stored::{Numbers, NumbersMut, Tokens};

use crate::dtype::{ArrayNumber, DType};
use crate::refusal::{Reading, Refusal};

/// The library that an array is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    NumPy,
    Torch,
    /// Which tells the whole shape; see [`AnyArray::require_exactly`].
    Xla,
}

/// An array's memory and the part of its shape that describes a problem.
pub struct Header {
    pub data: *mut c_void,
    pub dtype: DType,
    /// Its last three sizes, 1 where there is none.
    pub last: [usize; 3],
    /// The sizes of its last four axes and their strides, in numbers.
    axes: [(usize, i64); 4],
    pub dims: usize,
    pub len: usize,
    pub origin: Origin,
    /// Numbers from the first to the last in memory.
    reach: usize,
    pub is_contiguous: bool,
    pub is_writable: bool,
}

impl Header {
    /// That of a tensor.
    #[inline]
    pub fn new(data: *mut c_void, dtype: DType, shape: &[i64], strides: &[i64]) -> Self {
        let axes = [4, 3, 2, 1].map(|k| shape.len().checked_sub(k).map_or((1, 1), |i| (shape[i] as usize, strides[i])));
        let ends = shape.iter().zip(strides).map(|(&size, &stride)| (size.max(1) - 1).saturating_mul(stride));
        Self {
            data,
            dtype,
            last: [1, 2, 3].map(|i: usize| axes[i].0),
            axes,
            dims: shape.len(),
            len: product(shape),
            origin: Origin::Torch,
            reach: ends.fold(1, |reach, end| reach.saturating_add(end.unsigned_abs() as usize)),
            is_contiguous: is_contiguous(shape, strides),
            is_writable: true,
        }
    }

    /// The addresses of its numbers, and of what lies between them.
    pub fn memory(&self) -> Range<usize> {
        let begin = self.data as usize;
        begin..begin.saturating_add(if self.len == 0 { 0 } else { self.reach.saturating_mul(self.dtype.bytes()) })
    }

    fn is_aligned<T>(&self) -> bool {
        self.len == 0 || self.data.cast::<T>().is_aligned() // NumPy calls an empty array aligned, wherever it lies
    }

    fn is_aligned_as<T>(&self) -> bool {
        if self.dtype.is_half() { self.is_aligned::<u16>() } else { self.is_aligned::<T>() }
    }

    /// `len` numbers from the first on, whose type and alignment have been checked.
    fn numbers<E>(&self, len: usize) -> &'static [E] {
        // SAFETY: the array's own memory, with strides that are not negative.
        if self.len == 0 || len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data.cast(), len) } }
    }

    /// All numbers of a contiguous array, whose type and alignment have been checked.
    fn overwritten<E>(&self, name: &str) -> Reading<&'static mut [E]> {
        if !self.is_writable {
            return Err(Refusal::invalid(format!("{name}: the array is read-only")));
        }
        let (data, len) = (self.data.cast(), self.len);
        // SAFETY: as many numbers; outputs are distinct arrays that nobody else uses during the call.
        let numbers = if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, len) } };
        advise_huge_pages(numbers);
        Ok(numbers)
    }
}

/// What a call computes. It is told whom to ask whether to stop.
pub type Work<'a> = dyn FnMut(&mut dyn FnMut() -> bool) -> Result<()> + Send + 'a;

/// An array of some library. Its numbers must stay valid and unmoved for the call, which holds a reference to it.
pub trait AnyArray: Deref<Target = Header> {
    /// Says what was given, for messages.
    fn describe(&self) -> Reading<String>;

    /// The type, as its library writes it.
    fn type_name(&self) -> Reading<String>;

    /// The sizes of so many leading axes, if they are known.
    fn leading(&self, _axes: usize) -> Option<Vec<usize>> {
        None
    }

    /// Requires this type and this shape, where its library tells the whole shape.
    fn require_exactly(&self, _name: &str, _dtype: DType, _shape: &[usize]) -> Reading<()> {
        Ok(())
    }

    /// Runs `work` as a call of its library.
    fn run(&self, work: &mut Work<'_>) -> Reading<()>;
}

impl dyn AnyArray + '_ {
    /// Whether it has these leading axes of another one, as far as is known.
    pub fn is_led_by(&self, other: &dyn AnyArray, axes: usize) -> bool {
        self.leading(axes) == other.leading(axes)
    }

    /// `len` numbers.
    pub fn slice<T: ArrayNumber>(&self, name: &str, len: usize) -> Reading<&'static [T]> {
        let header: &Header = self; // asked for once, because each time is a call
        self.require(header, name, T::DTYPE, len)?;
        self.require_layout(header, name, header.is_contiguous && header.is_aligned::<T>())?;
        Ok(header.numbers(len))
    }

    /// `len` numbers to be overwritten.
    pub fn slice_mut<T: ArrayNumber>(&self, name: &str, len: usize) -> Reading<&'static mut [T]> {
        let header: &Header = self;
        self.require(header, name, T::DTYPE, len)?;
        self.require_layout(header, name, header.is_contiguous && header.is_aligned::<T>())?;
        header.overwritten(name)
    }

    /// The vectors `(steps, batch, width)` at fixed strides: the memory that they span and the strides of steps and
    /// sequences. `span` gives its length from the strides. None where the vectors are contiguous rows.
    pub fn strided<T: ArrayNumber>(
        &self,
        name: &str,
        len: usize,
        span: impl FnOnce([usize; 2]) -> usize,
    ) -> Reading<Option<(&'static [T], [usize; 2])>> {
        let header: &Header = self;
        let [_, (_, step), (_, sequence), (_, one)] = header.axes;
        if header.is_contiguous || header.dims != 3 || one != 1 || step < 0 || sequence < 0 {
            return Ok(None);
        }
        self.require(header, name, T::DTYPE, len)?;
        self.require_layout(header, name, header.is_aligned::<T>())?;
        let strides = [step as usize, sequence as usize];
        Ok(Some((self.numbers(if len == 0 { 0 } else { span(strides) }), strides)))
    }

    /// Rows `(batch, tokens, heads, width)` of contiguous numbers, which may have 16 bits. One head may have no axis.
    pub fn tokens<T: ArrayNumber>(&self, name: &str, len: usize) -> Reading<Tokens<'static, T>> {
        self.require_kind::<T>(name, len)?;
        let axes = match self.dims {
            3 => [self.axes[1], self.axes[2], (1, 0), self.axes[3]],
            _ => self.axes,
        };
        let (sizes, strides) =
            (axes.map(|(size, _)| size), axes.map(|(size, stride)| if size > 1 { stride } else { 0 }));
        let is_row = sizes[3] <= 1 || strides[3] == 1;
        let fits = matches!(self.dims, 3 | 4) && is_row && strides.iter().all(|&stride| stride >= 0);
        self.require_layout(self, name, (self.is_contiguous || fits) && self.is_aligned_as::<T>())?;
        let numbers = match self.dtype {
            DType::BFloat16 => Numbers::BFloat16(self.numbers(self.reach)),
            DType::Float16 => Numbers::Float16(self.numbers(self.reach)),
            _ => Numbers::Full(self.numbers(self.reach)),
        };
        if self.is_contiguous {
            return Ok(numbers.into());
        }
        Ok(Tokens::strided(numbers, sizes, [0, 1, 2].map(|i: usize| strides[i] as usize))?)
    }

    /// Contiguous numbers to be overwritten, which may have 16 bits.
    pub fn numbers_mut<T: ArrayNumber>(&self, name: &str, len: usize) -> Reading<NumbersMut<'static, T>> {
        self.require_kind::<T>(name, len)?;
        self.require_layout(self, name, self.is_contiguous && self.is_aligned_as::<T>())?;
        Ok(match self.dtype {
            DType::BFloat16 => NumbersMut::BFloat16(self.overwritten(name)?),
            DType::Float16 => NumbersMut::Float16(self.overwritten(name)?),
            _ => NumbersMut::Full(self.overwritten(name)?),
        })
    }

    /// Integers along one axis.
    pub fn integers(&self, name: &str) -> Reading<&'static [i64]> {
        if self.dtype != DType::Int64 || self.dims != 1 || !self.is_contiguous || !self.is_aligned::<i64>() {
            let given = self.describe()?;
            return Err(Refusal::Type(format!("{name}: expected int64 numbers along one axis, got {given}")));
        }
        Ok(self.numbers(self.len))
    }

    /// Requires `count` arrays of this shape, which `axes` leading axes enumerate, those of `first`.
    pub fn require_shape(
        &self,
        name: &str,
        first: &dyn AnyArray,
        (count, axes): (usize, usize),
        shape: &[usize],
    ) -> Reading<()> {
        let header: &Header = self;
        let fits = header.dims == axes + shape.len()
            && header.last[3 - shape.len()..] == *shape
            && header.len == size(shape)?.saturating_mul(count);
        if fits && (axes == 0 || self.is_led_by(first, axes)) {
            return Ok(());
        }
        let lead = if axes == 0 { "" } else { "(.., ) + " };
        Err(Refusal::invalid(format!("{name}: expected shape {lead}{shape:?}, got {}", self.describe()?)))
    }

    /// Requires `len` numbers of a type, or of 16 bits in place of `f32`.
    fn require_kind<T: ArrayNumber>(&self, name: &str, len: usize) -> Reading<()> {
        let is_half = T::DTYPE == DType::Float32 && self.dtype.is_half();
        self.require(self, name, if is_half { self.dtype } else { T::DTYPE }, len)
    }

    fn require(&self, header: &Header, name: &str, dtype: DType, len: usize) -> Reading<()> {
        if header.dtype != dtype {
            let given = self.type_name()?;
            if header.origin == Origin::Torch {
                let remedy = "convert modules before the forward or after the backward pass";
                return Err(Refusal::Runtime(format!("{name} is {given}, expected torch.{dtype}: {remedy}")));
            }
            return Err(Refusal::Type(format!("{name}: expected a native {dtype} array, got {given}")));
        }
        if header.len == len { Ok(()) } else { Err(self.refusal(name, len)?) }
    }

    /// Requires a layout that the core reads. The dispatcher lays out tensors.
    fn require_layout(&self, header: &Header, name: &str, fits: bool) -> Reading<()> {
        match (fits, header.origin == Origin::Torch) {
            (true, _) => Ok(()),
            (false, true) => Err(Refusal::Foreign),
            (false, false) => Err(self.refusal(name, self.len)?),
        }
    }

    fn refusal(&self, name: &str, len: usize) -> Reading<Refusal> {
        let given = self.describe()?;
        Ok(Refusal::invalid(format!("{name}: expected {len} contiguous, aligned numbers, got {given}")))
    }
}

/// How many numbers an array of this shape has: none, whatever the other sizes, if one of them is zero.
#[inline]
fn product(shape: &[i64]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |len, &size| len.saturating_mul(size as usize)) }
}

#[inline]
fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected = size.saturating_mul(expected);
            fits
        })
}

/// `a * b * ..`, refused where it leaves the address space.
#[inline]
pub fn size(factors: &[usize]) -> Reading<usize> {
    let product = factors.iter().try_fold(1_usize, |product, &x| product.checked_mul(x));
    let size = product.filter(|&x| isize::try_from(x).is_ok());
    size.ok_or_else(|| Refusal::invalid("an array of that size cannot exist"))
}
