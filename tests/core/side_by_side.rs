//! Many small problems in one call, which are solved side by side: what each gives alone in double precision.

use crate::common::{
    Random, error, explicit_of, has_time_for, multiply, number_of_threads, of_all_types, to_c64, tolerance,
    with_each_instruction_set,
};
use householder::apply::{self, Gradients};
use householder::number::{Number, Real, c64};
use householder::operator::{Form, Operator};
use householder::scalar::Scalar;
use householder::threads::Context;

/// Around one and several groups of eight and of sixteen.
const COUNTS: [usize; 9] = [1, 5, 7, 8, 9, 15, 16, 17, 49];

struct Problems<T: Scalar> {
    count: usize,
    n: usize,
    m: usize,
    rows: usize,
    form: Form,
    u: Vec<T>,
    tau: Option<Vec<T>>,
    phases: Option<Vec<T::Real>>,
    h: Vec<T>,
    g: Vec<T>,
}

/// `c`, `dL/dU`, `dL/dh`, `dL/dtau` and `dL/dtheta`.
type Results<T> = (Vec<T>, Vec<T>, Vec<T>, Vec<T>, Vec<<T as Number>::Real>);

impl<T: Scalar> Problems<T> {
    fn new(count: usize, (n, m, rows): (usize, usize, usize), form: Form) -> Self {
        let random = &mut Random((count * 1000 + n * 33 + m) as u64);
        let u = random.numbers::<T>(count * n * m);
        // Small enough that products of many factors stay of ordinary size.
        let small = T::from_real(T::Real::of(1.0 / n as f64));
        let tau = || random.numbers::<T>(count * m).iter().map(|&x| x * small).collect();
        let tau = (form.has_ones() || (form == Form::Full && m % 2 == 1)).then(tau);
        let phases = (T::COMPLEX && m % 3 == 1).then(|| random.numbers(count * n));
        let (h, g) = (random.numbers(count * rows * n), random.numbers(count * rows * n));
        Self { count, n, m, rows, form, u, tau, phases, h, g }
    }

    fn operator(&self) -> Operator<'_, T> {
        let w = Operator::with_form([self.count, self.n, self.m], &self.u, self.form, self.tau.as_deref()).unwrap();
        if let Some(phases) = &self.phases { w.with_phases(phases).unwrap() } else { w }
    }

    fn run(&self, context: &mut Context<'_>, adjoint: bool) -> Results<T> {
        let w = self.operator().adjoint(adjoint);
        let mut c = vec![T::ONE; self.h.len()];
        let (mut grad_u, mut grad_h) = (vec![T::ONE; self.u.len()], vec![T::ONE; self.h.len()]);
        let mut grad_tau = self.tau.clone().unwrap_or_default();
        let mut grad_phases = self.phases.clone().unwrap_or_default();
        apply::forward(context, &w, &self.h, &mut c).unwrap();
        let gradients = Gradients {
            u: Some(&mut grad_u),
            h: Some(&mut grad_h),
            tau: self.tau.is_some().then_some(&mut grad_tau),
            phases: self.phases.is_some().then_some(&mut grad_phases),
        };
        apply::backward(context, &w, &self.h, &self.g, gradients, None).unwrap();
        (c, grad_u, grad_h, grad_tau, grad_phases)
    }

    /// Problem `i` in double precision.
    fn alone(&self, i: usize) -> Problems<T::Wide> {
        let part = |x: &[T]| -> Vec<T::Wide> {
            let each = x.len() / self.count;
            x[i * each..][..each].iter().map(|x| x.widen()).collect()
        };
        let own = |x: &Vec<T::Real>| x[i * self.n..][..self.n].iter().map(|x| x.to_f64()).collect();
        let &Self { n, m, rows, form, .. } = self;
        Problems {
            count: 1,
            n,
            m,
            rows,
            form,
            u: part(&self.u),
            tau: self.tau.as_deref().map(part),
            phases: self.phases.as_ref().map(own),
            h: part(&self.h),
            g: part(&self.g),
        }
    }

    /// The problems in another order, the first `by` of them last.
    fn turned(&self, by: usize) -> Self {
        let turn = |x: &Vec<T>| turned(x, by * x.len() / self.count);
        let phases = self.phases.as_ref().map(|x| turned(x, by * self.n));
        let (u, tau, h, g) = (turn(&self.u), self.tau.as_ref().map(turn), turn(&self.h), turn(&self.g));
        Self { u, tau, phases, h, g, ..*self }
    }
}

fn turned<T: Copy>(numbers: &[T], by: usize) -> Vec<T> {
    [&numbers[by..], &numbers[..by]].concat()
}

fn shapes<T: Scalar>() -> impl Iterator<Item = (Form, (usize, usize, usize))> {
    let sizes = (1..=10).chain([15, 16, 17, 24, 31, 32, 33, 40, 41]).filter(|&n| has_time_for(n));
    sizes.flat_map(|n| {
        let mut all = vec![];
        let mut columns = vec![1, n.div_ceil(2), n];
        columns.dedup();
        for m in columns {
            let rows = 1 + (n + m) % 7;
            all.push((Form::UnitTrapezoidal, (n, m, rows)));
            all.push((Form::Full, (n, m + 1, rows)));
            all.push((Form::Trapezoidal, (n, m - usize::from(T::COMPLEX && m == n), 1)));
        }
        all.into_iter().filter(|(_, (_, m, _))| *m > 0)
    })
}

fn is_right<T: Scalar>() {
    with_each_instruction_set(|context| {
        let mut best = Context::default();
        for (at, (form, shape)) in shapes::<T>().enumerate() {
            let (n, m, rows) = shape;
            let problems = Problems::<T>::new(COUNTS[at % COUNTS.len()], shape, form);
            for adjoint in [false, true] {
                let (c, grad_u, grad_h, grad_tau, grad_phases) = problems.run(context, adjoint);
                for i in 0..problems.count {
                    let alone = problems.alone(i);
                    let (_, want_u, _, want_tau, want_phases) = alone.run(&mut best, adjoint);
                    let w = explicit_of(n, m, &alone.u, form, alone.tau.as_deref(), alone.phases.as_deref());
                    let part = |x: &[T], each: usize| x[i * each..][..each].to_vec();
                    let close = |what: &str, mut got: Vec<T>, mut want: Vec<c64>| {
                        // Gradients may vanish; `g` and `h` are about one, and rounded relative to that.
                        got.push(T::ONE);
                        want.push(c64::new(1.0, 0.0));
                        let error = error(&got, &want);
                        let about = format!("{what} {i} of {}: {form:?} {shape:?} {adjoint}", problems.count);
                        assert!(error < 4.0 * tolerance::<T>(m), "{about}: {error:e}");
                    };
                    let wide = |x: &[T::Wide]| x.iter().map(|&x| to_c64(x)).collect::<Vec<_>>();
                    close("c", part(&c, rows * n), multiply(n, &w, &alone.h, adjoint));
                    close("dL/dh", part(&grad_h, rows * n), multiply(n, &w, &alone.g, !adjoint));
                    close("dL/dU", part(&grad_u, n * m), wide(&want_u));
                    if problems.tau.is_some() {
                        close("dL/dtau", part(&grad_tau, m), wide(&want_tau));
                    }
                    if problems.phases.is_some() {
                        let got = grad_phases[i * n..][..n].iter().map(|&x| T::from_real(x)).collect();
                        close("dL/dtheta", got, want_phases.iter().map(|&x| c64::new(x, 0.0)).collect());
                    }
                }
            }
        }
    });
}

#[test]
fn each_problem_is_solved_as_in_double_precision() {
    of_all_types!(is_right);
}

fn keeps_to_itself<T: Scalar>() {
    let set_num_threads = number_of_threads();
    for (form, shape) in [(Form::Trapezoidal, (7, 4, 1)), (Form::Full, (5, 7, 6)), (Form::UnitTrapezoidal, (20, 9, 2))]
    {
        let problems = Problems::<T>::new(53, shape, form);
        let by = 6;
        let other = problems.turned(by);
        for adjoint in [false, true] {
            let mut results = vec![];
            for threads in [1, 3] {
                set_num_threads(threads);
                results.push(problems.run(&mut Context::default(), adjoint));
            }
            assert_eq!(results[0], results[1], "on several threads");
            let (c, grad_u, grad_h, ..) = &results[0];
            let (turned_c, turned_u, turned_h, ..) = other.run(&mut Context::default(), adjoint);
            let turn = |x: &[T]| turned(x, by * x.len() / problems.count);
            assert_eq!([turn(c), turn(grad_u), turn(grad_h)], [turned_c, turned_u, turned_h], "in another order");
        }
    }
}

#[test]
fn bits_depend_neither_on_the_place_among_others_nor_on_threads() {
    of_all_types!(keeps_to_itself);
}

#[test]
fn columns_of_any_size_act_alike() {
    for factor in [2.0_f32.powi(-60), 2.0_f32.powi(60)] {
        let problems = Problems::<f32>::new(40, (9, 5, 2), Form::Full);
        let problems = Problems { tau: None, ..problems };
        let some = |i: usize| i / 45 % 3 == 1; // every third problem
        let u = problems.u.iter().enumerate().map(|(i, &x)| if some(i) { x * factor } else { x }).collect();
        let scaled = Problems { u, ..problems.turned(0) };
        with_each_instruction_set(|context| {
            let (want, got) = (problems.run(context, false), scaled.run(context, false));
            assert_eq!((&got.0, &got.2), (&want.0, &want.2));
            for (i, (got, want)) in got.1.iter().zip(&want.1).enumerate() {
                assert_eq!(if some(i) { got * factor } else { *got }, *want, "dL/dU at {i}");
            }
        });
    }
}

#[test]
fn zero_columns_change_nothing_and_spoilt_ones_no_other_problem() {
    let problems = Problems::<f64>::new(40, (9, 5, 2), Form::Full);
    let problems = Problems { tau: None, ..problems };
    let (zero, spoilt) = (13, 22);
    let mut other = problems.turned(0);
    other.u[zero * 45..][..45].fill(0.0);
    other.u[spoilt * 45] = f64::NAN;
    with_each_instruction_set(|context| {
        let (want, got) = (problems.run(context, false), other.run(context, false));
        assert_eq!(got.0[zero * 18..][..18], other.h[zero * 18..][..18]);
        assert!(got.1[zero * 45..][..45].iter().all(|&x| x == 0.0));
        for i in (0..40).filter(|&i| i != zero && i != spoilt) {
            assert_eq!(got.0[i * 18..][..18], want.0[i * 18..][..18], "c of problem {i}");
            assert_eq!(got.1[i * 45..][..45], want.1[i * 45..][..45], "dL/dU of problem {i}");
        }
        assert!(got.0[spoilt * 18..][..18].iter().any(|x| x.is_nan()));
    });
}
