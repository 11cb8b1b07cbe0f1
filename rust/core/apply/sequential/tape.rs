//! Algorithm 1 in its stored mode.

use super::Backward;
use super::backward::Source;
use super::columns::ReflectionColumns;
use super::vectors::{Registers, pad};
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::gradients::Gradients;
use crate::operator::{Diagonal, Operator, Transform};
use crate::simd::isa::simd;
use crate::threads::{Cancel, Context};

/// `tape (rows, m + 1, n)` receives, for each row, `h` in entry `m`, the state after `i` factors of `W` (or `W*`) in entry
/// `m - i`, and the result in entry 0. Phases, which are not among the `m` factors, act between entry `m` and the first
/// reflection, or between the last and entry 0. For a single problem.
pub fn forward_tape<T: Scalar>(context: &mut Context<'_>, w: &Operator<'_, T>, h: &[T], tape: &mut [T]) -> Result<()> {
    T::apply_tape(context, w, h, tape)
}

/// [`forward_tape`], to be compiled for each type.
pub(crate) fn forward<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    h: &[T],
    tape: &mut [T],
) -> Result<()> {
    check(w, tape, w.vectors(&[("h", h.len())])?)?;
    let (isa, mut columns) = (context.isa, ReflectionColumns::new(w.n(), w.reflections())?);
    let mut x = Buffer::zeroed(columns.ld)?;
    context.here(|cancel| run(isa, &mut columns, &mut x, cancel, w.at(0), h, tape))
}

fn check<T: Scalar>(w: &Operator<'_, T>, tape: &[T], rows: usize) -> Result<()> {
    if w.count() != 1 {
        return Err(Error::value("the tape", "a single problem", w.count()));
    }
    w.require(&[("the tape", Some(tape.len()), &[rows, w.m() + 1, w.n()])])
}

simd! {
    fn run<T: Scalar>(
        s,
        columns: &mut ReflectionColumns<T>,
        x: &mut Buffer<T>,
        cancel: &Cancel<'_>,
        w: Transform<'_, T>,
        h: &[T],
        tape: &mut [T],
    ) -> Result<()> {
        let Transform { u, diagonal, adjoint } = w;
        let (n, m) = (u.n(), u.m());
        columns.set(s, u)?;
        let steps = columns.steps(adjoint);
        let counts_diagonal = matches!(diagonal, Diagonal::Last(_));
        let ld = x.len();
        for (h, tape) in h.chunks_exact(n).zip(tape.chunks_exact_mut((m + 1) * n)) {
            cancel.check()?;
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
            steps.apply(
                Registers(s),
                x,
                ld,
                #[inline(always)]
                |i, _, x, _| {
                    if adjoint && i + 1 == columns.k && !counts_diagonal {
                        diagonal.apply(&mut x[..n], true);
                    }
                    keep(x);
                },
            );
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
    w: &Operator<'_, T>,
    tape: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
) -> Result<()> {
    T::apply_tape_backward(context, w, tape, g, gradients)
}

/// [`backward_tape`], to be compiled for each type.
pub(crate) fn backward<T: Scalar>(
    context: &mut Context<'_>,
    w: &Operator<'_, T>,
    tape: &[T],
    g: &[T],
    gradients: Gradients<'_, T>,
) -> Result<()> {
    let rows = gradients.check(w, &[("g", g.len())])?;
    check(w, tape, rows)?;
    if rows == 0 {
        gradients.vanish();
        return Ok(());
    }
    let (isa, mut workspace) = (context.isa, Backward::new(w.n(), w.reflections(), rows, false)?);
    context.here(|cancel| super::backward(isa, &mut workspace, cancel, w.at(0), Source::Tape(tape), g, gradients))
}
