//! Stores values under keys by the delta rule, replaces one, and reads all of them back.
//!
//! ```sh
//! cargo run --release --example delta_rule
//! ```

#![allow(clippy::print_stdout)] // an example shows what it does

use householder::delta::{self, Cotangents, Gradients, Operands, Problem, Results, Sizes};
use householder::{Context, Error};

const KEYS: usize = 8;
const WIDTH: usize = 4;

/// The key of that number.
fn key(i: usize) -> [f64; KEYS] {
    std::array::from_fn(|j| if i == j { 1.0 } else { 0.0 })
}

fn main() -> Result<(), Error> {
    let context = &mut Context::default();
    // Eight tokens write under a key each, one writes under the first key again, and one reads what stands there.
    let written: Vec<usize> = (0..KEYS).chain([0, 1]).collect();
    let k: Vec<f64> = written.iter().flat_map(|&i| key(i)).collect();
    let q: Vec<f64> = written.iter().flat_map(|_| key(0)).collect();
    let v: Vec<f64> = (0..written.len()).flat_map(|token| [(token + 1) as f64; WIDTH]).collect();
    let mut beta = vec![1.0; written.len()];
    *beta.last_mut().expect("ten tokens") = 0.0; // it writes nothing

    let operands = Operands { scale: 1.0, ..Operands::new(Sizes::new(1, KEYS, WIDTH), &q, &k, &v, &beta) };
    let problem = Problem::new(operands)?;
    let lengths = problem.lengths();
    let (mut out, mut last, mut saved) = (vec![0.0; lengths.out], vec![0.0; lengths.last], vec![0.0; lengths.saved]);
    let results =
        Results { out: Some((&mut out).into()), last: Some(&mut last), saved: Some(&mut saved), ..Results::default() };
    delta::forward(context, &problem, results)?;
    for (token, read) in out.chunks(WIDTH).enumerate() {
        println!("token {token} reads {read:?} under the first key");
    }
    assert!(out.chunks(WIDTH).last().is_some_and(|read| read == [9.0; WIDTH]));

    // The last output depends on the ninth value alone, which replaced the first.
    let (mut grad_out, mut grad_v) = (vec![0.0; out.len()], vec![0.0; v.len()]);
    grad_out[out.len() - WIDTH..].fill(1.0);
    let cotangents = Cotangents { out: Some((&grad_out).into()), last: None };
    delta::backward(
        context,
        &problem,
        Some(&saved),
        cotangents,
        Gradients { v: Some((&mut grad_v).into()), ..Gradients::default() },
    )?;
    let depends: Vec<usize> = (0..written.len()).filter(|token| grad_v[token * WIDTH] != 0.0).collect();
    println!("the last output depends on the values of tokens {depends:?}");
    assert_eq!(depends, [8]);
    Ok(())
}
