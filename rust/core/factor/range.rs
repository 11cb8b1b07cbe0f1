//! Few reflections of an orthogonal matrix whose columns one after the other do not tell them.
//!
//! A column almost like its unit vector has a reflection along a short difference of long vectors: rounding turns it out of
//! the range of `Q - I`, and the reflections behind it no longer suffice. Here the range comes first,
//!
//! ```text
//! range(Q - I) = range(L),   L (n x m) orthonormal and lower-trapezoidal,   Q = I + L (M - I) L',   M = L' Q L,
//! ```
//!
//! and every reflection is `L w` for a reflection `w` of the orthogonal `m x m` matrix `M`.

use super::{factor, reflection_of};
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::vector::{axpy, dot};
use crate::memory::{filled, filled_with};
use crate::parallel::Context;

/// Vectors of one length.
type Vectors = Vec<Vec<f64>>;

/// `U (n, m)`, row-major with unit columns, whose product is the row-major `q` if any product of `m` reflections is.
pub fn few_reflections(context: &mut Context<'_>, n: usize, m: usize, q: &[f64]) -> Result<Vec<f64>> {
    let isa = context.isa;
    let mut l = range(isa, n, m, q)?;
    make_trapezoidal(isa, &mut l)?;
    // M = L' (Q L), row-major.
    let mut restricted = filled(m * m, 0.0)?;
    let mut q_l = filled(n, 0.0)?;
    for j in 0..m {
        for (x, row) in q_l.iter_mut().zip(q.chunks_exact(n)) {
            *x = dot(isa, row, &l[j]);
        }
        for i in 0..m {
            restricted[i * m + j] = dot(isa, &l[i], &q_l);
        }
    }
    let mut w = filled(m * m, 0.0)?;
    factor(context, m, m, &restricted, &mut w, None)?;
    // The last factor of M is the sign of a coordinate; that of a product of m reflections is negative, a reflection.
    w[m * m - 1] = 1.0;
    let mut u = filled(n * m, 0.0)?;
    let mut v = filled(n, 0.0)?;
    for j in 0..m {
        v.fill(0.0);
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
fn range(isa: InstructionSet, n: usize, m: usize, q: &[f64]) -> Result<Vectors> {
    let mut columns = filled_with(n, Vec::new)?;
    for (j, column) in columns.iter_mut().enumerate() {
        *column = filled(n, 0.0)?;
        for (i, x) in column.iter_mut().enumerate() {
            *x = q[i * n + j] - if i == j { 1.0 } else { 0.0 };
        }
    }
    let mut basis: Vectors = Vec::new();
    while basis.len() < m {
        let square = |column: &Vec<f64>| dot(isa, column, column);
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
            let inverse = 1.0 / dot(isa, &b, &b).sqrt();
            b.iter_mut().for_each(|x| *x *= inverse);
        }
        for column in &mut columns {
            axpy(isa, -dot(isa, &b, column), &b, column);
        }
        basis.push(b);
    }
    Ok(basis)
}

/// The unit vector that an orthonormal basis reaches least.
fn unit_vector_far_from(n: usize, basis: &Vectors) -> Result<Vec<f64>> {
    let reached = |i: usize| basis.iter().map(|b| b[i] * b[i]).sum::<f64>();
    let mut unit = filled(n, 0.0)?;
    if let Some(i) = (0..n).min_by(|&i, &j| reached(i).total_cmp(&reached(j))) {
        unit[i] = 1.0;
    }
    Ok(unit)
}

/// Turns an orthonormal basis so that vector `j` is zero before its entry `j`.
fn make_trapezoidal(isa: InstructionSet, basis: &mut Vectors) -> Result<()> {
    let (m, n) = (basis.len(), basis.first().map_or(0, Vec::len));
    let mut w = filled(m, 0.0)?;
    let mut sum = filled(n, 0.0)?;
    for i in 0..m {
        // Entries i of the vectors from i on become one.
        let entries: Vec<f64> = basis[i..].iter().map(|b| b[i]).collect();
        let w = &mut w[..m - i];
        if entries[1..].iter().all(|&x| x == 0.0) || !reflection_of(&entries, 0.0, w) {
            continue;
        }
        sum.fill(0.0);
        for (b, &w) in basis[i..].iter().zip(w.iter()) {
            axpy(isa, w, b, &mut sum);
        }
        for (b, &w) in basis[i..].iter_mut().zip(w.iter()) {
            axpy(isa, -2.0 * w, &sum, b);
        }
        basis[i + 1..].iter_mut().for_each(|b| b[i] = 0.0);
    }
    Ok(())
}
