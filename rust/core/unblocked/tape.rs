//! Algorithm 1 in its stored mode.

use super::Backward;
use super::backward::Source;
use super::chain::Chain;
use super::rows_between_looks;
use super::vectors::{Registers, pad};
use crate::diagonal::Diagonal;
use crate::error::Result;
use crate::gradients::Gradients;
use crate::kernel::dispatch::simd;
use crate::lengths::require;
use crate::memory::Buffer;
use crate::reflections::Reflections;
use crate::scalar::Scalar;
use crate::threads::{Cancel, Context};

/// `tape (rows, m + 1, n)` receives, for each row, `h` in entry `m`, the state after `i` factors of `W` (or `W*`) in entry
/// `m - i`, and the result in entry 0. Phases, which are not among the `m` factors, act between entry `m` and the first
/// reflection, or between the last and entry 0.
pub fn forward_tape<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    h: &[T],
    tape: &mut [T],
    adjoint: bool,
) -> Result<()> {
    let rows = u.vectors("h", h.len(), &[])?;
    check(u, diagonal, tape, rows)?;
    let mut chain = Chain::new(u.n(), u.count())?;
    let mut x = Buffer::zeroed(chain.ld)?;
    let isa = context.isa;
    context.here(|cancel| run(isa, &mut chain, &mut x, cancel, u, diagonal, h, tape, adjoint))
}

fn check<T: Scalar>(u: Reflections<'_, T>, diagonal: &Diagonal<T>, tape: &[T], rows: usize) -> Result<()> {
    diagonal.check(u)?;
    require(&[("the tape", Some(tape.len()), &[rows, u.m() + 1, u.n()])])
}

simd! {
    fn run<T: Scalar>(
        s,
        chain: &mut Chain<T>,
        x: &mut Buffer<T>,
        cancel: &Cancel<'_>,
        u: Reflections<'_, T>,
        diagonal: &Diagonal<T>,
        h: &[T],
        tape: &mut [T],
        adjoint: bool,
    ) -> Result<()> {
        let (n, m) = (u.n(), u.m());
        chain.set_columns(s, u);
        let steps = chain.steps(adjoint);
        let counts_diagonal = matches!(diagonal, Diagonal::Last(_));
        let often = rows_between_looks(n, chain.k);
        for (row, (h, tape)) in h.chunks_exact(n).zip(tape.chunks_exact_mut((m + 1) * n)).enumerate() {
            if row % often == often - 1 {
                cancel.check()?;
            }
            let mut entries = tape.chunks_exact_mut(n).rev();
            let mut keep = |x: &[T]| entries.next().into_iter().for_each(|entry| entry.copy_from_slice(&x[..n]));
            pad(x, h);
            keep(x);
            if !adjoint {
                diagonal.apply(&mut x[..n], false);
                if counts_diagonal {
                    keep(x);
                }
            }
            for i in 0..chain.k {
                steps.reflect(Registers(s), i, x, adjoint);
                let last = i + 1 == chain.k;
                if adjoint && last && !counts_diagonal {
                    diagonal.apply(&mut x[..n], true);
                }
                keep(x);
            }
            if adjoint && counts_diagonal {
                diagonal.apply(&mut x[..n], true);
                keep(x);
            }
        }
        Ok(())
    }
}

/// Gradients from the tape of [`forward_tape`].
pub fn backward_tape<T: Scalar>(
    context: &mut Context<'_>,
    u: Reflections<'_, T>,
    diagonal: &Diagonal<T>,
    tape: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
    adjoint: bool,
) -> Result<()> {
    let rows = u.vectors("g", g.len(), &[("dL/dh", gradients.h.as_ref().map_or(g.len(), |x| x.len()))])?;
    check(u, diagonal, tape, rows)?;
    gradients.check_parameters(u, diagonal)?;
    if rows == 0 {
        gradients.vanish();
        return Ok(());
    }
    let (isa, mut workspace) = (context.isa, Backward::new(u.n(), u.count(), rows)?);
    context.here(|cancel| workspace.run(isa, cancel, u, diagonal, Source::Tape(tape), g, gradients, adjoint))
}
