//! The convolution and the gated norm against their definitions. Rows that lie apart, rows of 16 bits, and calls that
//! continue each other, have the same bits.

use householder::convolution::Sizes;
use householder::error::{Error, Result};
use householder::exponential::Exponential;
use householder::threads::Context;

use crate::call::{Results, bits, call};
use crate::common::apart::{Apart, shorten};
use crate::common::{convolution, gated_norm};
use crate::oracle::epsilon;
use crate::source::{Extent, Source, Wildness};

/// Results from contiguous rows, and from rows that lie apart, where they are not refused.
type Pair<T> = ([Vec<T>; 4], Result<[Vec<T>; 4]>);

impl<T: Exponential> Results for Pair<T> {
    fn bits(&self) -> Vec<u64> {
        [of(&self.0), self.1.as_ref().map_or(Vec::new(), of)].concat()
    }
}

fn of<T: Exponential>(results: &[Vec<T>; 4]) -> Vec<u64> {
    bits(results.each_ref().map(Some))
}

/// One problem.
pub fn check<T: Exponential>(source: &mut Source) {
    if source.one_in(2) { convolve::<T>(source) } else { normalise::<T>(source) }
}

fn convolve<T: Exponential>(source: &mut Source) {
    let extent = source.extent();
    let (batch, tokens) = (source.below(5), count(source, extent));
    let channels = if extent == Extent::Large { 100 + source.below(1000) } else { source.size().max(1) };
    let sizes = Sizes { batch, tokens, channels, taps: 1 + source.below(6) };
    let silu = source.one_in(2);
    let mut given = convolution::Given::<T>::random(|len| source.numbers(len, Wildness::Tame), sizes, silu);
    if source.one_in(2) {
        shorten([&mut given.x, &mut given.grad]);
    }
    let shape = |source: &mut Source| {
        let [batch, tokens] = axes(source, batch * tokens, tokens);
        [batch, tokens, 1, channels]
    };
    let [of_x, of_grad] = [shape(source), shape(source)];
    let x = Apart::any(|bound| source.below(bound), &given.x, of_x);
    let grad = Apart::any(|bound| source.below(bound), &given.grad, of_grad);
    let pieces = source.fork();
    let run = |context: &mut Context<'_>| -> Pair<T> {
        let (found, mut pieces) = (given.compute(context), pieces.clone());
        let continued = given.continued(context, |rest| 1 + pieces.below(rest));
        assert!(bits([Some(&continued)]) == bits([Some(&found[0])]), "{sizes:?}: other bits of calls that continue");
        (found, given.compute_from(context, [x.tokens(), grad.tokens()]))
    };
    let (found, copy) = call(source, extent, run);
    compare(&found, &given.exact());
    match copy {
        Ok(copy) => assert!(of(&copy) == of(&found), "{of_x:?} and {of_grad:?} for {sizes:?}: other bits"),
        Err(Error::Uneven { .. }) if [of_x, of_grad].iter().any(|shape| shape[1] % tokens != 0) => {}
        Err(error) => panic!("{of_x:?} and {of_grad:?} for {sizes:?}: {error}"),
    }
}

fn normalise<T: Exponential>(source: &mut Source) {
    let extent = source.extent();
    let (rows, width) = (source.below(4) * count(source, extent), source.size().max(1));
    let silu = source.one_in(2);
    let mut given = gated_norm::Given::<T>::random(|len| source.numbers(len, Wildness::Tame), rows, width, silu);
    if source.one_in(2) {
        shorten([&mut given.x, &mut given.z, &mut given.grad]);
    }
    let mut apart = |rows: &[T]| {
        let [batch, tokens] = axes(source, rows.len() / width, 1);
        Apart::any(|bound| source.below(bound), rows, [batch, tokens, 1, width])
    };
    let [x, z, grad] = [&given.x, &given.z, &given.grad].map(|rows| apart(rows));
    let run = |context: &mut Context<'_>| -> Pair<T> {
        (given.compute(context), given.compute_from(context, [&x, &z, &grad].map(Apart::tokens)))
    };
    let (found, copy) = call(source, extent, run);
    compare(&found, &given.exact());
    assert!(of(&copy.expect("rows at any distances")) == of(&found), "other bits from rows that lie apart");
}

fn count(source: &mut Source, extent: Extent) -> usize {
    match extent {
        Extent::Small => source.size(),
        Extent::Many => 500 + source.below(600),
        Extent::Large => 1000 + source.below(1000),
    }
}

/// A batch of sequences that has so many rows, often of sequences of `usual` rows.
fn axes(source: &mut Source, rows: usize, usual: usize) -> [usize; 2] {
    let tokens = if source.one_in(2) { usual } else { 1 + source.below(rows.max(1)) };
    match rows.checked_rem(tokens) {
        Some(0) => [rows / tokens, tokens],
        _ => [1, rows],
    }
}

fn compare<T: Exponential>(found: &[Vec<T>; 4], exact: &[Vec<f64>; 4]) {
    for (i, (found, exact)) in found.iter().zip(exact).enumerate() {
        let largest = exact.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        for (found, exact) in found.iter().zip(exact) {
            let error = (found.to_f64() - exact).abs();
            assert!(error <= 1e3 * epsilon::<T>() * largest, "result {i}: {} for {exact}", found.to_f64());
        }
    }
}
