//! Whole sequences, forward and back, with all that may be given, kept and wanted, or not.

use householder::apply::Diagonal;
use householder::kernel::activation::Activation;
use householder::parallel::Context;
use householder::plan::Method;
use householder::recurrence::{self, Sequence, SequenceGradients};
use householder::reflections::Reflections;
use householder::scalar::{Real, Scalar};

use crate::activation;
use crate::call::{Results, bits, call};
use crate::oracle::Oracle;
use crate::shape::Shape;
use crate::source::{Extent, Source, Wildness};
use crate::through_time::Unrolled;
use crate::vectors::Vectors;

/// What is given.
pub struct Given<T: Scalar> {
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

impl<T: Scalar> Given<T> {
    fn any(source: &mut Source, shape: Shape, wildness: Wildness) -> Self {
        let Shape { n, m, d, has_weight, .. } = shape;
        let batch = shape.batch();
        // modReLU jumps at zero where its bias is positive: no oracle would agree there.
        let minus = |b: T::Real| if wildness == Wildness::Anything { b } else { -b.abs() };
        let pairs = if T::COMPLEX { n } else { n / 2 };
        let has_phases = T::COMPLEX && source.one_in(2);
        Self {
            entries: source.reflections(n, m, wildness),
            phases: has_phases.then(|| source.numbers(n, wildness)),
            modrelu_bias: source.numbers(pairs, wildness).into_iter().map(minus).collect(),
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

/// The states and those gradients that are wanted.
#[derive(Clone)]
pub struct Outcome<T: Scalar> {
    pub h: Vec<T>,
    pub u: Option<Vec<T>>,
    pub x: Option<Vec<T>>,
    pub h0: Option<Vec<T>>,
    pub input_weight: Option<Vec<T>>,
    pub bias: Option<Vec<T>>,
    pub phases: Option<Vec<T::Real>>,
    pub activation_bias: Option<Vec<T::Real>>,
}

impl<T: Scalar> Results for Outcome<T> {
    fn bits(&self) -> Vec<u64> {
        let Self { h, u, x, h0, input_weight, bias, phases, activation_bias } = self;
        let numbers = [Some(h), u.as_ref(), x.as_ref(), h0.as_ref(), input_weight.as_ref(), bias.as_ref()];
        [bits(numbers), bits([phases.as_ref(), activation_bias.as_ref()])].concat()
    }
}

impl<T: Scalar> Outcome<T> {
    /// Room for it.
    fn wanted(source: &mut Source, given: &Given<T>, activation: Activation<'_, T>) -> Self {
        let Shape { n, m, d, .. } = given.shape;
        let (rows, batch) = (given.shape.rows(), given.shape.batch());
        Self {
            h: vec![T::ONE; rows * n],
            u: source.wanted(n * m),
            x: source.wanted(rows * d),
            h0: source.wanted(batch * n),
            input_weight: given.input_weight.as_ref().and_then(|v| source.wanted(v.len())),
            bias: source.wanted(n),
            phases: given.phases.as_ref().and_then(|phases| source.wanted(phases.len())),
            activation_bias: match activation {
                Activation::ModRelu(bias) => source.wanted(bias.len()),
                _ => None,
            },
        }
    }

    fn gradients(&mut self) -> SequenceGradients<'_, T> {
        SequenceGradients {
            u: self.u.as_deref_mut(),
            x: self.x.as_deref_mut(),
            h0: self.h0.as_deref_mut(),
            input_weight: self.input_weight.as_deref_mut(),
            bias: self.bias.as_deref_mut(),
            phases: self.phases.as_deref_mut(),
            activation_bias: self.activation_bias.as_deref_mut(),
        }
    }
}

/// What the backward pass has of the forward pass.
#[derive(Clone, Copy)]
struct Kept {
    tape: bool,
    prepared: bool,
}

fn run<T: Scalar>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    given: &Given<T>,
    kept: Kept,
    mut outcome: Outcome<T>,
) -> Outcome<T> {
    let width = sequence.tape_width().expect("a method for sequences");
    let mut tape = kept.tape.then(|| vec![T::ONE; given.shape.rows() * width]);
    let mut h = std::mem::take(&mut outcome.h);
    let prepared = recurrence::forward(context, sequence, &mut h, tape.as_deref_mut()).expect("forward");
    recurrence::backward(
        context,
        sequence,
        kept.prepared.then_some(&prepared),
        &h,
        tape.as_deref(),
        given.grad_h.as_ref().map(Vectors::series),
        given.grad_last.as_deref(),
        outcome.gradients(),
    )
    .expect("backward");
    Outcome { h, ..outcome }
}

/// One problem.
pub fn check<T: Scalar>(source: &mut Source) {
    let extent = source.extent();
    let (shape, wildness) = (Shape::any(source, extent), source.wildness());
    // Tasks own coordinates where W is formed.
    let formed = extent == Extent::Large && !source.one_in(4);
    let method = if formed { Some(Method::Dense) } else { source.method() };
    let given = Given::<T>::any(source, shape, wildness);
    let Shape { n, m, d, .. } = given.shape;
    let Ok(u) = Reflections::new(n, m, &given.entries) else {
        assert!(m == 0 || m > n || (T::COMPLEX && m == n), "{n} x {m} is refused");
        return;
    };
    let sequence = Sequence {
        u,
        diagonal: Diagonal::new(u, given.phases.as_deref()).expect("phases of the right length"),
        adjoint: source.one_in(2),
        activation: activation::any(source, n, &given.modrelu_bias),
        method,
        steps: given.shape.steps(),
        d,
        x: given.x.series(),
        input_weight: given.input_weight.as_deref(),
        bias: given.bias.as_deref(),
        h0: given.h0.as_deref(),
    };
    if sequence.tape_width().is_err() {
        assert_eq!(method, Some(Method::Reflections));
        return;
    }
    let tape = sequence.activation == Activation::Oplu || source.one_in(2);
    let kept = Kept { tape, prepared: source.one_in(2) };
    let room = Outcome::wanted(source, &given, sequence.activation);
    let outcome = call(source, extent, |context| run(context, &sequence, &given, kept, room.clone()));
    if wildness == Wildness::Anything {
        return;
    }
    let oracle = Oracle::new(n, m, &given.entries, given.phases.as_deref());
    let unrolled = Unrolled::new(&oracle, &given, &sequence, &outcome);
    unrolled.check_states();
    // The derivatives of the others follow from more than single outputs.
    if !matches!(sequence.activation, Activation::Oplu | Activation::ModRelu(_)) {
        unrolled.check_gradients();
    }
}
