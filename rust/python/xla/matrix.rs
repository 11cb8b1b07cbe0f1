//! `W (count, n, n)` itself, and its gradient: `u (count, n, m)`.

use householder::apply;
use householder::operator::Operator;
use householder::threads::Context;

use super::frame::Frame;
use crate::by_dtype;
use crate::call::Reading;
use crate::columns::Columns;
use crate::dtype::Number;
use crate::operands::Operands;

/// `W` of all problems, and the shape of `u`.
fn operator<'a, T: Number>(frame: &Frame<'a>) -> Reading<(Operator<'a, T>, [usize; 3])> {
    let shape = frame.shape(0)?;
    Ok((Columns::trapezoidal(shape).operator(frame, 0, None)?, shape))
}

pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (w, [count, n, _]) = operator::<T>(frame)?;
        let Some(out) = frame.write(0, &[count, n, n])? else { return Ok(()) };
        Ok(apply::matrix(context, &w, out)?)
    }
    by_dtype!(frame.dtype(0)?, go(frame, context))
}

pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (w, [count, n, m]) = operator::<T>(frame)?;
        let grad_w = frame.needed(1, "grad_w", &[count, n, n])?;
        let Some(grad_u) = frame.write(0, &[count, n, m])? else { return Ok(()) };
        Ok(apply::matrix_backward(context, &w, grad_w, grad_u, None)?)
    }
    by_dtype!(frame.dtype(0)?, go(frame, context))
}
