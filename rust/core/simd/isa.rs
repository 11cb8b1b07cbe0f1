//! The instruction set, chosen once per process.

use std::marker::PhantomData;

use pulp::{Scalar, Simd, WithSimd};

use super::element::Element;
use super::lanes::max_rows;
use crate::memory::once::Once;

/// Defines functions whose bodies are compiled for each instruction set: `fn f(s, arguments)` is called as
/// `f(isa, arguments)`, an `unsafe fn` likewise. In the body `s: S` stands for the instruction set.
macro_rules! simd {
    () => {};
    (@define [$($head:tt)*] $name:ident<$($generic:ident: $bound:path),+>(
        $s:ident, $($argument:ident: $type:ty),+ $(,)?
    ) -> $output:ty $body:block $($rest:tt)*) => {
        $($head)* fn $name<$($generic: $bound),+>(
            isa: $crate::simd::isa::InstructionSet, $($argument: $type),+
        ) -> $output {
            struct Captured<A>(A);
            impl<$($generic: $bound),+> pulp::WithSimd for Captured<($($type,)+)> {
                type Output = $output;
                #[inline(always)]
                fn with_simd<S: pulp::Simd>(self, $s: S) -> $output {
                    let Self(($($argument,)+)) = self;
                    $body
                }
            }
            isa.dispatch(Captured(($($argument,)+)))
        }
        $crate::simd::isa::simd!($($rest)*);
    };
    ($(#[$attribute:meta])* $vis:vis unsafe fn $($rest:tt)+) => {
        $crate::simd::isa::simd!(@define [$(#[$attribute])* $vis unsafe] $($rest)+);
    };
    ($(#[$attribute:meta])* $vis:vis fn $($rest:tt)+) => {
        $crate::simd::isa::simd!(@define [$(#[$attribute])* $vis] $($rest)+);
    };
}
pub(crate) use simd;

/// An instruction set that this machine can run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum InstructionSet {
    /// AVX-512 F, BW, CD, DQ, VL.
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    /// 128-bit NEON.
    #[cfg(target_arch = "aarch64")]
    Neon(pulp::aarch64::Neon),
    /// One number at a time.
    Scalar(Scalar),
}

impl InstructionSet {
    /// Every instruction set of this machine, best first.
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(pulp::x86::V4::try_new().map(Self::Avx512));
            sets.extend(pulp::x86::V3::try_new().map(Self::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        sets.extend(pulp::aarch64::Neon::try_new().map(Self::Neon));
        sets.push(Self::Scalar(Scalar::new()));
        sets
    }

    /// The name that the environment variable `HOUSEHOLDER_SIMD` takes.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            Self::Scalar(_) => "scalar",
        }
    }

    /// The best one, or the one that `HOUSEHOLDER_SIMD` names if this machine has it. Decided at the first call.
    pub fn current() -> Self {
        static CURRENT: Once<InstructionSet> = Once::new();
        *CURRENT.get(|| {
            let available = Self::available();
            let wanted = std::env::var("HOUSEHOLDER_SIMD").ok();
            let named = available.iter().find(|set| Some(set.name()) == wanted.as_deref());
            *named.unwrap_or(&available[0])
        })
    }

    /// Numbers in a register, and registers of rows in the tallest tile.
    pub(crate) fn tile_height<T: Element>(self) -> (usize, usize) {
        struct Height<T>(PhantomData<T>);
        impl<T: Element> WithSimd for Height<T> {
            type Output = (usize, usize);
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> (usize, usize) {
                (T::lanes::<S>(), max_rows::<S>())
            }
        }
        self.dispatch(Height::<T>(PhantomData))
    }

    /// Runs `op` compiled for this instruction set.
    #[inline(always)]
    pub(crate) fn dispatch<Op: WithSimd>(self, op: Op) -> Op::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(s) => Simd::vectorize(s, op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(s) => Simd::vectorize(s, op),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(s) => Simd::vectorize(s, op),
            Self::Scalar(s) => Simd::vectorize(s, op),
        }
    }
}
