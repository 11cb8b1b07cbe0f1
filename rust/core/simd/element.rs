//! What a tile needs of a number type, given an instruction set `S`.
//!
//! Complex numbers run at full FMA speed without shuffles: weights stay interleaved, the real and the imaginary part of
//! the broadcast operand go into two accumulators, and one join `re + i im` ends the sum.

use pulp::{MemMask, Simd};

use crate::numbers::number::{Number, Real, c32, c64};

/// A number type inside kernels. Every method must inline into a function compiled for `S`.
pub trait Element: Number {
    /// A register of numbers.
    type V<S: Simd>: Copy;
    /// A mask of leading lanes.
    type Mask<S: Simd>: Copy;
    /// Real broadcasts per product: 1 for real, 2 for complex numbers.
    const PARTS: usize = 1 + Self::COMPLEX as usize;

    /// Numbers per register.
    fn lanes<S: Simd>() -> usize;
    /// Reads a register from unaligned memory.
    ///
    /// # Safety
    /// The caller owns `lanes` numbers at `p`.
    unsafe fn load<S: Simd>(s: S, p: *const Self) -> Self::V<S>;
    /// Writes a register to unaligned memory.
    ///
    /// # Safety
    /// The caller owns `lanes` numbers at `p`.
    unsafe fn store<S: Simd>(s: S, p: *mut Self, v: Self::V<S>);
    /// The real (`part` 0) or imaginary (1) part of `*p` in every real lane.
    ///
    /// # Safety
    /// The caller owns `*p`.
    unsafe fn broadcast<S: Simd>(s: S, p: *const Self, part: usize) -> Self::V<S>;
    /// `x` in every lane.
    fn splat<S: Simd>(s: S, x: Self) -> Self::V<S>;
    /// `a * b + c`, real lane by real lane.
    fn fma<S: Simd>(s: S, a: Self::V<S>, b: Self::V<S>, c: Self::V<S>) -> Self::V<S>;
    /// `a + b`.
    fn plus<S: Simd>(s: S, a: Self::V<S>, b: Self::V<S>) -> Self::V<S>;
    /// `-x`.
    fn neg<S: Simd>(s: S, x: Self::V<S>) -> Self::V<S>;
    /// `re + i im`, joining the two accumulators of a complex sum.
    fn join<S: Simd>(s: S, re: Self::V<S>, im: Self::V<S>) -> Self::V<S>;
    /// The sum of the lanes of each register.
    #[inline(always)]
    fn sums_of_lanes<S: Simd>(s: S, registers: [Self::V<S>; 4]) -> [Self; 4] {
        let mut sums = [Self::ZERO; 4];
        for (sum, register) in sums.iter_mut().zip(registers) {
            *sum = sum_of_lanes(s, register);
        }
        sums
    }
    /// The first `count` lanes.
    fn mask<S: Simd>(s: S, count: usize) -> Self::Mask<S>;
    /// Reads the masked lanes, zero in the others.
    ///
    /// # Safety
    /// The caller owns the masked numbers at `p`.
    unsafe fn masked_load<S: Simd>(s: S, mask: Self::Mask<S>, p: *const Self) -> Self::V<S>;
    /// Writes the masked lanes.
    ///
    /// # Safety
    /// The caller owns the masked numbers at `p`.
    unsafe fn masked_store<S: Simd>(s: S, mask: Self::Mask<S>, p: *mut Self, v: Self::V<S>);

    /// `a b`, real lane by real lane.
    fn times<S: Simd>(s: S, a: Self::V<S>, b: Self::V<S>) -> Self::V<S>;
    /// `a - b`.
    fn minus<S: Simd>(s: S, a: Self::V<S>, b: Self::V<S>) -> Self::V<S>;
    /// `max(x, 0)`, NaN stays; part by part for complex numbers.
    fn positive<S: Simd>(s: S, x: Self::V<S>) -> Self::V<S>;
    /// `yes` where `x > 0` or NaN, else `no`; part by part for complex numbers.
    fn where_positive<S: Simd>(s: S, x: Self::V<S>, yes: Self::V<S>, no: Self::V<S>) -> Self::V<S>;
    /// Hyperbolic tangent, within 3 units in the last place, part by part for complex numbers.
    fn tanh<S: Simd>(s: S, x: Self::V<S>) -> Self::V<S>;
}

/// Sum of the lanes of real numbers.
#[inline(always)]
pub fn sum_of_lanes<T: Element, S: Simd>(s: S, v: T::V<S>) -> T {
    // A register holds at most 64 bytes.
    let mut parts = [T::ZERO; 16];
    // SAFETY: `parts` has at least 64 bytes.
    unsafe { T::store(s, parts.as_mut_ptr(), v) };
    let mut width = T::lanes::<S>();
    while width > 1 {
        width /= 2;
        for i in 0..width {
            parts[i] += parts[i + width];
        }
    }
    parts[0]
}

macro_rules! real {
    ($t:ident, $bits:ident, $v:ident, $m:ident, $lanes:ident, $splat:ident, $splat_bits:ident, $fma:ident, $add:ident,
     $neg:ident, $sub:ident, $mul:ident, $div:ident, $max:ident, $le:ident, $gt:ident, $select:ident, $between:ident,
     $mload:ident, $mstore:ident, $to_bits:ident, $from_bits:ident, $and:ident, $or:ident, $mul_bits:ident,
     $add_bits:ident, $terms:expr, $saturated:expr, $block:literal, $turn_blocks:ident) => {
        impl Element for $t {
            type V<S: Simd> = S::$v;
            type Mask<S: Simd> = MemMask<S::$m>;

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            unsafe fn load<S: Simd>(_: S, p: *const Self) -> S::$v {
                p.cast::<S::$v>().read_unaligned()
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(_: S, p: *mut Self, v: S::$v) {
                p.cast::<S::$v>().write_unaligned(v);
            }
            #[inline(always)]
            unsafe fn broadcast<S: Simd>(s: S, p: *const Self, _: usize) -> S::$v {
                s.$splat(*p)
            }
            #[inline(always)]
            fn splat<S: Simd>(s: S, x: Self) -> S::$v {
                s.$splat(x)
            }
            #[inline(always)]
            fn fma<S: Simd>(s: S, a: S::$v, b: S::$v, c: S::$v) -> S::$v {
                s.$fma(a, b, c)
            }
            #[inline(always)]
            fn plus<S: Simd>(s: S, a: S::$v, b: S::$v) -> S::$v {
                s.$add(a, b)
            }
            #[inline(always)]
            fn neg<S: Simd>(s: S, x: S::$v) -> S::$v {
                s.$neg(x)
            }
            #[inline(always)]
            fn join<S: Simd>(_: S, re: S::$v, _: S::$v) -> S::$v {
                re
            }
            // Blocks of 128 bits of some registers are turned, so that their sum has a sum of each register in each block.
            #[inline(always)]
            fn sums_of_lanes<S: Simd>(s: S, registers: [S::$v; 4]) -> [Self; 4] {
                let mut sums = [0.0; 4];
                for (sums, registers) in
                    sums.as_chunks_mut::<$block>().0.iter_mut().zip(registers.as_chunks::<$block>().0)
                {
                    if S::IS_SCALAR {
                        *sums = registers.map(|register| sum_of_lanes(s, register));
                        continue;
                    }
                    let turned = s.$turn_blocks(*registers);
                    let mut sum = turned[0];
                    for part in &turned[1..] {
                        sum = s.$add(sum, *part);
                    }
                    let mut blocks = [[0.0; $block]; 16 / $block];
                    // SAFETY: a register holds at most 64 bytes.
                    unsafe { Self::store(s, blocks.as_mut_ptr().cast(), sum) };
                    for block in &blocks[..S::$lanes / $block] {
                        for (sum, x) in sums.iter_mut().zip(block) {
                            *sum += x;
                        }
                    }
                }
                sums
            }
            #[inline(always)]
            fn mask<S: Simd>(s: S, count: usize) -> Self::Mask<S> {
                // A plain mask: pulp's own also carries a jump table that LLVM cannot schedule around.
                MemMask::new(s.$between(0, count.min(S::$lanes) as $bits).mask())
            }
            #[inline(always)]
            unsafe fn masked_load<S: Simd>(s: S, mask: Self::Mask<S>, p: *const Self) -> S::$v {
                s.$mload(mask, p)
            }
            #[inline(always)]
            unsafe fn masked_store<S: Simd>(s: S, mask: Self::Mask<S>, p: *mut Self, v: S::$v) {
                s.$mstore(mask, p, v);
            }
            #[inline(always)]
            fn times<S: Simd>(s: S, a: S::$v, b: S::$v) -> S::$v {
                s.$mul(a, b)
            }
            #[inline(always)]
            fn minus<S: Simd>(s: S, a: S::$v, b: S::$v) -> S::$v {
                s.$sub(a, b)
            }
            #[inline(always)]
            fn positive<S: Simd>(s: S, x: S::$v) -> S::$v {
                let zero = s.$splat(0.0);
                // x86 and NEON keep a NaN in the second operand of max; Rust's scalar max drops it.
                if S::IS_SCALAR { s.$select(s.$le(x, zero), zero, x) } else { s.$max(zero, x) }
            }
            #[inline(always)]
            fn where_positive<S: Simd>(s: S, x: S::$v, yes: S::$v, no: S::$v) -> S::$v {
                s.$select(s.$le(x, s.$splat(0.0)), no, yes)
            }
            // tanh |x| = e / (e + 2) with e = exp(2 |x|) - 1 = 2^k p + (2^k - 1), where p = exp(r) - 1 by its Taylor
            // series, 2 |x| = k ln 2 + r and |r| <= ln 2 / 2. For k = 0 this keeps full relative precision near zero.
            #[inline(always)]
            fn tanh<S: Simd>(s: S, x: S::$v) -> S::$v {
                const MANTISSA: u32 = $t::MANTISSA_DIGITS - 1;
                const ROUND: $t = (3u64 << (MANTISSA - 1)) as $t; // adding it leaves the nearest integer in the low bits
                // ln 2 in two parts, the first short enough for k times it to be exact.
                const LN2_HIGH: $t = ((std::f64::consts::LN_2 * 4096.0) as i64 as f64 / 4096.0) as $t;
                const LN2_LOW: $t =
                    (std::f64::consts::LN_2 - (std::f64::consts::LN_2 * 4096.0) as i64 as f64 / 4096.0) as $t;
                let sign = s.$and(x, s.$splat(-0.0));
                let limit = s.$splat($saturated);
                let size = s.$max(x, s.$sub(s.$splat(0.0), x));
                let size = s.$select(s.$gt(size, limit), limit, size);
                let y = s.$add(size, size);
                let shifted = s.$fma(y, s.$splat(std::$t::consts::LOG2_E), s.$splat(ROUND));
                let k = s.$sub(shifted, s.$splat(ROUND));
                let r = s.$fma(k, s.$splat(-LN2_HIGH), y);
                let r = s.$fma(k, s.$splat(-LN2_LOW), r);
                let mut series = s.$splat(1.0);
                let mut term = $terms;
                while term > 1 {
                    series = s.$fma(s.$mul(series, r), s.$splat(1.0 / term as $t), s.$splat(1.0));
                    term -= 1;
                }
                let p = s.$mul(series, r);
                // 2^k: the low bits of `shifted` hold k; a product moves them up to the exponent's place.
                let exponent = s.$mul_bits(s.$to_bits(shifted), s.$splat_bits(1 << MANTISSA));
                let power = s.$from_bits(s.$add_bits(exponent, s.$to_bits(s.$splat(1.0))));
                let e = s.$fma(power, p, s.$sub(power, s.$splat(1.0)));
                let t = s.$div(e, s.$add(e, s.$splat(2.0)));
                s.$or(t, sign)
            }
        }
    };
}
real!(
    f32,
    u32,
    f32s,
    m32s,
    F32_LANES,
    splat_f32s,
    splat_u32s,
    mul_add_e_f32s,
    add_f32s,
    neg_f32s,
    sub_f32s,
    mul_f32s,
    div_f32s,
    max_f32s,
    less_than_or_equal_f32s,
    greater_than_f32s,
    select_f32s,
    mask_between_m32s,
    mask_load_ptr_f32s,
    mask_store_ptr_f32s,
    transmute_u32s_f32s,
    transmute_f32s_u32s,
    and_f32s,
    or_f32s,
    mul_u32s,
    add_u32s,
    8,
    10.0,
    4,
    deinterleave_shfl_f32s
);
real!(
    f64,
    u64,
    f64s,
    m64s,
    F64_LANES,
    splat_f64s,
    splat_u64s,
    mul_add_e_f64s,
    add_f64s,
    neg_f64s,
    sub_f64s,
    mul_f64s,
    div_f64s,
    max_f64s,
    less_than_or_equal_f64s,
    greater_than_f64s,
    select_f64s,
    mask_between_m64s,
    mask_load_ptr_f64s,
    mask_store_ptr_f64s,
    transmute_u64s_f64s,
    transmute_f64s_u64s,
    and_f64s,
    or_f64s,
    mul_u64s,
    add_u64s,
    14,
    20.0,
    2,
    deinterleave_shfl_f64s
);

/// `f` of registers of real and of imaginary parts.
#[inline(always)]
fn by_parts<S: Simd, C: Element<Real = R>, R: Element + Real, const N: usize>(
    args: [C::V<S>; N],
    f: impl Fn([R::V<S>; N]) -> R::V<S>,
) -> C::V<S> {
    use std::mem::transmute_copy as same_register;
    // SAFETY: on the scalar back end a complex register is one number and a real register one part of it; elsewhere both are
    // the same size. Any bit pattern is valid.
    unsafe {
        if S::IS_SCALAR {
            let numbers: [C; N] = same_register(&args);
            let of = |parts: [R; N]| -> R { same_register(&f(same_register(&parts))) };
            same_register(&C::from_parts(of(numbers.map(C::re)), of(numbers.map(C::im))))
        } else {
            same_register(&f(same_register(&args)))
        }
    }
}

/// Methods that apply those of the real type to both parts.
macro_rules! by_parts {
    ($r:ident, $v:ident: $($name:ident($($x:ident),+)),+) => { $(
        #[inline(always)]
        fn $name<S: Simd>(s: S, $($x: S::$v),+) -> S::$v {
            by_parts::<S, Self, $r, _>(
                [$($x),+],
                #[inline(always)]
                |[$($x),+]| <$r as Element>::$name(s, $($x),+),
            )
        }
    )+ };
}

macro_rules! complex {
    ($t:ident, $r:ident, $bits:ident, $v:ident, $rv:ident, $m:ident, $lanes:ident, $real_lanes:ident, $splat:ident,
     $real_splat:ident, $real_fma:ident, $fma:ident, $add:ident, $between:ident, $mload:ident, $mstore:ident) => {
        impl Element for $t {
            // Registers of whole complex numbers; except on the scalar back end they are the registers of real numbers.
            type V<S: Simd> = S::$v;
            type Mask<S: Simd> = MemMask<S::$m>;

            #[inline(always)]
            fn lanes<S: Simd>() -> usize {
                S::$lanes
            }
            #[inline(always)]
            unsafe fn load<S: Simd>(_: S, p: *const Self) -> S::$v {
                p.cast::<S::$v>().read_unaligned()
            }
            #[inline(always)]
            unsafe fn store<S: Simd>(_: S, p: *mut Self, v: S::$v) {
                p.cast::<S::$v>().write_unaligned(v);
            }
            #[inline(always)]
            unsafe fn broadcast<S: Simd>(s: S, p: *const Self, part: usize) -> S::$v {
                let x = *p.cast::<$r>().add(part);
                if S::IS_SCALAR {
                    s.$splat(Self::new(x, x))
                } else {
                    // SAFETY: real and complex registers are the same size away from the scalar back end.
                    std::mem::transmute_copy(&s.$real_splat(x))
                }
            }
            #[inline(always)]
            fn splat<S: Simd>(s: S, x: Self) -> S::$v {
                s.$splat(x)
            }
            #[inline(always)]
            fn fma<S: Simd>(s: S, a: S::$v, b: S::$v, c: S::$v) -> S::$v {
                use std::mem::transmute_copy as same_register;
                // SAFETY: on the scalar back end a register is one number of this type; elsewhere real and complex
                // registers are the same size, and any bit pattern is valid in both.
                unsafe {
                    if S::IS_SCALAR {
                        let (a, b, c): ($t, $t, $t) = (same_register(&a), same_register(&b), same_register(&c));
                        s.$splat(Self::new(a.re * b.re + c.re, a.im * b.im + c.im))
                    } else {
                        let sum: S::$rv = s.$real_fma(same_register(&a), same_register(&b), same_register(&c));
                        same_register(&sum)
                    }
                }
            }
            #[inline(always)]
            fn plus<S: Simd>(s: S, a: S::$v, b: S::$v) -> S::$v {
                s.$add(a, b)
            }
            #[inline(always)]
            fn join<S: Simd>(s: S, re: S::$v, im: S::$v) -> S::$v {
                s.$fma(s.$splat(Self::new(0.0, 1.0)), im, re)
            }
            #[inline(always)]
            fn mask<S: Simd>(s: S, count: usize) -> Self::Mask<S> {
                MemMask::new(s.$between(0, (2 * count).min(S::$real_lanes) as $bits).mask())
            }
            #[inline(always)]
            unsafe fn masked_load<S: Simd>(s: S, mask: Self::Mask<S>, p: *const Self) -> S::$v {
                s.$mload(mask, p)
            }
            #[inline(always)]
            unsafe fn masked_store<S: Simd>(s: S, mask: Self::Mask<S>, p: *mut Self, v: S::$v) {
                s.$mstore(mask, p, v);
            }
            by_parts!($r, $v: neg(x), times(a, b), minus(a, b), positive(x), where_positive(x, yes, no), tanh(x));
        }
    };
}
complex!(
    c32,
    f32,
    u32,
    c32s,
    f32s,
    m32s,
    C32_LANES,
    F32_LANES,
    splat_c32s,
    splat_f32s,
    mul_add_e_f32s,
    mul_add_e_c32s,
    add_c32s,
    mask_between_m32s,
    mask_load_ptr_c32s,
    mask_store_ptr_c32s
);
complex!(
    c64,
    f64,
    u64,
    c64s,
    f64s,
    m64s,
    C64_LANES,
    F64_LANES,
    splat_c64s,
    splat_f64s,
    mul_add_e_f64s,
    mul_add_e_c64s,
    add_c64s,
    mask_between_m64s,
    mask_load_ptr_c64s,
    mask_store_ptr_c64s
);
