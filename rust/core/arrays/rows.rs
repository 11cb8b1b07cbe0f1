//! Rows of numbers in the caller's memory, one after the other or at any distances.

use std::borrow::Cow;
use std::marker::PhantomData;

use crate::error::{Error, Result};
use crate::memory::{collected, filled};
use crate::numbers::number::Number;

/// Rows of numbers to read. Slices have one row after the other. Rows at other distances are copied when they are read.
///
/// ```
/// use householder::rows::{Rows, RowsMut};
/// use householder::{Context, Operator, apply};
///
/// let u = [1.0, 0.0, 2.0, 1.0, 2.0, 1.0];
/// let w = Operator::new([1, 3, 2], &u)?;
/// let h = [3.0, 30.0, 0.0, 0.0, 4.0, 40.0]; // the columns of a 3 x 2 matrix are the vectors
/// let mut c = [0.0_f64; 6];
/// apply::forward(
///     &mut Context::default(),
///     &w,
///     Rows::strided(&h, [2, 3], [1, 2])?,
///     RowsMut::strided(&mut c, [2, 3], [1, 2])?,
/// )?;
/// assert!((c[1] - 10.0 * c[0]).abs() < 1e-12);
/// # Ok::<(), householder::Error>(())
/// ```
#[derive(Debug)]
pub struct Rows<'a, T>(RowsSource<'a, T>);

#[derive(Debug)]
enum RowsSource<'a, T> {
    Slice(&'a [T]),
    Strided(Strided<*const T>, PhantomData<&'a [T]>),
}

/// Rows of numbers to be written. They are computed elsewhere and copied here if they do not stand one after the other.
#[derive(Debug)]
pub struct RowsMut<'a, T>(RowsTarget<'a, T>);

#[derive(Debug)]
enum RowsTarget<'a, T> {
    Slice(&'a mut [T]),
    Strided(Strided<*mut T>, PhantomData<&'a mut [T]>),
}

/// Entry `j` of row `i` is at `first[i * strides[0] + j * strides[1]]`. Whoever makes one owns all entries of the shape, as
/// long as the rows that it stands in live.
#[derive(Clone, Copy, Debug)]
struct Strided<P> {
    first: P,
    shape: [usize; 2],
    strides: [isize; 2],
}

impl<P: Copy> Strided<P> {
    /// How many entries there are, if the rows have `width` of them.
    fn len(&self, name: &'static str, width: usize) -> Result<usize> {
        let [rows, columns] = self.shape;
        if columns != width {
            return Err(Error::Width { name, expected: width, found: columns });
        }
        rows.checked_mul(columns).ok_or_else(|| Error::Shape { name, shape: self.shape.to_vec() })
    }

    /// Whether the rows stand one after the other.
    fn is_contiguous(&self) -> bool {
        let [rows, columns] = self.shape;
        (rows <= 1 || self.strides[0] == columns as isize) && (columns <= 1 || self.strides[1] == 1)
    }

    /// The distance of each entry from the first, row by row.
    fn offsets(&self, len: usize) -> impl ExactSizeIterator<Item = isize> {
        let Self { shape: [_, columns], strides: [row, column], .. } = *self;
        (0..len).map(move |i| (i / columns) as isize * row + (i % columns) as isize * column)
    }
}

/// Refuses a shape that leaves a slice of `len` numbers, and gives its strides.
fn within(len: usize, shape: [usize; 2], strides: [usize; 2]) -> Result<[isize; 2]> {
    let reach = |i: usize| shape[i].saturating_sub(1).checked_mul(strides[i]);
    let last = reach(0).and_then(|rows| rows.checked_add(reach(1)?));
    if shape.contains(&0) || last.is_some_and(|last| last < len) {
        return Ok(strides.map(|stride| stride as isize));
    }
    Err(Error::Reach { shape: shape.to_vec(), strides: strides.to_vec(), found: len })
}

impl<'a, T: Number> Rows<'a, T> {
    /// Rows of that shape: entry `j` of row `i` is `numbers[i * strides[0] + j * strides[1]]`.
    pub fn strided(numbers: &'a [T], shape: [usize; 2], strides: [usize; 2]) -> Result<Self> {
        let strides = within(numbers.len(), shape, strides)?;
        Ok(Self(RowsSource::Strided(Strided { first: numbers.as_ptr(), shape, strides }, PhantomData)))
    }

    /// All rows, of `width` numbers each, one after the other.
    #[inline]
    pub(crate) fn read(self, name: &'static str, width: usize) -> Result<Cow<'a, [T]>> {
        match self.0 {
            RowsSource::Slice(numbers) => Ok(Cow::Borrowed(numbers)),
            RowsSource::Strided(rows, _) => rows.read(name, width),
        }
    }
}

impl<T: Number> Strided<*const T> {
    fn read<'a>(self, name: &'static str, width: usize) -> Result<Cow<'a, [T]>> {
        let len = self.len(name, width)?;
        if len == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        if self.is_contiguous() {
            // SAFETY: entries of the shape, which stand one after the other.
            return Ok(Cow::Borrowed(unsafe { std::slice::from_raw_parts(self.first, len) }));
        }
        // SAFETY: an entry of the shape.
        Ok(Cow::Owned(collected(self.offsets(len).map(|at| unsafe { *self.first.offset(at) }))?))
    }
}

impl<'a, T: Number> RowsMut<'a, T> {
    /// Rows of that shape: entry `j` of row `i` is `numbers[i * strides[0] + j * strides[1]]`. No two entries are one number.
    pub fn strided(numbers: &'a mut [T], shape: [usize; 2], strides: [usize; 2]) -> Result<Self> {
        // With the smaller stride first, the numbers of one run end before the next run begins.
        let [near, far] = if strides[0] < strides[1] { [0, 1] } else { [1, 0] };
        let apart = |i: usize, least: usize| shape[i] <= 1 || strides[i] > least;
        let is_apart = apart(near, 0) && apart(far, shape[near].saturating_sub(1).saturating_mul(strides[near]));
        let within = within(numbers.len(), shape, strides)?;
        if !is_apart {
            return Err(Error::Overlap { shape, strides });
        }
        Ok(Self(RowsTarget::Strided(Strided { first: numbers.as_mut_ptr(), shape, strides: within }, PhantomData)))
    }

    /// Calls `compute` with memory for all rows, of `width` numbers each, one after the other. Numbers that it leaves as they
    /// are may become zero.
    #[inline]
    pub(crate) fn write<R>(
        self,
        name: &'static str,
        width: usize,
        compute: impl FnOnce(&mut [T]) -> Result<R>,
    ) -> Result<R> {
        match self.0 {
            RowsTarget::Slice(numbers) => compute(numbers),
            RowsTarget::Strided(rows, _) => rows.write(name, width, compute),
        }
    }
}

impl<T: Number> Strided<*mut T> {
    fn write<R>(self, name: &'static str, width: usize, compute: impl FnOnce(&mut [T]) -> Result<R>) -> Result<R> {
        let len = self.len(name, width)?;
        if len == 0 {
            return compute(&mut []);
        }
        if self.is_contiguous() {
            // SAFETY: entries of the shape, which stand one after the other.
            return compute(unsafe { std::slice::from_raw_parts_mut(self.first, len) });
        }
        let mut numbers = filled(len, T::ZERO)?;
        let outcome = compute(&mut numbers)?;
        for (at, number) in self.offsets(len).zip(numbers) {
            // SAFETY: an entry of the shape.
            unsafe { *self.first.offset(at) = number };
        }
        Ok(outcome)
    }
}

macro_rules! slices {
    ($($slice:ty, $($length:ident)?);+) => {
        $(impl<'a, T $(, const $length: usize)?> From<&'a $slice> for Rows<'a, T> {
            fn from(numbers: &'a $slice) -> Self {
                Self(RowsSource::Slice(numbers))
            }
        }
        impl<'a, T $(, const $length: usize)?> From<&'a mut $slice> for RowsMut<'a, T> {
            fn from(numbers: &'a mut $slice) -> Self {
                Self(RowsTarget::Slice(numbers))
            }
        })+
    };
}
slices!([T],; Vec<T>,; [T; N], N);

/// One row, or the rows of a matrix.
#[cfg(feature = "ndarray")]
mod of_ndarray {
    use std::marker::PhantomData;

    use ndarray::{ArrayView1, ArrayView2, ArrayViewMut1, ArrayViewMut2};

    use super::{Rows, RowsMut, RowsSource, RowsTarget, Strided};

    impl<'a, T> From<ArrayView2<'a, T>> for Rows<'a, T> {
        fn from(view: ArrayView2<'a, T>) -> Self {
            let (shape, strides) = ([view.nrows(), view.ncols()], [view.strides()[0], view.strides()[1]]);
            // The view owns its entries, as this does.
            Self(RowsSource::Strided(Strided { first: view.as_ptr(), shape, strides }, PhantomData))
        }
    }

    impl<'a, T> From<ArrayViewMut2<'a, T>> for RowsMut<'a, T> {
        fn from(mut view: ArrayViewMut2<'a, T>) -> Self {
            let (shape, strides) = ([view.nrows(), view.ncols()], [view.strides()[0], view.strides()[1]]);
            // As above; entries of a mutable view are apart from each other.
            Self(RowsTarget::Strided(Strided { first: view.as_mut_ptr(), shape, strides }, PhantomData))
        }
    }

    impl<'a, T> From<ArrayView1<'a, T>> for Rows<'a, T> {
        fn from(view: ArrayView1<'a, T>) -> Self {
            view.insert_axis(ndarray::Axis(0)).into()
        }
    }

    impl<'a, T> From<ArrayViewMut1<'a, T>> for RowsMut<'a, T> {
        fn from(view: ArrayViewMut1<'a, T>) -> Self {
            view.insert_axis(ndarray::Axis(0)).into()
        }
    }
}

/// The rows of a matrix.
#[cfg(feature = "faer")]
mod of_faer {
    use std::marker::PhantomData;

    use faer::{MatMut, MatRef};

    use super::{Rows, RowsMut, RowsSource, RowsTarget, Strided};

    impl<'a, T> From<MatRef<'a, T>> for Rows<'a, T> {
        fn from(view: MatRef<'a, T>) -> Self {
            let (shape, strides) = ([view.nrows(), view.ncols()], [view.row_stride(), view.col_stride()]);
            // The view owns its entries, as this does.
            Self(RowsSource::Strided(Strided { first: view.as_ptr(), shape, strides }, PhantomData))
        }
    }

    impl<'a, T> From<MatMut<'a, T>> for RowsMut<'a, T> {
        fn from(view: MatMut<'a, T>) -> Self {
            let (shape, strides) = ([view.nrows(), view.ncols()], [view.row_stride(), view.col_stride()]);
            // As above; entries of a mutable view are apart from each other.
            Self(RowsTarget::Strided(Strided { first: view.as_ptr_mut(), shape, strides }, PhantomData))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_at_any_distances() {
        let numbers: Vec<f64> = (0..12).map(f64::from).collect();
        let read =
            |shape, strides, width| Rows::strided(&numbers, shape, strides)?.read("h", width).map(Cow::into_owned);
        assert_eq!(read([2, 3], [6, 2], 3).unwrap(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(read([3, 2], [1, 3], 2).unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(read([2, 3], [0, 1], 3).unwrap(), [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
        assert!(read([0, 3], [usize::MAX, 9], 3).unwrap().is_empty());
        assert!(read([2, 3], [3, 1], 2).is_err_and(|e| e.to_string() == "h: expected rows of 2 numbers, got 3"));
        let contiguous = Rows::strided(&numbers, [4, 3], [3, 1]).unwrap().read("h", 3).unwrap();
        assert!(std::ptr::eq(&raw const contiguous[0], &raw const numbers[0]), "not copied");
    }

    #[test]
    fn rows_are_written_where_they_belong() {
        let mut numbers = [9.0; 8];
        let rows = RowsMut::strided(&mut numbers, [2, 3], [1, 3]).unwrap();
        rows.write("out", 3, |out| {
            out.copy_from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
            Ok(())
        })
        .unwrap();
        assert_eq!(numbers, [0.0, 3.0, 9.0, 1.0, 4.0, 9.0, 2.0, 5.0]);
        let refused = RowsMut::strided(&mut numbers, [2, 3], [1, 3]).unwrap();
        assert!(refused.write::<()>("out", 3, |_| Err(Error::Interrupted)).is_err());
    }

    #[test]
    fn rows_lead_nowhere_else_and_do_not_overlap() {
        let mut numbers = [0.0_f32; 6];
        for (shape, strides) in [
            ([2, 3], [3, 2]),
            ([3, 3], [3, 1]),
            ([2, 2], [usize::MAX, 1]),
            ([usize::MAX, 1], [2, 1]),
            ([2, 1], [usize::MAX / 4 + 2, 4]),
            ([1, 7], [0, 1]),
        ] {
            assert!(Rows::strided(&numbers, shape, strides).is_err(), "{shape:?} {strides:?}");
            assert!(RowsMut::strided(&mut numbers, shape, strides).is_err(), "{shape:?} {strides:?}");
        }
        for (shape, strides) in
            [([2, 3], [0, 1]), ([2, 3], [2, 1]), ([3, 2], [1, 2]), ([2, 2], [1, 1]), ([1, 2], [9, 0])]
        {
            assert!(RowsMut::strided(&mut numbers, shape, strides).is_err(), "{shape:?} {strides:?}");
        }
        assert!(RowsMut::strided(&mut numbers, [1, 6], [0, 1]).is_ok());
        assert!(RowsMut::strided(&mut numbers, [2, 3], [1, 2]).is_ok());
        let repeated = Rows::strided(&numbers, [usize::MAX, 3], [0, 1]).unwrap();
        assert!(repeated.read("h", 3).is_err());
        let repeated = Rows::strided(&numbers, [usize::MAX / 4, 1], [0, 1]).unwrap();
        assert!(matches!(repeated.read("h", 1), Err(Error::OutOfMemory { .. })));
    }

    #[cfg(feature = "ndarray")]
    #[test]
    fn views_of_arrays_are_rows() {
        use ndarray::{Array2, ArrayView2, s};
        let read = |view: ArrayView2<'_, f32>| Rows::from(view).read("h", 2).map(Cow::into_owned).unwrap();
        let array = Array2::from_shape_fn((4, 6), |(i, j)| (10 * i + j) as f32);
        for view in [array.slice(s![1..;2, ..;-4]), array.slice(s![2..3, 2..4]), array.slice(s![..0, ..2])] {
            assert_eq!(read(view), view.iter().copied().collect::<Vec<_>>());
        }
        assert_eq!(
            read(array.slice(s![..2, ..]).t()),
            array.slice(s![..2, ..]).t().iter().copied().collect::<Vec<_>>()
        );
        let column = Rows::from(array.column(1)).read("h", 4).map(Cow::into_owned).unwrap();
        assert_eq!(column, [1.0, 11.0, 21.0, 31.0]);

        let (mut to, mut expected) = (Array2::zeros((4, 6)), Array2::<f32>::zeros((4, 6)));
        let write = |rows: RowsMut<'_, f32>, width| {
            rows.write("out", width, |out| {
                (1_u8..).zip(out).for_each(|(i, x)| *x = i.into());
                Ok(())
            })
        };
        write(to.slice_mut(s![..;-2, 1..;3]).into(), 2).unwrap();
        expected.slice_mut(s![..;-2, 1..;3]).iter_mut().zip(1_u8..).for_each(|(x, i)| *x = i.into());
        write(to.column_mut(0).into(), 4).unwrap();
        expected.column_mut(0).iter_mut().zip(1_u8..).for_each(|(x, i)| *x = i.into());
        assert_eq!(to, expected);
    }

    #[cfg(feature = "faer")]
    #[test]
    fn views_of_matrices_are_rows() {
        use faer::Mat;
        let matrix = Mat::from_fn(4, 6, |i, j| (10 * i + j) as f64);
        let part = matrix.submatrix(1, 2, 2, 3).reverse_rows();
        let read = |rows: Rows<'_, f64>, width| rows.read("h", width).map(Cow::into_owned).unwrap();
        assert_eq!(read(part.into(), 3), [22.0, 23.0, 24.0, 12.0, 13.0, 14.0]);
        assert_eq!(read(part.transpose().into(), 2), [22.0, 12.0, 23.0, 13.0, 24.0, 14.0]);

        let mut to = Mat::<f64>::zeros(3, 5);
        RowsMut::from(to.as_mut().submatrix_mut(1, 1, 2, 3).transpose_mut())
            .write("out", 2, |out| {
                (1_u8..).zip(out).for_each(|(i, x)| *x = i.into());
                Ok(())
            })
            .unwrap();
        let expected = [[0.0; 5], [0.0, 1.0, 3.0, 5.0, 0.0], [0.0, 2.0, 4.0, 6.0, 0.0]];
        assert_eq!(to, Mat::from_fn(3, 5, |i, j| expected[i][j]));
    }

    /// Applications of views are those of slices.
    #[test]
    fn operands_of_an_application_stand_at_any_distances() {
        use crate::apply::{self, Gradients};
        use crate::operator::Operator;
        use crate::threads::Context;

        let (n, m, rows) = (5, 3, 4);
        let numbers = |len: usize| (0..len).map(|i| (i as f64).sin()).collect::<Vec<_>>();
        let apart =
            |numbers: &[f64], width: usize| numbers.chunks(width).flat_map(|row| [row, &[9.0; 2]].concat()).collect();
        let (u, h, g) = (numbers(n * m), numbers(rows * n), numbers(2 * rows * n));
        let (u_apart, h_apart): (Vec<f64>, Vec<f64>) = (apart(&u, m), apart(&h, n));
        let g = &g[rows * n..];
        let context = &mut Context::default();

        let w = Operator::new([1, n, m], &u).unwrap();
        let [mut c, mut matrix, mut grad_u] = [rows * n, n * n, n * m].map(|len| vec![0.0; len]);
        apply::forward(context, &w, &h, &mut c).unwrap();
        apply::matrix(context, &w, &mut matrix).unwrap();
        let gradients = Gradients { u: Some(&mut grad_u), ..Gradients::default() };
        apply::backward(context, &w, &h, g, gradients, None).unwrap();

        let w = Operator::new([1, n, m], Rows::strided(&u_apart, [n, m], [m + 2, 1]).unwrap()).unwrap();
        let h = || Rows::strided(&h_apart, [rows, n], [n + 2, 1]).unwrap();
        let [mut c_columns, mut matrix_columns, mut again] = [rows * n, n * n, n * m].map(|len| vec![0.0; len]);
        let saved =
            apply::forward_and_save(context, &w, h(), RowsMut::strided(&mut c_columns, [rows, n], [1, rows]).unwrap());
        apply::matrix(context, &w, RowsMut::strided(&mut matrix_columns, [n, n], [1, n]).unwrap()).unwrap();
        let gradients = Gradients { u: Some(&mut again), ..Gradients::default() };
        apply::backward(context, &w, h(), g, gradients, saved.unwrap().as_ref()).unwrap();
        let read = |numbers: &[f64], rows, width| {
            Rows::strided(numbers, [rows, width], [1, rows]).unwrap().read("", width).map(Cow::into_owned).unwrap()
        };
        assert_eq!((read(&c_columns, rows, n), read(&matrix_columns, n, n), again), (c, matrix, grad_u));

        let wide = Rows::strided(&h_apart, [rows, n + 1], [n + 2, 1]).unwrap();
        let refusal = apply::forward(context, &w, wide, &mut [0.0; 20]).unwrap_err().to_string();
        assert_eq!(refusal, "h: expected rows of 5 numbers, got 6");
    }
}
