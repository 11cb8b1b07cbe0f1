//! Rows of tokens that lie apart from each other.

use householder::number::Real;
use householder::stored::{Numbers, Tokens};

/// A copy of contiguous rows `(batch, tokens, heads, width)`, with NaN between the rows.
pub struct Apart<T> {
    numbers: Vec<T>,
    shape: [usize; 4],
    strides: [usize; 3],
}

impl<T: Real> Apart<T> {
    /// The axes in memory have any order and gaps. The stride of an axis of one may be anything. `below` draws a number below
    /// another one.
    pub fn any(mut below: impl FnMut(usize) -> usize, rows: &[T], shape: [usize; 4]) -> Self {
        assert_eq!(rows.len(), shape.iter().product::<usize>(), "rows of {shape:?}");
        let mut order = [0, 1, 2];
        (1..3).for_each(|i| order.swap(i, below(i + 1)));
        let (mut strides, mut reach) = ([0; 3], shape[3] + below(3));
        for axis in order {
            strides[axis] = reach + below(2) * below(7);
            reach += shape[axis].saturating_sub(1) * strides[axis];
        }
        let mut numbers = vec![T::of(f64::NAN); reach];
        let [_, tokens, heads, width] = shape;
        for (i, row) in rows.chunks(width.max(1)).enumerate() {
            let at = [i / heads / tokens, i / heads % tokens, i % heads];
            let first: usize = at.iter().zip(strides).map(|(at, stride)| at * stride).sum();
            numbers[first..first + width].copy_from_slice(row);
        }
        for axis in 0..3 {
            if shape[axis] == 1 && below(2) == 0 {
                strides[axis] = [usize::MAX, usize::MAX / 2 + 1, 1 << 40][below(3)];
            }
        }
        Self { numbers, shape, strides }
    }

    pub fn tokens(&self) -> Tokens<'_, T> {
        Tokens::strided(Numbers::Full(&self.numbers), self.shape, self.strides).expect("rows within the numbers")
    }
}
