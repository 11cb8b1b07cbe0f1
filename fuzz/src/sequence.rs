//! Whole sequences, forward and back, with all that may be given, kept and wanted, or not.

use householder::method::Method;
use householder::operator::Operator;
use householder::rnn::{self, Activation, Cotangents, Sequence, States, Trace};
use householder::scalar::Scalar;
use householder::threads::Context;

use crate::activation;
use crate::call::call;
use crate::given::{Given, Outcome};
use crate::oracle::Oracle;
use crate::shape::Shape;
use crate::source::{Extent, Source, Wildness};
use crate::through_time::Unrolled;
use crate::vectors::Vectors;

/// What the backward pass has of the forward pass.
#[derive(Clone, Copy)]
struct Kept {
    /// Whether the tape has a place of its own. What is saved has it otherwise.
    has_place: bool,
    saved: bool,
}

fn run<T: Scalar<Real: Scalar>>(
    context: &mut Context<'_>,
    sequence: &Sequence<'_, T>,
    given: &Given<T>,
    kept: Kept,
    mut outcome: Outcome<T>,
) -> Outcome<T> {
    let width = sequence.tape_width().expect("a method for sequences");
    let mut tape = kept.has_place.then(|| vec![T::ONE; given.shape.rows() * width]);
    let mut h = std::mem::take(&mut outcome.h);
    let states = States { tape: tape.as_deref_mut(), ..States::new(&mut h) };
    let saved = if kept.saved {
        Some(rnn::forward_and_save(context, sequence, states).expect("forward"))
    } else {
        rnn::forward(context, sequence, states).expect("forward");
        None
    };
    let trace = Trace { h: &h, saved: saved.as_ref(), tape: tape.as_deref() };
    let cotangents = Cotangents { h: given.grad_h.as_ref().map(Vectors::series), last: given.grad_last.as_deref() };
    rnn::backward(context, sequence, trace, cotangents, outcome.gradients()).expect("backward");
    Outcome { h, ..outcome }
}

/// One problem.
pub fn check<T: Scalar<Real: Scalar>>(source: &mut Source) {
    let extent = source.extent();
    let (shape, wildness) = (Shape::any(source, extent), source.wildness());
    // Tasks own coordinates where W is formed.
    let formed = extent == Extent::Large && !source.one_in(4);
    let method = if formed { Some(Method::Dense) } else { source.method() };
    let given = Given::<T>::any(source, shape, wildness);
    let Shape { n, m, d, .. } = given.shape;
    let Ok(w) = Operator::new([1, n, m], &given.entries) else {
        assert!(m == 0 || m > n || (T::COMPLEX && m == n), "{n} x {m} is refused");
        return;
    };
    let w =
        if let Some(phases) = &given.phases { w.with_phases(phases).expect("phases of the right length") } else { w };
    let sequence = Sequence {
        operator: w.adjoint(source.one_in(2)).by(method),
        activation: activation::any(source, n, &given.modrelu_bias),
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
    let saved = source.one_in(2);
    let needs_place = sequence.activation == Activation::Oplu && !saved;
    let kept = Kept { has_place: needs_place || source.one_in(2), saved };
    let wanted = Outcome::wanted(source, &given, sequence.activation);
    let outcome = call(source, extent, |context| run(context, &sequence, &given, kept, wanted.clone()));
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
