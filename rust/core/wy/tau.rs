//! Factors of reflections whose `tau` is given. Never divides by `tau`, so `tau = 0`, the identity, has a gradient:
//!
//! ```text
//! D = diag(tau) = F Delta,   Delta powers of two, or zero where tau is;   1 <= |f_j| < 2
//! U = striu(V* V),   N = -(F^-1 + U Delta)^-1,   N' = -(F^-1 + Delta U)^-*
//! W = I + V Delta N V*,   W* = I + V Delta N' V*
//! ```
//!
//! With `X = V Delta`, `y = N V* a` and `w = N' V* b` all formulas of [`super::gradient`] hold, `dL/dV` once more times `Delta`.
//! `E` has no diagonal, because `tau` does not follow `V`, and `dL/dtau_j = -conj(M_jj / f_j^2)`.

use super::inverse::{minus_inverse, narrow};
use crate::error::Result;
use crate::memory::{Buffer, collected, filled};
use crate::numbers::number::{Number, c64};
use crate::numbers::scalar::Scalar;
use crate::simd::isa::InstructionSet;

/// What a given `tau` adds to the factors of columns that were multiplied by `scale`.
#[derive(Clone)]
pub struct UserTau {
    /// `Delta`.
    pub delta: Vec<f64>,
    /// `scale` and `Delta` in one: from `dL/dX` to `dL/dU`.
    pub total: Vec<f64>,
    /// `F`.
    f: Vec<c64>,
    /// From `conj(M_jj)` to `dL/dtau_j`.
    of_tau: Vec<c64>,
}

impl UserTau {
    /// For `tau` of columns that were multiplied by `scale`: `tau` is divided by its square.
    pub fn new<T: Scalar>(tau: &[T], scale: &[f64]) -> Result<Self> {
        let k = tau.len();
        let [mut delta, mut total] = [filled(k, 0.0)?, filled(k, 0.0)?];
        let [mut f, mut of_tau] = [filled(k, c64::ONE)?, filled(k, c64::ZERO)?];
        for (j, (tau, &scale)) in tau.iter().zip(scale).enumerate() {
            if scale == 0.0 {
                continue; // no column, no reflection
            }
            let inverse_square = 1.0 / (scale * scale);
            let tau = c64::new(tau.widen().re(), tau.widen().im()) * inverse_square;
            delta[j] = power_of_two(tau.max_abs());
            if delta[j] != 0.0 {
                f[j] = tau / delta[j];
            }
            total[j] = scale * delta[j];
            // 1 / conj(f) = f / |f|^2
            let inverse = f[j] / f[j].abs2();
            of_tau[j] = -(inverse * inverse) * inverse_square;
        }
        Ok(Self { delta, total, f, of_tau })
    }

    /// Writes `N` and `N'`, column-major with columns `ld` apart, from the strict upper triangle of `V* V`.
    pub fn factors<T: Scalar>(
        &self,
        isa: InstructionSet,
        ld: usize,
        gram: &mut [T::Wide],
        [n, adjoint]: [&mut [T]; 2],
    ) -> Result<()> {
        let k = self.delta.len();
        let mut scaled = Buffer::<T::Wide>::zeroed(k * ld)?;
        let f = collected(self.f.iter().map(|x| T::Wide::from_parts(x.re, x.im)))?;
        for ((scaled, gram), &delta) in scaled.chunks_mut(ld).zip(gram.chunks_mut(ld)).zip(&self.delta) {
            for ((scaled, x), &row) in scaled.iter_mut().zip(gram).zip(&self.delta) {
                *scaled = x.scale(row);
                *x = x.scale(delta);
            }
        }
        narrow(isa, k, ld, &minus_inverse(isa, k, &scaled, &f, ld)?, n, adjoint);
        let inverse = minus_inverse(isa, k, gram, &f, ld)?;
        n.iter_mut().zip(inverse.iter()).for_each(|(n, x)| *n = T::narrow(*x));
        Ok(())
    }

    /// Adds `dL/dtau` to `grad_tau` from the diagonal of `M` (columns `ld` apart) or of its conjugate, and clears it.
    pub fn take_diagonal<T: Scalar>(&self, m: &mut [T], ld: usize, conjugated: bool, grad_tau: Option<&mut [T]>) {
        let mut grads = grad_tau.into_iter().flatten();
        for (j, of_tau) in self.of_tau.iter().enumerate() {
            let x = std::mem::replace(&mut m[j * ld + j], T::ZERO).widen();
            if let Some(grad) = grads.next() {
                let of_tau = T::Wide::from_parts(of_tau.re, of_tau.im);
                *grad += T::narrow(if conjugated { x } else { x.conj() } * of_tau);
            }
        }
    }
}

/// The largest power of two up to `x`; zero for subnormal numbers, no number for what is not finite.
fn power_of_two(x: f64) -> f64 {
    if x.is_finite() { f64::from_bits(x.to_bits() & 0x7ff << 52) } else { f64::NAN }
}
