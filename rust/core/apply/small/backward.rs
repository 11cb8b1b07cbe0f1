//! The gradient of `U` from a gradient of `W`.

use pulp::Simd;

use super::blocks::project;
use super::{Chain, Formation};
use crate::apply::sequential::vectors::pad;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::Transform;
use crate::simd::element::sum_of_lanes;
use crate::simd::isa::simd;
use crate::simd::lanes::unroll;

/// Workspace for gradients of real matrices of one shape, whose reflections are their own inverses.
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
}

simd! {
    /// Writes `dL/dU` for a gradient of `W`, both row-major.
    pub fn form_back<T: Scalar>(
        s,
        workspace: &mut FormationBackward<T>,
        w: Transform<'_, T>,
        grad_w: &[T],
        grad_u: &mut [T],
    ) -> () {
        let (Transform { u, diagonal, .. }, FormationBackward { formation, g, grad_v }) = (w, workspace);
        let n = u.n();
        assert!(u.tau().is_none(), "a given tau is not undone");
        assert_eq!([grad_w.len(), grad_u.len()], [n * n, n * u.m()], "dL/dW and dL/dU");
        // SAFETY: there is no output, so only the workspace is written.
        unsafe { formation.form(s, u, None) };
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
                    let w = ViewMut::of(w, ld, n).from(begin, 0);
                    let g = ViewMut::of(g, ld, n).from(begin, 0);
                    match width {
                        2 => undo::<T, S, 2>(s, chain, w, g, grad_v),
                        _ => undo::<T, S, 1>(s, chain, w, g, grad_v),
                    }
                }
                done += width;
            }
        }
        std::mem::swap(&mut chain.v.rows, grad_v);
        chain.v.write_gradient(s, u, grad_u);
        if u.u1().is_some() {
            grad_u[n * n - 1] = grad_u1;
        }
    }
}

/// Undoes the reflections on `C` registers of columns of `W`, the first one first, and on those of its gradient `G`:
/// `dL/dv_j -= G a* + W b*` with `a = tau v_j* W` and `b = tau v_j* G`. `W`, `a` and `G` are those after the reflection is
/// undone, `b` is that before.
///
/// # Safety
/// The caller owns `C` registers in each of `n` rows of `w` and `g`.
#[inline(always)]
unsafe fn undo<T: Scalar, S: Simd, const C: usize>(
    s: S,
    chain: &Chain<T>,
    w: ViewMut<'_, T>,
    g: ViewMut<'_, T>,
    grad_v: &mut [T],
) {
    let (n, lanes) = (chain.n, T::lanes::<S>());
    if chain.k == 0 {
        return;
    }
    let v = |j: usize| View::of(&chain.rows, chain.ld_k, n).from(j, 0);
    let zero = T::splat(s, T::ZERO);
    // (The body of a closure might not be compiled for S.)
    let mut starts = [[[[zero; 2]; C]; 1]; 2];
    project(s, chain, 0, 0..chain.n, w.read(), &mut starts[0]);
    project(s, chain, 0, 0..chain.n, g.read(), &mut starts[1]);
    let mut sums = [[zero; C]; 2];
    for (sums, start) in sums.iter_mut().zip(starts) {
        for (sum, start) in sums.iter_mut().zip(start[0]) {
            *sum = start[0];
        }
    }
    for j in 0..chain.k {
        // The reflection has changed the sign of v* W, so a = -tau v* W here, and adding a v undoes it.
        let tau = T::splat(s, chain.tau[j]);
        let minus_tau = T::splat(s, -chain.tau[j]);
        let (mut a, mut b, mut minus_b) = ([zero; C], [zero; C], [zero; C]);
        unroll!(for c in 0..C {
            a[c] = T::fma(s, sums[0][c], minus_tau, zero);
            b[c] = T::fma(s, sums[1][c], tau, zero);
            minus_b[c] = T::fma(s, sums[1][c], minus_tau, zero);
        });
        sums = [[zero; C]; 2];
        let (v, next) = (v(j), v((j + 1).min(chain.k - 1)));
        for i in chain.form.first(j)..n {
            let (v, next) = (T::broadcast(s, v.at(0, i), 0), T::broadcast(s, next.at(0, i), 0));
            let mut grad = zero;
            unroll!(for c in 0..C {
                let (w, g) = (w.at(0, i).add(c * lanes), g.at(0, i).add(c * lanes));
                let x = T::fma(s, a[c], v, T::load(s, w));
                let y = T::fma(s, minus_b[c], v, T::load(s, g));
                T::store(s, w, x);
                T::store(s, g, y);
                sums[0][c] = T::fma(s, x, next, sums[0][c]);
                sums[1][c] = T::fma(s, y, next, sums[1][c]);
                grad = T::fma(s, a[c], y, T::fma(s, b[c], x, grad));
            });
            grad_v[i * chain.ld_k + j] -= sum_of_lanes(s, grad);
        }
    }
}
