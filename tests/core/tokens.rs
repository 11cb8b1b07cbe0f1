//! Rows of tokens at any distances: every operation that takes them computes the same bits as from contiguous copies.

use crate::common::apart::Apart;
use crate::common::convolution::Given;
use crate::common::{Random, delta, gated_norm, refusal_of};
use householder::convolution;
use householder::delta::{Operands, Problem, Sizes};
use householder::error::Error;
use householder::exponential::Exponential;
use householder::stored::{Numbers, Tokens};
use householder::threads::Context;

fn bits<T: Exponential>(numbers: Vec<T>) -> Vec<u64> {
    numbers.iter().map(|x| x.to_f64().to_bits()).collect()
}

/// All ways to write `rows` as a batch of sequences.
fn batches(rows: usize) -> impl Iterator<Item = [usize; 2]> {
    (1..=rows).filter(move |batch| rows.is_multiple_of(*batch)).map(move |batch| [batch, rows / batch])
}

#[test]
fn of_a_gated_norm() {
    fn check<T: Exponential>(rows: usize, width: usize) {
        let mut random = Random((rows * 100 + width) as u64);
        let given = gated_norm::Given::<T>::random(|len| random.numbers(len), rows, width, true);
        let want = given.compute(&mut Context::default()).map(bits);
        for [batch, tokens] in batches(rows) {
            let shape = [batch, tokens, 1, width];
            let [x, z, grad] =
                [&given.x, &given.z, &given.grad].map(|rows| Apart::any(|bound| random.below(bound), rows, shape));
            let found = given.compute_from(&mut Context::default(), [x.tokens(), z.tokens(), grad.tokens()]);
            assert_eq!(found.unwrap().map(bits), want, "{shape:?}");
        }
    }
    for (rows, width) in [(1, 1), (2, 5), (16, 4), (30, 19), (42, 3), (600, 2)] {
        check::<f32>(rows, width);
        check::<f64>(rows, width);
    }
}

#[test]
fn of_a_convolution() {
    fn check<T: Exponential>([batch, tokens, channels, taps]: [usize; 4]) {
        let mut random = Random((tokens * 100 + channels) as u64);
        let sizes = convolution::Sizes { batch, tokens, channels, taps };
        let given = Given::<T>::random(|len| random.numbers(len), sizes, true);
        let want = given.compute(&mut Context::default()).map(bits);
        for axes in batches(batch * tokens) {
            let shape = [axes[0], axes[1], 1, channels];
            let [x, grad] = [&given.x, &given.grad].map(|rows| Apart::any(|bound| random.below(bound), rows, shape));
            for rows in [[x.tokens(), (&given.grad).into()], [(&given.x).into(), grad.tokens()]] {
                match given.compute_from(&mut Context::default(), rows) {
                    Ok(found) => assert_eq!(found.map(bits), want, "{shape:?} for {sizes:?}"),
                    Err(Error::Uneven { .. }) => assert!(!axes[1].is_multiple_of(tokens), "{shape:?} for {sizes:?}"),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }
    for sizes in [[1, 1, 1, 1], [2, 1, 3, 2], [1, 8, 1, 1], [3, 4, 5, 4], [2, 30, 19, 3], [4, 6, 1, 2]] {
        check::<f32>(sizes);
        check::<f64>(sizes);
    }
}

#[test]
fn of_the_delta_rule() {
    fn check<T: Exponential>(sizes: Sizes, lengths: &[usize]) {
        let mut random = Random(lengths.len() as u64);
        let given = delta::Given::<T>::random(|| random.real(), sizes, lengths, 1, 1.0);
        for keep in [true, false] {
            let want = given.compute(&mut Context::default(), keep);
            for _ in 0..6 {
                let found = given.compute_apart(&mut Context::default(), keep, |bound| random.below(bound));
                for ((name, found), (_, want)) in found.arrays().into_iter().zip(want.arrays()) {
                    assert_eq!(bits(found.clone()), bits(want.clone()), "{name} of {lengths:?}, {sizes:?}");
                }
            }
        }
    }
    let sizes = |heads, group, reflections| Sizes {
        heads,
        value_heads: heads * group,
        key_width: 5,
        value_width: 7,
        reflections,
    };
    for lengths in [&[1][..], &[1, 1, 1], &[4], &[40], &[3, 3], &[33, 33], &[2, 40, 0, 1]] {
        for sizes in [sizes(1, 1, 1), sizes(2, 1, 1), sizes(2, 3, 2)] {
            check::<f32>(sizes, lengths);
            check::<f64>(sizes, lengths);
        }
    }
}

#[test]
fn that_lead_elsewhere_are_refused() {
    let numbers = [1.0_f32; 24];
    for (shape, strides) in [
        ([2, 3, 1, 4], [13, 4, 0]),
        ([2, 3, 1, 4], [usize::MAX, 4, 0]),
        ([2, 3, 1, 4], [usize::MAX / 2 + 1, usize::MAX / 4 + 1, 0]),
        ([1, 1, 1, 25], [0; 3]),
        ([1, 1, 1, usize::MAX], [0; 3]),
        ([1, 1, 25, 1], [0, 0, 1]),
        ([usize::MAX, 1, 1, 1], [1, 0, 0]),
        ([usize::MAX, usize::MAX, 1, 1], [1, 1, 0]),
    ] {
        assert!(Tokens::strided(Numbers::Full(&numbers), shape, strides).is_err(), "{shape:?} {strides:?}");
    }
    // Shapes of no rows, and of rows that are all one, lead nowhere. How many rows a norm reads of them:
    for (shape, strides, readable) in [
        ([0, 3, 1, 4], [usize::MAX; 3], Some(0)),
        ([2, 0, usize::MAX, 4], [usize::MAX; 3], None),
        ([usize::MAX, usize::MAX, usize::MAX, 4], [0; 3], None),
        ([1, 1, 1, 24], [usize::MAX; 3], Some(1)),
    ] {
        let tokens = Tokens::strided(Numbers::Full(&numbers), shape, strides).unwrap();
        let weight = &numbers[..shape[3]];
        for rows in [0, 1, 2, usize::MAX] {
            let operands =
                householder::gated_norm::Operands { rows, x: tokens, z: tokens, weight, epsilon: 1.0, silu: false };
            let mut out = vec![0.0; if rows == 1 { weight.len() } else { 0 }];
            let outcome = householder::gated_norm::forward(&mut Context::default(), operands, (&mut out).into());
            assert_eq!(outcome.is_ok(), Some(rows) == readable, "{shape:?}, {rows} rows");
        }
    }
}

#[test]
fn of_a_sequence_are_at_one_distance() {
    let numbers: Vec<f64> = (0..40).map(f64::from).collect();
    let apart = Tokens::strided(Numbers::Full(&numbers), [2, 4, 1, 1], [20, 1, 0]).unwrap();
    let contiguous = Tokens::from(&numbers[..8]);
    let sizes = convolution::Sizes { batch: 1, tokens: 8, channels: 1, taps: 1 };
    let given = Given::random(|len| vec![1.0; len], sizes, false);
    for rows in [[apart, contiguous], [contiguous, apart]] {
        let refusal = given.compute_from(&mut Context::default(), rows);
        assert!(refusal_of(refusal).contains("at one distance"));
    }
    let row = &numbers[..8];
    let operands = Operands { q: apart, ..Operands::new(Sizes::new(1, 1, 1), row, row, row, row) };
    let refusal = Problem::new(operands).map(drop);
    assert!(refusal_of(refusal).starts_with("q: expected the rows of a sequence"));
}
