//! Few reflections of an orthogonal or unitary matrix, where a search column by column fails.
//!
//! If a column is close to its unit vector, its reflection is along a short difference of long vectors. Rounding moves that
//! difference out of the range of `Q - I`, and the later reflections no longer suffice. Here the range comes first,
//!
//! ```text
//! range(Q - I) = range(L),   L (n x m) orthonormal and lower-trapezoidal,   Q = I + L (M - I) L*,   M = L* Q L,
//! ```
//!
//! and every reflection is `L w` for a reflection `w` of the orthogonal or unitary `m x m` matrix `M`.

use super::{Target, reduce, reflection_of};
use crate::arrays::lengths::flops;
use crate::arrays::view::Shared;
use crate::error::Result;
use crate::memory::{collected, filled};
use crate::numbers::scalar::Scalar;
use crate::simd::transpose::transpose;
use crate::simd::vector::{axpy, dot};
use crate::threads::{Context, slices};

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
    let mut l = range(context, n, m, q)?;
    make_trapezoidal(context, &mut l)?;
    let restricted = restriction(context, n, q, &l)?;
    let mut w = filled(m * m, W::ZERO)?;
    reduce(context, m, m, &restricted, &mut w, Target::One, None)?;
    // The last factor of M is the sign of a coordinate; that of a product of m reflections is negative, a reflection.
    w[m * m - 1] = W::ONE;
    let mut columns = filled(m * n, W::ZERO)?;
    by_rows(context, n, &mut columns, 4 * n * m * m, &|j, column| {
        (j..m).for_each(|i| axpy(isa, w[i * m + j], &l[i], column));
    })?;
    let mut u = filled(n * m, W::ZERO)?;
    transpose(isa, (n, m), &columns, n, &mut u, m);
    Ok(u)
}

/// `M = L* (Q L)`, row-major.
fn restriction<W: Scalar<Real = f64>>(context: &mut Context<'_>, n: usize, q: &[W], l: &Vectors<W>) -> Result<Vec<W>> {
    let (isa, m) = (context.isa, l.len());
    let mut conjugates = filled(m * n, W::ZERO)?;
    conjugates.iter_mut().zip(l.iter().flatten()).for_each(|(to, x)| *to = x.conj());
    let mut q_l = filled(n * m, W::ZERO)?;
    by_rows(context, m, &mut q_l, flops(&[8, n, n, m]), &|i, row| {
        for (x, conjugate) in row.iter_mut().zip(conjugates.chunks_exact(n)) {
            *x = dot(isa, conjugate, &q[i * n..(i + 1) * n]);
        }
    })?;
    let mut restricted = filled(m * m, W::ZERO)?;
    by_rows(context, m, &mut restricted, flops(&[8, n, m, m]), &|i, row| {
        for (&x, q_l) in conjugates[i * n..(i + 1) * n].iter().zip(q_l.chunks_exact(m)) {
            axpy(isa, x, q_l, row);
        }
    })?;
    Ok(restricted)
}

/// Calls `work(i, row)` for each row of `len` numbers, on all threads.
pub fn by_rows<W: Scalar>(
    context: &mut Context<'_>,
    len: usize,
    rows: &mut [W],
    flops: usize,
    work: &(dyn Fn(usize, &mut [W]) + Sync),
) -> Result<()> {
    let bounds = slices(rows.len() / len, 1, 64);
    let shared = Shared(rows.as_mut_ptr());
    context.run(bounds.len() - 1, flops, &|task, cancel| {
        for i in bounds[task]..bounds[task + 1] {
            cancel.check()?;
            // SAFETY: tasks own disjoint rows.
            work(i, unsafe { std::slice::from_raw_parts_mut(shared.get().add(i * len), len) });
        }
        Ok(())
    })
}

/// An orthonormal basis of `m` dimensions that hold the range of `Q - I`, if it has no more: Gram-Schmidt, the longest
/// column first.
pub fn range<W: Scalar<Real = f64>>(context: &mut Context<'_>, n: usize, m: usize, q: &[W]) -> Result<Vectors<W>> {
    let isa = context.isa;
    // A row for each column of Q - I, and its squared length behind it.
    let mut columns = filled(n * (n + 1), W::ZERO)?;
    by_rows(context, n + 1, &mut columns, flops(&[8, n, n]), &|j, column| {
        for (i, x) in column[..n].iter_mut().enumerate() {
            *x = q[i * n + j] - if i == j { W::ONE } else { W::ZERO };
        }
        column[n] = dot(isa, &column[..n], &column[..n]);
    })?;
    let mut basis: Vectors<W> = Vec::new();
    while basis.len() < m {
        let longest = columns.chunks_exact(n + 1).max_by(|a, b| a[n].re().total_cmp(&b[n].re()));
        let mut b = match longest {
            Some(column) if column[n].re().sqrt() > n as f64 * f64::EPSILON => collected(column[..n].iter().copied())?,
            // The range is complete, so any other direction will do.
            _ => unit_vector_far_from(n, &basis)?,
        };
        for _ in 0..3 {
            for a in &basis {
                axpy(isa, -dot(isa, a, &b), a, &mut b);
            }
            let inverse = 1.0 / dot(isa, &b, &b).re().sqrt();
            b.iter_mut().for_each(|x| *x = x.scale(inverse));
        }
        by_rows(context, n + 1, &mut columns, 16 * n * n, &|_, column| {
            let (column, square) = column.split_at_mut(n);
            axpy(isa, -dot(isa, &b, column), &b, column);
            square[0] = dot(isa, column, column);
        })?;
        basis.push(b);
    }
    Ok(basis)
}

/// The unit vector with the smallest projection on the span of an orthonormal basis.
fn unit_vector_far_from<W: Scalar<Real = f64>>(n: usize, basis: &Vectors<W>) -> Result<Vec<W>> {
    let reached = |i: usize| basis.iter().map(|b| b[i].abs2()).sum::<f64>();
    let mut unit = filled(n, W::ZERO)?;
    if let Some(i) = (0..n).min_by(|&i, &j| reached(i).total_cmp(&reached(j))) {
        unit[i] = W::ONE;
    }
    Ok(unit)
}

/// Turns an orthonormal basis so that vector `j` is zero before its entry `j`.
fn make_trapezoidal<W: Scalar<Real = f64, Wide = W>>(context: &mut Context<'_>, basis: &mut Vectors<W>) -> Result<()> {
    let isa = context.isa;
    let (m, n) = (basis.len(), basis.first().map_or(0, Vec::len));
    let mut w = filled(m, W::ZERO)?;
    let mut sum = filled(n, W::ZERO)?;
    for i in 0..m {
        #[allow(clippy::redundant_closure_for_method_calls)] // the method's path is not general over lifetimes
        context.here(|cancel| cancel.check())?;
        // Entries i of the vectors from i on become one.
        let entries: Vec<W> = basis[i..].iter().map(|b| b[i].conj()).collect();
        let w = &mut w[..m - i];
        if entries[1..].iter().all(|&x| x == W::ZERO) || !reflection_of(isa, &entries, Target::Phase, 0.0, w) {
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
