//! The gated norm: against its definition in double precision, on every instruction set, for any number of threads.

use crate::common::apart::{Apart, shorten};
use crate::common::gated_norm::{EPSILON, Given};
use crate::common::{Random, assert_rounded, number_of_threads, refusal_of, with_each_instruction_set};
use householder::error::Error;
use householder::exponential::Exponential;
use householder::gated_norm::{Gradients, Operands, backward, forward};
use householder::stored::{NumbersMut, Tokens};
use householder::threads::Context;

fn random<T: Exponential>(rows: usize, width: usize, silu: bool) -> Given<T> {
    let mut random = Random((rows * 31 + width) as u64);
    Given::random(|len| random.numbers(len), rows, width, silu)
}

#[test]
fn every_number_of_rows_and_every_width() {
    fn agree<T: Exponential>(given: &Given<T>, tolerance: f64) {
        let exact = given.exact();
        with_each_instruction_set(|context| {
            for (got, want) in given.compute(context).iter().zip(&exact) {
                let largest = want.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
                for (got, want) in got.iter().zip(want) {
                    let error = (got.to_f64() - want).abs() / largest;
                    assert!(error < tolerance, "{} for {want}", got.to_f64());
                }
            }
        });
    }
    for rows in [0, 1, 3, 16, 17, 513] {
        for width in [1, 2, 7, 16, 33] {
            for silu in [false, true] {
                agree(&random::<f64>(rows, width, silu), 1e-13);
                agree(&random::<f32>(rows, width, silu), 3e-5);
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let set_num_threads = number_of_threads();
    let given = random::<f32>(1100, 64, true);
    let results = [1, 2, 7].map(|threads| {
        set_num_threads(threads);
        given.compute(&mut Context::default()).concat().into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert!(results.iter().all(|other| other == &results[0]));
}

#[test]
fn rows_of_half_types_have_the_bits_of_their_numbers() {
    let mut given = random::<f32>(70, 19, true);
    shorten([&mut given.x, &mut given.z, &mut given.grad]);
    let (context, mut random) = (&mut Context::default(), Random(1));
    let want = given.compute(context);
    for _ in 0..10 {
        let rows =
            [&given.x, &given.z, &given.grad].map(|x| Apart::any(|bound| random.below(bound), x, [2, 35, 1, 19]));
        let found = given.compute_from(context, rows.each_ref().map(Apart::tokens)).unwrap();
        assert_eq!(found, want);
    }
    let [x, z, grad] = [&given.x, &given.z, &given.grad].map(Tokens::from);
    let operands = Operands { rows: 70, x, z, weight: &given.weight, epsilon: EPSILON as f32, silu: true };
    let mut halves = [(); 3].map(|()| vec![0; given.x.len()]);
    let [y, of_x, of_z] = &mut halves;
    forward(context, operands, NumbersMut::BFloat16(y)).unwrap();
    let gradients =
        Gradients { x: Some(NumbersMut::BFloat16(of_x)), z: Some(NumbersMut::BFloat16(of_z)), weight: None };
    backward(context, operands, grad, gradients).unwrap();
    halves.iter().zip(&want).for_each(|(got, want)| assert_rounded(got, want));
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let given = random::<f64>(6, 4, false);
    let [x, z, grad] = [&given.x, &given.z, &given.grad].map(Tokens::from);
    let short = Tokens::from(&given.x[1..]);
    for (rows, name) in [([short, z, grad], "x"), ([x, short, grad], "z"), ([x, z, short], "grad_out")] {
        let refusal = given.compute_from(&mut Context::default(), rows);
        assert!(refusal_of(refusal).starts_with(name), "{name}");
    }
    let (context, weight) = (&mut Context::default(), &given.weight[..]);
    let operands = Operands { rows: 6, x, z, weight, epsilon: 1.0, silu: false };
    let refusal = |name| move |error| matches!(error, Error::Length { name: of, .. } if of == name);
    assert!(forward(context, operands, (&mut [0.0; 23]).into()).is_err_and(refusal("out")));
    let mut arrays = [vec![0.0; 23], vec![0.0; 3]];
    let [short, short_weight] = &mut arrays;
    let none = || Gradients { x: None, z: None, weight: None };
    for (gradients, name) in [
        (Gradients { x: Some((&mut *short).into()), ..none() }, "grad_x"),
        (Gradients { weight: Some(short_weight), ..none() }, "grad_weight"),
    ] {
        assert!(backward(context, operands, grad, gradients).is_err_and(refusal(name)), "{name}");
    }
    let gradients = Gradients { z: Some((&mut *short).into()), ..none() };
    assert!(backward(context, operands, grad, gradients).is_err_and(refusal("grad_z")));
    let none = Operands { weight: &[], ..operands };
    let refusal = forward(context, none, (&mut [0.0; 0]).into());
    assert!(matches!(refusal, Err(Error::Value { name: "weight", .. })));
    let endless = Operands { rows: usize::MAX / 8, ..operands };
    assert!(matches!(forward(context, endless, (&mut [0.0; 0]).into()), Err(Error::Shape { .. })));
}
