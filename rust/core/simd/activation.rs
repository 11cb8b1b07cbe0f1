//! The nonlinearities `phi` and their derivatives, which the output `h = phi(a)` determines (OPLU: with one flag a pair).
//!
//! Pointwise ones are part of a tile's epilogue. Those that pair entries or have a bias follow once a whole vector is
//! computed, and so does the tanh, which is too long for an epilogue.

use pulp::Simd;

use super::element::Element;
use super::isa::{InstructionSet, simd};
use super::lanes::{Lanes, unroll};
use crate::number::{Number, Real};
use crate::stack::Stack;

/// A nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activation<'a, T: Element> {
    /// `a`.
    Identity,
    /// `max(a, 0)`.
    Relu,
    /// `a` if `a > 0`, else `slope a`.
    LeakyRelu(T),
    /// Hyperbolic tangent.
    Tanh,
    /// `(max(a_i, a_{i + n/2}), min(a_i, a_{i + n/2}))`, real.
    Oplu,
    /// `(|z| + b) z / |z|` where `|z| + b > 0`, else 0; `z` complex, or the pair `(a_i, a_{i + n/2})` of reals.
    ModRelu(&'a [T::Real]),
    /// `sign(a) (|a| + b)` where `|a| + b > 0` and `a != 0`, else 0; real.
    RealModRelu(&'a [T::Real]),
}

/// What an epilogue leaves of a nonlinearity.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Rest {
    /// Nothing.
    Nothing,
    /// Work on single entries, which may come in parts.
    Entries,
    /// Work on whole vectors: pairs of entries, or a bias.
    Vectors,
}

impl<'a, T: Element> Activation<'a, T> {
    /// `phi` inside an epilogue.
    #[inline(always)]
    pub(crate) fn fused<S: Simd, const N: usize>(self, s: S, mut a: [T::V<S>; N]) -> [T::V<S>; N] {
        match self {
            Self::Relu => unroll!(for i in 0..N {
                a[i] = T::relu(s, a[i]);
            }),
            Self::LeakyRelu(slope) => unroll!(for i in 0..N {
                a[i] = T::leaky(s, a[i], T::splat(s, slope));
            }),
            Self::Identity | Self::Tanh | Self::Oplu | Self::ModRelu(_) | Self::RealModRelu(_) => {}
        }
        a
    }

    /// `g phi'` inside an epilogue, given `h = phi(a)`.
    #[inline(always)]
    pub(crate) fn fused_gradient<S: Simd, const N: usize>(
        self,
        s: S,
        mut g: [T::V<S>; N],
        h: [T::V<S>; N],
    ) -> [T::V<S>; N] {
        match self {
            Self::Relu => unroll!(for i in 0..N {
                g[i] = T::relu_gradient(s, g[i], h[i]);
            }),
            Self::LeakyRelu(slope) => {
                unroll!(for i in 0..N {
                    g[i] = T::leaky_gradient(s, g[i], h[i], T::splat(s, slope));
                });
            }
            Self::Tanh => unroll!(for i in 0..N {
                g[i] = T::tanh_gradient(s, g[i], h[i]);
            }),
            Self::Identity | Self::Oplu | Self::ModRelu(_) | Self::RealModRelu(_) => {}
        }
        g
    }

    /// Calls `f` with what [`Activation::fused`] does, known where this is called.
    #[inline(always)]
    pub(crate) fn known(self, f: impl FnOnce(Self)) {
        match self {
            Self::Relu => f(Self::Relu),
            Self::LeakyRelu(slope) => f(Self::LeakyRelu(slope)),
            Self::Identity | Self::Tanh | Self::Oplu | Self::ModRelu(_) | Self::RealModRelu(_) => f(Self::Identity),
        }
    }

    /// Calls `f` with what [`Activation::fused_gradient`] does, known where this is called.
    #[inline(always)]
    pub(crate) fn known_gradient(self, f: impl FnOnce(Self)) {
        match self {
            Self::Relu => f(Self::Relu),
            Self::LeakyRelu(slope) => f(Self::LeakyRelu(slope)),
            Self::Tanh => f(Self::Tanh),
            Self::Identity | Self::Oplu | Self::ModRelu(_) | Self::RealModRelu(_) => f(Self::Identity),
        }
    }

    /// Numbers on the tape, for each vector of `n`, that hold the flags of OPLU: a byte a pair.
    pub(crate) fn flag_width(self, n: usize) -> usize {
        match self {
            Self::Oplu => (n / 2).div_ceil(size_of::<T>()),
            Self::Identity | Self::Relu | Self::LeakyRelu(_) | Self::Tanh | Self::ModRelu(_) | Self::RealModRelu(_) => {
                0
            }
        }
    }

    /// Applies the part of `phi` that [`Activation::fused`] leaves out to the `n` numbers at `a`. OPLU leaves a flag
    /// for each pair at `flags`, unless that is null.
    ///
    /// # Safety
    /// The caller owns `n` numbers at `a` and a byte for each pair at `flags`.
    pub(crate) unsafe fn rest(self, isa: InstructionSet, a: *mut T, n: usize, flags: *mut u8) {
        match self {
            Self::Tanh => tanh(isa, std::slice::from_raw_parts_mut(a, n)),
            Self::Oplu => {
                let (first, second) = (a, a.add(n / 2));
                for i in 0..n / 2 {
                    let (x, y) = (*first.add(i), *second.add(i));
                    let swap = x.re() < y.re();
                    *first.add(i) = if swap { y } else { x };
                    *second.add(i) = if swap { x } else { y };
                    if !flags.is_null() {
                        *flags.add(i) = u8::from(swap);
                    }
                }
            }
            Self::ModRelu(bias) => {
                for (i, &b) in bias.iter().enumerate() {
                    let (re, im) = Self::pair(a, n, i);
                    let modulus = norm(re, im);
                    // True for z = 0 as well, where the direction is undefined; false for NaN, which stays.
                    let vanishes = modulus + b <= T::Real::ZERO || modulus == T::Real::ZERO;
                    if vanishes {
                        Self::set_pair(a, n, i, T::Real::ZERO, T::Real::ZERO);
                    } else {
                        Self::set_pair(a, n, i, re / modulus * (modulus + b), im / modulus * (modulus + b));
                    }
                }
            }
            Self::RealModRelu(bias) => {
                for (i, &b) in bias.iter().enumerate() {
                    let x = (*a.add(i)).re();
                    let moved = if x < T::Real::ZERO { x - b } else { x + b };
                    // False for NaN, which stays.
                    let vanishes = x.abs() + b <= T::Real::ZERO || x == T::Real::ZERO;
                    *a.add(i) = T::from_real(if vanishes { T::Real::ZERO } else { moved });
                }
            }
            Self::Identity | Self::Relu | Self::LeakyRelu(_) => {}
        }
    }

    /// What [`Activation::fused_gradient`] left out: turns the gradient of the `n` outputs `h` into that of the
    /// pre-activations, in place. Those with a bias add `dL/db` to `grad_bias`.
    ///
    /// # Safety
    /// The caller owns `n` numbers at `g` and at `h` and, for OPLU, a byte for each pair at `flags`.
    pub(crate) unsafe fn rest_gradient(
        self,
        g: *mut T,
        h: *const T,
        n: usize,
        flags: *const u8,
        grad_bias: &mut [T::Real],
    ) {
        match self {
            Self::Oplu => {
                let (first, second) = (g, g.add(n / 2));
                for i in 0..n / 2 {
                    let (x, y) = (*first.add(i), *second.add(i));
                    let swap = *flags.add(i) != 0;
                    *first.add(i) = if swap { y } else { x };
                    *second.add(i) = if swap { x } else { y };
                }
            }
            Self::ModRelu(bias) => {
                for (i, &b) in bias.iter().enumerate() {
                    // h = (|z| + b) s with s = z / |z|, so s = h / |h| and |z| = |h| - b.
                    let (h_re, h_im) = Self::pair(h, n, i);
                    let modulus = norm(h_re, h_im);
                    if modulus == T::Real::ZERO {
                        Self::set_pair(g, n, i, T::Real::ZERO, T::Real::ZERO);
                        continue;
                    }
                    let (s_re, s_im) = (h_re / modulus, h_im / modulus);
                    let (g_re, g_im) = Self::pair(g, n, i);
                    let radial = s_re * g_re + s_im * g_im;
                    if let Some(sum) = grad_bias.get_mut(i) {
                        *sum += radial;
                    }
                    // Along s the derivative is 1, across it |h| / |z|. Rounding may lose |z| next to a large b.
                    let (inward_re, inward_im) = (s_re * radial, s_im * radial);
                    let least = modulus * T::Real::EPSILON;
                    let size = if modulus - b < least { least } else { modulus - b };
                    let across = modulus / size;
                    let (re, im) = (inward_re + across * (g_re - inward_re), inward_im + across * (g_im - inward_im));
                    Self::set_pair(g, n, i, re, im);
                }
            }
            Self::RealModRelu(_) => {
                for i in 0..n {
                    if *h.add(i) == T::ZERO {
                        *g.add(i) = T::ZERO;
                    }
                }
                for (i, sum) in grad_bias.iter_mut().enumerate() {
                    let g = (*g.add(i)).re();
                    *sum += if (*h.add(i)).re() < T::Real::ZERO { -g } else { g };
                }
            }
            Self::Identity | Self::Relu | Self::LeakyRelu(_) | Self::Tanh => {}
        }
    }

    /// The bias, if it has one.
    pub fn bias(&self) -> Option<&'a [T::Real]> {
        match self {
            Self::ModRelu(bias) | Self::RealModRelu(bias) => Some(bias),
            Self::Identity | Self::Relu | Self::LeakyRelu(_) | Self::Tanh | Self::Oplu => None,
        }
    }

    /// The same with this bias, if it has one.
    pub(crate) fn with_bias(self, bias: &[T::Real]) -> Activation<'_, T> {
        match self {
            Self::Identity => Activation::Identity,
            Self::Relu => Activation::Relu,
            Self::LeakyRelu(slope) => Activation::LeakyRelu(slope),
            Self::Tanh => Activation::Tanh,
            Self::Oplu => Activation::Oplu,
            Self::ModRelu(_) => Activation::ModRelu(bias),
            Self::RealModRelu(_) => Activation::RealModRelu(bias),
        }
    }

    /// That of problem `i` of `count`, each of which has a bias of its own.
    pub(crate) fn of_problem(self, i: usize, count: usize) -> Self {
        self.bias().map_or(self, |bias| self.with_bias(Stack::new(bias, count).at(i)))
    }

    /// How many numbers a bias has for vectors of `n`: one for each modulus.
    pub fn moduli(self, n: usize) -> usize {
        if self.pairs() && !T::COMPLEX { n / 2 } else { n }
    }

    /// Whether it acts on pairs of real numbers, and on complex numbers as a whole.
    pub(crate) fn pairs(self) -> bool {
        match self {
            Self::Oplu | Self::ModRelu(_) => true,
            Self::Identity | Self::Relu | Self::LeakyRelu(_) | Self::Tanh | Self::RealModRelu(_) => false,
        }
    }

    /// Whether it acts on real numbers only.
    pub(crate) fn is_real(self) -> bool {
        match self {
            Self::Oplu | Self::RealModRelu(_) => true,
            Self::Identity | Self::Relu | Self::LeakyRelu(_) | Self::Tanh | Self::ModRelu(_) => false,
        }
    }

    /// What [`Activation::rest`] has to do. [`Activation::rest_gradient`] has work for [`Rest::Vectors`] only.
    pub(crate) fn scope(self) -> Rest {
        match self {
            Self::Identity | Self::Relu | Self::LeakyRelu(_) => Rest::Nothing,
            Self::Tanh => Rest::Entries,
            Self::Oplu | Self::ModRelu(_) | Self::RealModRelu(_) => Rest::Vectors,
        }
    }

    /// Entry `i` as a complex number: itself, or entries `i` and `i + n/2` of reals.
    ///
    /// # Safety
    /// The caller owns `n` numbers at `a`, and `i` is one of its pairs.
    #[inline(always)]
    unsafe fn pair(a: *const T, n: usize, i: usize) -> (T::Real, T::Real) {
        let first = *a.add(i);
        if T::COMPLEX { (first.re(), first.im()) } else { (first.re(), (*a.add(i + n / 2)).re()) }
    }

    /// # Safety
    /// As of [`Activation::pair`].
    #[inline(always)]
    unsafe fn set_pair(a: *mut T, n: usize, i: usize, re: T::Real, im: T::Real) {
        *a.add(i) = T::from_parts(re, im);
        if !T::COMPLEX {
            *a.add(i + n / 2) = T::from_real(im);
        }
    }
}

/// `sqrt(re^2 + im^2)`, not overflowing.
#[inline(always)]
fn norm<R: Real>(re: R, im: R) -> R {
    let (re, im) = (re.to_f64(), im.to_f64());
    R::of(if size_of::<R>() == 4 { (re * re + im * im).sqrt() } else { re.hypot(im) })
}

simd! {
    /// `a <- tanh a`.
    fn tanh<T: Element>(s, a: &mut [T]) -> () {
        for a in a.chunks_mut(T::lanes::<S>()) {
            let lanes = Lanes::<S, T, 1>::first(s, a.len());
            // SAFETY: the lanes of one chunk.
            unsafe { lanes.store(a.as_mut_ptr(), [T::tanh(s, lanes.load(a.as_ptr())[0])]) };
        }
    }

    /// `g <- g phi'`, given `h = phi(a)`, for pointwise `phi`.
    pub fn activation_gradient<T: Element>(s, activation: Activation<'_, T>, g: &mut [T], h: &[T]) -> () {
        let lanes = T::lanes::<S>();
        for (g, h) in g.chunks_mut(lanes).zip(h.chunks(lanes)) {
            let lanes = Lanes::<S, T, 1>::first(s, g.len());
            // SAFETY: the lanes of one chunk of both.
            unsafe {
                let gradient = activation.fused_gradient(s, lanes.load(g.as_ptr()), lanes.load(h.as_ptr()));
                lanes.store(g.as_mut_ptr(), gradient);
            }
        }
    }
}
