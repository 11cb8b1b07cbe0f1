//! `W h` or `W* h`, and the gradients: `u (*c, n, m)`, `h (*c, *r, n)`, `tau (*c, m)`.

use householder::apply::{self, Gradients, Saved};
use householder::method::Method;
use householder::operator::Operator;

use crate::arguments::Arguments;
use crate::call::{Kind, Reading, Refusal};
use crate::columns::Columns;
use crate::dtype::{Number, by_dtype};
use crate::kept;
use crate::kernel::{Results, run};
use crate::options;
use crate::tensor::{Tensor, gradient, optional, tuple, wanted};

/// The tensors of a call, laid out.
struct Tensors {
    u: Tensor,
    h: Tensor,
    tau: Option<Tensor>,
}

impl Tensors {
    fn laid_out(u: Tensor, h: Tensor, tau: Option<Tensor>) -> Reading<Self> {
        Ok(Self { u: u.laid_out()?, h: h.laid_out()?, tau: optional(tau)? })
    }
}

/// The matrices of a call, the vectors of each, and how many numbers all have.
struct Call<'a> {
    columns: Columns<'a>,
    h: &'a Tensor,
    rows: usize,
    len: usize,
    transpose: bool,
    method: Option<Method>,
}

impl<'a> Call<'a> {
    fn of(Tensors { u, h, tau }: &'a Tensors, transpose: bool, method: &str, shape: &str) -> Reading<Self> {
        let (method, columns) = (options::method(method)?, Columns::of(u, shape, tau.as_ref())?);
        let (sizes, len) = (h.shape()?, h.len()?);
        let rows = len.checked_div(columns.count * columns.n).unwrap_or(0);
        let given = || -> Reading<_> { Ok(format!("got u {} and h {}", u.describe()?, h.describe()?)) };
        if sizes.last() != Some(&columns.n) || columns.count * rows * columns.n != len {
            return Err(Refusal::invalid(format!("expected u (.., n, m) and h (.., n), {}", given()?)));
        }
        if u.dtype()? != h.dtype()? {
            return Err(Refusal::new(Kind::Type, format!("expected u and h of one type, {}", given()?)));
        }
        Ok(Self { columns, h, rows, len, transpose, method })
    }

    /// `W` or `W*`, and the vectors.
    fn problem<T: Number>(&self) -> Reading<(Operator<'a, T>, &'a [T])> {
        let w = self.columns.operator(None)?.adjoint(self.transpose).by(self.method);
        Ok((w, self.h.numbers("h", self.len)?))
    }
}

/// `c`, and what is kept.
pub fn forward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number>(call: &Call<'_>, c: &mut Tensor, keep: bool) -> Reading<Tensor> {
        let ((w, h), c) = (call.problem::<T>()?, c.numbers_mut(call.len)?);
        let kept = run(|context| {
            if keep {
                return apply::forward_and_save(context, &w, h, c);
            }
            apply::forward(context, &w, h, c).map(|()| None)
        })?;
        kept::keep(keep, kept)
    }
    let (u, h, tau, keep) = (arguments.tensor(), arguments.tensor(), arguments.optional(), arguments.flag());
    let (transpose, method, shape) = (arguments.flag(), arguments.text(), arguments.text());
    let tensors = Tensors::laid_out(u, h, tau)?;
    let call = Call::of(&tensors, transpose, &method?, &shape?)?;
    let mut c = tensors.h.empty_like()?;
    let kept = by_dtype!(tensors.h.dtype()?, go(&call, &mut c, keep && kept::is_possible()))?;
    Ok(vec![Some(c), Some(kept)])
}

/// The gradients of `u`, `h` and `tau`, those that are wanted.
pub fn backward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number>(
        call: &Call<'_>,
        kept: Option<&Tensor>,
        grad_c: &Tensor,
        gradients: &mut [Option<Tensor>; 3],
    ) -> Reading<()> {
        let ((w, h), g) = (call.problem::<T>()?, grad_c.numbers("grad_c", call.len)?);
        let [u, of_h, tau] = gradients.each_mut().map(Option::as_mut);
        let gradients = Gradients { u: wanted(u)?, h: wanted(of_h)?, tau: wanted(tau)?, phases: None };
        let saved = kept::find(kept, |saved: &Saved<T>| saved.check(&w, call.rows).is_ok());
        run(|context| apply::backward(context, &w, h, g, gradients, saved.as_deref()))
    }
    let (u, h, tau) = (arguments.tensor(), arguments.tensor(), arguments.optional());
    let (kept, grad_c) = (arguments.optional(), arguments.tensor());
    let (wants, transpose) = (arguments.flags::<3>(), arguments.flag());
    let (method, shape) = (arguments.text(), arguments.text());
    let (tensors, kept, grad_c) = (Tensors::laid_out(u, h, tau)?, optional(kept)?, grad_c.laid_out()?);
    require_unchanged(&tensors, &grad_c)?;
    let call = Call::of(&tensors, transpose, &method?, &shape?)?;
    let (Tensors { u, h, tau }, [of_u, of_h, of_tau]) = (&tensors, wants?);
    let mut gradients = [gradient(Some(u), of_u)?, gradient(Some(h), of_h)?, gradient(tau.as_ref(), of_tau)?];
    by_dtype!(h.dtype()?, go(&call, kept.as_ref(), &grad_c, &mut gradients))?;
    Ok(gradients.into())
}

/// Refuses tensors that were replaced or converted since the forward pass.
fn require_unchanged(Tensors { u, h, tau }: &Tensors, grad_c: &Tensor) -> Reading<()> {
    require_dtype(h, &[Some(u), tau.as_ref(), Some(grad_c)])?;
    let (given, expected) = (grad_c.shape()?, h.shape()?);
    if given == expected {
        return Ok(());
    }
    let (given, expected) = (tuple(&given), tuple(&expected));
    Err(Refusal::invalid(format!("grad_c has shape {given} on cpu, expected {expected} on cpu as h")))
}

/// Requires that all tensors still have one type.
pub fn require_dtype(first: &Tensor, others: &[Option<&Tensor>]) -> Reading<()> {
    let dtype = first.dtype()?;
    for other in others.iter().flatten() {
        if other.dtype()? != dtype {
            let (before, now) = (dtype.name(), other.dtype()?.name());
            let text = format!(
                "a saved tensor changed its dtype between forward and backward ({before} to {now}): convert modules after the \
                 backward pass"
            );
            return Err(Refusal::new(Kind::Runtime, text));
        }
    }
    Ok(())
}
