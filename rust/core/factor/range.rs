//! Few reflections of an orthogonal or unitary matrix whose columns one after the other do not tell them.
//!
//! A column almost like its unit vector has a reflection along a short difference of long vectors: rounding turns it out of
//! the range of `Q - I`, and the reflections behind it no longer suffice. Here the range comes first,
//!
//! ```text
//! range(Q - I) = range(L),   L (n x m) orthonormal and lower-trapezoidal,   Q = I + L (M - I) L*,   M = L* Q L,
//! ```
//!
//! and every reflection is `L w` for a reflection `w` of the orthogonal or unitary `m x m` matrix `M`.

use super::{Aim, reduce, reflection_of};
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::vector::{axpy, dot};
use crate::memory::{filled, filled_with};
use crate::parallel::Context;
use crate::scalar::Scalar;

/// Vectors of one length.
type Vectors<W> = Vec<Vec<W>>;

/// `U (n, m)`, row-major with unit columns, whose product is the row-major `q` if any product of `m` reflections is.
pub fn few_reflections<W: Scalar<Real = f64, Wide = W>>(
    context: &mut Context<'_>,
    n: usize,
    m: usize,
    q: &[W],
) -> Result<Vec<W>> {
    let isa = context.isa;
    let mut l = range(isa, n, m, q)?;
    make_trapezoidal(isa, &mut l)?;
    // M = L* (Q L), row-major.
    let mut restricted = filled(m * m, W::ZERO)?;
    let (mut q_l, mut conjugate) = (filled(n, W::ZERO)?, filled(n, W::ZERO)?);
    for j in 0..m {
        conjugate.iter_mut().zip(&l[j]).for_each(|(to, x)| *to = x.conj());
        for (x, row) in q_l.iter_mut().zip(q.chunks_exact(n)) {
            *x = dot(isa, &conjugate, row);
        }
        for i in 0..m {
            restricted[i * m + j] = dot(isa, &l[i], &q_l);
        }
    }
    let mut w = filled(m * m, W::ZERO)?;
    reduce(context, m, m, &restricted, &mut w, Aim::One, None)?;
    // The last factor of M is the sign of a coordinate; that of a product of m reflections is negative, a reflection.
    w[m * m - 1] = W::ONE;
    let mut u = filled(n * m, W::ZERO)?;
    let mut v = filled(n, W::ZERO)?;
    for j in 0..m {
        v.fill(W::ZERO);
        for i in j..m {
            axpy(isa, w[i * m + j], &l[i], &mut v);
        }
        for (row, &v) in u.chunks_exact_mut(m).zip(&v) {
            row[j] = v;
        }
    }
    Ok(u)
}

/// An orthonormal basis of `m` dimensions that hold the range of `Q - I`, if it has no more: Gram-Schmidt, the longest
/// column first.
pub fn range<W: Scalar<Real = f64>>(isa: InstructionSet, n: usize, m: usize, q: &[W]) -> Result<Vectors<W>> {
    let mut columns = filled_with(n, Vec::new)?;
    for (j, column) in columns.iter_mut().enumerate() {
        *column = filled(n, W::ZERO)?;
        for (i, x) in column.iter_mut().enumerate() {
            *x = q[i * n + j] - if i == j { W::ONE } else { W::ZERO };
        }
    }
    let mut basis: Vectors<W> = Vec::new();
    while basis.len() < m {
        let square = |column: &Vec<W>| dot(isa, column, column).re();
        let longest = columns.iter().max_by(|a, b| square(a).total_cmp(&square(b)));
        let mut b = match longest {
            Some(column) if square(column).sqrt() > n as f64 * f64::EPSILON => column.clone(),
            // The range is found: any other directions.
            _ => unit_vector_far_from(n, &basis)?,
        };
        for _ in 0..3 {
            for a in &basis {
                axpy(isa, -dot(isa, a, &b), a, &mut b);
            }
            let inverse = 1.0 / dot(isa, &b, &b).re().sqrt();
            b.iter_mut().for_each(|x| *x = x.scale(inverse));
        }
        for column in &mut columns {
            axpy(isa, -dot(isa, &b, column), &b, column);
        }
        basis.push(b);
    }
    Ok(basis)
}

/// The unit vector that an orthonormal basis reaches least.
fn unit_vector_far_from<W: Scalar<Real = f64>>(n: usize, basis: &Vectors<W>) -> Result<Vec<W>> {
    let reached = |i: usize| basis.iter().map(|b| b[i].abs2()).sum::<f64>();
    let mut unit = filled(n, W::ZERO)?;
    if let Some(i) = (0..n).min_by(|&i, &j| reached(i).total_cmp(&reached(j))) {
        unit[i] = W::ONE;
    }
    Ok(unit)
}

/// Turns an orthonormal basis so that vector `j` is zero before its entry `j`.
fn make_trapezoidal<W: Scalar<Real = f64, Wide = W>>(isa: InstructionSet, basis: &mut Vectors<W>) -> Result<()> {
    let (m, n) = (basis.len(), basis.first().map_or(0, Vec::len));
    let mut w = filled(m, W::ZERO)?;
    let mut sum = filled(n, W::ZERO)?;
    for i in 0..m {
        // Entries i of the vectors from i on become one.
        let entries: Vec<W> = basis[i..].iter().map(|b| b[i].conj()).collect();
        let w = &mut w[..m - i];
        if entries[1..].iter().all(|&x| x == W::ZERO) || !reflection_of(&entries, Aim::Phase, 0.0, w) {
            continue;
        }
        sum.fill(W::ZERO);
        for (b, &w) in basis[i..].iter().zip(w.iter()) {
            axpy(isa, w, b, &mut sum);
        }
        for (b, &w) in basis[i..].iter_mut().zip(w.iter()) {
            axpy(isa, -w.conj().scale(2.0), &sum, b);
        }
        basis[i + 1..].iter_mut().for_each(|b| b[i] = W::ZERO);
    }
    Ok(())
}
