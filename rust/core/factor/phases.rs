//! Phases that leave few reflections of a unitary matrix.
//!
//! `Q = P D` with a product `P` of `m` reflections and a diagonal `D` of phases means
//!
//! ```text
//! rank(Q - D) <= m
//! ```
//!
//! The diagonal of `Q - D` is unknown; the other entries are those of `Q`. Choose `m` pivots among these, in rows and
//! columns that have nothing in common. Elimination then leaves zero everywhere else, also on the diagonal, which gives `D`.
//!
//! An elimination takes `m n^2` operations. It uses `2 m` coordinates and gives the phases of the others. At most three
//! eliminations suffice if `3 m <= n`; `n` are needed if `2 m = n - 1`. If no such phases exist, the first shows it.

use super::range::{by_rows, range};
use crate::arrays::lengths::flops;
use crate::error::Result;
use crate::memory::{collected, filled};
use crate::numbers::scalar::Scalar;
use crate::simd::vector::{axpy, dot};
use crate::threads::Context;

/// The diagonal `D` for the row-major `q` and `2 m < n`, if there is one.
pub fn few_phases<W: Scalar<Real = f64>>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[W],
    negligible: f64,
) -> Result<Option<Vec<W>>> {
    let mut d = filled(n, W::ZERO)?;
    let coordinates: Vec<usize> = (0..n).collect();
    for spared in coordinates.chunks(n - 2 * m) {
        let rest = eliminate(context, n, m, q, spared, negligible)?;
        for &j in spared {
            let modulus = rest[j * n + j].abs2().sqrt();
            if !((modulus - 1.0).abs() < 0.1) {
                return Ok(None);
            }
            d[j] = rest[j * n + j].scale(1.0 / modulus);
        }
    }
    refine(context, n, m, q, &mut d)?;
    Ok(Some(d))
}

/// What `m` pivots leave of `q`, all of them off the diagonal and away from the `spared` coordinates.
fn eliminate<W: Scalar<Real = f64>>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[W],
    spared: &[usize],
    negligible: f64,
) -> Result<Vec<W>> {
    let mut rest = collected(q.iter().copied())?;
    let mut free = filled(n, true)?;
    let mut live = filled(n, true)?;
    spared.iter().for_each(|&j| free[j] = false);
    let isa = context.isa;
    let mut pivots = filled(n, W::ZERO)?;
    for _ in 0..m {
        let size = |(i, j): (usize, usize)| rest[i * n + j].abs2();
        let entries = (0..n).filter(|&i| free[i]).flat_map(|i| (0..n).map(move |j| (i, j)));
        let pivot = entries.filter(|&(i, j)| i != j && free[j]).max_by(|&a, &b| size(a).total_cmp(&size(b)));
        let Some((row, column)) = pivot.filter(|&pivot| size(pivot).sqrt() > negligible) else {
            break;
        };
        for used in [row, column] {
            (free[used], live[used]) = (false, false);
        }
        pivots.copy_from_slice(&rest[row * n..(row + 1) * n]);
        let inverse = pivots[column].conj().scale(1.0 / pivots[column].abs2());
        by_rows(context, n, &mut rest, flops(&[8, n, n]), &|i, row| {
            if live[i] {
                axpy(isa, -(row[column] * inverse), &pivots, row);
            }
        })?;
    }
    Ok(rest)
}

/// Least squares: `(I - L L*) Q e_j = d_j (I - L L*) e_j` for an orthonormal basis `L` of the range of `Q D* - I`.
fn refine<W: Scalar<Real = f64>>(context: &mut Context<'_>, n: usize, m: usize, q: &[W], d: &mut [W]) -> Result<()> {
    let basis = range(context, n, m, &without(n, q, d)?)?;
    let isa = context.isa;
    // Row j: (I - L L*) e_j.
    let mut rest = filled(n * n, W::ZERO)?;
    by_rows(context, n, &mut rest, flops(&[8, n, n, m]), &|j, left| {
        left[j] = W::ONE;
        basis.iter().for_each(|l| axpy(isa, -l[j].conj(), l, left));
    })?;
    let mut column = filled(n, W::ZERO)?;
    for (j, left) in rest.chunks_exact(n).enumerate() {
        column.iter_mut().zip(q.iter().skip(j).step_by(n)).for_each(|(x, &q)| *x = q);
        let product = dot(isa, left, &column);
        // A coordinate inside the range determines no phase.
        if left[j].re() > 1e-3 {
            d[j] = product.scale(1.0 / product.abs2().sqrt());
        }
    }
    Ok(())
}

/// `Q D*`.
pub fn without<W: Scalar>(n: usize, q: &[W], d: &[W]) -> Result<Vec<W>> {
    let mut product = filled(q.len(), W::ZERO)?;
    for (to, from) in product.chunks_exact_mut(n).zip(q.chunks_exact(n)) {
        to.iter_mut().zip(from).zip(d).for_each(|((to, &q), d)| *to = q * d.conj());
    }
    Ok(product)
}
