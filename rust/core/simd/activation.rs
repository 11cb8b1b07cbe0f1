//! The nonlinearities `phi` and their derivatives, which the output `h = phi(a)` determines (OPLU: with one flag a pair).
//!
//! Each is a type that implements [`Phi`], and a member of [`Activation`] with an arm in [`each`]. Pointwise ones are part of a
//! tile's epilogue. Those that pair entries or have a bias follow once a whole vector is computed, and so does the tanh, which
//! is too long for an epilogue.

use pulp::Simd;

use super::element::Element;
use super::isa::{InstructionSet, simd};
use super::lanes::Lanes;
use crate::arrays::stack::Stack;
use crate::numbers::number::{Number, Real};

/// Defines the enumeration of all nonlinearities from their names, which may have a parameter.
macro_rules! activations {
    ($($(#[$attribute:meta])* $name:ident $(($parameter:ident: $type:ty))?,)+; $($all:ident: $of_all:ty),+) => {
        /// A nonlinearity.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Activation<'a, T: Element> {
            $($(#[$attribute])* $name $(($type))?,)+
        }

        impl<'a, T: Element> Activation<'a, T> {
            /// All of them, with these parameters where they have any.
            pub fn all($($all: $of_all),+) -> [Self; [$(stringify!($name)),+].len()] {
                [$(Self::$name $(($parameter))?),+]
            }
        }
    };
}
activations! {
    /// `a`.
    Identity,
    /// `max(a, 0)`.
    Relu,
    /// `a` if `a > 0`, else `slope a`.
    LeakyRelu(slope: T),
    /// Hyperbolic tangent.
    Tanh,
    /// `(max(a_i, a_{i + n/2}), min(a_i, a_{i + n/2}))`, real.
    Oplu,
    /// `(|z| + b) z / |z|` where `|z| + b > 0`, else 0; `z` complex, or the pair `(a_i, a_{i + n/2})` of reals.
    ModRelu(bias: &'a [T::Real]),
    /// `sign(a) (|a| + b)` where `|a| + b > 0` and `a != 0`, else 0; real.
    RealModRelu(bias: &'a [T::Real]),
    ; slope: T, bias: &'a [T::Real]
}

/// Evaluates an expression with the [`Phi`] that an [`Activation`] of `T` is. With `where CONDITION`, a constant of [`Phi`], those
/// for which it is false become the identity, for which the expression is compiled once.
macro_rules! each {
    ($t:ident $(where $condition:ident)?, $activation:expr, $phi:ident => $result:expr) => {{
        use $crate::simd::activation::{Activation, Identity, LeakyRelu, ModRelu, Oplu, Phi, RealModRelu, Relu, Tanh};
        match $activation {
            Activation::Relu $(if <Relu as Phi<$t>>::$condition)? => {
                let $phi = Relu;
                $result
            }
            Activation::LeakyRelu(slope) $(if <LeakyRelu<$t> as Phi<$t>>::$condition)? => {
                let $phi = LeakyRelu(slope);
                $result
            }
            Activation::Tanh $(if <Tanh as Phi<$t>>::$condition)? => {
                let $phi = Tanh;
                $result
            }
            Activation::Oplu $(if <Oplu as Phi<$t>>::$condition)? => {
                let $phi = Oplu;
                $result
            }
            Activation::ModRelu(bias) $(if <ModRelu<'_, $t> as Phi<$t>>::$condition)? => {
                let $phi = ModRelu::<$t>(bias);
                $result
            }
            Activation::RealModRelu(bias) $(if <RealModRelu<'_, $t> as Phi<$t>>::$condition)? => {
                let $phi = RealModRelu::<$t>(bias);
                $result
            }
            Activation::Identity $(if <Identity as Phi<$t>>::$condition)? => {
                let $phi = Identity;
                $result
            }
            $(_ => {
                const { assert!(!<Identity as Phi<$t>>::$condition, "it stands for all others") }
                let $phi = Identity;
                $result
            })?
        }
    }};
}
pub(crate) use each;

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

/// What kernels compute of a nonlinearity. An epilogue has [`Phi::value`] and [`Phi::gradient`]; [`Phi::rest`] and
/// [`Phi::rest_gradient`] are what these leave out.
pub(crate) trait Phi<T: Element>: Copy {
    /// Whether [`Phi::value`] does anything.
    const IN_TILES: bool = false;
    /// Whether [`Phi::gradient`] does anything.
    const GRADIENT_IN_TILES: bool = false;

    /// `phi(a)`, part by part for complex numbers.
    #[inline(always)]
    fn value<S: Simd>(self, _: S, a: T::V<S>) -> T::V<S> {
        a
    }

    /// `g phi'`, given `h = phi(a)`, part by part for complex numbers.
    #[inline(always)]
    fn gradient<S: Simd>(self, _: S, g: T::V<S>, _h: T::V<S>) -> T::V<S> {
        g
    }

    /// Applies the rest of `phi` to the `n` numbers at `a`, and leaves flags at `flags`, unless that is null.
    ///
    /// # Safety
    /// The caller owns `n` numbers at `a` and a byte for each pair at `flags`.
    unsafe fn rest(self, _isa: InstructionSet, _a: *mut T, _n: usize, _flags: *mut u8) {}

    /// Turns the gradient of the `n` outputs `h` into that of the pre-activations, in place. Adds `dL/db` to `grad_bias`.
    ///
    /// # Safety
    /// The caller owns `n` numbers at `g` and at `h` and, where there are flags, a byte for each pair.
    unsafe fn rest_gradient(self, _g: *mut T, _h: *const T, _n: usize, _flags: *const u8, _grad_bias: &mut [T::Real]) {}

    /// What [`Phi::rest`] has to do. [`Phi::rest_gradient`] has work for [`Rest::Vectors`] only.
    fn scope(self) -> Rest {
        Rest::Nothing
    }

    /// Whether it acts on pairs of real numbers, and on complex numbers as a whole.
    fn pairs(self) -> bool {
        false
    }

    /// Whether it acts on real numbers only.
    fn is_real(self) -> bool {
        false
    }

    /// Bytes of flags for each vector of `n`.
    fn flags(self, _n: usize) -> usize {
        0
    }

    /// The bias, if it has one.
    fn bias<'a>(self) -> Option<&'a [T::Real]>
    where
        Self: 'a,
    {
        None
    }

    /// The same with this bias, if it has one.
    fn with_bias(self, bias: &[T::Real]) -> Activation<'_, T>;
}

#[derive(Clone, Copy)]
pub(crate) struct Identity;

impl<T: Element> Phi<T> for Identity {
    fn with_bias(self, _: &[T::Real]) -> Activation<'_, T> {
        Activation::Identity
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Relu;

impl<T: Element> Phi<T> for Relu {
    const IN_TILES: bool = true;
    const GRADIENT_IN_TILES: bool = true;

    #[inline(always)]
    fn value<S: Simd>(self, s: S, a: T::V<S>) -> T::V<S> {
        T::positive(s, a)
    }

    #[inline(always)]
    fn gradient<S: Simd>(self, s: S, g: T::V<S>, h: T::V<S>) -> T::V<S> {
        T::where_positive(s, h, g, T::splat(s, T::ZERO))
    }

    fn with_bias(self, _: &[T::Real]) -> Activation<'_, T> {
        Activation::Relu
    }
}

#[derive(Clone, Copy)]
pub(crate) struct LeakyRelu<T>(pub T);

impl<T: Element> Phi<T> for LeakyRelu<T> {
    const IN_TILES: bool = true;
    const GRADIENT_IN_TILES: bool = true;

    #[inline(always)]
    fn value<S: Simd>(self, s: S, a: T::V<S>) -> T::V<S> {
        T::where_positive(s, a, a, T::times(s, T::splat(s, self.0), a))
    }

    /// A zero slope makes zeros of any gradients.
    #[inline(always)]
    fn gradient<S: Simd>(self, s: S, g: T::V<S>, h: T::V<S>) -> T::V<S> {
        let slope = T::splat(s, self.0);
        let below = T::where_positive(s, slope, T::times(s, slope, g), T::splat(s, T::ZERO));
        T::where_positive(s, h, g, below)
    }

    fn with_bias(self, _: &[T::Real]) -> Activation<'_, T> {
        Activation::LeakyRelu(self.0)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Tanh;

impl<T: Element> Phi<T> for Tanh {
    const GRADIENT_IN_TILES: bool = true;

    #[inline(always)]
    fn gradient<S: Simd>(self, s: S, g: T::V<S>, h: T::V<S>) -> T::V<S> {
        let one = T::splat(s, T::from_parts(T::Real::ONE, T::Real::ONE));
        T::times(s, g, T::minus(s, one, T::times(s, h, h)))
    }

    unsafe fn rest(self, isa: InstructionSet, a: *mut T, n: usize, _: *mut u8) {
        tanh(isa, std::slice::from_raw_parts_mut(a, n));
    }

    fn scope(self) -> Rest {
        Rest::Entries
    }

    fn with_bias(self, _: &[T::Real]) -> Activation<'_, T> {
        Activation::Tanh
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Oplu;

impl<T: Element> Phi<T> for Oplu {
    unsafe fn rest(self, _: InstructionSet, a: *mut T, n: usize, flags: *mut u8) {
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

    unsafe fn rest_gradient(self, g: *mut T, _: *const T, n: usize, flags: *const u8, _: &mut [T::Real]) {
        let (first, second) = (g, g.add(n / 2));
        for i in 0..n / 2 {
            let (x, y) = (*first.add(i), *second.add(i));
            let swap = *flags.add(i) != 0;
            *first.add(i) = if swap { y } else { x };
            *second.add(i) = if swap { x } else { y };
        }
    }

    fn flags(self, n: usize) -> usize {
        n / 2
    }

    fn scope(self) -> Rest {
        Rest::Vectors
    }

    fn pairs(self) -> bool {
        true
    }

    fn is_real(self) -> bool {
        true
    }

    fn with_bias(self, _: &[T::Real]) -> Activation<'_, T> {
        Activation::Oplu
    }
}

#[derive(Clone, Copy)]
pub(crate) struct ModRelu<'a, T: Element>(pub &'a [T::Real]);

impl<T: Element> Phi<T> for ModRelu<'_, T> {
    unsafe fn rest(self, _: InstructionSet, a: *mut T, n: usize, _: *mut u8) {
        for (i, &b) in self.0.iter().enumerate() {
            let (re, im) = pair(a, n, i);
            let modulus = norm(re, im);
            // True for z = 0 as well, where the direction is undefined; false for NaN, which stays.
            let vanishes = modulus + b <= T::Real::ZERO || modulus == T::Real::ZERO;
            if vanishes {
                set_pair(a, n, i, T::Real::ZERO, T::Real::ZERO);
            } else {
                set_pair(a, n, i, re / modulus * (modulus + b), im / modulus * (modulus + b));
            }
        }
    }

    unsafe fn rest_gradient(self, g: *mut T, h: *const T, n: usize, _: *const u8, grad_bias: &mut [T::Real]) {
        for (i, &b) in self.0.iter().enumerate() {
            // h = (|z| + b) s with s = z / |z|, so s = h / |h| and |z| = |h| - b.
            let (h_re, h_im) = pair(h, n, i);
            let modulus = norm(h_re, h_im);
            if modulus == T::Real::ZERO {
                set_pair(g, n, i, T::Real::ZERO, T::Real::ZERO);
                continue;
            }
            let (s_re, s_im) = (h_re / modulus, h_im / modulus);
            let (g_re, g_im) = pair(g, n, i);
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
            set_pair(g, n, i, re, im);
        }
    }

    fn bias<'a>(self) -> Option<&'a [T::Real]>
    where
        Self: 'a,
    {
        Some(self.0)
    }

    fn scope(self) -> Rest {
        Rest::Vectors
    }

    fn pairs(self) -> bool {
        true
    }

    fn with_bias(self, bias: &[T::Real]) -> Activation<'_, T> {
        Activation::ModRelu(bias)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct RealModRelu<'a, T: Element>(pub &'a [T::Real]);

impl<T: Element> Phi<T> for RealModRelu<'_, T> {
    unsafe fn rest(self, _: InstructionSet, a: *mut T, _: usize, _: *mut u8) {
        for (i, &b) in self.0.iter().enumerate() {
            let x = (*a.add(i)).re();
            let moved = if x < T::Real::ZERO { x - b } else { x + b };
            // False for NaN, which stays.
            let vanishes = x.abs() + b <= T::Real::ZERO || x == T::Real::ZERO;
            *a.add(i) = T::from_real(if vanishes { T::Real::ZERO } else { moved });
        }
    }

    unsafe fn rest_gradient(self, g: *mut T, h: *const T, n: usize, _: *const u8, grad_bias: &mut [T::Real]) {
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

    fn bias<'a>(self) -> Option<&'a [T::Real]>
    where
        Self: 'a,
    {
        Some(self.0)
    }

    fn scope(self) -> Rest {
        Rest::Vectors
    }

    fn is_real(self) -> bool {
        true
    }

    fn with_bias(self, bias: &[T::Real]) -> Activation<'_, T> {
        Activation::RealModRelu(bias)
    }
}

impl<'a, T: Element> Activation<'a, T> {
    /// Numbers on the tape, for each vector of `n`, that hold the flags of OPLU: a byte a pair.
    pub(crate) fn flag_width(self, n: usize) -> usize {
        each!(T, self, phi => Phi::<T>::flags(phi, n).div_ceil(size_of::<T>()))
    }

    /// [`Phi::rest`].
    ///
    /// # Safety
    /// As of that.
    pub(crate) unsafe fn rest(self, isa: InstructionSet, a: *mut T, n: usize, flags: *mut u8) {
        each!(T, self, phi => Phi::<T>::rest(phi, isa, a, n, flags));
    }

    /// [`Phi::rest_gradient`].
    ///
    /// # Safety
    /// As of that.
    pub(crate) unsafe fn rest_gradient(
        self,
        g: *mut T,
        h: *const T,
        n: usize,
        flags: *const u8,
        grad_bias: &mut [T::Real],
    ) {
        each!(T, self, phi => Phi::<T>::rest_gradient(phi, g, h, n, flags, grad_bias));
    }

    /// The bias, if it has one.
    pub fn bias(&self) -> Option<&'a [T::Real]> {
        each!(T, *self, phi => Phi::<T>::bias(phi))
    }

    /// The same with this bias, if it has one.
    pub(crate) fn with_bias(self, bias: &[T::Real]) -> Activation<'_, T> {
        each!(T, self, phi => phi.with_bias(bias))
    }

    /// That of problem `i` of `count`, each of which has a bias of its own.
    pub(crate) fn of_problem(self, i: usize, count: usize) -> Self {
        self.bias().map_or(self, |bias| self.with_bias(Stack::new(bias, count).at(i)))
    }

    /// Whether it acts on vectors of `n` numbers of this type.
    pub fn acts_on(self, n: usize) -> bool {
        if T::COMPLEX { !self.is_real() } else { !self.pairs() || n.is_multiple_of(2) }
    }

    /// How many numbers a bias has for vectors of `n`: one for each modulus.
    pub fn moduli(self, n: usize) -> usize {
        if self.pairs() && !T::COMPLEX { n / 2 } else { n }
    }

    /// [`Phi::pairs`].
    pub(crate) fn pairs(self) -> bool {
        each!(T, self, phi => Phi::<T>::pairs(phi))
    }

    /// [`Phi::is_real`].
    pub(crate) fn is_real(self) -> bool {
        each!(T, self, phi => Phi::<T>::is_real(phi))
    }

    /// [`Phi::scope`].
    pub(crate) fn scope(self) -> Rest {
        each!(T, self, phi => Phi::<T>::scope(phi))
    }
}

/// Entry `i` as a complex number: itself, or entries `i` and `i + n/2` of reals.
///
/// # Safety
/// The caller owns `n` numbers at `a`, and `i` is one of its pairs.
#[inline(always)]
unsafe fn pair<T: Element>(a: *const T, n: usize, i: usize) -> (T::Real, T::Real) {
    let first = *a.add(i);
    if T::COMPLEX { (first.re(), first.im()) } else { (first.re(), (*a.add(i + n / 2)).re()) }
}

/// # Safety
/// As of [`pair`].
#[inline(always)]
unsafe fn set_pair<T: Element>(a: *mut T, n: usize, i: usize, re: T::Real, im: T::Real) {
    *a.add(i) = T::from_parts(re, im);
    if !T::COMPLEX {
        *a.add(i + n / 2) = T::from_real(im);
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
        each!(T where GRADIENT_IN_TILES, activation, phi => {
            let lanes = T::lanes::<S>();
            for (g, h) in g.chunks_mut(lanes).zip(h.chunks(lanes)) {
                let lanes = Lanes::<S, T, 1>::first(s, g.len());
                // SAFETY: the lanes of one chunk of both.
                unsafe {
                    let (of_h, h) = (lanes.load(g.as_ptr())[0], lanes.load(h.as_ptr())[0]);
                    let gradient = Phi::<T>::gradient(phi, s, of_h, h);
                    lanes.store(g.as_mut_ptr(), [gradient]);
                }
            }
        });
    }
}
