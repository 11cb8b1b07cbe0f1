//! A batch of sequences, with the checks of its arrays.

use super::plan::{Layout, Plan};
use super::steps::{Series, Steps};
use crate::arrays::stack::Stack;
use crate::arrays::view::Shape;
use crate::error::{Error, Result};
use crate::method::Method;
use crate::numbers::number::{Number, Real};
use crate::numbers::scalar::Scalar;
use crate::operator::Operator;
use crate::simd::activation::Activation;

/// A batch of sequences for each problem, all of one size, and the recurrence that runs over them. [`Sequence::new`] has the
/// defaults: `Sequence { activation: Activation::Tanh, ..Sequence::new(operator, steps, x) }`.
#[derive(Debug)]
pub struct Sequence<'a, T: Scalar> {
    /// `W`, or `W*`. It is formed or multiplied by its factors: by `dense` or `wy`.
    pub operator: Operator<'a, T>,
    /// `phi`. A bias has so many numbers for each problem.
    pub activation: Activation<'a, T>,
    /// Which rows belong to which step.
    pub steps: Steps,
    /// Width of the input.
    pub d: usize,
    /// Vectors of `d` numbers, `(count, rows, d)`.
    pub x: Series<'a, T>,
    /// `V (count, n, d)`; absent: `d == n` and `x` is added as it is.
    pub input_weight: Option<&'a [T]>,
    /// `b (count, n)`.
    pub bias: Option<&'a [T]>,
    /// `h_0 (count, batch, n)`; absent: zeros.
    pub h0: Option<&'a [T]>,
}

/// [`Sequence::tape_width`] before the sequence exists.
#[doc(hidden)]
pub fn tape_width<T: Scalar>(
    wanted: Option<Method>,
    shape: Shape,
    rows: usize,
    has_phases: bool,
    has_tau: bool,
    activation: &Activation<'_, T>,
) -> Result<usize> {
    Ok(Layout::new(wanted, shape, rows, has_phases, has_tau, activation.flag_width(shape.0))?.width)
}

/// Refuses an activation that states of `n` numbers cannot have, whatever its bias.
pub(crate) fn check_activation<T: Scalar>(activation: &Activation<'_, T>, n: usize) -> Result<()> {
    if activation.pairs() && !T::COMPLEX && !n.is_multiple_of(2) {
        return Err(Error::value("activation", "an even n for pairs of numbers", n));
    }
    if activation.is_real() && T::COMPLEX {
        return Err(Error::value("activation", "one of complex numbers", "one of real numbers"));
    }
    match activation {
        // The sign of a state tells which of the two slopes it had.
        Activation::LeakyRelu(slope) if !is_slope(*slope) => {
            Err(Error::value("negative_slope", "a finite number >= 0", slope))
        }
        _ => Ok(()),
    }
}

/// Whether real parts, and imaginary ones, can be multiplied by this number.
fn is_slope<T: Scalar>(slope: T) -> bool {
    let (re, im) = (slope.re(), slope.im());
    re >= T::Real::ZERO && re.to_f64().is_finite() && (!T::COMPLEX || im == re)
}

impl<'a, T: Scalar> Sequence<'a, T> {
    /// `h_t = W h_{t-1} + x_t`, `h_0 = 0`, for inputs of the size of the states.
    pub fn new(operator: Operator<'a, T>, steps: Steps, x: Series<'a, T>) -> Self {
        let (activation, d) = (Activation::Identity, operator.n());
        Self { operator, activation, steps, d, x, input_weight: None, bias: None, h0: None }
    }
}

impl<T: Scalar> Sequence<'_, T> {
    /// Numbers per row that the forward pass leaves on the tape; 0 if there are none.
    pub fn tape_width(&self) -> Result<usize> {
        Ok(self.layout()?.width)
    }

    pub(super) fn layout(&self) -> Result<Layout> {
        self.layout_for(self.steps.rows())
    }

    /// That of so many states.
    pub(super) fn layout_for(&self, rows: usize) -> Result<Layout> {
        let w = &self.operator;
        let (has_phases, has_tau, flags) = (w.angles() > 0, !w.are_involutions(), self.activation.flag_width(w.n()));
        Layout::new(w.requested_method(), (w.n(), w.m()), rows, has_phases, has_tau, flags)
    }

    /// Whether the states can have this activation.
    pub(super) fn check_activation(&self) -> Result<()> {
        let n = self.operator.n();
        check_activation(&self.activation, n)?;
        let bias = self.activation.bias().map(<[_]>::len);
        self.operator.require(&[("the bias of modReLU", bias, &[self.activation.moduli(n)])])
    }

    /// Whether the sizes of all other arrays fit.
    pub(super) fn check(&self) -> Result<()> {
        let (w, n, d, steps) = (&self.operator, self.operator.n(), self.d, &self.steps);
        let len = |x: Option<&[T]>| x.map(<[T]>::len);
        if self.input_weight.is_none() && d != n {
            return Err(Error::value("d", format!("n = {n} where there is no V"), d));
        }
        self.x.check("x", w.count(), steps, d)?;
        w.require(&[
            ("V", len(self.input_weight), &[n, d]),
            ("b", len(self.bias), &[n]),
            ("h_0", len(self.h0), &[steps.batch(), n]),
        ])
    }

    /// Problem `i`, checked.
    pub(super) fn plan(&self, layout: Layout, i: usize) -> Plan<'_, T> {
        let count = self.operator.count();
        Plan {
            w: self.operator.at(i),
            layout,
            activation: self.activation.of_problem(i, count),
            steps: &self.steps,
            d: self.d,
            x: self.x.of_problem(i, count, &self.steps),
            input_weight: self.input_weight.map(|x| Stack::new(x, count).at(i)),
            bias: self.bias.map(|x| Stack::new(x, count).at(i)),
            h0: self.h0.map(|x| Stack::new(x, count).at(i)),
        }
    }
}
