//! Activations and their derivatives, as they are defined.

use householder::number::{Real, c64};
use householder::rnn::Activation;
use householder::scalar::Scalar;

use crate::source::Source;

/// One that `n` numbers can have; modReLU has this bias, or as many of its first numbers as there are pairs.
pub fn any<'a, T: Scalar>(source: &mut Source, n: usize, modrelu_bias: &'a [T::Real]) -> Activation<'a, T> {
    let all = Activation::all(T::from_parts(T::Real::of(0.1), T::Real::of(0.1)), modrelu_bias);
    match all[source.below(all.len())] {
        phi if !phi.acts_on(n) => Activation::Identity,
        phi @ Activation::ModRelu(bias) => Activation::ModRelu(&bias[..phi.moduli(n)]),
        phi => phi,
    }
}

fn on_parts(x: c64, f: impl Fn(f64) -> f64) -> c64 {
    c64::new(f(x.re), f(x.im))
}

/// modReLU of one number.
fn shrink(z: c64, b: f64) -> c64 {
    if z.norm() + b > 0.0 && z.norm() > 0.0 { z * ((z.norm() + b) / z.norm()) } else { c64::default() }
}

/// `phi(a)` of one state; `complex`: numbers are pairs.
pub fn phi<T: Scalar>(activation: Activation<'_, T>, a: &[c64], complex: bool) -> Vec<c64> {
    let half = a.len() / 2;
    let pointwise = |f: &dyn Fn(f64) -> f64| a.iter().map(|&a| on_parts(a, f)).collect();
    match activation {
        Activation::Identity => a.to_vec(),
        Activation::Relu => pointwise(&|x| x.max(0.0)),
        Activation::LeakyRelu(slope) => pointwise(&|x| if x > 0.0 { x } else { slope.re().to_f64() * x }),
        Activation::Tanh => pointwise(&f64::tanh),
        Activation::Oplu => {
            let (first, second) = a.split_at(half);
            let pairs = || first.iter().zip(second);
            pairs()
                .map(|(x, y)| c64::new(x.re.max(y.re), 0.0))
                .chain(pairs().map(|(x, y)| c64::new(x.re.min(y.re), 0.0)))
                .collect()
        }
        Activation::RealModRelu(bias) => a.iter().zip(bias).map(|(&a, b)| shrink(a, b.to_f64())).collect(),
        Activation::ModRelu(bias) => {
            let mut h = a.to_vec();
            for (i, b) in bias.iter().enumerate() {
                if complex {
                    h[i] = shrink(a[i], b.to_f64());
                } else {
                    let z = shrink(c64::new(a[i].re, a[i + half].re), b.to_f64());
                    (h[i], h[i + half]) = (c64::new(z.re, 0.0), c64::new(z.im, 0.0));
                }
            }
            h
        }
        other => unreachable!("{other:?} has no definition here"),
    }
}

/// `g phi'(a)` where `h = phi(a)`, of an activation of single numbers.
pub fn derivative<T: Scalar>(activation: Activation<'_, T>, h: c64, g: c64) -> c64 {
    let slope = |h: f64| match activation {
        Activation::Relu => f64::from(u8::from(h > 0.0)),
        Activation::LeakyRelu(slope) => {
            if h > 0.0 {
                1.0
            } else {
                slope.re().to_f64()
            }
        }
        Activation::Tanh => 1.0 - h * h,
        Activation::RealModRelu(_) => f64::from(u8::from(h != 0.0)),
        Activation::Identity => 1.0,
        other => unreachable!("{other:?} is not of single numbers"),
    };
    c64::new(g.re * slope(h.re), g.im * slope(h.im))
}
