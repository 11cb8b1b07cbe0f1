//! `W h` and its gradients for arbitrary sizes, numbers, methods and instruction sets: right, and nothing out of bounds.

use householder::apply::{self, Gradients};
use householder::method::Method;
use householder::number::Real;
use householder::operator::Operator;
use householder::scalar::Scalar;
use householder::threads::Context;

use crate::call::{Results, bits, call};
use crate::oracle::{Oracle, compare, epsilon, norm, reflecting_norm, to_c64};
use crate::source::{Extent, Source, Wildness};

/// What the backward pass has of the forward pass.
#[derive(Clone, Copy)]
enum Kept {
    Nothing(Option<Method>),
    /// All vectors between reflections.
    Tape,
    /// The factors of compact WY, or nothing of them; `dL/dh` takes the place of `dL/dc`.
    InPlace {
        saved: bool,
    },
    /// The factors of compact WY, or the matrix.
    Saved(Method),
}

impl Kept {
    fn any(source: &mut Source, may_be_in_place: bool) -> Self {
        match source.below(8) {
            0..=2 => Self::Nothing(source.method()),
            3 => Self::Tape,
            4..=6 if may_be_in_place && source.one_in(3) => Self::InPlace { saved: !source.one_in(3) },
            4..=6 => Self::Saved(Method::Wy),
            _ => Self::Saved(Method::Dense),
        }
    }
}

#[derive(Clone)]
struct Outcome<T: Scalar<Real: Scalar>> {
    c: Vec<T>,
    grad_u: Option<Vec<T>>,
    grad_h: Option<Vec<T>>,
    grad_phases: Option<Vec<T::Real>>,
}

impl<T: Scalar<Real: Scalar>> Results for Outcome<T> {
    fn bits(&self) -> Vec<u64> {
        let numbers = [Some(&self.c), self.grad_u.as_ref(), self.grad_h.as_ref()];
        [bits(numbers), bits([self.grad_phases.as_ref()])].concat()
    }
}

impl<T: Scalar<Real: Scalar>> Outcome<T> {
    fn gradients(&mut self) -> Gradients<'_, T> {
        Gradients {
            u: self.grad_u.as_deref_mut(),
            h: self.grad_h.as_deref_mut(),
            tau: None,
            phases: self.grad_phases.as_deref_mut(),
        }
    }
}

struct Problem<'a, T: Scalar> {
    w: Operator<'a, T>,
    h: Vec<T>,
    g: Vec<T>,
}

impl<T: Scalar<Real: Scalar>> Problem<'_, T> {
    fn run(&self, context: &mut Context<'_>, kept: Kept, mut outcome: Outcome<T>) -> Outcome<T> {
        let Self { w, h, g } = self;
        let (w, n, rows) = (w.clone(), w.n(), h.len() / w.n());
        let c = &mut outcome.c;
        match kept {
            Kept::Nothing(method) => {
                let w = w.by(method);
                apply::forward(context, &w, h, c).expect("forward");
                apply::backward(context, &w, h, g, outcome.gradients(), None).expect("backward");
            }
            Kept::Tape => {
                let len = (w.m() + 1) * n;
                let mut tape = vec![T::ONE; rows * len];
                apply::forward_tape(context, &w, h, &mut tape).expect("forward_tape");
                c.chunks_mut(n).zip(tape.chunks(len)).for_each(|(c, tape)| c.copy_from_slice(&tape[..n]));
                apply::backward_tape(context, &w, &tape, g, outcome.gradients()).expect("backward_tape");
            }
            Kept::InPlace { saved } => {
                let w = w.by(Some(Method::Wy));
                let kept = apply::forward_and_save(context, &w, h, c).expect("forward_and_save");
                let mut place = g.clone();
                let gradients = Gradients { h: None, ..outcome.gradients() };
                let kept = kept.as_ref().filter(|_| saved);
                apply::backward_in_place(context, &w, h, &mut place, gradients, kept).expect("backward_in_place");
                outcome.grad_h = Some(place);
            }
            Kept::Saved(method) => {
                let w = w.by(Some(method));
                let kept = apply::forward_and_save(context, &w, h, c).expect("forward_and_save");
                apply::backward(context, &w, h, g, outcome.gradients(), kept.as_ref()).expect("backward");
            }
        }
        outcome
    }
}

/// `n`, `m` and the number of vectors.
fn sizes(source: &mut Source, extent: Extent) -> [usize; 3] {
    let few = [source.size(), source.size(), source.size()];
    match extent {
        Extent::Small => few,
        Extent::Many if source.one_in(8) => {
            let edge = [1024, 1024, 4096][source.below(3)]; // of what a pass takes at once, of what tasks do
            [few[0], few[1], edge - 100 + source.below(200)]
        }
        Extent::Many => [few[0], few[1], 65 + source.below(200)],
        Extent::Large => {
            let n = 60 + source.below(100);
            [n, 1 + source.below(n), 65 + source.below(200)]
        }
    }
}

/// One problem.
pub fn check<T: Scalar<Real: Scalar>>(source: &mut Source) {
    let extent = source.extent();
    let [n, m, rows] = sizes(source, extent);
    let (adjoint, wildness) = (source.one_in(2), source.wildness());
    let entries = source.reflections::<T>(n, m, wildness);
    let Ok(w) = Operator::new([1, n, m], &entries) else {
        assert!(m == 0 || m > n || (T::COMPLEX && m == n), "{n} x {m} is refused");
        return;
    };
    let phases = (T::COMPLEX && source.one_in(2)).then(|| source.numbers::<T::Real>(n, wildness));
    let w = if let Some(phases) = &phases { w.with_phases(phases).expect("phases of the right length") } else { w };
    let kept = Kept::any(source, !adjoint);
    let (h, g) = (source.numbers::<T>(rows * n, wildness), source.numbers::<T>(rows * n, wildness));
    let problem = Problem { w: w.adjoint(adjoint), h, g };
    let wanted = Outcome {
        c: vec![T::ONE; rows * n],
        grad_u: source.wanted(n * m),
        grad_h: source.wanted(rows * n),
        grad_phases: phases.as_ref().and_then(|phases| source.wanted(phases.len())),
    };
    let outcome = call(source, extent, |context| problem.run(context, kept, wanted.clone()));
    for (k, grad) in outcome.grad_u.iter().flatten().enumerate() {
        assert!(k % m <= k / m || *grad == T::ZERO, "a gradient above the diagonal");
    }
    if wildness == Wildness::Anything {
        return;
    }

    let oracle = Oracle::new(n, m, &entries, phases.as_deref());
    let [h, g] = [&problem.h, &problem.g].map(|x| x.iter().map(|&x| to_c64(x)).collect::<Vec<_>>());
    let roundings = (m as f64).sqrt() + 2.0;
    compare("c", &outcome.c, &oracle.apply(&h, adjoint), &h, roundings);
    if let Some(grad_h) = &outcome.grad_h {
        compare("grad_h", grad_h, &oracle.apply(&g, !adjoint), &g, roundings);
    }
    // Gradients of small columns are large: relative to |g| |h| / |u| they are rounded as everything else.
    let want = oracle.gradients(&h, &g, adjoint);
    let size = norm(&h) * norm(&g);
    for j in 0..m {
        let column = if m == n && j == n - 1 { 1.0 } else { reflecting_norm(n, m, &entries, j).unwrap_or(1.0) };
        let allowed = 64.0 * epsilon::<T>() * roundings * size / column;
        if size / column > 1e-6 / T::Real::MIN_POSITIVE.to_f64() {
            continue; // a gradient of this size may overflow
        }
        if let Some(grad_u) = &outcome.grad_u {
            for i in j..n {
                let error = (to_c64(grad_u[i * m + j]) - want.u[i * m + j]).norm();
                let allowed = allowed + T::Real::MIN_POSITIVE.to_f64();
                assert!(error <= allowed, "grad_u[{i}, {j}] of {n} x {m}: differs by {error:e}, allowed {allowed:e}");
            }
        }
    }
    for (got, want) in outcome.grad_phases.iter().flatten().zip(&want.phases) {
        let error = (got.to_f64() - want).abs();
        assert!(
            error <= 64.0 * epsilon::<T>() * roundings * size + T::Real::MIN_POSITIVE.to_f64(),
            "grad_phases: {error:e}"
        );
    }
}
