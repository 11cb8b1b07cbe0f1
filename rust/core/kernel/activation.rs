//! The pointwise nonlinearities `phi` and their derivatives, which the output `phi(a)` determines.

use pulp::Simd;

use super::element::Element;
use super::epilogue::Lanes;

/// A pointwise nonlinearity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation<T> {
    /// `a`.
    Identity,
    /// `max(a, 0)`.
    Relu,
    /// `a` if `a > 0`, else `slope a`.
    LeakyRelu(T),
    /// Hyperbolic tangent.
    Tanh,
}

impl<T: Element> Activation<T> {
    /// `phi` inside a tile's epilogue. The tanh is too long for that: [`Activation::finish_column`] follows.
    #[inline(always)]
    pub fn fused<S: Simd>(self, s: S, a: T::V<S>) -> T::V<S> {
        match self {
            Self::Identity | Self::Tanh => a,
            Self::Relu => T::relu(s, a),
            Self::LeakyRelu(slope) => T::leaky(s, a, T::splat(s, slope)),
        }
    }

    /// `g phi'`, given `h = phi(a)`.
    #[inline(always)]
    pub fn fused_gradient<S: Simd>(self, s: S, g: T::V<S>, h: T::V<S>) -> T::V<S> {
        match self {
            Self::Identity => g,
            Self::Relu => T::leaky_gradient(s, g, h, T::splat(s, T::default())),
            Self::LeakyRelu(slope) => T::leaky_gradient(s, g, h, T::splat(s, slope)),
            Self::Tanh => T::tanh_gradient(s, g, h),
        }
    }

    /// Applies to `n` contiguous pre-activations what [`Activation::fused`] left out. The caller owns them.
    #[inline(always)]
    pub unsafe fn finish_column<S: Simd>(self, s: S, a: *mut T, n: usize) {
        if !matches!(self, Self::Tanh) {
            return;
        }
        let step = T::lanes::<S>();
        let mut i = 0;
        while i < n {
            let lanes = Lanes::<S, T>::first(s, n - i);
            lanes.store(a.add(i), T::tanh(s, lanes.load(a.add(i))));
            i += step;
        }
    }
}
