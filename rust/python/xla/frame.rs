//! The arguments, results and attributes of a call, checked.
//!
//! An operation has slots for its operands and for its results. The attributes `inputs` and `outputs` are sums of `2^slot` over
//! those that are present.

use std::ffi::c_int;
use std::ops::Deref;

use householder_binding::array::{AnyArray, Header, Origin, Work};
use householder_binding::dtype::DType;
use householder_binding::operands::{Arrays, each};
use householder_binding::refusal::{Reading, Refusal};

use super::c_api::{self, ARRAY, BUFFER, ByteSpan, CallFrame, F64, NUMBER, PRED, S64, TEXT};

/// What XLA calls the types.
const TYPES: [(DType, c_int); 7] = [
    (DType::Float32, c_api::F32),
    (DType::Float64, c_api::F64),
    (DType::BFloat16, c_api::BF16),
    (DType::Float16, c_api::F16),
    (DType::Complex64, c_api::C64),
    (DType::Complex128, c_api::C128),
    (DType::Int64, c_api::S64),
];

/// One call.
pub struct Frame<'a>(&'a CallFrame);

impl<'a> Frame<'a> {
    pub fn new(frame: &'a CallFrame) -> Self {
        Self(frame)
    }

    /// Runs an operation on the arrays of these slots. XLA's results are distinct arrays.
    pub fn run<R, const IN: usize, const OUT: usize>(
        &self,
        (operands, results): ([&'static str; IN], [&'static str; OUT]),
        work: impl FnOnce(&Arrays<'_>) -> Reading<R>,
    ) -> Reading<R> {
        let [inputs, outputs] = [self.integer("inputs")?, self.integer("outputs")?];
        let inputs = buffers::<IN>(&self.0.arguments, inputs)?;
        let outputs = buffers::<OUT>(&self.0.results, outputs)?;
        work(&Arrays::with_new_results(&each(operands, &inputs), &each(results, &outputs)))
    }

    /// The operand of a slot that tells sizes and type.
    fn model(&self, slot: usize) -> Reading<FrameBuffer<'a>> {
        let operand = buffer(&self.0.arguments, self.integer("inputs")?, slot)?;
        operand.ok_or_else(|| Refusal::invalid(format!("operand {slot}: expected an array, got none")))
    }

    /// The type of an operand that is always given.
    pub fn dtype(&self, slot: usize) -> Reading<DType> {
        Ok(self.model(slot)?.dtype)
    }

    /// Whether the operand of a slot is given.
    pub fn has(&self, slot: usize) -> Reading<bool> {
        Ok(self.integer("inputs")? & (1 << slot) != 0)
    }

    /// The shape of an operand that is always given.
    pub fn shape<const N: usize>(&self, slot: usize) -> Reading<[usize; N]> {
        self.model(slot)?.shape()
    }

    pub fn text(&self, name: &str) -> Reading<&'a str> {
        let span: &ByteSpan = self.attribute(name, TEXT)?;
        text(span).ok_or_else(|| Refusal::invalid(format!("{name}: expected UTF-8")))
    }

    pub fn flag(&self, name: &str) -> Reading<bool> {
        Ok(self.number::<u8>(name, PRED)? != 0)
    }

    pub fn integer(&self, name: &str) -> Reading<i64> {
        self.number(name, S64)
    }

    /// An array of integers.
    pub fn integers(&self, name: &str) -> Reading<&'a [i64]> {
        let numbers: &c_api::ArrayAttribute = self.attribute(name, ARRAY)?;
        if numbers.dtype != S64 {
            return Err(Refusal::invalid(format!("{name}: expected integers, got numbers of type {}", numbers.dtype)));
        }
        let data = numbers.data.cast::<i64>();
        if numbers.len > 0 && (data.is_null() || !data.is_aligned()) {
            return Err(Refusal::invalid(format!("{name}: expected aligned memory, got {data:?}")));
        }
        // SAFETY: XLA's array of so many integers, alive during the call.
        Ok(if numbers.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, numbers.len) } })
    }

    pub fn real(&self, name: &str) -> Reading<f64> {
        self.number(name, F64)
    }

    fn number<N: Copy>(&self, name: &str, dtype: c_int) -> Reading<N> {
        let number: &c_api::ScalarAttribute = self.attribute(name, NUMBER)?;
        if number.dtype != dtype {
            let text = format!("{name}: expected a number of type {dtype}, got type {}", number.dtype);
            return Err(Refusal::invalid(text));
        }
        // SAFETY: XLA's number of this type.
        Ok(unsafe { number.value.cast::<N>().read_unaligned() })
    }

    /// The attribute of this name, of a kind that is a `V`.
    fn attribute<V>(&self, name: &str, kind: c_int) -> Reading<&'a V> {
        let attributes = &self.0.attributes;
        for i in 0..usize::try_from(attributes.count).unwrap_or(0) {
            // SAFETY: three arrays of `count` entries, whose kind tells what a value is.
            unsafe {
                if text(&**attributes.names.add(i)) == Some(name) && *attributes.kinds.add(i) == kind {
                    return Ok(&*(*attributes.values.add(i)).cast::<V>());
                }
            }
        }
        Err(Refusal::invalid(format!("{name}: expected an attribute of kind {kind}, got none")))
    }
}

fn text(span: &ByteSpan) -> Option<&str> {
    if span.len == 0 {
        return Some("");
    }
    // SAFETY: XLA's bytes, alive during the call.
    std::str::from_utf8(unsafe { std::slice::from_raw_parts(span.start, span.len) }).ok()
}

fn buffer(buffers: &c_api::Buffers, present: i64, slot: usize) -> Reading<Option<FrameBuffer<'_>>> {
    let bit = 1 << slot;
    if present & bit == 0 {
        return Ok(None);
    }
    let place = (present & (bit - 1)).count_ones() as usize;
    if !usize::try_from(buffers.count).is_ok_and(|count| place < count) {
        return Err(Refusal::invalid(format!("expected more than {place} arrays, got {}", buffers.count)));
    }
    // SAFETY: arrays of `count` entries.
    unsafe {
        if *buffers.kinds.add(place) != BUFFER {
            return Err(Refusal::invalid(format!("array {place}: expected a buffer, got something else")));
        }
        Ok(Some(FrameBuffer::new(&**buffers.values.add(place))))
    }
}

/// All slots.
fn buffers<const N: usize>(buffers: &c_api::Buffers, present: i64) -> Reading<[Option<FrameBuffer<'_>>; N]> {
    let mut found = [const { None }; N];
    for (slot, found) in found.iter_mut().enumerate() {
        *found = buffer(buffers, present, slot)?;
    }
    Ok(found)
}

/// An array of XLA, row-major, and its header.
struct FrameBuffer<'a> {
    buffer: &'a c_api::XlaBuffer,
    header: Header,
}

impl<'a> FrameBuffer<'a> {
    fn new(buffer: &'a c_api::XlaBuffer) -> Self {
        let dims = dims(buffer);
        let mut strides = vec![1_i64; dims.len()];
        for i in (1..dims.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(dims[i].max(1));
        }
        let dtype = TYPES.iter().find(|names| names.1 == buffer.dtype).map_or(DType::Other, |names| names.0);
        let mut header = Header::new(buffer.data, dtype, dims, &strides);
        header.origin = Origin::Xla;
        Self { buffer, header }
    }

    /// The sizes of its axes.
    fn shape<const N: usize>(&self) -> Reading<[usize; N]> {
        let shape: Vec<usize> = dims(self.buffer).iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
        shape.try_into().map_err(|shape| Refusal::invalid(format!("expected {N} axes, got shape {shape:?}")))
    }
}

fn dims(buffer: &c_api::XlaBuffer) -> &[i64] {
    let rank = usize::try_from(buffer.rank).unwrap_or(0);
    // SAFETY: XLA's array of sizes.
    if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(buffer.dims, rank) } }
}

impl Deref for FrameBuffer<'_> {
    type Target = Header;
    fn deref(&self) -> &Header {
        &self.header
    }
}

impl AnyArray for FrameBuffer<'_> {
    fn describe(&self) -> Reading<String> {
        Ok(format!("{:?} of type {}", dims(self.buffer), self.buffer.dtype))
    }

    fn type_name(&self) -> Reading<String> {
        Ok(format!("type {}", self.buffer.dtype))
    }

    fn require_exactly(&self, name: &str, dtype: DType, shape: &[usize]) -> Reading<()> {
        let (dims, data) = (dims(self.buffer), self.data);
        let expected = TYPES.iter().find(|names| names.0 == dtype).map_or(0, |names| names.1);
        let fits = dims.len() == shape.len() && dims.iter().zip(shape).all(|(&dim, &size)| dim == size as i64);
        if self.dtype != dtype || !fits {
            let given = self.describe()?;
            return Err(Refusal::invalid(format!("{name}: expected shape {shape:?} of type {expected}, got {given}")));
        }
        if self.len > 0 && (data.is_null() || !(data as usize).is_multiple_of(dtype.real().bytes())) {
            return Err(Refusal::invalid(format!("{name}: expected aligned memory, got {data:?}")));
        }
        Ok(())
    }

    /// XLA's threads know nothing of Python's signals: the interpreter sees them once the result is there.
    fn run(&self, work: &mut Work<'_>) -> Reading<()> {
        Ok(work(&mut || false)?)
    }
}
