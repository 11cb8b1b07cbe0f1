//! Registers of a column, and helpers for unrolled loops over them.

use pulp::Simd;

use super::element::Element;

/// Most registers of rows in a tile, by the size of the register file.
#[inline(always)]
pub const fn max_rows<S: Simd>() -> usize {
    match S::REGISTER_COUNT {
        _ if S::IS_SCALAR => 1,
        32.. => 4,
        _ => 2,
    }
}

/// Most columns of a tile with `mrv` registers of rows. They leave registers for the weights and a broadcast. Enough
/// accumulators to saturate FMA; each further size is another compiled kernel.
#[inline(always)]
pub const fn max_columns<S: Simd>(mrv: usize, parts: usize) -> usize {
    let columns = match (max_rows::<S>(), mrv) {
        _ if S::IS_SCALAR => 4,
        (4, 4) | (2, 2) => 6,
        _ => 8,
    };
    columns / parts
}

/// `for i in 0..N { .. }`, written out: LLVM itself does not unroll large nests and keeps the sums in memory.
macro_rules! unroll {
    (for $i:ident in 0..$count:tt $body:block) => {
        $crate::simd::lanes::each_below::<$count>(
            #[inline(always)] // else it would be compiled without the instruction set
            |$i| $body,
        )
    };
}
pub(crate) use unroll;

/// Calls `f(0), .., f(N - 1)`, for [`unroll`].
#[inline(always)]
pub fn each_below<const N: usize>(mut f: impl FnMut(usize)) {
    const { assert!(N <= 16, "more calls than are written out") };
    macro_rules! calls { ($($i:literal)*) => { $( if const { $i < N } { f($i); } )* } }
    calls!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
}

/// `p` with its origin hidden from the compiler, which then advances a pointer at each step instead of recomputing it.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // there is no instruction that could follow the pointer
pub fn opaque<T>(#[cfg_attr(miri, allow(unused_mut))] mut p: *const T) -> *const T {
    #[cfg(not(miri))] // which knows no assembly
    // SAFETY: no instruction at all.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags));
    };
    p
}

/// `MRV` registers of one column. The last one may lie inside the matrix with its first lanes only.
#[derive(Clone, Copy)]
pub struct Lanes<S: Simd, T: Element, const MRV: usize> {
    s: S,
    partial: Option<T::Mask<S>>,
}

impl<S: Simd, T: Element, const MRV: usize> Lanes<S, T, MRV> {
    /// `count` lanes of the last register; full if that is all of them.
    #[inline(always)]
    pub fn first(s: S, count: usize) -> Self {
        Self { s, partial: (count < T::lanes::<S>()).then(|| T::mask(s, count)) }
    }
    /// Reads these lanes.
    ///
    /// # Safety
    /// The caller owns these lanes at `p`.
    #[inline(always)]
    pub unsafe fn load(self, p: *const T) -> [T::V<S>; MRV] {
        let mut v = [T::splat(self.s, T::default()); MRV];
        unroll!(for i in 0..MRV {
            let p = p.add(i * T::lanes::<S>());
            v[i] = match self.partial {
                Some(mask) if i == MRV - 1 => T::masked_load(self.s, mask, p),
                _ => T::load(self.s, p),
            };
        });
        v
    }
    /// Writes these lanes.
    ///
    /// # Safety
    /// The caller owns these lanes at `p`.
    #[inline(always)]
    pub unsafe fn store(self, p: *mut T, v: [T::V<S>; MRV]) {
        unroll!(for i in 0..MRV {
            let p = p.add(i * T::lanes::<S>());
            match self.partial {
                Some(mask) if i == MRV - 1 => T::masked_store(self.s, mask, p, v[i]),
                _ => T::store(self.s, p, v[i]),
            }
        });
    }
    /// Adds an optional operand.
    ///
    /// # Safety
    /// The caller owns these lanes at `operand`, unless that is null.
    #[inline(always)]
    pub unsafe fn plus(self, v: [T::V<S>; MRV], operand: *const T) -> [T::V<S>; MRV] {
        if operand.is_null() {
            return v;
        }
        let (mut v, x) = (v, self.load(operand));
        unroll!(for i in 0..MRV {
            v[i] = T::plus(self.s, v[i], x[i]);
        });
        v
    }
}
