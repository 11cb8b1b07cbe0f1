//! `W (*c, n, n)` itself, and its gradient: `u (*c, n, m)`.

use householder::apply;

use crate::apply::require_dtype;
use crate::arguments::Arguments;
use crate::call::Reading;
use crate::columns::Columns;
use crate::dtype::{Number, by_dtype};
use crate::kernel::{Results, run};
use crate::tensor::Tensor;

/// `W`.
pub fn forward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number>(columns: &Columns<'_>, w: &mut Tensor) -> Reading<()> {
        let (operator, w) = (columns.operator::<T>(None)?, w.numbers_mut(columns.count * columns.n * columns.n)?);
        run(|context| apply::matrix(context, &operator, w))
    }
    let u = arguments.tensor().laid_out()?;
    let columns = Columns::of(&u, "trapezoidal", None)?;
    let mut w = Tensor::empty(&columns.each(&[columns.n, columns.n]), &u)?;
    by_dtype!(u.dtype()?, go(&columns, &mut w))?;
    Ok(vec![Some(w)])
}

/// The gradient of `u`.
pub fn backward(arguments: &mut Arguments) -> Reading<Results> {
    fn go<T: Number>(columns: &Columns<'_>, grad_w: &Tensor, grad_u: &mut Tensor) -> Reading<()> {
        let &Columns { count, n, m, .. } = columns;
        let (w, g) = (columns.operator::<T>(None)?, grad_w.numbers("grad_w", count * n * n)?);
        let grad_u = grad_u.numbers_mut(count * n * m)?;
        run(|context| apply::matrix_backward(context, &w, g, grad_u, None))
    }
    let (u, grad_w, wants) = (arguments.tensor(), arguments.tensor(), arguments.flags::<1>());
    let (u, grad_w) = (u.laid_out()?, grad_w.laid_out()?);
    require_dtype(&u, &[Some(&grad_w)])?;
    if !wants?[0] {
        return Ok(vec![None]);
    }
    let (columns, mut grad_u) = (Columns::of(&u, "trapezoidal", None)?, u.empty_like()?);
    by_dtype!(u.dtype()?, go(&columns, &grad_w, &mut grad_u))?;
    Ok(vec![Some(grad_u)])
}
