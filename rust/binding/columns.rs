//! The reflections of all problems of a call: `u (.., n, m)`, the form of its columns, and `tau (.., m)`.

use householder::operator::{Form, Operator};

use crate::array::{AnyArray, Header, size};
use crate::dtype::ArrayNumber;
use crate::operands::Operands;
use crate::options;
use crate::refusal::{Reading, Refusal};

/// The columns of `u`.
pub struct Columns {
    pub count: usize,
    /// How many axes enumerate the problems.
    pub axes: usize,
    pub n: usize,
    pub m: usize,
    form: Form,
    has_tau: bool,
}

impl Columns {
    /// Those of `u`.
    pub fn of(u: &dyn AnyArray, form: &str, has_tau: bool) -> Reading<Self> {
        let form = options::form(form, has_tau)?;
        let header: &Header = u;
        let [_, n, m] = header.last;
        if header.dims < 2 || n < 1 || m < 1 || (m > n && form != Form::Full) {
            let most = if form == Form::Full { "" } else { " <= n" };
            let given = u.describe()?;
            return Err(Refusal::invalid(format!("expected u (.., n, m) with 1 <= m{most}, got {given}")));
        }
        Ok(Self { count: header.len / size(&[n, m])?, axes: header.dims - 2, n, m, form, has_tau })
    }

    /// Those of `u (count, n, m)`, which the core checks.
    pub fn of_many([count, n, m]: [usize; 3], form: &str, has_tau: bool) -> Reading<Self> {
        Ok(Self { count, axes: 1, n, m, form: options::form(form, has_tau)?, has_tau })
    }

    /// Requires the shape of `tau`.
    pub fn require_tau<A: AnyArray>(&self, u: &A, tau: Option<&A>) -> Reading<()> {
        let Some(tau) = tau else { return Ok(()) };
        (tau as &dyn AnyArray).require_shape("tau", u, (self.count, self.axes), &[self.m])
    }

    /// The shape of `u`.
    pub fn shape(&self) -> [usize; 3] {
        [self.count, self.n, self.m]
    }

    /// `W` of `u`, in slot 0, and of `tau`, in another, if it is given. `phases`: their slot and shape.
    pub fn operator<'a, T: ArrayNumber<Real: ArrayNumber>>(
        &self,
        operands: &impl Operands<'a>,
        tau: usize,
        phases: Option<(usize, &[usize])>,
    ) -> Reading<Operator<'a, T>> {
        let (shape, read) = (self.shape(), |(slot, shape): (usize, &[usize])| operands.read(slot, "phases", shape));
        let phases = phases.map(read).transpose()?.flatten();
        let tau = if self.has_tau { operands.read(tau, "tau", &[self.count, self.m])? } else { None };
        let w = Operator::with_form(shape, operands.needed(0, "u", &shape)?, self.form, tau)?;
        Ok(if let Some(phases) = phases { w.with_phases(phases)? } else { w })
    }
}
