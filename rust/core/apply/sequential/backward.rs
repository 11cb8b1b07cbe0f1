//! Gradients, one reflection after the other.

use std::ops::Range;

use super::columns::ReflectionColumns;
use super::groups::{Four, GROUP};
use super::sweep::{SweptRows, sweep};
use super::vectors::{Registers, distance, pad};
use super::{PANEL, are_grouped, panels, side_by_side};
use crate::apply::CHUNK;
use crate::arrays::lengths::flops;
use crate::arrays::stack::StackMut;
use crate::arrays::view::Shared;
use crate::error::Result;
use crate::memory::{Buffer, filled};
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::operator::diagonal::DiagonalSum;
use crate::operator::gradients::Gradients;
use crate::operator::{Diagonal, Transform};
use crate::simd::isa::simd;
use crate::threads::{Cancel, Context};

/// The vectors `h`, alone or with every state of the forward pass.
#[derive(Clone, Copy)]
pub enum Source<'a, T> {
    /// `(rows, n)`.
    Vectors(&'a [T]),
    /// The same, and what the forward pass kept of them.
    Swept(&'a [T], SweptRows<'a, T>),
    /// `(rows, m + 1, n)`: entry `m` is `h`, entry 0 is `c`, see [`super::forward_tape`].
    Tape(&'a [T]),
}

/// Vector `i` of `n` numbers.
#[inline(always)]
fn vector<T>(vectors: &[T], n: usize, i: usize) -> &[T] {
    &vectors[i * n..][..n]
}

impl<'a, T: Scalar> Source<'a, T> {
    /// `h` of one row.
    #[inline(always)]
    fn vector(self, row: usize, n: usize, m: usize) -> &'a [T] {
        match self {
            Self::Vectors(h) | Self::Swept(h, _) => vector(h, n, row),
            Self::Tape(tape) => vector(tape, n, row * (m + 1) + m),
        }
    }
}

impl<'a, T> Source<'a, T> {
    /// Some rows of size `n`, which pass `k` reflections.
    fn part(self, rows: Range<usize>, n: usize, k: usize) -> Self {
        let of = |h: &'a [T]| &h[rows.start * n..rows.end * n];
        match self {
            Self::Vectors(h) => Self::Vectors(of(h)),
            Self::Swept(h, kept) => Self::Swept(of(h), kept.part(rows, n, k.div_ceil(GROUP))),
            Self::Tape(_) => self,
        }
    }
}

/// Vectors of a slice. Its gradients are summed apart, so that slices may be on several threads, and added in order.
pub const SLICE: usize = 16;
/// Most slices whose gradients are kept at a time.
const SLICES: usize = 16;

/// Workspace for the gradients of applications of products of `k` reflections.
pub struct Backward<T: Scalar> {
    columns: ReflectionColumns<T>,
    /// The current states `x_i` of some vectors, and their gradients.
    x: Buffer<T>,
    g: Buffer<T>,
    /// A factor for each vector and reflection, if the forward pass has kept none.
    factors: Vec<Four<T>>,
    /// `dL/dV` and `dL/dtau` of a panel, from one slice.
    grad_v: Buffer<T>,
    grad_tau: Buffer<T>,
    /// `D h` of one vector.
    turned: Buffer<T>,
    /// Whether vectors go through reflections in groups.
    grouped: bool,
}

impl<T: Scalar> Backward<T> {
    /// For `rows` vectors of size `n`. If the pass `sweeps`, it takes them through all reflections first.
    pub fn new(n: usize, k: usize, rows: usize, sweeps: bool) -> Result<Self> {
        let (width, at_once) = (k.min(PANEL), rows.min(CHUNK));
        Ok(Self {
            columns: ReflectionColumns::new(n, width)?,
            x: Buffer::scratch(at_once * distance::<T>(n))?,
            g: Buffer::scratch(at_once * distance::<T>(n))?,
            factors: filled(if sweeps { at_once * k.div_ceil(GROUP) } else { 0 }, [T::ZERO; GROUP])?,
            grad_v: Buffer::scratch(ReflectionColumns::<T>::len(n, width))?,
            grad_tau: Buffer::zeroed(width)?,
            turned: Buffer::zeroed(n)?,
            grouped: are_grouped::<T>((n, k), rows),
        })
    }
}

simd! {
    /// Gradients of `sum <g, W h>` over the rows of `h` and `g`, or of `W* h`. The caller has checked all sizes.
    pub fn backward<T: Scalar>(
        s,
        workspace: &mut Backward<T>,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        source: Source<'_, T>,
        of_all: &[T],
        gradients: Gradients<'_, T>,
    ) -> Result<()> {
        let Transform { u, diagonal, adjoint } = w;
        let Gradients { u: mut grad_u, h: mut grad_h, tau: mut grad_tau, phases: grad_phases } = gradients;
        let mut sum = DiagonalSum::new(u.n(), diagonal)?;
        if let Some(grad_u) = grad_u.as_deref_mut() {
            u.clear_unused(grad_u);
        }
        if let Some(grad_tau) = grad_tau.as_deref_mut() {
            grad_tau.fill(T::ZERO);
        }
        let grouped = workspace.grouped && !matches!(source, Source::Tape(_));
        let Backward { columns, x, g: back, factors, grad_v, grad_tau: of_tau, turned, .. } = workspace;
        let (n, m, k, ld, ops) = (u.n(), u.m(), u.count(), distance::<T>(u.n()), Registers(s));
        // A tape's entries count down. `u_1` acts first in `W` and last in `W*`.
        let after = if adjoint { m } else { k };
        let entry = |row: usize, i: usize| row * (m + 1) + after - i;
        let groups = k.div_ceil(GROUP);
        for (chunk, g) in of_all.chunks(CHUNK * n).enumerate() {
            if chunk > 0 {
                cancel.check()?;
            }
            let (first_row, rows) = (chunk * CHUNK, g.len() / n);
            let (x, back) = (&mut x[..rows * ld], &mut back[..rows * ld]);
            for (r, (x, (back, g))) in
                x.chunks_exact_mut(ld).zip(back.chunks_exact_mut(ld).zip(g.chunks_exact(n))).enumerate()
            {
                match source {
                    Source::Vectors(h) => {
                        pad(x, vector(h, n, first_row + r));
                        if !adjoint {
                            diagonal.apply(&mut x[..n], false);
                        }
                    }
                    Source::Swept(_, kept) => pad(x, vector(kept.x, n, first_row + r)),
                    Source::Tape(tape) => {
                        pad(x, vector(tape, n, entry(first_row + r, k)));
                        if let (true, Diagonal::Phases(_)) = (adjoint, diagonal) {
                            diagonal.apply(&mut x[..n], false); // entry 0 is D* x_k
                        }
                    }
                }
                pad(back, g);
                if adjoint {
                    diagonal.apply(&mut back[..n], false);
                }
            }
            let factors: &[Four<T>] = match source {
                Source::Vectors(_) => {
                    sweep(s, columns, cancel, (u, adjoint, grouped), x, ld, Some(factors))?;
                    factors
                }
                Source::Swept(_, kept) => &kept.factors[first_row * groups..],
                Source::Tape(_) => &[],
            };
            if adjoint && !diagonal.is_one() {
                for slice in of_slices(rows) {
                    let mut part = DiagonalSum::new(n, diagonal)?;
                    for r in slice {
                        part.add(&x[r * ld..][..n], &back[r * ld..][..n], vector(g, n, r));
                    }
                    sum.merge(&part);
                }
            }
            for (number, panel) in panels(k, adjoint).rev().enumerate() {
                if number > 0 {
                    cancel.check()?;
                }
                let part = u.columns(panel.start, panel.end);
                let (first, begin) = (u.form().first(panel.start), panel.start / GROUP);
                if number > 0 || !matches!(source, Source::Vectors(_)) {
                    columns.set(s, part)?; // else it is still laid out
                }
                if let Source::Tape(_) = source {
                    columns.find_pivots();
                }
                if grouped {
                    columns.find_factors(ops, !adjoint);
                }
                for slice in of_slices(rows) {
                    let of_tau = if grad_tau.is_some() { &mut of_tau[..panel.len()] } else { &mut [] };
                    of_tau.fill(T::ZERO);
                    let [x, back] = [&mut *x, &mut *back].map(|x| &mut x[slice.start * ld..slice.end * ld]);
                    if grouped {
                        columns.back_through_groups(
                            ops,
                            adjoint,
                            [&mut x[first..], &mut back[first..]],
                            ld,
                            #[inline(always)]
                            |group, r| factors[(slice.start + r) * groups + begin + group],
                            (grad_v, of_tau),
                        );
                    } else {
                        let (steps, side) = (columns.steps(adjoint), side_by_side::<T>(rows, 2 * ld));
                        for (number, (x, back)) in x.chunks_mut(side * ld).zip(back.chunks_mut(side * ld)).enumerate() {
                            steps.backward(
                                ops,
                                &mut x[first..],
                                &mut back[first..],
                                ld,
                                grad_v,
                                of_tau,
                                number == 0,
                                #[inline(always)]
                                |i, r, x| {
                                    let row = slice.start + number * side + r;
                                    match source {
                                        Source::Vectors(_) | Source::Swept(..) => {
                                            let j = steps.column(i);
                                            let factor = factors[row * groups + begin + j / GROUP][j % GROUP];
                                            steps.recover(ops, i, factor, x);
                                            factor
                                        }
                                        Source::Tape(tape) => {
                                            let before = if adjoint { panel.start } else { k - panel.end };
                                            let row = first_row + row;
                                            let mut state = vector(tape, n, entry(row, before + i));
                                            if before + i == 0 && !adjoint {
                                                turned.copy_from_slice(source.vector(row, n, m));
                                                diagonal.apply(turned, false);
                                                state = turned;
                                            }
                                            steps.recall(ops, i, &state[first..], x)
                                        }
                                    }
                                },
                            );
                        }
                    }
                    if let Some(grad_tau) = grad_tau.as_deref_mut() {
                        columns.finish_grad_tau(of_tau);
                        grad_tau[panel.clone()].iter_mut().zip(&*of_tau).for_each(|(sum, &part)| *sum += part);
                    }
                    if let Some(grad_u) = grad_u.as_deref_mut() {
                        let add = chunk > 0 || slice.start > 0;
                        columns.write_gradient(s, grad_v, part, &mut grad_u[first * m + panel.start..], add);
                    }
                }
            }
            for slice in of_slices(rows) {
                let mut part = DiagonalSum::new(n, diagonal)?;
                for r in slice {
                    let (row, back) = (first_row + r, &mut back[r * ld..][..n]);
                    if !adjoint && !diagonal.is_one() {
                        let h = source.vector(row, n, m);
                        turned.copy_from_slice(h);
                        diagonal.apply(turned, false);
                        part.add(back, turned, h);
                        diagonal.apply(back, true);
                    }
                    if let Some(grad_h) = grad_h.as_deref_mut() {
                        grad_h[row * n..(row + 1) * n].copy_from_slice(back);
                    }
                }
                sum.merge(&part);
            }
        }
        sum.write(u, grad_u, grad_phases);
        Ok(())
    }
}

/// The slices of `rows` vectors.
fn of_slices(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(SLICE).map(move |begin| begin..rows.min(begin + SLICE))
}

/// [`backward`] of one problem on several threads, with the same bits.
pub fn backward_on_threads<T: Scalar>(
    context: &mut Context<'_>,
    w: Transform<'_, T>,
    source: Source<'_, T>,
    g: &[T],
    gradients: Gradients<'_, T>,
) -> Result<()> {
    let (n, m, k, isa) = (w.u.n(), w.u.m(), w.u.count(), context.isa);
    let rows = g.len() / n;
    let Gradients { u: mut grad_u, h: grad_h, tau: mut grad_tau, phases: mut grad_phases } = gradients;
    let (grouped, grad_h) = (are_grouped::<T>((n, k), rows), grad_h.map(|x| Shared(x.as_mut_ptr())));
    for wave in (0..rows).step_by(SLICES * SLICE) {
        let slices: Vec<_> = of_slices(rows.min(wave + SLICES * SLICE) - wave).collect();
        let parts = |is_needed: bool, len: usize| Buffer::<T>::scratch(if is_needed { slices.len() * len } else { 0 });
        let (mut of_u, mut of_tau) = (parts(grad_u.is_some(), n * m)?, parts(grad_tau.is_some(), m)?);
        let mut of_phases = filled(if grad_phases.is_some() { slices.len() * n } else { 0 }, T::ZERO.re())?;
        let [stack_u, stack_tau] = [&mut of_u, &mut of_tau].map(|parts| StackMut::new(parts, slices.len()));
        let stack_phases = StackMut::new(&mut of_phases, slices.len());
        context.run(slices.len(), flops(&[12, n, k, g.len() / n]), &|i, cancel| {
            let rows = wave + slices[i].start..wave + slices[i].end;
            let vectors = rows.start * n..rows.end * n;
            // SAFETY: each slice has vectors and gradients of its own.
            let gradients = unsafe {
                let of_h = |x: &Shared<T>| std::slice::from_raw_parts_mut(x.get().add(vectors.start), vectors.len());
                Gradients {
                    u: grad_u.as_ref().map(|_| stack_u.at(i)),
                    h: grad_h.as_ref().map(of_h),
                    tau: grad_tau.as_ref().map(|_| stack_tau.at(i)),
                    phases: grad_phases.as_ref().map(|_| stack_phases.at(i)),
                }
            };
            let source = source.part(rows.clone(), n, k);
            let sweeps = matches!(source, Source::Vectors(_));
            let mut workspace = Backward { grouped, ..Backward::new(n, k, rows.len(), sweeps)? };
            backward(isa, &mut workspace, cancel, w, source, &g[vectors], gradients)
        })?;
        add_up(context, grad_u.as_deref_mut(), &of_u, wave > 0)?;
        add_up(context, grad_tau.as_deref_mut(), &of_tau, wave > 0)?;
        add_up(context, grad_phases.as_deref_mut(), &of_phases, wave > 0)?;
    }
    Ok(())
}

/// Writes the sum of parts in their order, or adds them to what is there.
fn add_up<T: Number>(context: &mut Context<'_>, sum: Option<&mut [T]>, parts: &[T], add: bool) -> Result<()> {
    const PIECE: usize = 1 << 14;
    let Some(sum) = sum else { return Ok(()) };
    let (len, to) = (sum.len(), Shared(sum.as_mut_ptr()));
    context.run(len.div_ceil(PIECE), parts.len(), &|i, _| {
        let piece = i * PIECE..len.min((i + 1) * PIECE);
        // SAFETY: tasks own disjoint pieces.
        let sum = unsafe { std::slice::from_raw_parts_mut(to.get().add(piece.start), piece.len()) };
        for (number, part) in parts.chunks_exact(len).enumerate() {
            let part = &part[piece.clone()];
            if number == 0 && !add {
                sum.copy_from_slice(part);
            } else {
                sum.iter_mut().zip(part).for_each(|(sum, &x)| *sum += x);
            }
        }
        Ok(())
    })
}
