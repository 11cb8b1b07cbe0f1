//! Bounds of values: the core refuses what Python's checks refuse. Both are called with the table `tests/bounds.txt`.

use householder::delta::{self, Operands, Problem, Sizes};
use householder::error::{Error, Result};
use householder::factor;
use householder::method::Method;
use householder::number::c64;
use householder::operator::{Form, Operator};
use householder::rnn::{
    self, Activation, Cotangents, Recurrence, Sequence, SequenceGradients, Series, States, Steps, Trace,
};
use householder::scalar::Scalar;
use householder::threads::{Context, set_num_threads};

use crate::common::number_of_threads;

const TABLE: &str = include_str!("../bounds.txt");

/// The parts of a value that are integers.
fn sizes(parts: &[&str]) -> Vec<usize> {
    parts.iter().map(|part| part.parse().expect("a size")).collect()
}

fn reflections<T: Scalar>(sizes: &[usize], form: Form) -> Result<()> {
    let [n, m] = sizes[..] else { panic!("expected n and m") };
    Operator::<T>::with_form([1, n, m], &vec![T::ONE; n * m], form, None).map(drop)
}

fn phases<T: Scalar>(sizes: &[usize]) -> Result<()> {
    let angles = vec![T::Real::default(); sizes[0]];
    Operator::<T>::new([1, 3, 1], &[T::ONE; 3])?.with_phases(&angles).map(drop)
}

fn factored<T: Scalar>(sizes: &[usize]) -> Result<()> {
    let [n, m] = sizes[..] else { panic!("expected n and m") };
    let eye: Vec<T> = (0..n * n).map(|i| if i % (n + 1) == 0 { T::ONE } else { T::ZERO }).collect();
    factor::factor(&mut Context::default(), n, m, &eye, &mut vec![T::ZERO; n * m], None).map(drop)
}

/// Sequences of three steps, their gradients, a single step of a recurrence, and sequences without steps.
fn recurrence<T: Scalar>(n: usize, activation: Activation<'_, T>, method: Option<Method>) -> Result<()> {
    let (u, x, mut h) = (vec![T::ONE; n], vec![T::ONE; 3 * n], vec![T::ZERO; 3 * n]);
    let sequence = |steps| {
        let operator = Operator::new([1, n, 1], &u)?.by(method);
        let x = Series::new(&x[..steps * n]);
        Ok::<_, Error>(Sequence { activation, ..Sequence::new(operator, Steps::uniform(steps, 1)?, x) })
    };
    let (context, gradients) = (&mut Context::default(), SequenceGradients::default);
    let outcomes = [
        rnn::forward(context, &sequence(3)?, States::new(&mut h)),
        rnn::forward(context, &sequence(0)?, States::new(&mut [])),
        Recurrence::new(context, &sequence(3)?).map(drop),
    ];
    let saved = rnn::forward_and_save(context, &sequence(3)?, States::new(&mut h)).ok();
    let trace = Trace { saved: saved.as_ref(), ..Trace::new(&h) };
    let back = rnn::backward(context, &sequence(3)?, trace, Cotangents::default(), gradients());
    let none = rnn::backward(context, &sequence(0)?, Trace::new(&[]), Cotangents::default(), gradients());
    let outcomes: Vec<_> = outcomes.into_iter().chain([back, none]).collect();
    let refused = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    assert!([0, outcomes.len()].contains(&refused), "only some calls refuse {activation:?}: {outcomes:?}");
    outcomes.into_iter().collect()
}

fn activation<'a, T: Scalar>(name: &str, bias: &'a [T::Real]) -> Activation<'a, T> {
    match name {
        "tanh" => Activation::Tanh,
        "oplu" => Activation::Oplu,
        "modrelu" => Activation::ModRelu(bias),
        "real_modrelu" => Activation::RealModRelu(bias),
        _ => panic!("{name}"),
    }
}

/// States of `n` numbers under an activation, whose bias has the right length unless there is another.
fn state<T: Scalar>(name: &str, sizes: &[usize]) -> Result<()> {
    let n = sizes[0];
    let len = sizes.get(1).copied().unwrap_or_else(|| activation::<T>(name, &[]).moduli(n));
    recurrence(n, activation::<T>(name, &vec![T::Real::default(); len]), None)
}

fn delta_rule(sizes: &[usize], sequences: Option<&[usize]>) -> Result<()> {
    let [heads, value_heads, key_width, value_width, reflections] = sizes[..] else { panic!("expected five sizes") };
    let sizes = Sizes { heads, value_heads, key_width, value_width, reflections };
    let numbers = |each: usize| vec![1.0; 4 * each];
    let (q, k) = (numbers(heads * key_width), numbers(reflections * heads * key_width));
    let (v, beta) = (numbers(reflections * value_heads * value_width), numbers(reflections * value_heads));
    let operands = Operands::new(sizes, &q, &k, &v, &beta);
    let given = |offsets: &[usize]| offsets.windows(2).map(|bounds| bounds[0]..bounds[1]).collect();
    let sequences = sequences.map_or(operands.sequences.clone(), given);
    let problem = Problem::new(Operands { sequences, ..operands })?;
    delta::forward(&mut Context::default(), &problem, delta::Results::default())
}

/// The outcome of a call with a value of this bound.
fn outcome(bound: &str, value: &str) -> Result<()> {
    let parts: Vec<_> = value.split(',').collect();
    let is_complex = parts[0] == "complex";
    macro_rules! of_type {
        ($function:ident($($argument:expr),*)) => {
            if is_complex { $function::<c64>($($argument),*) } else { $function::<f64>($($argument),*) }
        };
    }
    let steps = || Steps::ragged(&parts.iter().map(|part| part.parse().expect("a number")).collect::<Vec<_>>());
    match bound {
        "reflections" => of_type!(reflections(&sizes(&parts[1..]), Form::Trapezoidal)),
        "full" => of_type!(reflections(&sizes(&parts[1..]), Form::Full)),
        "phases" => of_type!(phases(&sizes(&parts[1..]))),
        "factor" => of_type!(factored(&sizes(&parts[1..]))),
        "slope" => {
            let slope: f64 = value.parse().expect("a number");
            let outcome = recurrence(4, Activation::LeakyRelu(slope), None);
            let parts = recurrence(4, Activation::LeakyRelu(c64::new(slope, slope)), None);
            assert_eq!(outcome.is_ok(), parts.is_ok(), "a complex slope of {slope}");
            outcome
        }
        "state" | "bias_length" => of_type!(state(parts[1], &sizes(&parts[2..]))),
        "method" => {
            let methods = [
                ("auto", None),
                ("reflections", Some(Method::Reflections)),
                ("wy", Some(Method::Wy)),
                ("dense", Some(Method::Dense)),
            ];
            let (_, method) = methods.into_iter().find(|(name, _)| *name == value).expect("a method");
            recurrence::<f64>(4, Activation::Identity, method)
        }
        "batch_sizes" => steps().map(drop),
        "reverse" => steps().expect("sizes of steps").reversed().map(drop),
        "delta_sizes" => delta_rule(&sizes(&parts), None),
        "offsets" => delta_rule(&[1, 1, 2, 2, 1], Some(&sizes(&parts))),
        "threads" => {
            let _alone = number_of_threads();
            set_num_threads(sizes(&parts)[0])
        }
        _ => panic!("no call for the bound {bound}"),
    }
}

#[test]
fn the_core_refuses_what_python_refuses() {
    for row in TABLE.lines().filter(|row| !row.starts_with('#')) {
        let [bound, refused, accepted] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("expected three columns in {row}")
        };
        for value in refused.split_whitespace() {
            let outcome = outcome(bound, value);
            assert!(outcome.as_ref().is_err_and(Error::is_invalid_argument), "{bound} {value}: {outcome:?}");
        }
        for value in accepted.split_whitespace() {
            assert_eq!(outcome(bound, value), Ok(()), "{bound} {value}");
        }
    }
}

#[test]
fn both_parts_of_a_complex_slope_are_one_number() {
    for slope in [c64::new(0.1, 0.2), c64::new(0.1, 0.0), c64::new(0.1, f64::NAN)] {
        let outcome = recurrence(4, Activation::LeakyRelu(slope), None);
        assert!(outcome.is_err_and(|error| error.to_string().starts_with("negative_slope: ")));
    }
}
