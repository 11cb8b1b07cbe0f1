//! The matrix `W` itself, for shapes where forming it pays.

use crate::apply::Diagonal;
use crate::blocks::{Blocks, Coefficients};
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::epilogue::Columns;
use crate::kernel::gemm::{Operand, Weights};
use crate::kernel::transpose::transpose;
use crate::memory::{Buffer, padded};
use crate::parallel::Context;
use crate::product::product;
use crate::scalar::Scalar;

/// `W`.
pub struct Dense<T: Scalar> {
    n: usize,
    /// `W`, column-major, columns `padded(n)` apart.
    pub w: Buffer<T>,
    /// `y` of its columns, if kept.
    y: Buffer<T>,
}

impl<T: Scalar> Dense<T> {
    /// `W = W_1 D`.
    pub fn new(context: &mut Context<'_>, blocks: &Blocks<T>, diagonal: &Diagonal<T>) -> Result<Self> {
        Self::form(context, blocks, diagonal, Buffer::zeroed(0)?)
    }

    /// [`Dense::new`], and what leads from gradients of `W` back to those of `U`.
    pub fn new_and_keep(context: &mut Context<'_>, blocks: &Blocks<T>, diagonal: &Diagonal<T>) -> Result<Self> {
        Self::form(context, blocks, diagonal, Buffer::zeroed(Coefficients::len(blocks, blocks.n))?) // sums read whole registers
    }

    fn form(context: &mut Context<'_>, blocks: &Blocks<T>, diagonal: &Diagonal<T>, mut y: Buffer<T>) -> Result<Self> {
        let (n, ld) = (blocks.n, padded::<T>(blocks.n));
        let keep = (!y.is_empty()).then(|| Coefficients::new(blocks, y.ptr_mut(), n));
        let mut w = blocks.matrix(context, keep)?;
        for (j, column) in w.chunks_mut(ld).enumerate() {
            diagonal.scale(j, &mut column[..n], false);
        }
        Ok(Self { n, w, y })
    }

    /// `y` of the columns of `W_1`, if kept.
    pub fn coefficients(&self, blocks: &Blocks<T>) -> Option<Coefficients<T>> {
        (!self.y.is_empty()).then(|| Coefficients::new(blocks, self.y.ptr(), self.n))
    }

    /// `out = W h` for each row of `h`, or `W* h`.
    pub fn multiply(&self, context: &mut Context<'_>, h: &[T], out: &mut [T], transposed: bool) -> Result<()> {
        let (n, ld) = (self.n, padded::<T>(self.n));
        let shape = (n, h.len() / n);
        let (h, out) = (Operand::columns(h.as_ptr(), n), Columns::new(out.as_mut_ptr(), n));
        if transposed {
            let adjoint = adjoint(context.isa, n, &self.w)?;
            return product(context, shape, Weights::strided(adjoint.ptr(), ld, n), h, out, false);
        }
        product(context, shape, Weights::strided(self.w.ptr(), ld, n), h, out, false)
    }
}

/// The adjoint of an `n x n` matrix, both column-major with columns `padded(n)` apart.
pub fn adjoint<T: Scalar>(isa: InstructionSet, n: usize, matrix: &[T]) -> Result<Buffer<T>> {
    let ld = padded::<T>(n);
    let mut adjoint = Buffer::zeroed(n * ld)?;
    transpose(isa, (n, n), matrix, ld, &mut adjoint, ld);
    if T::COMPLEX {
        adjoint.iter_mut().for_each(|x| *x = x.conj());
    }
    Ok(adjoint)
}
