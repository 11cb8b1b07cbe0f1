//! The inputs of a sequence, and the results that are asked of it.

use householder::number::Real;
use householder::rnn::{Activation, SequenceGradients};
use householder::scalar::Scalar;

use crate::call::{Results, bits};
use crate::shape::Shape;
use crate::source::{Source, Wildness};
use crate::vectors::Vectors;

/// The inputs of a sequence.
pub struct Given<T: Scalar<Real: Scalar>> {
    pub shape: Shape,
    pub entries: Vec<T>,
    pub phases: Option<Vec<T::Real>>,
    pub modrelu_bias: Vec<T::Real>,
    pub input_weight: Option<Vec<T>>,
    pub bias: Option<Vec<T>>,
    pub h0: Option<Vec<T>>,
    pub x: Vectors<T>,
    pub grad_h: Option<Vectors<T>>,
    pub grad_last: Option<Vec<T>>,
}

impl<T: Scalar<Real: Scalar>> Given<T> {
    pub fn any(source: &mut Source, shape: Shape, wildness: Wildness) -> Self {
        let Shape { n, m, d, has_weight, .. } = shape;
        let batch = shape.batch();
        // modReLU jumps at zero where its bias is positive: no oracle would agree there.
        let minus = |b: T::Real| if wildness == Wildness::Anything { b } else { -b.abs() };
        let has_phases = T::COMPLEX && source.one_in(2);
        Self {
            entries: source.reflections(n, m, wildness),
            phases: has_phases.then(|| source.numbers(n, wildness)),
            modrelu_bias: source.numbers(n, wildness).into_iter().map(minus).collect(),
            input_weight: has_weight.then(|| source.numbers(n * d, wildness)),
            bias: source.one_in(2).then(|| source.numbers(n, wildness)),
            h0: source.one_in(2).then(|| source.numbers(batch * n, wildness)),
            x: Vectors::any(source, &shape, d, wildness),
            grad_h: (!source.one_in(8)).then(|| Vectors::any(source, &shape, n, wildness)),
            grad_last: source.one_in(2).then(|| source.numbers(batch * n, wildness)),
            shape,
        }
    }
}

/// The states, and the gradients that are asked for.
#[derive(Clone)]
pub struct Outcome<T: Scalar<Real: Scalar>> {
    pub h: Vec<T>,
    pub u: Option<Vec<T>>,
    pub x: Option<Vec<T>>,
    pub h0: Option<Vec<T>>,
    pub input_weight: Option<Vec<T>>,
    pub bias: Option<Vec<T>>,
    pub phases: Option<Vec<T::Real>>,
    pub activation_bias: Option<Vec<T::Real>>,
}

impl<T: Scalar<Real: Scalar>> Results for Outcome<T> {
    fn bits(&self) -> Vec<u64> {
        let Self { h, u, x, h0, input_weight, bias, phases, activation_bias } = self;
        let numbers = [Some(h), u.as_ref(), x.as_ref(), h0.as_ref(), input_weight.as_ref(), bias.as_ref()];
        [bits(numbers), bits([phases.as_ref(), activation_bias.as_ref()])].concat()
    }
}

impl<T: Scalar<Real: Scalar>> Outcome<T> {
    /// Memory for the results, of which gradients are asked for at random.
    pub fn wanted(source: &mut Source, given: &Given<T>, activation: Activation<'_, T>) -> Self {
        let Shape { n, m, d, .. } = given.shape;
        let (rows, batch) = (given.shape.rows(), given.shape.batch());
        let moduli = activation.bias().map(<[_]>::len);
        Self {
            h: vec![T::ONE; rows * n],
            u: source.wanted(n * m),
            x: source.wanted(rows * d),
            h0: source.wanted(batch * n),
            input_weight: given.input_weight.as_ref().and_then(|v| source.wanted(v.len())),
            bias: source.wanted(n),
            phases: given.phases.as_ref().and_then(|phases| source.wanted(phases.len())),
            activation_bias: moduli.and_then(|moduli| source.wanted(moduli)),
        }
    }

    pub fn gradients(&mut self) -> SequenceGradients<'_, T> {
        SequenceGradients {
            u: self.u.as_deref_mut(),
            x: self.x.as_deref_mut(),
            h0: self.h0.as_deref_mut(),
            input_weight: self.input_weight.as_deref_mut(),
            bias: self.bias.as_deref_mut(),
            tau: None,
            phases: self.phases.as_deref_mut(),
            activation_bias: self.activation_bias.as_deref_mut(),
        }
    }
}
