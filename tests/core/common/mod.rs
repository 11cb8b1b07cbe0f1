//! Oracles and random problems for the tests of the core.

pub mod apart;
pub mod convolution;
pub mod delta;
pub mod gated_norm;
pub mod problem;

use std::sync::{Mutex, PoisonError};

use householder::error::Result;
use householder::number::{Number, Real, c64};
use householder::operator::Form;
use householder::scalar::Scalar;
use householder::threads::{Context, InstructionSet, set_num_threads};

/// Runs a test for each type of numbers.
macro_rules! of_all_types {
    ($test:ident) => {{
        $test::<f32>();
        $test::<f64>();
        $test::<householder::number::c32>();
        $test::<householder::number::c64>();
    }};
}
pub(crate) use of_all_types;

/// A small deterministic generator: numbers in [-1, 1).
pub struct Random(pub u64);

impl Random {
    pub fn real(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// A number below another one.
    pub fn below(&mut self, bound: usize) -> usize {
        (f64::midpoint(self.real(), 1.0) * bound as f64) as usize
    }

    pub fn numbers<T: Number>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::from_parts(T::Real::of(self.real()), T::Real::of(self.real()))).collect()
    }
}

pub fn to_c64<T: Scalar>(x: T) -> c64 {
    let wide = x.widen();
    c64::new(wide.re(), wide.im())
}

/// `W`, row-major, as the product of explicit reflections in double precision.
pub fn explicit<T: Scalar>(n: usize, m: usize, u: &[T], phases: Option<&[T::Real]>) -> Vec<c64> {
    explicit_of(n, m, u, Form::Trapezoidal, None, phases)
}

/// [`explicit`] of columns of any form, and of a given `tau`.
pub fn explicit_of<T: Scalar>(
    n: usize,
    m: usize,
    u: &[T],
    form: Form,
    tau: Option<&[T]>,
    phases: Option<&[T::Real]>,
) -> Vec<c64> {
    let has_number = form == Form::Trapezoidal && tau.is_none() && m == n;
    let mut w = vec![c64::default(); n * n];
    (0..n).for_each(|i| w[i * n + i] = c64::new(1.0, 0.0));
    for j in 0..if has_number { n - 1 } else { m } {
        let entry = |i: usize| match form {
            Form::UnitTrapezoidal if i == j => c64::new(1.0, 0.0),
            Form::Trapezoidal | Form::UnitTrapezoidal if i < j => c64::default(),
            Form::Trapezoidal | Form::UnitTrapezoidal | Form::Full => to_c64(u[i * m + j]),
            other => unreachable!("{other:?} has no definition here"),
        };
        let v: Vec<c64> = (0..n).map(entry).collect();
        let square: f64 = v.iter().map(c64::norm_sqr).sum();
        if square < f64::MIN_POSITIVE {
            continue;
        }
        let tau = tau.map_or(c64::new(2.0 / square, 0.0), |tau| to_c64(tau[j]));
        for row in w.chunks_mut(n) {
            let product: c64 = row.iter().zip(&v).map(|(w, v)| w * v).sum();
            row.iter_mut().zip(&v).for_each(|(w, v)| *w -= tau * product * v.conj());
        }
    }
    for (i, w) in w.iter_mut().enumerate() {
        let column = i % n;
        if let Some(phases) = phases {
            *w *= c64::new(0.0, phases[column].to_f64()).exp();
        } else if has_number && column == n - 1 {
            *w *= to_c64(u[n * n - 1]);
        }
    }
    w
}

/// `W h` (or `W* h`) for each row.
pub fn multiply<T: Scalar>(n: usize, w: &[c64], h: &[T], adjoint: bool) -> Vec<c64> {
    let mut out = Vec::with_capacity(h.len());
    for h in h.chunks(n) {
        for i in 0..n {
            out.push((0..n).map(|j| to_c64(h[j]) * if adjoint { w[j * n + i].conj() } else { w[i * n + j] }).sum());
        }
    }
    out
}

/// Largest difference relative to the largest wanted number.
pub fn error<T: Scalar>(got: &[T], want: &[c64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().map(|x| x.norm()).fold(1e-30, f64::max);
    got.iter()
        .zip(want)
        .map(|(&g, w)| (to_c64(g) - w).norm())
        .fold(0.0, |a: f64, b| if b > a || b.is_nan() { b } else { a })
        / scale
}

/// Fails if numbers of bfloat16, given by their bits, are not these numbers rounded.
#[track_caller]
pub fn assert_rounded(bits: &[u16], numbers: &[f32]) {
    assert_eq!(bits.len(), numbers.len());
    for (&bits, number) in bits.iter().zip(numbers) {
        let rounded = f32::from_bits(u32::from(bits) << 16);
        assert!((rounded - number).abs() <= number.abs() / 256.0, "{rounded} for {number}");
    }
}

/// Whether there is time for vectors of that size: an interpreter of the program takes a thousand times as long.
pub fn has_time_for(n: usize) -> bool {
    !cfg!(miri) || n <= 8
}

/// What rounding may cost in a product of `m` reflections.
pub fn tolerance<T: Scalar>(m: usize) -> f64 {
    let unit = if size_of::<T::Real>() == 4 { 6e-8 } else { 1.1e-16 };
    unit * 40.0 * (m as f64).sqrt().max(4.0)
}

/// Returns a function that sets the number of threads. While it lives, no other test sets one.
pub fn number_of_threads() -> impl Fn(usize) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    move |threads| {
        let _ = &alone;
        set_num_threads(threads).unwrap();
    }
}

/// Why these arguments are refused.
#[track_caller]
pub fn refusal_of<X>(outcome: Result<X>) -> String {
    match outcome {
        Err(error) if error.is_invalid_argument() => error.to_string(),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("not refused"),
    }
}

/// Runs `test` with each instruction set of this machine.
pub fn with_each_instruction_set(mut test: impl FnMut(&mut Context<'_>)) {
    for isa in InstructionSet::available() {
        let mut context = Context::default();
        context.isa = isa;
        test(&mut context);
    }
}
