//! `W h`, `W* h` and their gradients: `u (count, n, m)`, `h (count, rows, n)`.

use householder::apply::{self, Gradients};
use householder::operator::Operator;
use householder::threads::Context;

use super::frame::Frame;
use crate::by_dtype;
use crate::call::Reading;
use crate::columns::Columns;
use crate::dtype::Number;
use crate::operands::Operands;
use crate::options;

/// `W` or `W*` of all problems, the vectors, and the shapes of `u` and of the vectors.
type Problems<'a, T> = (Operator<'a, T>, &'a [T], [usize; 3], [usize; 3]);

fn problems<'a, T: Number>(frame: &Frame<'a>) -> Reading<Problems<'a, T>> {
    let (of_u, [_, rows, _]) = (frame.shape(0)?, frame.shape(1)?);
    let w = Columns::trapezoidal(of_u).operator(frame, 0, None)?;
    let w = w.adjoint(frame.flag("transpose")?).by(options::method(frame.text("method")?)?);
    let of_h = [of_u[0], rows, of_u[1]];
    Ok((w, frame.needed(1, "h", &of_h)?, of_u, of_h))
}

pub fn forward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (w, h, _, of_h) = problems::<T>(frame)?;
        let Some(out) = frame.write(0, &of_h)? else { return Ok(()) };
        Ok(apply::forward(context, &w, h, out)?)
    }
    by_dtype!(frame.dtype(0)?, go(frame, context))
}

pub fn backward(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
    fn go<T: Number>(frame: &Frame<'_>, context: &mut Context<'_>) -> Reading<()> {
        let (w, h, of_u, of_h) = problems::<T>(frame)?;
        let g = frame.needed(2, "grad_c", &of_h)?;
        let gradients = Gradients { u: frame.write(0, &of_u)?, h: frame.write(1, &of_h)?, tau: None, phases: None };
        Ok(apply::backward(context, &w, h, g, gradients, None)?)
    }
    by_dtype!(frame.dtype(0)?, go(frame, context))
}
