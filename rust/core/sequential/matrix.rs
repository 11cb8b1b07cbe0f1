//! The matrix `W` of few coordinates, and what a gradient of it says about `U`.
//!
//! Columns of `W` lie in the lanes of registers, a few registers of them at a time. A pass over the rows subtracts `v p` of one
//! reflection, `p = tau v* W`, and sums `v* W` of the next one from what it has just changed.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::chain::Chain;
use super::vectors::{pad, sum};
use crate::apply::Diagonal;
use crate::error::Result;
use crate::kernel::dispatch::InstructionSet;
use crate::kernel::element::Element;
use crate::kernel::epilogue::Lanes;
use crate::kernel::tile::unroll;
use crate::memory::Buffer;
use crate::reflections::Reflections;
use crate::scalar::Scalar;

/// Up to this size one reflection after the other forms `W` in less time than compact WY needs for its factors.
pub const SMALL: usize = 64;

/// Room for matrices of one shape.
pub struct Formation<T: Scalar> {
    chain: Chain<T>,
    /// Row-major, rows `ld` apart, like the unit vectors that the reflections are applied to.
    w: Buffer<T>,
    unit: Buffer<T>,
}

impl<T: Scalar> Formation<T> {
    /// For products of `k` reflections of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let chain = Chain::new(n, k)?;
        let mut unit = Buffer::zeroed(n * chain.ld)?;
        (0..n).for_each(|i| unit[i * chain.ld + i] = T::ONE);
        Ok(Self { w: Buffer::zeroed(n * chain.ld)?, unit, chain })
    }

    /// Writes `W`, row-major.
    pub fn run(&mut self, isa: InstructionSet, u: Reflections<'_, T>, diagonal: &Diagonal<T>, out: &mut [T]) {
        isa.dispatch(Form { room: self, u, diagonal, out });
    }

    /// Forms `W_1`, without the diagonal: whole registers of columns in `out` if there is one, all others in `w`. Returns
    /// how many columns went to `out`.
    #[inline(always)]
    fn form<S: Simd>(&mut self, s: S, u: Reflections<'_, T>, out: Option<Strided<T>>) -> usize {
        let Self { chain, w, unit } = self;
        let (n, lanes) = (u.n(), T::lanes::<S>());
        chain.set(s, u);
        let registers = n.div_ceil(lanes);
        let whole = if out.is_some() { n / lanes } else { 0 };
        let (w, unit) = (Strided(w.as_mut_ptr(), chain.ld), Strided(unit.as_mut_ptr(), chain.ld));
        let mut done = 0;
        while done < registers {
            let most = if done < whole { whole } else { registers } - done;
            let width = if most >= 4 { 4 } else { 1 << most.ilog2() };
            let columns = done * lanes..n.min((done + width) * lanes);
            let at = |x: Strided<T>| x.from(columns.start);
            let places = [at(unit), at(w), at(out.filter(|_| done < whole).unwrap_or(w))];
            // SAFETY: `width` registers inside rows of `ld` numbers, or of `out`.
            unsafe {
                match width {
                    4 => reflect::<T, S, 4>(s, chain, places, columns.end),
                    2 => reflect::<T, S, 2>(s, chain, places, columns.end),
                    _ => reflect::<T, S, 1>(s, chain, places, columns.end),
                }
            }
            done += width;
        }
        whole * lanes
    }
}

struct Form<'a, T: Scalar> {
    room: &'a mut Formation<T>,
    u: Reflections<'a, T>,
    diagonal: &'a Diagonal<T>,
    out: &'a mut [T],
}

impl<T: Scalar> WithSimd for Form<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let n = self.u.n();
        let whole = self.room.form(s, self.u, Some(Strided(self.out.as_mut_ptr(), n)));
        for j in (whole..n).step_by(T::lanes::<S>()) {
            let inside = Lanes::<S, T, 1>::first(s, n - j);
            for (out, w) in self.out.chunks_exact_mut(n).zip(self.room.w.chunks_exact(self.room.chain.ld)) {
                // SAFETY: a whole register of a padded row, and the lanes of a row of W.
                unsafe { inside.store(out.as_mut_ptr().add(j), [T::load(s, w.as_ptr().add(j))]) };
            }
        }
        if !self.diagonal.is_one() {
            // Column j times d_j: the rows of W have it at entry j.
            self.out.chunks_exact_mut(n).for_each(|row| self.diagonal.apply(row, false));
        }
    }
}

/// Where rows begin: the address of the first one, and the distance between them.
#[derive(Clone, Copy)]
struct Strided<T>(*mut T, usize);

impl<T> Strided<T> {
    #[inline(always)]
    unsafe fn at(self, row: usize) -> *mut T {
        self.0.add(row * self.1)
    }

    #[inline(always)]
    fn from(self, column: usize) -> Self {
        Self(self.0.wrapping_add(column), self.1)
    }
}

/// `p` of a reflection for `C` registers of columns, negative; for complex numbers also `i p`.
type Products<T, S, const C: usize> = [[<T as Element>::V<S>; C]; 2];

/// Applies all reflections to `C` registers of unit vectors, columns up to `end`, and writes the last result. The caller owns
/// these columns of `w` and `out`.
#[inline(always)]
unsafe fn reflect<T: Scalar, S: Simd, const C: usize>(
    s: S,
    chain: &Chain<T>,
    [unit, w, out]: [Strided<T>; 3],
    end: usize,
) {
    let n = chain.n;
    let v = |j: usize| Strided(chain.rows.ptr().add(j).cast_mut(), chain.ld_k);
    // Reflection j leaves the columns before j alone.
    let count = chain.k.min(end);
    let Some(last) = count.checked_sub(1) else {
        pass::<T, S, C>(s, 0..n, [unit, out], None, None);
        return;
    };
    // Rows that are unit vectors until their turn comes.
    pass::<T, S, C>(s, 0..last, [unit, w], None, None);
    let mut p = products(s, chain.tau[last], pass::<T, S, C>(s, last..end, [unit, unit], None, Some(v(last))));
    let mut from = unit;
    for j in (1..count).rev() {
        p = products(s, chain.tau[j - 1], pass(s, j - 1..n, [from, w], Some((v(j), p)), Some(v(j - 1))));
        from = w;
    }
    pass(s, 0..n, [from, out], Some((v(0), p)), None);
}

/// `W + v p` and then the two parts of `sum v W`, for these rows. Written is what is changed or copied: not what is only
/// summed. The caller owns `C` registers in each row.
#[inline(always)]
unsafe fn pass<T: Scalar, S: Simd, const C: usize>(
    s: S,
    rows: Range<usize>,
    [from, to]: [Strided<T>; 2],
    change: Option<(Strided<T>, Products<T, S, C>)>,
    next: Option<Strided<T>>,
) -> Products<T, S, C> {
    // Sums of every so many rows, side by side: they hide the latency of an FMA.
    let chains = 4 / C;
    let mut sums = [[[T::splat(s, T::ZERO); C]; 2]; 4];
    macro_rules! step {
        ($i:expr, $chain:expr) => {{
            let (row, to) = (from.at($i), to.at($i));
            let mut x = [T::splat(s, T::ZERO); C];
            unroll::<C>(
                #[inline(always)]
                |c| x[c] = T::load(s, row.add(c * T::lanes::<S>())),
            );
            if let Some((v, p)) = change {
                for part in 0..T::PARTS {
                    let v = T::broadcast(s, v.at($i), part);
                    unroll::<C>(
                        #[inline(always)]
                        |c| x[c] = T::fma(s, p[part][c], v, x[c]),
                    );
                }
            }
            if change.is_some() || next.is_none() {
                unroll::<C>(
                    #[inline(always)]
                    |c| T::store(s, to.add(c * T::lanes::<S>()), x[c]),
                );
            }
            if let Some(v) = next {
                for part in 0..T::PARTS {
                    let v = T::broadcast(s, v.at($i), part);
                    unroll::<C>(
                        #[inline(always)]
                        |c| sums[$chain][part][c] = T::fma(s, x[c], v, sums[$chain][part][c]),
                    );
                }
            }
        }};
    }
    let mut i = rows.start;
    while i + chains <= rows.end {
        unroll::<4>(
            #[inline(always)]
            |chain| {
                if chain < chains {
                    step!(i + chain, chain);
                }
            },
        );
        i += chains;
    }
    while i < rows.end {
        step!(i, 0);
        i += 1;
    }
    let mut total = sums[0];
    for sums in &sums[1..chains] {
        for part in 0..T::PARTS {
            for c in 0..C {
                total[part][c] = T::plus(s, total[part][c], sums[part][c]);
            }
        }
    }
    total
}

/// `-tau v* W` from the parts of `sum v W`.
#[inline(always)]
fn products<T: Scalar, S: Simd, const C: usize>(s: S, tau: T, sums: Products<T, S, C>) -> Products<T, S, C> {
    let zero = T::splat(s, T::ZERO);
    let tau = tau.re();
    let (plus, minus) = (T::splat(s, T::from_parts(tau, tau)), T::splat(s, T::from_parts(-tau, -tau)));
    let mut products = [[zero; C]; 2];
    for c in 0..C {
        let p = T::fma(s, sums[0][c], minus, zero);
        if T::COMPLEX {
            let p = T::join(s, p, T::fma(s, sums[1][c], plus, zero));
            products[0][c] = p;
            products[1][c] = T::join(s, zero, p);
        } else {
            products[0][c] = p;
        }
    }
    products
}

/// Room for gradients of real matrices of one shape.
pub struct FormationBackward<T: Scalar> {
    formation: Formation<T>,
    /// Row-major, rows `ld` apart.
    g: Buffer<T>,
    /// Like the rows of `V`.
    grad_v: Buffer<T>,
}

impl<T: Scalar> FormationBackward<T> {
    /// For products of `k` reflections of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        assert!(!T::COMPLEX, "products of lanes are real");
        let formation = Formation::new(n, k)?;
        let ld = formation.chain.ld;
        Ok(Self { g: Buffer::zeroed(n * ld)?, grad_v: Buffer::zeroed(formation.chain.rows.len())?, formation })
    }

    /// Writes `dL/dU` for a gradient `g` of `W`, both row-major.
    pub fn run(
        &mut self,
        isa: InstructionSet,
        u: Reflections<'_, T>,
        diagonal: &Diagonal<T>,
        g: &[T],
        grad_u: &mut [T],
    ) {
        isa.dispatch(FormBack { room: self, u, diagonal, g, grad_u });
    }
}

struct FormBack<'a, T: Scalar> {
    room: &'a mut FormationBackward<T>,
    u: Reflections<'a, T>,
    diagonal: &'a Diagonal<T>,
    g: &'a [T],
    grad_u: &'a mut [T],
}

impl<T: Scalar> WithSimd for FormBack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) {
        let Self { room: FormationBackward { formation, g, grad_v }, u, diagonal, g: grad_w, grad_u } = self;
        let n = u.n();
        formation.form(s, u, None);
        let Formation { chain, w, .. } = formation;
        let ld = chain.ld;
        let mut grad_u1 = T::ZERO;
        for (i, grad_w) in grad_w.chunks_exact(n).enumerate() {
            let g = &mut g[i * ld..(i + 1) * ld];
            pad(g, grad_w);
            diagonal.apply(&mut g[..n], true);
            grad_u1 += w[i * ld + n - 1] * grad_w[n - 1];
        }
        grad_v.fill(T::ZERO);
        let registers = n.div_ceil(T::lanes::<S>());
        let mut done = 0;
        for width in [2, 1] {
            while done + width <= registers {
                let begin = done * T::lanes::<S>();
                // SAFETY: `width` registers inside rows of `ld` numbers.
                unsafe {
                    let w = Strided(w.as_mut_ptr().add(begin), ld);
                    let g = Strided(g.as_mut_ptr().add(begin), ld);
                    match width {
                        2 => undo::<T, S, 2>(s, chain, w, g, grad_v),
                        _ => undo::<T, S, 1>(s, chain, w, g, grad_v),
                    }
                }
                done += width;
            }
        }
        std::mem::swap(&mut chain.rows, grad_v);
        chain.write_gradient_of_rows(s, u, grad_u);
        if u.u1().is_some() {
            grad_u[n * n - 1] = grad_u1;
        }
    }
}

/// Takes the reflections off `C` registers of columns of `W`, the first one first, and off those of its gradient `G`:
/// `dL/dv_j -= G a* + W b*` with `a = tau v_j* W` and `b = tau v_j* G`; `W` and `a` behind the reflection, `G` too, `b` before.
#[inline(always)]
unsafe fn undo<T: Scalar, S: Simd, const C: usize>(
    s: S,
    chain: &Chain<T>,
    w: Strided<T>,
    g: Strided<T>,
    grad_v: &mut [T],
) {
    let (n, lanes) = (chain.n, T::lanes::<S>());
    if chain.k == 0 {
        return;
    }
    let v = |j: usize| Strided(chain.rows.ptr().add(j).cast_mut(), chain.ld_k);
    let zero = T::splat(s, T::ZERO);
    let mut sums = [[zero; C]; 2];
    sums[0] = pass::<T, S, C>(s, 0..n, [w, w], None, Some(v(0)))[0];
    sums[1] = pass::<T, S, C>(s, 0..n, [g, g], None, Some(v(0)))[0];
    for j in 0..chain.k {
        // v* changes its sign under the reflection: what is subtracted from W is a.
        let tau = T::splat(s, chain.tau[j]);
        let minus_tau = T::splat(s, -chain.tau[j]);
        let (mut a, mut b, mut minus_b) = ([zero; C], [zero; C], [zero; C]);
        unroll::<C>(
            #[inline(always)]
            |c| {
                a[c] = T::fma(s, sums[0][c], minus_tau, zero);
                b[c] = T::fma(s, sums[1][c], tau, zero);
                minus_b[c] = T::fma(s, sums[1][c], minus_tau, zero);
            },
        );
        sums = [[zero; C]; 2];
        let (v, next) = (v(j), v((j + 1).min(chain.k - 1)));
        for i in j..n {
            let (v, next) = (T::broadcast(s, v.at(i), 0), T::broadcast(s, next.at(i), 0));
            let mut grad = zero;
            unroll::<C>(
                #[inline(always)]
                |c| {
                    let (w, g) = (w.at(i).add(c * lanes), g.at(i).add(c * lanes));
                    let x = T::fma(s, a[c], v, T::load(s, w));
                    let y = T::fma(s, minus_b[c], v, T::load(s, g));
                    T::store(s, w, x);
                    T::store(s, g, y);
                    sums[0][c] = T::fma(s, x, next, sums[0][c]);
                    sums[1][c] = T::fma(s, y, next, sums[1][c]);
                    grad = T::fma(s, a[c], y, T::fma(s, b[c], x, grad));
                },
            );
            grad_v[i * chain.ld_k + j] -= sum(s, grad);
        }
    }
}
