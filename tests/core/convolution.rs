//! The causal convolution: against its sums in double precision, on every instruction set, for any number of threads.

use crate::common::apart::shorten;
use crate::common::convolution::Given;
use crate::common::{Random, assert_rounded, number_of_threads, refusal_of, with_each_instruction_set};
use householder::convolution::{Gradients, Operands, Sizes, advance, backward, forward};
use householder::exponential::Exponential;
use householder::stored::{Numbers, NumbersMut, Tokens};
use householder::threads::Context;

fn random<T: Exponential>([batch, tokens, channels, taps]: [usize; 4], silu: bool) -> Given<T> {
    let mut random = Random((tokens * 31 + channels * 7 + taps) as u64);
    let numbers = |len: usize| random.numbers(len).into_iter().map(|x: T| x + x).collect();
    Given::random(numbers, Sizes { batch, tokens, channels, taps }, silu)
}

fn agree<T: Exponential>(given: &Given<T>, tolerance: f64) {
    let exact = given.exact();
    with_each_instruction_set(|context| {
        for (got, want) in given.compute(context).iter().zip(&exact) {
            let largest = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
            for (got, want) in got.iter().zip(want) {
                let error = (got.to_f64() - want).abs() / largest;
                assert!(error < tolerance, "{} for {want}, {:?}", got.to_f64(), given.sizes);
            }
        }
    });
}

#[test]
fn every_length_width_and_number_of_taps() {
    for taps in 1..7 {
        for tokens in [0, 1, 2, 4, 5, 63, 65] {
            for channels in [1, 7, 16, 33] {
                for silu in [false, true] {
                    agree(&random::<f64>([2, tokens, channels, taps], silu), 1e-14);
                    agree(&random::<f32>([2, tokens, channels, taps], silu), 3e-6);
                }
            }
        }
    }
}

#[test]
fn blocks_of_channels_and_slices_of_tokens() {
    for channels in [511, 512, 513, 1030] {
        agree(&random::<f64>([1, 6, channels, 4], true), 1e-14);
    }
    for tokens in [511, 512, 513, 1026] {
        agree(&random::<f64>([2, tokens, 3, 4], true), 1e-14);
        agree(&random::<f32>([2, tokens, 3, 5], true), 3e-6);
    }
    agree(&random::<f64>([0, 4, 3, 4], true), 1e-14);
}

#[test]
fn threads_do_not_change_a_bit() {
    let set_num_threads = number_of_threads();
    let given = random::<f32>([3, 700, 1100, 4], true);
    let results = [1, 2, 7].map(|threads| {
        set_num_threads(threads);
        let context = &mut Context::default();
        let results = [&given.compute(context)[..], &[given.continued(context, |rest| rest.min(600))]].concat();
        results.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert!(results.iter().all(|other| other == &results[0]));
}

#[test]
fn rows_may_be_anywhere_and_have_half_types() {
    let mut given = random::<f32>([2, 70, 19, 4], true);
    shorten([&mut given.x, &mut given.grad]);
    let (context, want) = (&mut Context::default(), given.compute(&mut Context::default()));
    let (row, shape) = (19 + 5, [2, 70, 1, 19]);
    let spread = |numbers: &[f32]| -> Vec<u16> {
        let rows = numbers.chunks(19).map(|row| row.iter().map(|x| (x.to_bits() >> 16) as u16));
        rows.flat_map(|row| row.chain([0x7fc0; 5])).collect() // NaN between the rows
    };
    let (x, grad) = (spread(&given.x), spread(&given.grad));
    let tokens = |bits| Tokens::strided(Numbers::BFloat16(bits), shape, [70 * row, row, 0]).unwrap();
    let mut halves = [vec![0; given.x.len()], vec![0; given.x.len()]];
    let [_, _, mut of_weight, mut of_bias] = given.unset();
    let [y, of_x] = &mut halves;
    let operands = given.operands(tokens(&x));
    forward(context, operands, NumbersMut::BFloat16(y)).unwrap();
    let gradients =
        Gradients { x: Some(NumbersMut::BFloat16(of_x)), weight: Some(&mut of_weight), bias: Some(&mut of_bias) };
    backward(context, operands, tokens(&grad), gradients).unwrap();
    assert_eq!([of_weight, of_bias], [want[2].clone(), want[3].clone()]);
    halves.iter().zip(&want).for_each(|(got, want)| assert_rounded(got, want));
}

#[test]
fn calls_that_continue_have_the_outputs_of_one() {
    for sizes in [[2, 9, 7, 4], [1, 40, 520, 3], [3, 5, 4, 1], [1, 600, 3, 4], [2, 6, 5, 8]] {
        let given = random::<f32>(sizes, true);
        with_each_instruction_set(|context| {
            let [whole, ..] = given.compute(context);
            for most in [1, 2, 5, sizes[1]] {
                assert_eq!(given.continued(context, |rest| rest.min(most)), whole, "{most} tokens a call of {sizes:?}");
            }
        });
    }
}

#[test]
fn no_token_leaves_the_state() {
    let given = random::<f32>([2, 0, 5, 4], true);
    let (before, mut state) = ([3.0; 2 * 3 * 5], [3.0; 2 * 3 * 5]);
    advance(&mut Context::default(), given.operands((&[]).into()), &mut state, (&mut []).into()).unwrap();
    assert_eq!(state, before);
}

#[test]
fn what_is_not_finite_reaches_the_taps_alone() {
    let mut given = random::<f32>([1, 40, 5, 4], true);
    let good = given.compute(&mut Context::default());
    given.x[20 * 5 + 2] = f32::NAN;
    let [y, of_x, ..] = given.compute(&mut Context::default());
    for i in 0..y.len() {
        let (token, reached) = (i / 5, i % 5 == 2);
        assert_eq!(y[i].to_bits() == good[0][i].to_bits(), !(reached && (20..24).contains(&token)), "{i}");
        assert_eq!(of_x[i].to_bits() == good[1][i].to_bits(), !(reached && (17..24).contains(&token)), "{i}");
    }
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let given = random::<f32>([2, 3, 4, 2], true);
    let (good, context) = (given.operands((&given.x).into()), &mut Context::default());
    let mut out = [1.0; 24];
    let mut refused = |operands: Operands<'_, f32>, len: usize, name: &str| {
        let refusal = forward(context, operands, (&mut out[..len]).into());
        assert!(refusal_of(refusal).starts_with(name), "{name}");
    };
    let short = &given.x[1..];
    refused(Operands { x: short.into(), ..good }, 24, "x");
    refused(Operands { weight: &given.weight[1..], ..good }, 24, "weight");
    refused(Operands { bias: Some(short), ..good }, 24, "bias");
    refused(good, 23, "out");
    let large = usize::MAX / 2;
    for sizes in
        [Sizes { channels: 0, ..good.sizes }, Sizes { taps: 0, ..good.sizes }, Sizes { batch: large, ..good.sizes }]
    {
        refused(Operands { sizes, ..good }, 24, "sizes");
    }
    for (gradients, name) in [
        (Gradients { x: Some((&mut [0.0; 23]).into()), weight: None, bias: None }, "grad_x"),
        (Gradients { x: None, weight: Some(&mut [0.0; 9]), bias: None }, "grad_weight"),
        (Gradients { x: None, weight: None, bias: Some(&mut [0.0; 3]) }, "grad_bias"),
    ] {
        let refusal = backward(context, good, (&given.grad).into(), gradients);
        assert!(refusal_of(refusal).starts_with(name), "{name}");
    }
    let refusal = advance(context, good, &mut [0.0; 7], (&mut [0.0; 24]).into());
    assert!(refusal_of(refusal).starts_with("state"));
    let refusal = backward(context, good, short.into(), Gradients { x: None, weight: None, bias: None });
    assert!(refusal_of(refusal).starts_with("grad_out"));
    assert!(out.iter().all(|&x| x == 1.0), "a refused call has written");
}
