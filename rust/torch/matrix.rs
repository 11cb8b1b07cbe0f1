//! `W (*c, n, n)` itself, and its gradient: `u (*c, n, m)`.

use householder::apply::{self, Saved};

use crate::apply::require_dtype;
use crate::arguments::Arguments;
use crate::call::Reading;
use crate::columns::Columns;
use crate::dtype::{Number, by_dtype};
use crate::kept;
use crate::kernel::{Results, run};
use crate::tensor::{Tensor, optional};

/// `W`, and what is kept.
pub fn forward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number>(columns: &Columns<'_>, w: &mut Tensor, keep: bool) -> Reading<Tensor> {
        let (operator, w) = (columns.operator::<T>(None)?, w.numbers_mut(columns.count * columns.n * columns.n)?);
        let kept = run(|context| {
            if keep {
                return apply::matrix_and_save(context, &operator, w);
            }
            apply::matrix(context, &operator, w).map(|()| None)
        })?;
        kept::keep(keep, kept)
    }
    let (u, keep) = (arguments.tensor(), arguments.flag());
    let u = u.laid_out()?;
    let columns = Columns::of(&u, "trapezoidal", None)?;
    let mut w = Tensor::empty(&columns.each(&[columns.n, columns.n]), &u)?;
    let kept = by_dtype!(u.dtype()?, go(&columns, &mut w, keep && kept::is_possible()))?;
    Ok(vec![Some(w), Some(kept)])
}

/// The gradient of `u`.
pub fn backward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number>(
        columns: &Columns<'_>,
        kept: Option<&Tensor>,
        grad_w: &Tensor,
        grad_u: &mut Tensor,
    ) -> Reading<()> {
        let &Columns { count, n, m, .. } = columns;
        let (w, g) = (columns.operator::<T>(None)?, grad_w.numbers("grad_w", count * n * n)?);
        let grad_u = grad_u.numbers_mut(count * n * m)?;
        let saved = kept::find(kept, |saved: &Saved<T>| saved.check(&w, n).is_ok());
        run(|context| apply::matrix_backward(context, &w, g, grad_u, saved.as_deref()))
    }
    let (u, kept, grad_w) = (arguments.tensor(), arguments.optional(), arguments.tensor());
    let wants = arguments.flags::<1>();
    let (u, kept, grad_w) = (u.laid_out()?, optional(kept)?, grad_w.laid_out()?);
    require_dtype(&u, &[Some(&grad_w)])?;
    if !wants?[0] {
        return Ok(vec![None]);
    }
    let (columns, mut grad_u) = (Columns::of(&u, "trapezoidal", None)?, u.empty_like()?);
    by_dtype!(u.dtype()?, go(&columns, kept.as_ref(), &grad_w, &mut grad_u))?;
    Ok(vec![Some(grad_u)])
}
