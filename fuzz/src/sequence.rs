//! Whole sequences: each state from the one before, for every activation and method; the gradients of U, x, V, b and h_0
//! from the states, for pointwise activations.

use householder::apply::Diagonal;
use householder::kernel::activation::Activation;
use householder::plan::Method;
use householder::recurrence::{self, Sequence, SequenceGradients, Series, Steps};
use householder::reflections::Reflections;
use householder::scalar::{Real, Scalar, c64};

use crate::oracle::{Gradients, Oracle, compare, epsilon, norm, reflecting_norm, to_c64};
use crate::source::{Source, Wildness};

/// One problem.
pub fn check<T: Scalar>(source: &mut Source) {
    let (n, m, d) = (source.size().max(1), source.size(), source.size().max(1));
    let (method, adjoint, wildness) = (source.method(), source.one_in(2), source.wildness());
    let entries = source.reflections::<T>(n, m, wildness);
    let Ok(u) = Reflections::new(n, m, &entries) else {
        assert!(m == 0 || m > n || (T::COMPLEX && m == n), "{n} x {m} is refused");
        return;
    };
    let mut sizes: Vec<i64> = (0..source.below(7)).map(|_| 1 + source.below(9) as i64).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let steps = Steps::ragged(&sizes).expect("decreasing sizes");
    let (rows, batch) = (steps.rows(), steps.batch());
    let phases = (T::COMPLEX && source.one_in(2)).then(|| source.numbers::<T::Real>(n, wildness));
    // modReLU jumps at zero where its bias is positive: no oracle would agree there.
    let pairs = if T::COMPLEX { n } else { n / 2 };
    let minus = |b: T::Real| if wildness == Wildness::Anything { b } else { -b.abs() };
    let modrelu_bias: Vec<_> = source.numbers::<T::Real>(pairs, wildness).into_iter().map(minus).collect();
    let activation = match source.below(6) {
        0 => Activation::Identity,
        1 => Activation::Relu,
        2 => Activation::LeakyRelu(T::from_parts(T::Real::of(0.1), T::Real::of(0.1))),
        3 => Activation::Tanh,
        4 if n % 2 == 0 && !T::COMPLEX => Activation::Oplu,
        5 if n % 2 == 0 || T::COMPLEX => Activation::ModRelu(&modrelu_bias),
        _ => Activation::Identity,
    };
    let input_weight = source.one_in(2).then(|| source.numbers::<T>(n * d, wildness));
    let d = if input_weight.is_some() { d } else { n };
    let bias = source.one_in(2).then(|| source.numbers::<T>(n, wildness));
    let h0 = source.one_in(2).then(|| source.numbers::<T>(batch * n, wildness));
    let x = source.numbers::<T>(rows * d, wildness);
    let grad_h = source.numbers::<T>(rows * n, wildness);
    let grad_last = source.one_in(2).then(|| source.numbers::<T>(batch * n, wildness));
    let sequence = Sequence {
        u,
        diagonal: Diagonal::new(u, phases.as_deref()).expect("phases of the right length"),
        adjoint,
        activation,
        method,
        steps,
        d,
        x: Series::new(&x),
        input_weight: input_weight.as_deref(),
        bias: bias.as_deref(),
        h0: h0.as_deref(),
    };
    let Ok(width) = sequence.tape_width() else {
        assert_eq!(method, Some(Method::Reflections));
        return;
    };

    let mut h = vec![T::ONE; rows * n];
    let mut tape = (activation == Activation::Oplu || source.one_in(2)).then(|| vec![T::ONE; rows * width]);
    let mut grad = [n * m, rows * d, batch * n, n * d, n].map(|len| vec![T::ONE; len]);
    let mut grad_phases = phases.as_ref().map(|phases| vec![T::Real::ONE; phases.len()]);
    let mut grad_pairs = vec![T::Real::ONE; pairs];
    source.call(|context| {
        recurrence::forward(context, &sequence, &mut h, tape.as_deref_mut()).expect("forward");
        let [u, x, h0, weight, bias] = &mut grad;
        let gradients = SequenceGradients {
            u: Some(u),
            x: Some(x),
            h0: Some(h0),
            input_weight: sequence.input_weight.is_some().then_some(weight),
            bias: Some(bias),
            phases: grad_phases.as_deref_mut(),
            activation_bias: matches!(activation, Activation::ModRelu(_)).then_some(&mut grad_pairs),
        };
        recurrence::backward(
            context,
            &sequence,
            None,
            &h,
            tape.as_deref(),
            Some(Series::new(&grad_h)),
            grad_last.as_deref(),
            gradients,
        )
        .expect("backward");
    });
    if wildness == Wildness::Anything {
        return;
    }

    let oracle = Oracle::new(n, m, &entries, phases.as_deref());
    let wide = |x: &[T]| x.iter().map(|&x| to_c64(x)).collect::<Vec<_>>();
    let (wide_x, wide_h) = (wide(&x), wide(&h));
    let weight = sequence.input_weight.map(wide);
    let previous = previous_states(n, &sizes, &h0.as_deref().map_or(vec![c64::default(); batch * n], wide), &wide_h);
    let mut a = oracle.apply(&previous, adjoint);
    for (row, a) in a.chunks_mut(n).enumerate() {
        let x = &wide_x[row * d..(row + 1) * d];
        for i in 0..n {
            let input = weight.as_ref().map_or(x.get(i).copied(), |v| Some((0..d).map(|j| v[i * d + j] * x[j]).sum()));
            a[i] += input.unwrap_or_default() + bias.as_ref().map_or(c64::default(), |b| to_c64(b[i]));
        }
    }
    let roundings = (m as f64).sqrt() + (d as f64).sqrt() + 2.0;
    let scale = a.iter().map(|a| a.norm()).fold(1.0, f64::max);
    for (h, a) in h.chunks(n).zip(a.chunks(n)) {
        let expected = phi(activation, a, T::COMPLEX);
        for (i, (&h, expected)) in h.iter().zip(expected).enumerate() {
            let error = (to_c64(h) - expected).norm();
            assert!(
                error <= 64.0 * epsilon::<T>() * roundings * scale,
                "state {i}: {h}, expected {expected}: {error:e}"
            );
        }
    }
    if matches!(activation, Activation::Oplu | Activation::ModRelu(_)) {
        return; // their derivatives follow from more than single outputs
    }

    let mut delta = wide(&grad_h);
    let mut before = vec![c64::default(); batch * n];
    let mut end = rows;
    for (t, &size) in sizes.iter().enumerate().rev() {
        let (size, next) = (size as usize, sizes.get(t + 1).map_or(0, |&size| size as usize));
        let begin = end - size;
        for k in 0..size * n {
            let last = grad_last.as_ref().filter(|_| k >= next * n).map_or(c64::default(), |g| to_c64(g[k]));
            delta[begin * n + k] =
                derivative(activation, wide_h[begin * n + k], delta[begin * n + k] + before[k] + last);
        }
        before[..size * n].copy_from_slice(&oracle.apply(&delta[begin * n..end * n], !adjoint));
        end = begin;
    }
    let long = roundings * (sizes.len() as f64 + 1.0);
    compare("grad_h0", &grad[2], &before, &delta, 8.0 * long);
    let sums: Vec<c64> = (0..n).map(|i| delta.chunks(n).map(|delta| delta[i]).sum()).collect();
    let allowed = 64.0 * epsilon::<T>() * long * norm(&delta) * (rows as f64).sqrt();
    for (got, want) in grad[4].iter().zip(&sums) {
        assert!(
            (to_c64(*got) - want).norm() <= allowed + 1e3 * T::Real::MIN_POSITIVE.to_f64(),
            "grad_bias: {got}, expected {want}"
        );
    }
    // Gradients of such sizes may overflow.
    let overflows = |size: f64| size > 1e-6 / T::Real::MIN_POSITIVE.to_f64();
    let input = weight.as_ref().map_or(1.0, |v| norm(v)) * norm(&delta);
    if !overflows(input) {
        let back = |delta: &[c64], j: usize| match &weight {
            Some(v) => delta.iter().zip(v.iter().skip(j).step_by(d)).map(|(delta, v)| v.conj() * delta).sum(),
            None => delta[j],
        };
        let want: Vec<c64> =
            delta.chunks(n).flat_map(|delta| (0..d).map(|j| back(delta, j)).collect::<Vec<_>>()).collect();
        compare("grad_x", &grad[1], &want, &[c64::from(input)], long);
    }
    let outer = norm(&delta) * norm(&wide_x);
    if weight.is_some() && !overflows(outer) {
        let entry = |i: usize, j: usize| delta.chunks(n).zip(wide_x.chunks(d)).map(|(g, x)| g[i] * x[j].conj()).sum();
        let want: Vec<c64> = (0..n * d).map(|ij| entry(ij / d, ij % d)).collect();
        compare("grad_input_weight", &grad[3], &want, &[c64::from(outer)], long * (rows as f64).sqrt());
    }
    let Gradients { u: want, .. } = oracle.gradients(&previous, &delta, adjoint);
    for j in 0..m {
        let column = if m == n && j == n - 1 { 1.0 } else { reflecting_norm(n, m, &entries, j).unwrap_or(1.0) };
        let size = norm(&delta) * norm(&previous).max(1e-9);
        let allowed = 64.0 * epsilon::<T>() * long * size / column;
        if overflows(size / column) {
            continue;
        }
        for k in (j..n).map(|i| i * m + j) {
            let error = (to_c64(grad[0][k]) - want[k]).norm();
            assert!(
                error <= allowed + T::Real::MIN_POSITIVE.to_f64(),
                "grad_u[{k}]: differs by {error:e}, allowed {allowed:e}"
            );
        }
    }
}

/// `h_{t-1}` for each row.
fn previous_states(n: usize, sizes: &[i64], h0: &[c64], h: &[c64]) -> Vec<c64> {
    let mut previous = Vec::with_capacity(h.len());
    let mut begin = 0;
    for (t, &size) in sizes.iter().enumerate() {
        let source = if t == 0 { h0 } else { &h[begin * n..] };
        previous.extend_from_slice(&source[..size as usize * n]);
        if t > 0 {
            begin += sizes[t - 1] as usize;
        }
    }
    previous
}

fn on_parts(x: c64, f: impl Fn(f64) -> f64) -> c64 {
    c64::new(f(x.re), f(x.im))
}

fn phi<T: Scalar>(activation: Activation<'_, T>, a: &[c64], complex: bool) -> Vec<c64> {
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
        Activation::ModRelu(bias) => {
            let shrink = |z: c64, b: f64| {
                if z.norm() + b > 0.0 && z.norm() > 0.0 { z * ((z.norm() + b) / z.norm()) } else { c64::default() }
            };
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
    }
}

/// `g phi'(a)` where `h = phi(a)`.
fn derivative<T: Scalar>(activation: Activation<'_, T>, h: c64, g: c64) -> c64 {
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
        _ => 1.0,
    };
    c64::new(g.re * slope(h.re), g.im * slope(h.im))
}
