//! `W h`, `W* h` and their gradients: `u (.., n, m)`, `h (.., n)`, `tau (.., m)`, `phases (n)`.

use householder::apply::{self, Gradients, Saved};
use householder::method::Method;
use householder::operator::Operator;

use crate::array::AnyArray;
use crate::by_dtype;
use crate::columns::Columns;
use crate::dtype::ArrayNumber;
use crate::kept::{Held, Kept, fitting};
use crate::operands::{Caller, Operands};
use crate::options;
use crate::refusal::{Reading, Refusal};

/// Slots of operands, and of the result of a forward pass. Results of a backward pass are gradients.
pub const OPERANDS: [&str; 5] = ["u", "tau", "h", "grad_c", "phases"];
pub const GRADIENTS: [&str; 4] = ["grad_u", "grad_tau", "grad_h", "grad_phases"];
pub const TAU: usize = 1;
pub const H: usize = 2;
pub const GRAD: usize = 3;
const PHASES: usize = 4;

/// The matrices of a call, with `rows` vectors each.
pub struct ApplyCall {
    pub columns: Columns,
    pub rows: usize,
    pub transpose: bool,
    pub method: Option<Method>,
}

impl ApplyCall {
    /// For `h (.., n)` of the type of `u`.
    pub fn of<A: AnyArray>(u: &A, h: &A, has_tau: bool, transpose: bool, method: &str, shape: &str) -> Reading<Self> {
        let (method, columns) = (options::method(method)?, Columns::of(u, shape, has_tau)?);
        let rows = h.len.checked_div(columns.count * columns.n).unwrap_or(0);
        let given = || Ok::<_, Refusal>(format!("got u {} and h {}", u.describe()?, h.describe()?));
        if h.dims == 0 || h.last[2] != columns.n || columns.count * rows * columns.n != h.len {
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
}

/// `c`, and what is kept.
pub fn forward<'a>(caller: &impl Caller<'a>, call: &ApplyCall, keep: bool) -> Reading<Option<Kept>> {
    by_dtype!(caller.dtype(H)?, |T| {
        let (w, h) = (call.operator::<T>(caller)?, caller.needed(H, "h", &call.vectors())?);
        let Some(out) = caller.write(0, &call.vectors())? else { return Ok(None) };
        let saved = caller.run(|context| {
            if keep {
                return apply::forward_and_save(context, &w, h, out);
            }
            apply::forward(context, &w, h, out).map(|()| None)
        })?;
        Ok(saved.map(|saved| Kept::new(saved.is_matrix(), saved)))
    })
}

/// The gradients of `u`, `h`, phases and `tau`, those that are wanted.
pub fn backward<'a>(caller: &impl Caller<'a>, call: &ApplyCall, kept: Option<&Held>) -> Reading<()> {
    by_dtype!(caller.dtype(H)?, |T| {
        let (w, vectors, Columns { count, n, m, .. }) = (call.operator::<T>(caller)?, call.vectors(), &call.columns);
        let (h, g) = (caller.needed(H, "h", &vectors)?, caller.needed(GRAD, "grad_c", &vectors)?);
        let gradients = Gradients {
            u: caller.write(0, &call.columns.shape())?,
            tau: caller.write(TAU, &[*count, *m])?,
            h: caller.write(H, &vectors)?,
            phases: caller.write(3, &[*n])?,
        };
        let saved = fitting(kept, |saved: &Saved<T>| saved.check(&w, call.rows).is_ok());
        caller.run(|context| apply::backward(context, &w, h, g, gradients, saved))
    })
}
