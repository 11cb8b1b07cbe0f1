//! Gradients, one reflection after the other.

use std::ops::Range;

use pulp::Simd;

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
use crate::operator::{Diagonal, Reflections, Transform};
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

/// Rows that go back together.
#[derive(Clone, Copy)]
struct BackwardRows<'a, T: Scalar> {
    w: Transform<'a, T>,
    source: Source<'a, T>,
    /// The number of the first one.
    first: usize,
    /// Their `g`.
    g: &'a [T],
}

impl<'a, T: Scalar> BackwardRows<'a, T> {
    /// `h` of row `r`.
    #[inline(always)]
    fn input(&self, r: usize) -> &'a [T] {
        self.source.vector(self.first + r, self.w.u.n(), self.w.u.m())
    }

    /// The state of row `r` behind `i` reflections. The entries of a tape count down.
    #[inline(always)]
    fn on_tape(&self, tape: &'a [T], r: usize, i: usize) -> &'a [T] {
        let Transform { u, adjoint, .. } = self.w;
        let after = if adjoint { u.m() } else { u.count() }; // `u_1` acts first in `W` and last in `W*`
        vector(tape, u.n(), (self.first + r) * (u.m() + 1) + after - i)
    }

    /// Their slices. Gradients of each are summed apart.
    fn slices(&self) -> impl Iterator<Item = Range<usize>> + use<T> {
        of_slices(self.g.len() / self.w.u.n())
    }

    /// Adds to the gradient of the diagonal what `add` adds for each row, unless the diagonal is one.
    #[inline(always)]
    fn add_to_diagonal(&self, sum: &mut DiagonalSum<T>, mut add: impl FnMut(usize, &mut DiagonalSum<T>)) -> Result<()> {
        if self.w.diagonal.is_one() {
            return Ok(());
        }
        for slice in self.slices() {
            let mut part = DiagonalSum::new(self.w.u.n(), self.w.diagonal)?;
            for r in slice {
                add(r, &mut part);
            }
            sum.merge(&part);
        }
        Ok(())
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
        g: &[T],
        gradients: Gradients<'_, T>,
    ) -> Result<()> {
        let (u, n) = (w.u, w.u.n());
        let Gradients { u: mut grad_u, h: mut grad_h, tau: mut grad_tau, phases: grad_phases } = gradients;
        let mut of_diagonal = DiagonalSum::new(n, w.diagonal)?;
        if let Some(grad_u) = grad_u.as_deref_mut() {
            u.clear_unused(grad_u);
        }
        if let Some(grad_tau) = grad_tau.as_deref_mut() {
            grad_tau.fill(T::ZERO);
        }
        for (chunk, g) in g.chunks(CHUNK * n).enumerate() {
            if chunk > 0 {
                cancel.check()?;
            }
            let rows = BackwardRows { w, source, first: chunk * CHUNK, g };
            workspace.load(s, cancel, rows)?;
            if w.adjoint {
                workspace.add_to_diagonal_behind(rows, &mut of_diagonal)?;
            }
            for (number, panel) in panels(u.count(), w.adjoint).rev().enumerate() {
                if number > 0 {
                    cancel.check()?;
                }
                // `load` has left the last panel of its sweep laid out.
                let is_laid_out = number == 0 && matches!(source, Source::Vectors(_));
                workspace.set_panel(s, rows, &panel, is_laid_out)?;
                for slice in rows.slices() {
                    let add = rows.first + slice.start > 0;
                    workspace.back_through_panel(s, rows, &panel, slice, grad_tau.is_some());
                    workspace.write_gradients(s, u, &panel, grad_u.as_deref_mut(), grad_tau.as_deref_mut(), add);
                }
            }
            if !w.adjoint {
                workspace.back_through_diagonal(rows, &mut of_diagonal)?;
            }
            if let Some(grad_h) = grad_h.as_deref_mut() {
                let grad_h = &mut grad_h[rows.first * n..][..g.len()];
                for (to, from) in grad_h.chunks_exact_mut(n).zip(workspace.g.chunks_exact(distance::<T>(n))) {
                    to.copy_from_slice(&from[..n]);
                }
            }
        }
        of_diagonal.write(u, grad_u, grad_phases);
        Ok(())
    }
}

impl<T: Scalar> Backward<T> {
    /// Puts the states of some rows behind all reflections into the workspace, and their gradients.
    #[inline(always)]
    fn load<S: Simd>(&mut self, s: S, cancel: &Cancel<'_>, rows: BackwardRows<'_, T>) -> Result<()> {
        let Transform { u, diagonal, adjoint } = rows.w;
        let (n, ld) = (u.n(), distance::<T>(u.n()));
        let x = &mut self.x[..rows.g.len() / n * ld];
        let vectors = x.chunks_exact_mut(ld).zip(self.g.chunks_exact_mut(ld));
        for (r, ((x, back), g)) in vectors.zip(rows.g.chunks_exact(n)).enumerate() {
            match rows.source {
                Source::Vectors(_) => {
                    pad(x, rows.input(r));
                    if !adjoint {
                        diagonal.apply(&mut x[..n], false);
                    }
                }
                Source::Swept(_, kept) => pad(x, vector(kept.x, n, rows.first + r)),
                Source::Tape(tape) => {
                    pad(x, rows.on_tape(tape, r, u.count()));
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
        if let Source::Vectors(_) = rows.source {
            sweep(s, &mut self.columns, cancel, (u, adjoint, self.grouped), x, ld, Some(&mut self.factors))?;
        }
        Ok(())
    }

    /// Adds to the gradient of the diagonal of `W*`, which acts behind all reflections; `load` took `g` back through it.
    #[inline(always)]
    fn add_to_diagonal_behind(&self, rows: BackwardRows<'_, T>, sum: &mut DiagonalSum<T>) -> Result<()> {
        let n = rows.w.u.n();
        rows.add_to_diagonal(
            sum,
            #[inline(always)]
            |r, part| {
                let [x, back] = [&self.x, &self.g].map(|x| &x[r * distance::<T>(n)..][..n]);
                part.add(x, back, vector(rows.g, n, r));
            },
        )
    }

    /// Adds to the gradient of the diagonal of `W`, which acts in front of all reflections, and takes `g` back through it.
    #[inline(always)]
    fn back_through_diagonal(&mut self, rows: BackwardRows<'_, T>, sum: &mut DiagonalSum<T>) -> Result<()> {
        let (n, diagonal) = (rows.w.u.n(), rows.w.diagonal);
        rows.add_to_diagonal(
            sum,
            #[inline(always)]
            |r, part| {
                let (h, back) = (rows.input(r), &mut self.g[r * distance::<T>(n)..][..n]);
                self.turned.copy_from_slice(h);
                diagonal.apply(&mut self.turned, false);
                part.add(back, &self.turned, h);
                diagonal.apply(back, true);
            },
        )
    }

    /// Whether rows go through reflections in groups.
    fn in_groups(&self, rows: BackwardRows<'_, T>) -> bool {
        self.grouped && !matches!(rows.source, Source::Tape(_))
    }

    /// Lays out a panel, and finds what its way back needs.
    #[inline(always)]
    fn set_panel<S: Simd>(
        &mut self,
        s: S,
        rows: BackwardRows<'_, T>,
        panel: &Range<usize>,
        is_laid_out: bool,
    ) -> Result<()> {
        if !is_laid_out {
            self.columns.set(s, rows.w.u.columns(panel.start, panel.end))?;
        }
        if let Source::Tape(_) = rows.source {
            self.columns.find_pivots();
        }
        if self.in_groups(rows) {
            self.columns.find_factors(Registers(s), !rows.w.adjoint);
        }
        Ok(())
    }

    /// Takes a slice of the rows back through the panel that is laid out. Leaves their `dL/dV`, and `dL/dtau` if needed.
    #[inline(always)]
    fn back_through_panel<S: Simd>(
        &mut self,
        s: S,
        rows: BackwardRows<'_, T>,
        panel: &Range<usize>,
        slice: Range<usize>,
        needs_tau: bool,
    ) {
        let in_groups = self.in_groups(rows);
        let Self { columns, x, g, factors, grad_v, grad_tau, turned, .. } = self;
        let Transform { u, diagonal, adjoint } = rows.w;
        let (ops, k, ld) = (Registers(s), u.count(), distance::<T>(u.n()));
        let (first, groups) = (u.form().first(panel.start), k.div_ceil(GROUP));
        let factors: &[Four<T>] = match rows.source {
            Source::Vectors(_) => factors,
            Source::Swept(_, kept) => &kept.factors[rows.first * groups..],
            Source::Tape(_) => &[],
        };
        let factors_of = |row: usize, group: usize| factors[row * groups + panel.start / GROUP + group];
        let grad_tau = if needs_tau { &mut grad_tau[..panel.len()] } else { &mut [] };
        grad_tau.fill(T::ZERO);
        let [x, g] = [x, g].map(|x| &mut x[slice.start * ld..slice.end * ld]);
        if in_groups {
            columns.back_through_groups(
                ops,
                adjoint,
                [&mut x[first..], &mut g[first..]],
                ld,
                #[inline(always)]
                |group, r| factors_of(slice.start + r, group),
                (grad_v, grad_tau),
            );
            return;
        }
        let (steps, side) = (columns.steps(adjoint), side_by_side::<T>(rows.g.len() / u.n(), 2 * ld));
        for (number, (x, g)) in x.chunks_mut(side * ld).zip(g.chunks_mut(side * ld)).enumerate() {
            steps.backward(
                ops,
                &mut x[first..],
                &mut g[first..],
                ld,
                grad_v,
                grad_tau,
                number == 0,
                #[inline(always)]
                |i, r, x| {
                    let row = slice.start + number * side + r;
                    let Source::Tape(tape) = rows.source else {
                        let j = steps.column(i);
                        let factor = factors_of(row, j / GROUP)[j % GROUP];
                        steps.recover(ops, i, factor, x);
                        return factor;
                    };
                    let before = i + if adjoint { panel.start } else { k - panel.end };
                    let mut state = rows.on_tape(tape, row, before);
                    if before == 0 && !adjoint {
                        turned.copy_from_slice(rows.input(row));
                        diagonal.apply(turned, false);
                        state = turned;
                    }
                    steps.recall(ops, i, &state[first..], x)
                },
            );
        }
    }

    /// Writes the gradients that a slice leaves of a panel, or adds them.
    #[inline(always)]
    fn write_gradients<S: Simd>(
        &mut self,
        s: S,
        u: Reflections<'_, T>,
        panel: &Range<usize>,
        grad_u: Option<&mut [T]>,
        grad_tau: Option<&mut [T]>,
        add: bool,
    ) {
        if let Some(sum) = grad_tau {
            let of_slice = &mut self.grad_tau[..panel.len()];
            self.columns.finish_grad_tau(of_slice);
            sum[panel.clone()].iter_mut().zip(of_slice).for_each(|(sum, part)| *sum += *part);
        }
        if let Some(grad_u) = grad_u {
            let to = &mut grad_u[u.form().first(panel.start) * u.m() + panel.start..];
            self.columns.write_gradient(s, &self.grad_v, u.columns(panel.start, panel.end), to, add);
        }
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
