//! Reflections of a given orthogonal or unitary matrix (Theorem 1 and its proof, Algorithm 2).
//!
//! Step `j` takes the first column `x` of what is left to `e^{i arg x_1} |x| e_1` by `u = x - e^{i arg x_1} |x| e_1`. The
//! first entry of `u` cancels when `x` is almost there already; `-e^{i arg x_1} |x_2..|^2 / (|x_1| + |x|)` is the same and
//! does not. A column that has nothing to reflect gets the last unit vector, whose reflection flips a sign that later
//! steps undo: a zero column would never receive a gradient.

use crate::error::Result;
use crate::kernel::vector::{axpy, dot};
use crate::memory::{Buffer, padded};
use crate::parallel::Context;
use crate::scalar::{Real, Scalar};

/// Writes `U (n, m)` and the phases of the `n x n` matrix `q` (row-major). Returns how far `q` is from the product of
/// these `m` reflections: the largest entry by which what remains of it differs from the identity.
pub fn factor<T: Scalar>(
    context: &Context<'_>,
    n: usize,
    m: usize,
    q: &[T],
    u: &mut [T],
    phases: Option<&mut [T::Real]>,
) -> Result<f64> {
    let isa = context.isa;
    // Column-major: a reflection acts on whole columns.
    let ld = padded::<T>(n);
    let mut rest = Buffer::<T>::zeroed(n * ld)?;
    crate::dense::transpose(n, n, q, n, &mut rest, ld);
    let mut vector = Buffer::<T>::zeroed(n)?;
    u.fill(T::ZERO);
    let reflections = if m == n { n - 1 } else { m };
    for j in 0..reflections {
        let x = &rest[j * ld + j..j * ld + n];
        let v = &mut vector[..n - j];
        reflection_of(x, v);
        for (i, &v) in v.iter().enumerate() {
            u[(j + i) * m + j] = v;
        }
        let square: f64 = v.iter().map(|v| v.widen().abs2()).sum();
        let tau = T::Real::of(2.0 / square);
        for column in j..n {
            let x = &mut rest[column * ld + j..column * ld + n];
            let a = dot(isa, v, x).scale(tau);
            axpy(isa, -a, v, x);
        }
    }
    if m == n {
        let last = rest[(n - 1) * ld + n - 1];
        u[n * n - 1] = if last.re() < T::Real::ZERO { -T::ONE } else { T::ONE };
    }
    let mut residual = 0.0_f64;
    let mut phases = phases;
    for j in 0..n {
        let diagonal = rest[j * ld + j].widen();
        let wanted = if let Some(phases) = phases.as_deref_mut() {
            let angle = diagonal.im().atan2(diagonal.re());
            phases[j] = T::Real::of(angle);
            <T::Wide as Scalar>::unit(angle)
        } else if m == n && j == n - 1 {
            u[n * n - 1].widen()
        } else {
            <T::Wide as Scalar>::ONE
        };
        for i in 0..n {
            let expected = if i == j { wanted } else { <T::Wide as Scalar>::ZERO };
            let error = (rest[j * ld + i].widen() - expected).max_abs();
            if !(error <= residual) {
                residual = error;
            }
        }
    }
    Ok(residual)
}

/// The vector whose reflection takes `x` to a multiple of its first unit vector.
fn reflection_of<T: Scalar>(x: &[T], v: &mut [T]) {
    v.copy_from_slice(x);
    let first = x[0].widen();
    let below: f64 = x[1..].iter().map(|x| x.widen().abs2()).sum();
    let modulus = first.abs2().sqrt();
    let norm = (modulus * modulus + below).sqrt();
    let last = x.len() - 1;
    let direction = if modulus == 0.0 { <T::Wide as Scalar>::ONE } else { first.scale(1.0 / modulus) };
    // A real column can only go to +|x| e_1; -|x| e_1 has to be reflected even when nothing stands below.
    let (direction, entry) = if T::COMPLEX || first.re() > 0.0 {
        (direction, -below / (modulus + norm))
    } else {
        (<T::Wide as Scalar>::ONE, first.re() - norm)
    };
    if entry == 0.0 || norm == 0.0 {
        v.fill(T::ZERO);
        v[last] = T::ONE;
    } else {
        v[0] = T::narrow(direction.scale(entry));
    }
}
