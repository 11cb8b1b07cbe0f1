//! The delta rule against its steps one after the other. What is not finite changes nothing that does not depend on it.

use householder::delta::{self, Sizes};
use householder::exponential::Exponential;
use householder::threads::Context;

use crate::call::{Results, bits, call};
use crate::common::apart::shorten;
use crate::common::delta::{Found, Given};
use crate::oracle::epsilon;
use crate::source::{Extent, Source, Wildness};

impl<T: Exponential> Results for [Found<T>; 4] {
    fn bits(&self) -> Vec<u64> {
        self.iter().flat_map(|found| bits(found.arrays().map(|(_, array)| Some(array)))).collect()
    }
}

/// One problem.
pub fn check<T: Exponential>(source: &mut Source) {
    let extent = source.extent();
    let given = any::<T>(source, extent);
    let (sequence, token) = any_token(source, &given);
    let later = with_wild_operands(source, &given, token..sequence.end);
    let earlier = with_wild_gradients(source, &given, sequence.start..token);
    let keep = source.one_in(2);
    let layout = source.fork();
    let run = |context: &mut Context<'_>| {
        let mut layout = layout.clone();
        let [found, later, earlier] = [&given, &later, &earlier].map(|given| given.compute(context, keep));
        check_alone(context, &given, &found);
        check_pieces(context, &given, &found, |rest| 1 + layout.below(rest));
        [found, later, earlier, given.compute_apart(context, keep, |bound| layout.below(bound))]
    };
    let [found, of_later, of_earlier, copy] = call(source, extent, run);
    compare(&given, &found);
    for ((name, found), (_, copy)) in found.arrays().into_iter().zip(copy.arrays()) {
        assert!(bits([Some(found)]) == bits([Some(copy)]), "{name}: other bits from rows that lie apart");
    }
    let tokens = given.q.len() / (given.sizes.heads * given.sizes.key_width);
    for other in [0..token, sequence.end..tokens] {
        same(&found, &of_later, &["out", "grad_q"], tokens, other);
    }
    for other in [0..sequence.start, token..tokens] {
        same(&found, &of_earlier, &["grad_q", "grad_k", "grad_v", "grad_beta", "grad_g"], tokens, other);
    }
}

/// Fails if outputs without states have other bits than both together, or if states without outputs differ by more than
/// rounding: then the rows of keys lie elsewhere in tiles, because there are none of queries.
fn check_alone<T: Exponential>(context: &mut Context<'_>, given: &Given<T>, found: &Found<T>) {
    let problem = given.problem();
    let [mut out, mut last] = [&found.out, &found.last].map(|array| vec![T::ONE; array.len()]);
    let outputs = delta::Results { out: Some((&mut out).into()), ..delta::Results::default() };
    delta::forward(context, &problem, outputs).unwrap();
    delta::forward(context, &problem, delta::Results { last: Some(&mut last), ..delta::Results::default() }).unwrap();
    assert!(bits([Some(&out)]) == bits([Some(&found.out)]), "outputs without states: other bits");
    let (apart, allowed) = (largest_difference(&last, &found.last), rounding::<T>(given) * largest(&found.last));
    assert!(apart <= allowed, "states without outputs: apart by {apart:e}, allowed {allowed:e}, {:?}", given.sizes);
}

/// Fails if calls that continue each other in place end elsewhere than one call by more than rounding.
fn check_pieces<T: Exponential>(
    context: &mut Context<'_>,
    given: &Given<T>,
    found: &Found<T>,
    piece: impl FnMut(usize) -> usize,
) {
    let [out, last] = given.in_pieces(context, piece);
    for (name, one, pieces) in [("out", &found.out, out), ("last", &found.last, last)] {
        let (apart, allowed) = (largest_difference(one, &pieces), rounding::<T>(given) * largest(one));
        assert!(apart <= allowed, "{name} of pieces: apart by {apart:e}, allowed {allowed:e}, {:?}", given.sizes);
    }
}

/// The largest size of a number, at least one.
fn largest<T: Exponential>(numbers: &[T]) -> f64 {
    numbers.iter().fold(1.0, |largest: f64, x| largest.max(x.to_f64().abs()))
}

/// NaN if any difference is.
fn largest_difference<T: Exponential>(a: &[T], b: &[T]) -> f64 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a.to_f64() - b.to_f64()).abs());
    differences.fold(0.0, |most: f64, x| if x <= most { most } else { x })
}

/// What rounding may change of numbers of size one.
fn rounding<T: Exponential>(given: &Given<T>) -> f64 {
    let steps = given.k.len() / (given.sizes.heads * given.sizes.key_width);
    64.0 * epsilon::<T>() * ((steps + given.sizes.key_width) as f64).sqrt()
}

/// Sizes around the edges of registers, blocks and chunks; now and then work for several threads.
fn any<T: Exponential>(source: &mut Source, extent: Extent) -> Given<T> {
    const LENGTHS: [usize; 12] = [0, 1, 2, 4, 5, 7, 15, 16, 17, 32, 33, 65];
    let heads = 1 + source.below(3);
    let width = |source: &mut Source| match extent {
        Extent::Large => 40 + source.below(100),
        _ => source.size().max(1),
    };
    let sizes = Sizes {
        heads,
        value_heads: heads * (1 + source.below(3)),
        key_width: width(source),
        value_width: width(source),
        reflections: 1 + source.below(3),
    };
    let lengths: Vec<usize> = (0..1 + source.below(4)).map(|_| LENGTHS[source.below(LENGTHS.len())]).collect();
    let channels = [0, 1, sizes.key_width][source.below(3)];
    let strength = [1e-6, 1.0, 60.0][source.below(3)];
    let mut given = Given::random(|| source.numbers(1, Wildness::Tame)[0], sizes, &lengths, channels, strength);
    given.normalize = source.one_in(2);
    if source.one_in(2) {
        let Given { q, k, v, grad_out, .. } = &mut given;
        shorten([q, k, v].into_iter().chain(grad_out));
    }
    if source.one_in(3) {
        given.initial = None;
    }
    if source.one_in(6) {
        given.grad_out = None;
    }
    if source.one_in(3) {
        given.grad_last = None;
    }
    match source.below(6) {
        0 | 1 => given.without_erasing(),
        2 if sizes.reflections == 1 => given.with_skip(),
        _ => given,
    }
}

/// A sequence and one of its tokens, or its end.
fn any_token<T>(source: &mut Source, given: &Given<T>) -> (std::ops::Range<usize>, usize) {
    let sequence = given.sequences[source.below(given.sequences.len())].clone();
    let token = sequence.start + source.below(sequence.len() + 1);
    (sequence, token)
}

/// NaN, infinity or a number whose square overflows at a few places of `array`, which has as many numbers for each token.
fn disturb<T: Exponential>(source: &mut Source, array: &mut [T], tokens: &std::ops::Range<usize>, count: usize) {
    let Some(each) = array.len().checked_div(count) else { return };
    let largest = T::MIN_POSITIVE.to_f64().recip();
    for _ in 0..if tokens.is_empty() || each == 0 { 0 } else { 1 + source.below(3) } {
        let at = tokens.start * each + source.below(tokens.len() * each);
        array[at] = T::of([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, largest, -largest][source.below(5)]);
    }
}

fn with_wild_operands<T: Exponential>(
    source: &mut Source,
    given: &Given<T>,
    tokens: std::ops::Range<usize>,
) -> Given<T> {
    let (mut wild, count) = (given.clone(), given.q.len() / (given.sizes.heads * given.sizes.key_width));
    let Given { q, k, v, beta, gate, .. } = &mut wild;
    for array in [q, k, v, beta] {
        if source.one_in(2) {
            disturb(source, array, &tokens, count);
        }
    }
    if source.one_in(4) {
        disturb(source, gate, &tokens, count);
        gate.iter_mut().filter(|g| **g > T::ZERO).for_each(|g| *g = -*g);
    }
    wild
}

fn with_wild_gradients<T: Exponential>(
    source: &mut Source,
    given: &Given<T>,
    tokens: std::ops::Range<usize>,
) -> Given<T> {
    let (mut wild, count) = (given.clone(), given.q.len() / (given.sizes.heads * given.sizes.key_width));
    if let Some(grad) = &mut wild.grad_out {
        disturb(source, grad, &tokens, count);
    }
    wild
}

/// Fails where results differ by more than rounding does, relative to the largest of all. The gradient of a row that is
/// normalised is that of the unit row divided by the row's length, and so is its error: the largest is that of unit rows.
fn compare<T: Exponential>(given: &Given<T>, found: &Found<T>) {
    let exact = given.exact();
    let factors = exact.arrays().map(|(name, array)| factors(given, name, array.len()));
    let unit = exact.arrays().into_iter().zip(&factors).flat_map(|((_, array), factors)| array.iter().zip(factors));
    let largest = unit.fold(1.0, |largest: f64, (x, factor)| largest.max(x.abs() / factor));
    let rounding = rounding::<T>(given) * largest;
    for (((name, got), (_, want)), factors) in found.arrays().into_iter().zip(exact.arrays()).zip(&factors) {
        for (i, ((got, want), factor)) in got.iter().zip(want).zip(factors).enumerate() {
            let (error, allowed) = ((got.to_f64() - want).abs(), rounding * factor);
            assert!(error <= allowed, "{name}[{i}]: differs by {error:e}, allowed {allowed:e}, {:?}", given.sizes);
        }
    }
}

/// What each number of a result is multiplied by at the end: inverse lengths of the rows that are normalised, else one.
fn factors<T: Exponential>(given: &Given<T>, name: &str, len: usize) -> Vec<f64> {
    let rows = match name {
        "grad_q" if given.normalize => &given.q,
        "grad_k" if given.normalize => &given.k,
        _ => return vec![1.0; len],
    };
    let width = given.sizes.key_width;
    let inverse = |row: &[T]| (row.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() + 1e-6).sqrt().recip();
    rows.chunks(width).flat_map(|row| std::iter::repeat_n(inverse(row), width)).collect()
}

/// Fails where arrays of these names differ at these tokens.
fn same<T: Exponential>(a: &Found<T>, b: &Found<T>, names: &[&str], count: usize, tokens: std::ops::Range<usize>) {
    for ((name, a), (_, b)) in a.arrays().into_iter().zip(b.arrays()) {
        let Some(each) = a.len().checked_div(count).filter(|_| names.contains(&name)) else { continue };
        let range = tokens.start * each..tokens.end * each;
        assert!(a[range.clone()] == b[range.clone()], "{name}: tokens {tokens:?} of {count} have changed");
    }
}
