//! The inverse of `T`.

use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::simd::epilogue::Store;
use crate::simd::gemm::gemm;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::transpose::transpose_with;

/// Blocks in which `S` is formed: within a block column by column, across blocks by products.
const BLOCK: usize = 32;

/// `-T^-1` for an upper-triangular `T`, column-major; the inverses of its diagonal entries are given.
///
/// Column by column inside a diagonal block; a block column `J` above it is `N[.., J] = N[.., ..] (T[.., J] S[J, J])`
/// with `N = -S` of what stands to the left.
pub fn minus_inverse<W: Scalar<Real = f64, Wide = W>>(
    isa: InstructionSet,
    k: usize,
    t: &[W],
    inverse_diagonal: &[W],
    ld: usize,
) -> Result<Buffer<W>> {
    let mut n = Buffer::<W>::zeroed(k * ld)?;
    let mut product = Buffer::<W>::zeroed(BLOCK * ld)?;
    for j0 in (0..k).step_by(BLOCK) {
        let width = BLOCK.min(k - j0);
        diagonal_block(isa, &inverse_diagonal[j0..j0 + width], &t[j0 * ld + j0..], &mut n[j0 * ld + j0..], ld);
        if j0 == 0 {
            continue;
        }
        // product = T[0..j0, J] N[J, J] = -T[0..j0, J] S[J, J]
        let (left, columns) = n.split_at_mut(j0 * ld);
        let weights = View::of(&t[j0 * ld..], ld, width);
        let operand = View::of(columns, ld, width).from(j0, 0);
        let out = ViewMut::of(&mut product, ld, width);
        // SAFETY: columns of length j0 + width <= k <= ld in padded buffers; `product` is separate from both.
        unsafe { gemm(isa, (j0, width), weights, operand, &Store::new(out)) };
        // S[0..j0, J] = -S[0..j0, 0..j0] T[0..j0, J] S[J, J], so N[0..j0, J] = S (T S) = N (T N); rows above i0 only meet k >= i0.
        for i0 in (0..j0).step_by(BLOCK) {
            let weights = View::of(left, ld, j0).from(i0, i0);
            let operand = View::of(&product, ld, width).from(i0, 0);
            let out = ViewMut::of(columns, ld, width).from(i0, 0);
            // SAFETY: as above.
            unsafe { gemm(isa, (BLOCK.min(j0 - i0), width), weights, operand, &Store::new(out)) };
        }
    }
    Ok(n)
}

simd! {
    /// Rounds `N`, and its adjoint, all column-major with columns `ld` apart.
    pub fn narrow<T: Scalar>(s, k: usize, ld: usize, wide: &[T::Wide], n: &mut [T], adjoint: &mut [T]) -> () {
        for (to, x) in n.iter_mut().zip(wide) {
            *to = T::narrow(*x);
        }
        transpose_with(s, (k, k), n, ld, adjoint, ld);
        if T::COMPLEX {
            for x in adjoint {
                *x = x.conj();
            }
        }
    }
}

simd! {
    /// [`minus_inverse`] of a block of columns. Each column of `N` is a sum over earlier columns, so a column is added to
    /// all later ones once it is known. Real and imaginary parts are separate, so a register holds entries of one column.
    fn diagonal_block<W: Scalar<Real = f64>>(_s, inverse_diagonal: &[W], t: &[W], n: &mut [W], ld: usize) -> () {
        let width = inverse_diagonal.len();
        let [mut re, mut im] = [[[0.0; BLOCK]; BLOCK]; 2];
        for i in 0..width {
            // N T = -I: N e_i = -(e_i + sum_{l<i} N e_l t_li) / t_ii
            re[i][i] = 1.0;
            let factor = -inverse_diagonal[i];
            let mut a = re[i].map(|x| factor.re() * x);
            let mut b = im[i];
            if W::COMPLEX {
                b = im[i].map(|x| factor.re() * x);
                add(&mut a, -factor.im(), &im[i], i);
                add(&mut b, factor.im(), &re[i], i);
            }
            for j in i + 1..width {
                let factor = t[j * ld + i];
                add(&mut re[j], factor.re(), &a, i);
                if W::COMPLEX {
                    add(&mut re[j], -factor.im(), &b, i);
                    add(&mut im[j], factor.re(), &b, i);
                    add(&mut im[j], factor.im(), &a, i);
                }
            }
            for (to, (a, b)) in n[i * ld..=i * ld + i].iter_mut().zip(a.iter().zip(&b)) {
                *to = W::from_parts(*a, *b);
            }
        }
    }
}

/// Adds `factor known` on the first `i + 1` numbers and what else their registers hold.
#[inline(always)]
fn add(to: &mut [f64; BLOCK], factor: f64, known: &[f64; BLOCK], i: usize) {
    for (to, known) in to.chunks_exact_mut(8).zip(known.chunks_exact(8)).take(i / 8 + 1) {
        for r in 0..8 {
            to[r] += factor * known[r];
        }
    }
}
