//! The two products every application is made of: `y = N V* a` and `a + V y`.

use super::Diagonal;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::{Columns, Store};
use crate::kernel::gemm::{Operand, Weights, gemm, line};
use crate::memory::{Buffer, padded};
use crate::scalar::Scalar;
use crate::wy::CompactWy;

/// `count` vectors of `n` numbers, `ld` apart.
pub struct Rows<T> {
    pub ptr: *const T,
    pub ld: usize,
    pub count: usize,
}

impl<T> Clone for Rows<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Rows<T> {}

impl<T: Scalar> Rows<T> {
    /// `D` applied to the rows of `from`, readable to whole registers: a copy where one of the two needs it.
    pub fn padded(from: &[T], n: usize, diagonal: &Diagonal<T>, copy: &mut Buffer<T>) -> Self {
        let count = from.len() / n;
        if diagonal.is_one() && n.is_multiple_of(line::<T>()) {
            return Self { ptr: from.as_ptr(), ld: n, count };
        }
        let ld = padded::<T>(n);
        for (to, from) in copy.chunks_mut(ld).zip(from.chunks(n)) {
            to[..n].copy_from_slice(from);
            diagonal.apply(&mut to[..n], false);
        }
        Self { ptr: copy.ptr(), ld, count }
    }

    /// Row `i`.
    pub unsafe fn row<'a>(self, i: usize, n: usize) -> &'a [T] {
        std::slice::from_raw_parts(self.ptr.add(i * self.ld), n)
    }
}

/// Room for `z = V* a` and `y = N z` (or `N* z`) of a chunk of vectors `a`.
pub struct Products<T: Scalar> {
    z: Buffer<T>,
    y: Buffer<T>,
    y_conjugate: Buffer<T>,
}

impl<T: Scalar> Products<T> {
    pub fn new(wy: &CompactWy<T>, rows: usize) -> Result<Self> {
        let len = rows * wy.ld_k();
        let conjugate = if T::COMPLEX { len } else { 0 };
        Ok(Self { z: Buffer::zeroed(len)?, y: Buffer::zeroed(len)?, y_conjugate: Buffer::zeroed(conjugate)? })
    }

    /// `y`, one row a vector, rows `ld_k` apart.
    pub fn y(&self) -> *const T {
        self.y.ptr()
    }

    /// `conj(y)`, likewise.
    pub fn y_conjugate(&self) -> *const T {
        if T::COMPLEX { self.y_conjugate.ptr() } else { self.y.ptr() }
    }

    /// `y = N V* a` for each row of `a`, or `N* V* a`. The caller owns `a`.
    pub unsafe fn project(&mut self, isa: InstructionSet, wy: &CompactWy<T>, a: Rows<T>, adjoint: bool) {
        let (n, k, ld) = (wy.n, wy.k, wy.ld_k());
        let middle = if adjoint { &wy.minus_s_adjoint } else { &wy.minus_s };
        let store = |out: *mut T| Store { out: Columns::new(out, ld), add: Columns::none() };
        let v_adjoint = Weights::strided(wy.v_adjoint.ptr(), ld, n);
        gemm(isa, k, a.count, v_adjoint, Operand::columns(a.ptr, a.ld), &store(self.z.ptr_mut()));
        let middle = Weights::strided(middle.ptr(), ld, k);
        gemm(isa, k, a.count, middle, Operand::columns(self.z.ptr(), ld), &store(self.y.ptr_mut()));
        if T::COMPLEX {
            self.y_conjugate.iter_mut().zip(self.y.iter()).for_each(|(to, y)| *to = y.conj());
        }
    }

    /// `out = a + V y` for each row; `out` has rows of `n` numbers and may be `a`. The caller owns both.
    pub unsafe fn expand(&self, isa: InstructionSet, wy: &CompactWy<T>, a: Rows<T>, out: *mut T) {
        let v = Weights::strided(wy.v.ptr(), wy.ld_n(), wy.k);
        let epilogue = Store { out: Columns::new(out, wy.n), add: Columns::new(a.ptr, a.ld) };
        gemm(isa, wy.n, a.count, v, Operand::columns(self.y.ptr(), wy.ld_k()), &epilogue);
    }
}
