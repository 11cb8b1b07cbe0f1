//! Learns a rotation: gradient descent on the reflections of `W`, which stays orthogonal at every step.
//!
//! ```sh
//! cargo run --release --example apply
//! ```

#![allow(clippy::print_stdout)] // an example shows what it does

use householder::apply::{self, Gradients};
use householder::{Context, Error, Operator};

const N: usize = 8;
const M: usize = 6;
const VECTORS: usize = 64;

/// Numbers in [-1, 1), the same in each run.
fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The mean of `|W h - target|^2 / 2`; `W h` becomes its gradient.
fn loss(c: &mut [f64], target: &[f64]) -> f64 {
    let count = VECTORS as f64;
    c.iter_mut().zip(target).for_each(|(c, target)| *c = (*c - target) / count);
    c.iter().map(|x| x * x).sum::<f64>() * count / 2.0
}

fn main() -> Result<(), Error> {
    let context = &mut Context::default();
    let (h, mut target) = (numbers(VECTORS * N, 1), vec![0.0; VECTORS * N]);
    apply::forward(context, &Operator::new([1, N, M], &numbers(N * M, 2))?, &h, &mut target)?;

    let (mut u, mut c, mut grad_u) = (numbers(N * M, 3), vec![0.0; VECTORS * N], vec![0.0; N * M]);
    let mut losses = Vec::new();
    for step in 0..=1000 {
        let w = Operator::new([1, N, M], &u)?;
        let saved = apply::forward_and_save(context, &w, &h, &mut c)?;
        losses.push(loss(&mut c, &target));
        let gradients = Gradients { u: Some(&mut grad_u), ..Gradients::default() };
        apply::backward(context, &w, &h, &c, gradients, saved.as_ref())?;
        u.iter_mut().zip(&grad_u).for_each(|(u, grad)| *u -= 0.5 * grad);
        if step % 200 == 0 {
            println!("step {step}: loss {:.2e}", losses[step]);
        }
    }
    assert!(losses[1000] < 1e-3 * losses[0]);
    Ok(())
}
