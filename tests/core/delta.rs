//! The delta rule: against its steps one after the other, on every instruction set, for any number of threads.

use crate::common::apart::shorten;
use crate::common::delta::{Found, Given};
use crate::common::{Random, assert_rounded, number_of_threads, refusal_of, with_each_instruction_set};
use householder::delta::{
    self, Cotangents, Gate, Gradients, Operands, Problem, Results, Sizes, backward, forward, interval,
};
use householder::exponential::Exponential;
use householder::stored::{Numbers, NumbersMut, Tokens};
use householder::threads::Context;

const LENGTHS: [usize; 8] = [0, 1, 4, 5, 16, 17, 33, 70];

fn sizes(heads: usize, group: usize, key_width: usize, value_width: usize, reflections: usize) -> Sizes {
    Sizes { heads, value_heads: heads * group, key_width, value_width, reflections }
}

fn given<T: Exponential>(sizes: Sizes, lengths: &[usize], channels: usize) -> Given<T> {
    let mut random = Random((sizes.key_width * 31 + sizes.value_width * 7 + lengths.iter().sum::<usize>()) as u64);
    Given::random(|| random.real(), sizes, lengths, channels, 1.0)
}

/// No gate, one a head, one a channel.
fn gates(key_width: usize) -> [usize; 3] {
    [0, 1, key_width]
}

/// Compares all results and gradients, relative to the largest gradient, or result.
fn agree<T: Exponential>(given: &Given<T>, tolerance: f64) {
    let exact = given.exact();
    let largest = exact.arrays().iter().flat_map(|(_, array)| array.iter()).fold(1.0, |m: f64, x| m.max(x.abs()));
    with_each_instruction_set(|context| {
        for keep in [false, true] {
            let found = given.compute(context, keep);
            for ((name, got), (_, want)) in found.arrays().into_iter().zip(exact.arrays()) {
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    let error = (got.to_f64() - want).abs() / largest;
                    assert!(error < tolerance, "{name}[{i}]: {} for {want}, {:?}", got.to_f64(), given.sizes);
                }
            }
        }
    });
}

#[test]
fn every_length_width_and_gate() {
    for (key_width, value_width) in [(1, 3), (7, 1), (16, 17), (33, 65)] {
        for channels in gates(key_width) {
            for tokens in LENGTHS {
                let sizes = sizes(1, 1, key_width, value_width, 1);
                agree(&given::<f64>(sizes, &[tokens], channels), 1e-13);
                agree(&given::<f64>(sizes, &[tokens], channels).without_erasing(), 1e-14);
                agree(&given::<f64>(sizes, &[tokens], channels).with_skip(), 1e-14);
                agree(&given::<f32>(sizes, &[tokens], channels), 2e-5);
                agree(&given::<f32>(sizes, &[tokens], channels).without_erasing(), 2e-5);
                agree(&given::<f32>(sizes, &[tokens], channels).with_skip(), 2e-5);
            }
        }
    }
}

#[test]
fn packed_sequences_of_several_heads_and_reflections() {
    for reflections in 1..4 {
        for channels in gates(9) {
            for normalize in [false, true] {
                let given = given::<f64>(sizes(2, 2, 9, 12, reflections), &[3, 0, 40, 1, 66], channels);
                agree(&Given { normalize, ..given.clone() }, 1e-12);
                agree(&Given { normalize, ..given.clone() }.without_erasing(), 1e-14);
                agree(&Given { normalize, initial: None, grad_last: None, ..given.clone() }, 1e-12);
                if reflections == 1 {
                    agree(&Given { normalize, ..given }.with_skip(), 1e-14);
                }
            }
        }
    }
}

#[test]
fn strong_gates_lose_no_accuracy() {
    for channels in gates(8) {
        let mut random = Random(1);
        let mut given = Given::<f64>::random(|| random.real(), sizes(1, 2, 8, 8, 1), &[100], channels, 80.0);
        given.gate.iter_mut().skip(5).step_by(11).for_each(|g| *g = f64::NEG_INFINITY);
        agree(&given, 1e-13);
        agree(&given.without_erasing(), 1e-14);
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let set_num_threads = number_of_threads();
    let all = gates(64).map(|channels| given::<f32>(sizes(2, 2, 64, 150, 1), &[130, 70], channels));
    for given in all.into_iter().flat_map(|given| [given.clone().with_skip(), given]) {
        let mut results: Vec<Vec<u32>> = Vec::new();
        for threads in [1, 2, 7] {
            set_num_threads(threads);
            let found = given.compute(&mut Context::default(), true);
            results.push(found.arrays().iter().flat_map(|(_, array)| array.iter().map(|x| x.to_bits())).collect());
        }
        assert!(results.iter().all(|other| other == &results[0]));
    }
}

/// Where an array has numbers of tokens, how many of each token.
struct Axis {
    name: &'static str,
    each: usize,
}

/// Whether arrays of tokens agree before token `t`, or from it on, for each operand that `names` has.
fn same<T: Exponential>(a: &Found<T>, b: &Found<T>, axes: &[Axis], names: &[&str], t: usize, before: bool) {
    for ((name, a), (_, b)) in a.arrays().into_iter().zip(b.arrays()) {
        let Some(axis) = axes.iter().find(|axis| axis.name == name && names.contains(&name)) else { continue };
        let range = if before { 0..t * axis.each } else { t * axis.each..a.len() };
        assert!(a[range.clone()] == b[range], "{name}, token {t}, before: {before}");
    }
}

#[test]
fn what_is_not_finite_reaches_only_what_depends_on_it() {
    const TOKENS: usize = 70;
    for (reflections, normalize, erases) in [(1, false, true), (2, true, true), (1, false, false), (2, true, false)] {
        for channels in gates(16) {
            let sizes = sizes(1, 2, 16, 40, reflections);
            let good = Given { normalize, ..given::<f32>(sizes, &[TOKENS], channels) };
            let good = if erases { good } else { good.without_erasing() };
            let each = |array: &[f32]| array.len() / TOKENS;
            let axes = [
                Axis { name: "out", each: 2 * 40 },
                Axis { name: "grad_q", each: each(&good.q) },
                Axis { name: "grad_k", each: each(&good.k) },
                Axis { name: "grad_v", each: each(&good.v) },
                Axis { name: "grad_beta", each: each(&good.beta) },
                Axis { name: "grad_g", each: each(&good.gate) },
            ];
            let all = ["grad_q", "grad_k", "grad_v", "grad_beta", "grad_g"];
            with_each_instruction_set(|context| {
                let expected = good.compute(context, true);
                for t in [0, 1, 3, 15, 20, 31, 32, 40, TOKENS - 1] {
                    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38] {
                        // An operand of token t: outputs before it, and what is computed from states before it alone or from
                        // gradients that come from later tokens alone.
                        let at = |array: &mut Vec<f32>| {
                            let i = t * (array.len() / TOKENS) + 1;
                            array[i] = bad;
                        };
                        let mut of_q = good.clone();
                        at(&mut of_q.q);
                        let found = of_q.compute(context, true);
                        same(&found, &expected, &axes, &["out", "grad_q"], t, true);
                        same(&found, &expected, &axes, &["out", "grad_q"], t + 1, false);
                        same(&found, &expected, &axes, &all, t + 1, false);
                        assert!(found.last == expected.last);
                        let mut of_k = good.clone();
                        at(&mut of_k.k);
                        let found = of_k.compute(context, true);
                        same(&found, &expected, &axes, &["out", "grad_q"], t, true);
                        same(&found, &expected, &axes, &["grad_v"], t + 1, false);
                        let mut of_v = good.clone();
                        at(&mut of_v.v);
                        let found = of_v.compute(context, true);
                        same(&found, &expected, &axes, &["out", "grad_q", "grad_k", "grad_beta", "grad_g"], t, true);
                        assert!(found.v == expected.v && found.initial == expected.initial);
                        if erases {
                            let mut of_beta = good.clone();
                            at(&mut of_beta.beta);
                            let found = of_beta.compute(context, true);
                            same(&found, &expected, &axes, &["out", "grad_q"], t, true);
                            same(&found, &expected, &axes, &["grad_v"], t + 1, false);
                        }
                        let mut of_gradient = good.clone();
                        at(of_gradient.grad_out.as_mut().unwrap());
                        let found = of_gradient.compute(context, true);
                        same(&found, &expected, &axes, &["grad_q"], t, true);
                        same(&found, &expected, &axes, &all, t + 1, false);
                    }
                    if channels > 0 {
                        let mut of_gate = good.clone();
                        let i = t * (of_gate.gate.len() / TOKENS);
                        of_gate.gate[i] = f32::NAN;
                        let found = of_gate.compute(context, true);
                        same(&found, &expected, &axes, &["out", "grad_q"], t, true);
                        same(&found, &expected, &axes, &["grad_v"], t + 1, false);
                    }
                }
            });
        }
    }
}

#[test]
fn a_positive_gate_is_refused() {
    for channels in [1, 4] {
        for tokens in [2, 40] {
            let mut given = given::<f64>(sizes(1, 1, 4, 4, 1), &[tokens], channels);
            given.gate[channels] = 0.25;
            with_each_instruction_set(|context| {
                let text = refusal_of(forward(context, &given.problem(), Results::default()));
                assert!(text.contains("g:") && text.contains("0.25"), "{text}");
            });
        }
    }
}

fn is_refused<X>(result: householder::error::Result<X>, name: &str) {
    let text = refusal_of(result);
    assert!(text.starts_with(name), "{text}, not {name}");
}

#[test]
fn arrays_of_other_lengths_are_refused() {
    let given = given::<f32>(sizes(1, 2, 8, 40, 2), &[70, 3], 1);
    let problem = given.problem();
    let lengths = problem.lengths();
    let mut memory = vec![1.0; 1 << 16];
    let context = &mut Context::default();
    for by in [-1_isize, 1] {
        let other = |len: usize| len.checked_add_signed(by).unwrap();
        let out = Some((&mut memory[..other(lengths.out)]).into());
        is_refused(forward(context, &problem, Results { out, ..Results::default() }), "out");
        let last = Some(&mut memory[..other(lengths.last)]);
        is_refused(forward(context, &problem, Results { last, ..Results::default() }), "last");
        let out = Cotangents { out: Some((&memory[..other(lengths.out)]).into()), last: None };
        is_refused(backward(context, &problem, None, out, Gradients::default()), "grad_out");
        let last = Cotangents { out: None, last: Some(&memory[..other(lengths.last)]) };
        is_refused(backward(context, &problem, None, last, Gradients::default()), "grad_last");
        let nothing = Cotangents { out: None, last: None };
        let mut gradient = |make: &dyn for<'a> Fn(&'a mut [f32]) -> Gradients<'a, f32>, len: usize, name| {
            is_refused(backward(context, &problem, None, nothing, make(&mut memory[..other(len)])), name);
        };
        gradient(&|q| Gradients { q: Some(q), ..Gradients::default() }, given.q.len(), "grad_q");
        gradient(&|k| Gradients { k: Some(k), ..Gradients::default() }, given.k.len(), "grad_k");
        gradient(&|v| Gradients { v: Some(v.into()), ..Gradients::default() }, given.v.len(), "grad_v");
        gradient(&|beta| Gradients { beta: Some(beta), ..Gradients::default() }, given.beta.len(), "grad_beta");
        gradient(&|gate| Gradients { gate: Some(gate), ..Gradients::default() }, given.gate.len(), "grad_g");
        gradient(&|s| Gradients { initial: Some(s), ..Gradients::default() }, lengths.last, "grad_initial_state");
    }
    let short = lengths.saved - 1;
    let saved = Some(&mut memory[..short]);
    is_refused(forward(context, &problem, Results { saved, ..Results::default() }), "saved");
    let nothing = Cotangents { out: None, last: None };
    is_refused(backward(context, &problem, Some(&memory[..short]), nothing, Gradients::default()), "saved");
    assert!(memory.iter().all(|&x| x == 1.0), "a refused call has written");
}

#[test]
fn states_are_updated_in_place() {
    for tokens in [0, 3, 40] {
        for channels in gates(16) {
            let given = given::<f32>(sizes(2, 2, 16, 40, 1), &[tokens; 3], channels);
            let (context, initial) = (&mut Context::default(), given.initial.clone().unwrap());
            let want = given.compute(context, false);
            let (mut out, mut last) = (vec![7.0; want.out.len()], initial);
            let without = Given { initial: None, ..given };
            let results = || Results { in_place: true, ..Results::default() };
            let places = Results { out: Some((&mut out).into()), last: Some(&mut last), ..results() };
            forward(context, &without.problem(), places).unwrap();
            assert!(out == want.out && last == want.last, "{tokens} tokens, {channels} channels");
            is_refused(forward(context, &without.problem(), results()), "last");
        }
    }
}

#[test]
fn states_have_the_same_bits_without_outputs_and_outputs_without_states() {
    for (tokens, reflections) in [(1, 1), (4, 1), (2, 2), (1, 3), (40, 1), (40, 2)] {
        for channels in gates(16) {
            let given = given::<f32>(sizes(2, 2, 16, 40, reflections), &[tokens; 3], channels);
            for given in [given.clone().without_erasing(), given] {
                let (context, problem) = (&mut Context::default(), given.problem());
                let want = given.compute(context, false);
                let (mut out, mut last) = (vec![7.0; want.out.len()], vec![7.0; want.last.len()]);
                let states = Results { last: Some(&mut last), ..Results::default() };
                forward(context, &problem, states).unwrap();
                forward(context, &problem, Results { out: Some((&mut out).into()), ..Results::default() }).unwrap();
                assert!(out == want.out && last == want.last, "{tokens} tokens, {channels} channels");
            }
        }
    }
}

#[test]
fn calls_that_continue_in_place_end_where_one_call_ends() {
    for reflections in [1, 2] {
        for channels in gates(9) {
            let given = given::<f64>(sizes(1, 2, 9, 12, reflections), &[70, 3, 0], channels);
            for given in [given.clone().without_erasing(), Given { initial: None, ..given }] {
                let exact = given.exact();
                with_each_instruction_set(|context| {
                    for most in [1, 4, 16, 33, 70] {
                        let pieces = given.in_pieces(context, |rest| rest.min(most));
                        for (pieces, exact) in pieces.iter().zip([&exact.out, &exact.last]) {
                            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
                            assert!(
                                pieces.len() == exact.len() && pieces.iter().zip(exact).all(close),
                                "{most} tokens"
                            );
                        }
                    }
                });
            }
        }
    }
}

#[test]
fn rows_of_half_types_have_the_bits_of_their_numbers() {
    for (tokens, reflections) in [(3, 1), (70, 1), (20, 2)] {
        let mut given = given::<f32>(sizes(2, 2, 9, 12, reflections), &[tokens, tokens], 1);
        shorten([&mut given.q, &mut given.k, &mut given.v]);
        shorten(&mut given.grad_out);
        let (context, mut random) = (&mut Context::default(), Random(tokens as u64));
        let want = given.compute(context, true);
        for _ in 0..10 {
            let found = given.compute_apart(context, true, |bound| random.below(bound));
            for ((name, got), (_, want)) in found.arrays().into_iter().zip(want.arrays()) {
                assert!(got == want, "{name}, {tokens} tokens");
            }
        }
        let [mut out, mut of_v] = [&want.out, &want.v].map(|like| vec![0; like.len()]);
        let results = Results { out: Some(NumbersMut::BFloat16(&mut out)), ..Results::default() };
        forward(context, &given.problem(), results).unwrap();
        let cotangents =
            Cotangents { out: given.grad_out.as_ref().map(Tokens::from), last: given.grad_last.as_deref() };
        let gradients = Gradients { v: Some(NumbersMut::BFloat16(&mut of_v)), ..Gradients::default() };
        backward(context, &given.problem(), None, cotangents, gradients).unwrap();
        assert_rounded(&out, &want.out);
        assert_rounded(&of_v, &want.v);
    }
}

#[test]
fn rows_of_a_projection_are_read_where_they_are() {
    let sizes = sizes(2, 2, 9, 12, 1);
    for normalize in [false, true] {
        for tokens in [3, 70] {
            let given = Given { normalize, ..given::<f64>(sizes, &[tokens, tokens], 1) };
            let want = given.compute(&mut Context::default(), true);
            // Two sequences of one row a token: queries, keys, values, and a number more.
            let (width, all) = (2 * 2 * 9 + 4 * 12 + 1, 2 * tokens);
            let mut row = vec![f64::NAN; all * width];
            for (token, row) in row.chunks_mut(width).enumerate() {
                for (from, at, each) in [(&given.q, 0, 18), (&given.k, 18, 18), (&given.v, 36, 48)] {
                    row[at..at + each].copy_from_slice(&from[token * each..][..each]);
                }
            }
            let rows = |at: usize, heads: usize, each: usize| {
                let shape = [2, tokens, heads, each];
                Tokens::strided(Numbers::Full(&row[at..]), shape, [tokens * width, width, each]).unwrap()
            };
            let operands = Operands { q: rows(0, 2, 9), k: rows(18, 2, 9), v: rows(36, 4, 12), ..given.operands() };
            let apart = Operands {
                q: Tokens::strided(Numbers::Full(&row), [all, 1, 2, 9], [1, 0, 9]).unwrap(),
                ..operands.clone()
            };
            is_refused(Problem::new(apart), "q: expected the rows of a sequence at one distance");
            let other = Operands { q: rows(0, 4, 9), ..operands.clone() };
            is_refused(Problem::new(other), "q: expected");
            let problem = Problem::new(operands).unwrap();
            let (mut out, mut of_q, mut of_v) =
                (vec![0.0; want.out.len()], vec![0.0; given.q.len()], vec![0.0; given.v.len()]);
            let results = Results { out: Some((&mut out).into()), ..Results::default() };
            forward(&mut Context::default(), &problem, results).unwrap();
            let grad = given.grad_out.as_ref().map(Tokens::from);
            let cotangents = Cotangents { out: grad, last: given.grad_last.as_deref() };
            let gradients = Gradients { q: Some(&mut of_q), v: Some((&mut of_v).into()), ..Gradients::default() };
            backward(&mut Context::default(), &problem, None, cotangents, gradients).unwrap();
            assert!(out == want.out && of_q == want.q && of_v == want.v);
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let given = given::<f32>(sizes(1, 1, 4, 4, 1), &[8], 1);
    let good = given.operands();
    let empty: &[f32] = &[];
    is_refused(Problem::new(Operands { q: empty.into(), ..good.clone() }), "q");
    is_refused(Problem::new(Operands { k: empty.into(), ..good.clone() }), "k");
    is_refused(Problem::new(Operands { v: empty.into(), ..good.clone() }), "v");
    is_refused(Problem::new(Operands { beta: Some(empty), ..good.clone() }), "beta");
    is_refused(Problem::new(Operands { gate: Gate::Channel(&given.gate), ..good.clone() }), "g");
    is_refused(Problem::new(Operands { initial: Some(empty), ..good.clone() }), "initial_state");
    is_refused(Problem::new(Operands { skip: Some(empty), ..good.clone() }), "skip");
    let (two, k, v) = (Sizes { reflections: 2, ..good.sizes }, given.k.repeat(2), given.v.repeat(2));
    let several =
        Operands { sizes: two, k: (&k).into(), v: (&v).into(), beta: None, skip: Some(&[1.0]), ..good.clone() };
    is_refused(Problem::new(several), "skip: expected one step a token");
    let ends: [&[(usize, usize)]; 4] = [&[(1, 8)], &[(0, 4), (5, 8)], &[(0, 9)], &[(0, 4), (4, 2)]];
    for ends in ends {
        let sequences = ends.iter().map(|&(begin, end)| begin..end).collect();
        assert!(Problem::new(Operands { sequences, ..good.clone() }).is_err());
    }
    let large = usize::MAX / 2 + 1;
    for sizes in [
        sizes(0, 1, 4, 4, 1),
        sizes(1, 0, 4, 4, 1),
        sizes(1, 1, 0, 4, 1),
        sizes(1, 1, 4, 0, 1),
        sizes(1, 1, 4, 4, 0),
        Sizes { value_heads: 3, heads: 2, ..sizes(1, 1, 4, 4, 1) },
        sizes(1, 1, large, 2, 1),
        sizes(1, 1, 2, large, 1),
        sizes(1, 1, 4, 4, large),
        sizes(large, 1, 4, 4, 1),
    ] {
        assert!(Problem::new(Operands { sizes, ..good.clone() }).is_err(), "{sizes:?}");
    }
    #[allow(clippy::single_range_in_vec_init)] // one sequence
    let sequences = vec![0..1 << 60];
    assert!(Problem::new(Operands { sizes: sizes(1, 1, 16, 16, 1), sequences, ..good }).is_err());
}

#[test]
fn an_interval_of_no_width_is_refused() {
    for (keys, values) in [(0, 0), (0, 4), (4, 0), (usize::MAX, 2)] {
        assert!(interval(keys, values).is_err());
    }
    assert_eq!(delta::interval(128, 128).unwrap(), 64);
}
