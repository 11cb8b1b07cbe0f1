//! The arguments, results and attributes of a call, checked.
//!
//! An operation has slots for its operands and for its results. The attributes `given` and `wanted` are sums of `2^slot` over
//! those that are there.

use std::ffi::c_int;
use std::fmt::Display;

use householder::error::{Error, Result};
use householder::many::{Stack, StackMut};

use super::c_api::{self, BUFFER, ByteSpan, CallFrame, F64, NUMBER, PRED, S64, TEXT};
use crate::array::Number;

/// Calls a function generic over the number type, by that of a buffer.
#[macro_export]
macro_rules! by_element {
    ($buffer:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $buffer.dtype() {
            $crate::xla::c_api::F32 => $function::<f32>($($argument),*),
            $crate::xla::c_api::F64 => $function::<f64>($($argument),*),
            $crate::xla::c_api::C64 => $function::<householder::number::c32>($($argument),*),
            $crate::xla::c_api::C128 => $function::<householder::number::c64>($($argument),*),
            other => Err($crate::xla::frame::invalid(format!("expected floating-point or complex numbers, got type {other}"))),
        }
    };
}

pub fn invalid(what: String) -> Error {
    Error::InvalidArgument(what)
}

/// One call.
pub struct Frame<'a>(&'a CallFrame);

impl<'a> Frame<'a> {
    pub fn new(frame: &'a CallFrame) -> Self {
        Self(frame)
    }

    /// The operand of a slot, if it is given.
    pub fn operand(&self, slot: usize) -> Result<Option<Buffer<'a>>> {
        buffer(&self.0.arguments, self.integer("given")?, slot)
    }

    /// The operand of a slot that is always given.
    pub fn needed(&self, slot: usize) -> Result<Buffer<'a>> {
        self.operand(slot)?.ok_or_else(|| invalid(format!("operand {slot}: expected an array, got none")))
    }

    /// The result of a slot, if it is wanted.
    pub fn result(&self, slot: usize) -> Result<Option<Buffer<'a>>> {
        buffer(&self.0.results, self.integer("wanted")?, slot)
    }

    /// The numbers of an operand of this shape, if it is given.
    pub fn given<T: Number>(&self, slot: usize, name: &str, shape: &[usize]) -> Result<Option<&'a [T]>> {
        self.operand(slot)?.map(|buffer| buffer.read(name, shape)).transpose()
    }

    /// The memory for a result of this shape, if it is wanted.
    pub fn wanted<T: Number>(&self, slot: usize, shape: &[usize]) -> Result<Option<&'a mut [T]>> {
        self.result(slot)?.map(|buffer| buffer.write(format_args!("result {slot}"), shape)).transpose()
    }

    /// [`Frame::given`] of all problems, which the first axis counts.
    pub fn given_stack<T: Number>(&self, slot: usize, name: &str, shape: &[usize]) -> Result<Option<Stack<'a, T>>> {
        Ok(self.given(slot, name, shape)?.map(|array| Stack::new(array, shape[0])))
    }

    /// [`Frame::wanted`] of all problems, which the first axis counts.
    pub fn wanted_stack<T: Number>(&self, slot: usize, shape: &[usize]) -> Result<Option<StackMut<'a, T>>> {
        Ok(self.wanted(slot, shape)?.map(|array| StackMut::new(array, shape[0])))
    }

    pub fn text(&self, name: &str) -> Result<&'a str> {
        let span: &ByteSpan = self.attribute(name, TEXT)?;
        text(span).ok_or_else(|| invalid(format!("{name}: expected UTF-8")))
    }

    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.number::<u8>(name, PRED)? != 0)
    }

    pub fn integer(&self, name: &str) -> Result<i64> {
        self.number(name, S64)
    }

    pub fn real(&self, name: &str) -> Result<f64> {
        self.number(name, F64)
    }

    fn number<N: Copy>(&self, name: &str, dtype: c_int) -> Result<N> {
        let number: &c_api::Number = self.attribute(name, NUMBER)?;
        if number.dtype != dtype {
            return Err(invalid(format!("{name}: expected a number of type {dtype}, got type {}", number.dtype)));
        }
        // SAFETY: XLA's number of this type.
        Ok(unsafe { number.value.cast::<N>().read_unaligned() })
    }

    /// The attribute of this name, of a kind that is a `V`.
    fn attribute<V>(&self, name: &str, kind: c_int) -> Result<&'a V> {
        let attributes = &self.0.attributes;
        for i in 0..usize::try_from(attributes.count).unwrap_or(0) {
            // SAFETY: three arrays of `count` entries, whose kind tells what a value is.
            unsafe {
                if text(&**attributes.names.add(i)) == Some(name) && *attributes.kinds.add(i) == kind {
                    return Ok(&*(*attributes.values.add(i)).cast::<V>());
                }
            }
        }
        Err(invalid(format!("{name}: expected an attribute of kind {kind}, got none")))
    }
}

fn text(span: &ByteSpan) -> Option<&str> {
    if span.len == 0 {
        return Some("");
    }
    // SAFETY: XLA's bytes, alive during the call.
    std::str::from_utf8(unsafe { std::slice::from_raw_parts(span.start, span.len) }).ok()
}

fn buffer(buffers: &c_api::Buffers, present: i64, slot: usize) -> Result<Option<Buffer<'_>>> {
    let bit = 1 << slot;
    if present & bit == 0 {
        return Ok(None);
    }
    let place = (present & (bit - 1)).count_ones() as usize;
    if !usize::try_from(buffers.count).is_ok_and(|count| place < count) {
        return Err(invalid(format!("expected more than {place} arrays, got {}", buffers.count)));
    }
    // SAFETY: arrays of `count` entries.
    unsafe {
        if *buffers.kinds.add(place) != BUFFER {
            return Err(invalid(format!("array {place}: expected a buffer, got something else")));
        }
        Ok(Some(Buffer(&**buffers.values.add(place))))
    }
}

/// An array of XLA, row-major.
#[derive(Clone, Copy)]
pub struct Buffer<'a>(&'a c_api::Buffer);

impl<'a> Buffer<'a> {
    pub fn dtype(self) -> c_int {
        self.0.dtype
    }

    /// The sizes of its axes.
    pub fn shape<const N: usize>(self) -> Result<[usize; N]> {
        let shape: Vec<usize> = self.dims().iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
        shape.try_into().map_err(|shape| invalid(format!("expected {N} axes, got shape {shape:?}")))
    }

    /// The numbers of an array of this shape.
    pub fn read<T: Number>(self, name: &str, shape: &[usize]) -> Result<&'a [T]> {
        let (data, len) = self.checked::<T>(name, shape)?;
        // SAFETY: as many numbers of this type, alive during the call, which writes to results only.
        Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } })
    }

    /// The memory for the numbers of an array of this shape, which is requested only once.
    pub fn write<T: Number>(self, name: impl Display, shape: &[usize]) -> Result<&'a mut [T]> {
        let (data, len) = self.checked::<T>(name, shape)?;
        // SAFETY: as above; XLA's results are distinct arrays.
        Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, len) } })
    }

    fn dims(self) -> &'a [i64] {
        let rank = usize::try_from(self.0.rank).unwrap_or(0);
        // SAFETY: XLA's array of sizes.
        if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.0.dims, rank) } }
    }

    fn checked<T: Number>(self, name: impl Display, shape: &[usize]) -> Result<(*mut T, usize)> {
        let (dims, data) = (self.dims(), self.0.data.cast::<T>());
        let fits = dims.len() == shape.len() && dims.iter().zip(shape).all(|(&dim, &size)| dim == size as i64);
        if self.0.dtype != T::XLA || !fits {
            return Err(invalid(format!(
                "{name}: expected shape {shape:?} of type {}, got {dims:?} of type {}",
                T::XLA,
                self.0.dtype
            )));
        }
        let len = shape.iter().product::<usize>();
        if len > 0 && (data.is_null() || !data.is_aligned()) {
            return Err(invalid(format!("{name}: expected aligned memory, got {data:?}")));
        }
        Ok((data, len))
    }
}
