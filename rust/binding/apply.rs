//! `W h`, `W* h` and their gradients: `u (.., n, m)`, `h (.., n)`, `tau (.., m)`, `phases (n)`. The tape of Algorithm 1 has the
//! vectors between reflections.

use householder::apply::{self, Gradients, Saved};
use householder::method::Method;
use householder::operator::Operator;

use crate::array::{AnyArray, size};
use crate::by_dtype;
use crate::columns::Columns;
use crate::dtype::ArrayNumber;
use crate::operands::{Arrays, Operands};
use crate::options;
use crate::refusal::{Reading, Refusal};
use crate::saved::{AnySaved, Held, fitting};

/// Slots of operands, and of the result of a forward pass. Results of a backward pass are gradients: those of `tau` and `h` have
/// their operands' slots.
pub const OPERANDS: [&str; 5] = ["u", "tau", "h", "grad_c", "phases"];
pub const GRADIENTS: [&str; 4] = ["grad_u", "grad_tau", "grad_h", "grad_phases"];
/// With a tape, which is an operand of the backward pass beside the gradient in the place of `h`.
pub const OF_TAPE: [&str; 5] = ["u", "tau", "grad_c", "tape", "phases"];
pub const TAU: usize = 1;
pub const H: usize = 2;
const GRAD: usize = 3;
const PHASES: usize = 4;
const GRAD_PHASES: usize = 3;

/// The matrices of a call, with `rows` vectors each.
pub struct ApplyCall {
    pub columns: Columns,
    pub rows: usize,
    pub transpose: bool,
    pub method: Option<Method>,
}

impl ApplyCall {
    /// For `h (.., n)` of the type of `u`.
    pub fn of<A: AnyArray>(u: &A, h: &A, has_tau: bool, transpose: bool, method: &str, form: &str) -> Reading<Self> {
        let (method, columns) = (options::method(method)?, Columns::of(u, form, has_tau)?);
        let rows = h.len.checked_div(size(&[columns.count, columns.n])?).unwrap_or(0);
        let given = || Ok::<_, Refusal>(format!("got u {} and h {}", u.describe()?, h.describe()?));
        if h.dims == 0 || h.last[2] != columns.n || size(&[columns.count, rows, columns.n])? != h.len {
            return Err(Refusal::invalid(format!("expected u (.., n, m) and h (.., n), {}", given()?)));
        }
        if u.dtype != h.dtype {
            return Err(Refusal::Type(format!("expected u and h of one type, {}", given()?)));
        }
        Ok(Self { columns, rows, transpose, method })
    }

    /// `W`, or `W*`, with the phases that all matrices share.
    pub fn operator<'a, T: ArrayNumber<Real: ArrayNumber>>(
        &self,
        operands: &impl Operands<'a>,
    ) -> Reading<Operator<'a, T>> {
        Ok(self
            .columns
            .operator(operands, TAU, Some((PHASES, &[self.columns.n])))?
            .adjoint(self.transpose)
            .by(self.method))
    }

    /// The shape of all vectors.
    pub fn vectors(&self) -> [usize; 3] {
        [self.columns.count, self.rows, self.columns.n]
    }

    fn tape(&self) -> [usize; 3] {
        [self.rows, self.columns.m + 1, self.columns.n]
    }
}

/// `c`, and what is saved.
pub fn forward(arrays: &Arrays<'_>, call: &ApplyCall, save: bool) -> Reading<Option<AnySaved>> {
    by_dtype!(arrays.dtype(H), |T| {
        let (w, h) = (call.operator::<T>(arrays)?, arrays.needed(H, "h", &call.vectors())?);
        let Some(out) = arrays.write(0, &call.vectors())? else { return Ok(None) };
        let saved = arrays.run(|context| {
            if save {
                return apply::forward_and_save(context, &w, h, out);
            }
            apply::forward(context, &w, h, out).map(|()| None)
        })?;
        Ok(saved.map(|saved| AnySaved::new(saved.has_factors(), saved)))
    })
}

/// The gradients of `u`, `h`, phases and `tau`, those that are needed.
pub fn backward(arrays: &Arrays<'_>, call: &ApplyCall, saved: Option<&Held>) -> Reading<()> {
    by_dtype!(arrays.dtype(H), |T| {
        let (w, vectors, Columns { count, n, m, .. }) = (call.operator::<T>(arrays)?, call.vectors(), &call.columns);
        let (h, g) = (arrays.needed(H, "h", &vectors)?, arrays.needed(GRAD, "grad_c", &vectors)?);
        let gradients = Gradients {
            u: arrays.write(0, &call.columns.shape())?,
            tau: arrays.write(TAU, &[*count, *m])?,
            h: arrays.write(H, &vectors)?,
            phases: arrays.write(GRAD_PHASES, &[*n])?,
        };
        let saved = fitting(saved, |saved: &Saved<T>| saved.check(&w, call.rows).is_ok());
        arrays.run(|context| apply::backward(context, &w, h, g, gradients, saved))
    })
}

/// The gradient of `W h`, in the result `grad`, becomes that of `h`. The other result is the gradient of `u`.
pub fn backward_in_place(arrays: &Arrays<'_>, call: &ApplyCall, saved: Option<&Held>) -> Reading<()> {
    by_dtype!(arrays.dtype(H), |T| {
        let (w, h) = (call.operator::<T>(arrays)?, arrays.needed(H, "h", &call.vectors())?);
        let grad = arrays.write(0, &call.vectors())?.unwrap_or_default();
        let gradients = Gradients { u: arrays.write(1, &call.columns.shape())?, ..Gradients::default() };
        let saved = fitting(saved, |saved: &Saved<T>| saved.has_factors() && saved.check(&w, call.rows).is_ok());
        arrays.run(|context| apply::backward_in_place(context, &w, h, grad, gradients, saved))
    })
}

/// Algorithm 1 of the paper. The result is the tape.
pub fn forward_tape(arrays: &Arrays<'_>, call: &ApplyCall) -> Reading<()> {
    by_dtype!(arrays.dtype(H), |T| {
        let (w, h) = (call.operator::<T>(arrays)?, arrays.needed(H, "h", &call.vectors())?);
        let tape = arrays.write(0, &call.tape())?.unwrap_or_default();
        arrays.run(|context| apply::forward_tape(context, &w, h, tape))
    })
}

/// The gradients of `u`, `h` and phases, those that are needed.
pub fn backward_tape(arrays: &Arrays<'_>, call: &ApplyCall) -> Reading<()> {
    by_dtype!(arrays.dtype(H), |T| {
        let w = call.operator::<T>(arrays)?;
        let g = arrays.needed(H, "grad_c", &call.vectors())?;
        let tape = arrays.needed(GRAD, "tape", &call.tape())?;
        let gradients = Gradients {
            u: arrays.write(0, &call.columns.shape())?,
            tau: None,
            h: arrays.write(H, &call.vectors())?,
            phases: arrays.write(GRAD_PHASES, &[call.columns.n])?,
        };
        arrays.run(|context| apply::backward_tape(context, &w, tape, g, gradients))
    })
}
