//! The matrix `W` itself, for shapes where forming it pays.

use crate::apply::Diagonal;
use crate::blocks::Blocks;
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
}

impl<T: Scalar> Dense<T> {
    /// `W = W_1 D`.
    pub fn new(context: &mut Context<'_>, blocks: &Blocks<T>, diagonal: &Diagonal<T>) -> Result<Self> {
        let (n, ld) = (blocks.n, padded::<T>(blocks.n));
        let mut w = blocks.matrix(context)?;
        for (j, column) in w.chunks_mut(ld).enumerate() {
            diagonal.scale(j, &mut column[..n], false);
        }
        Ok(Self { n, w })
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
