//! The reflections of all problems of a call: `u (*c, n, m)`, the `shape` of its columns, and `tau (*c, m)`.

use householder::operator::{Form, Operator};

use crate::call::{Reading, Refusal};
use crate::dtype::Number;
use crate::options;
use crate::tensor::{Tensor, optional_numbers};

/// The columns of `u`.
pub struct Columns<'a> {
    u: &'a Tensor,
    tau: Option<&'a Tensor>,
    form: Form,
    /// The axes that enumerate the problems.
    pub lead: Vec<usize>,
    pub count: usize,
    pub n: usize,
    pub m: usize,
}

impl<'a> Columns<'a> {
    /// Those of `u` and `tau`, checked.
    pub fn of(u: &'a Tensor, shape: &str, tau: Option<&'a Tensor>) -> Reading<Self> {
        let form = options::form(shape, tau.is_some())?;
        let sizes = u.shape()?;
        let (lead, n, m) = match sizes[..] {
            [ref lead @ .., n, m] if n >= 1 && m >= 1 && (m <= n || form == Form::Full) => (lead.to_vec(), n, m),
            _ => {
                let most = if form == Form::Full { "" } else { " <= n" };
                let given = u.describe()?;
                return Err(Refusal::invalid(format!("expected u (.., n, m) with 1 <= m{most}, got {given}")));
            }
        };
        Ok(Self { u, tau, form, count: lead.iter().product(), lead, n, m })
    }

    /// Sizes after those that enumerate the problems.
    pub fn each(&self, sizes: &[usize]) -> Vec<usize> {
        [&self.lead, sizes].concat()
    }

    /// `W`, with phases where they are given.
    pub fn operator<T: Number>(&self, phases: Option<&[T::Real]>) -> Reading<Operator<'a, T>> {
        let &Self { count, n, m, form, .. } = self;
        let tau = optional_numbers(self.tau, "tau", count * m)?;
        let w = Operator::with_form([count, n, m], self.u.numbers("u", count * n * m)?, form, tau)?;
        Ok(if let Some(phases) = phases { w.with_phases(phases)? } else { w })
    }
}
