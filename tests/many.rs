//! Many problems in one call: what each gives alone, bit for bit, by every method and with any number of threads.

mod common;

use common::{Random, has_time_for};
use householder::apply;
use householder::diagonal::Diagonal;
use householder::error::Error;
use householder::gradients::Gradients;
use householder::many::{
    Applications, ManyGradients, ManyReflections, ManySequenceGradients, ManySequences, Stack, StackMut, matrices,
    matrices_backward,
};
use householder::method::Method;
use householder::recurrence::{Activation, Sequence, Series, Steps};
use householder::reflections::{Form, Reflections};
use householder::threads::{Context, set_num_threads};

/// Matrices and vectors of each: so few that each has all threads, so many that they share them.
const COUNTS: [usize; 4] = [0, 1, 2, 37];
const SIZES: [(usize, usize, usize); 5] = [(1, 1, 1), (5, 3, 0), (8, 8, 3), (33, 12, 5), (70, 40, 9)];

fn sizes() -> impl Iterator<Item = (usize, usize, usize)> {
    SIZES.into_iter().filter(|size| has_time_for(size.0))
}

fn with_threads(test: impl Fn(&mut Context<'_>)) {
    for threads in [1, 3] {
        set_num_threads(threads).unwrap();
        test(&mut Context::new(&mut || false));
    }
}

#[test]
fn applications_are_those_of_each_problem() {
    with_threads(|context| {
        for (count, (n, m, rows)) in COUNTS.into_iter().flat_map(|count| sizes().map(move |size| (count, size))) {
            let random = &mut Random(7);
            let u = random.numbers::<f64>(count * n * m);
            let (h, g) = (random.numbers::<f64>(count * rows * n), random.numbers::<f64>(count * rows * n));
            let (u_of, h_of, g_of) = (Stack::new(&u, count), Stack::new(&h, count), Stack::new(&g, count));
            for (method, adjoint) in
                [Method::Reflections, Method::Wy, Method::Dense].map(|x| [(x, true), (x, false)]).concat()
            {
                let u_all = ManyReflections::new([count, n, m], Form::Trapezoidal, &u, None).unwrap();
                let all = Applications { u: u_all, phases: None, h: h_of, adjoint, method: Some(method) };
                let mut c = vec![0.0; h.len()];
                let kept = all.forward_and_keep(context, &mut c).unwrap();
                let (mut grad_u, mut grad_h) = (vec![0.0; u.len()], vec![0.0; h.len()]);
                let (of_u, of_h) = (StackMut::new(&mut grad_u, count), StackMut::new(&mut grad_h, count));
                let gradients = ManyGradients { u: Some(of_u), h: Some(of_h), tau: None, phases: None };
                all.backward(context, g_of, gradients, kept.as_ref()).unwrap();
                for i in 0..count {
                    let u = Reflections::new(n, m, u_of.at(i)).unwrap();
                    let diagonal = Diagonal::of(u);
                    let (mut own_c, mut own_u, mut own_h) =
                        (vec![0.0; rows * n], vec![0.0; n * m], vec![0.0; rows * n]);
                    let own = Gradients { u: Some(&mut own_u), h: Some(&mut own_h), tau: None, phases: None };
                    apply::forward(context, u, &diagonal, h_of.at(i), &mut own_c, adjoint, Some(method)).unwrap();
                    apply::backward(context, u, &diagonal, h_of.at(i), g_of.at(i), own, adjoint, Some(method)).unwrap();
                    let found = [Stack::new(&c, count).at(i), Stack::new(&grad_h, count).at(i)];
                    assert_eq!(found, [own_c, own_h], "{count} x ({n}, {m}, {rows}), {method:?}");
                    assert_eq!(Stack::new(&grad_u, count).at(i), own_u, "{count} x ({n}, {m}, {rows}), {method:?}");
                }
            }
        }
    });
}

#[test]
fn matrices_are_those_of_each_problem() {
    with_threads(|context| {
        for (count, (n, m, _)) in COUNTS.into_iter().flat_map(|count| sizes().map(move |size| (count, size))) {
            let random = &mut Random(8);
            let (u, g) = (random.numbers::<f64>(count * n * m), random.numbers::<f64>(count * n * n));
            let of = |count, u| ManyReflections::new([count, n, m], Form::Trapezoidal, u, None).unwrap();
            let run = |context: &mut Context<'_>, count, u, g, keep| {
                let (mut w, mut grad_u) = (vec![0.0; count * n * n], vec![0.0; count * n * m]);
                let kept = matrices(context, of(count, u), None, &mut w, keep).unwrap();
                let out = StackMut::new(&mut grad_u, count);
                matrices_backward(context, of(count, u), Stack::new(g, count), out, kept.as_deref()).unwrap();
                (w, grad_u)
            };
            let (w, grad_u) = run(context, count, &u, &g, true);
            for i in 0..count {
                let alone = run(context, 1, Stack::new(&u, count).at(i), Stack::new(&g, count).at(i), false);
                let found = (Stack::new(&w, count).at(i).to_vec(), Stack::new(&grad_u, count).at(i).to_vec());
                assert_eq!(found, alone, "{count} x ({n}, {m})");
            }
        }
    });
}

#[test]
fn sequences_are_those_of_each_problem() {
    let (n, m, steps, batch) = (12, 5, 7, 3);
    with_threads(|context| {
        for count in COUNTS {
            let random = &mut Random(9);
            let (u, x) = (random.numbers::<f64>(count * n * m), random.numbers::<f64>(count * steps * batch * n));
            let (g, h0) = (random.numbers::<f64>(x.len()), random.numbers::<f64>(count * batch * n));
            let run = |context: &mut Context<'_>, problems: std::ops::Range<usize>, keep| {
                let each = |i: usize| {
                    let u = Reflections::new(n, m, Stack::new(&u, count).at(i)).unwrap();
                    Sequence {
                        u,
                        diagonal: Diagonal::of(u),
                        adjoint: false,
                        activation: Activation::parse("tanh", 0.0, n, None).unwrap(),
                        method: None,
                        steps: Steps::uniform(steps, batch).unwrap(),
                        d: n,
                        x: Series::new(Stack::new(&x, count).at(i)),
                        input_weight: None,
                        bias: None,
                        h0: Some(Stack::new(&h0, count).at(i)),
                    }
                };
                let grads: Vec<_> = problems.clone().map(|i| Some(Series::new(Stack::new(&g, count).at(i)))).collect();
                let number = problems.len();
                let sequences = ManySequences(problems.map(each).collect());
                let mut h = vec![0.0; number * steps * batch * n];
                let mut last = vec![0.0; number * batch * n];
                let [rows, width] = sequences.tape_shape().unwrap();
                let mut tape = vec![0.0; number * rows * width];
                let [of_h, of_last, of_tape] =
                    [&mut h, &mut last, &mut tape].map(|array| StackMut::new(array.as_mut_slice(), number));
                let kept = sequences.forward(context, of_h, Some(of_last), Some(of_tape), keep).unwrap();
                let (mut grad_u, mut grad_x) = (vec![0.0; number * n * m], vec![0.0; h.len()]);
                let gradients = ManySequenceGradients {
                    u: Some(StackMut::new(&mut grad_u, number)),
                    x: Some(StackMut::new(&mut grad_x, number)),
                    h0: None,
                    input_weight: None,
                    bias: None,
                    tau: None,
                    phases: None,
                    activation_bias: None,
                };
                let states = (Stack::new(&h, number), Some(Stack::new(&tape, number)));
                sequences.backward(context, states, &grads, None, &gradients, kept.as_deref()).unwrap();
                [h, last, grad_u, grad_x]
            };
            let all = run(context, 0..count, true);
            for i in 0..count {
                let own = all.each_ref().map(|array| Stack::new(array, count).at(i).to_vec());
                assert_eq!(own, run(context, i..i + 1, false));
            }
        }
    });
}

#[test]
fn results_for_fewer_problems_are_refused() {
    let (u, h, mut c) = ([1.0; 18], [1.0; 9], [0.0; 6]);
    let u = ManyReflections::new([3, 3, 2], Form::Trapezoidal, &u, None).unwrap();
    let all = Applications { u, phases: None, h: Stack::new(&h, 3), adjoint: false, method: None };
    set_num_threads(1).unwrap();
    let outcome = all.forward(&mut Context::new(&mut || false), StackMut::new(&mut c, 2));
    assert!(matches!(outcome, Err(Error::InvalidArgument(_))));
}
