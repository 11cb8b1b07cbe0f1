//! Reflections in groups of four, `W = I - V S V*`, so that four of them read and write a vector once:
//!
//! ```text
//! forward:   s = P V* x,   a = tau s,   x <- x - V a
//! backward:  t = Q V* g,   b = tau t,   x <- x + V a,   g <- g - V b,   M = sum b a*
//!            dL/dV = -sum (g a* + x b*) + V E,       E_ji = M_ji - M_ij, for W where j < i, for W* where j > i
//! ```
//!
//! with the states behind the group in `dL/dV`. Where `tau` is given, `E_ii = -M_ii` and `dL/dtau = -sum s t`. As a matrix,
//! `S = diag(tau) P = (striu(V* V) + diag(1 / tau))^-1`; but `P` exists where `tau_j` is zero, too:
//!
//! ```text
//! P_j = e_j - sum_l v_j* v_l tau_l P_l            l before j in the order of application
//! ```
//!
//! `Q` is the same in reverse order. Both, and `s`, `t` and `M`, are computed in double precision. A tile of four columns and
//! some vectors keeps all sums, or all `a` and `b`, in registers. Some vectors first have their sums, then all their factors
//! and then their updates, so that no tile waits for the sums of its own.

mod backward;
mod forward;

pub use backward::GroupSums;
use pulp::Simd;

use super::vectors::Registers;
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::simd::lanes::unroll;

/// Reflections of a group.
pub const GROUP: usize = 4;

/// A number for each reflection of a group.
pub type Four<T> = [T; GROUP];

/// Most vectors that have their sums together.
pub const BATCH: usize = 8;

/// Columns of a group, `ld` apart, each of whole registers.
#[derive(Clone, Copy)]
pub struct GroupColumns<'a, T> {
    /// The columns, from the first entry of all on.
    pub v: &'a [T],
    /// Distance between columns.
    pub ld: usize,
    /// Numbers of a column.
    pub len: usize,
}

/// What a group needs besides its columns, for one order of application.
#[derive(Clone, Copy)]
pub struct GroupFactor<W> {
    /// The columns of `P`.
    columns: [Four<W>; GROUP],
    tau: Four<W>,
}

impl<W: Number> GroupFactor<W> {
    /// That of zero columns.
    pub const IDENTITY: Self = Self { columns: [[W::ZERO; GROUP]; GROUP], tau: [W::ZERO; GROUP] };

    /// `s = P z`.
    #[inline(always)]
    pub fn of_sums<T: Scalar<Wide = W>>(&self, z: Four<T>) -> Four<W> {
        let mut s = [W::ZERO; GROUP];
        for (column, z) in self.columns.iter().zip(z) {
            for (s, &factor) in s.iter_mut().zip(column) {
                *s += factor * z.widen();
            }
        }
        s
    }

    /// `a = tau s`.
    #[inline(always)]
    pub fn scaled(&self, s: Four<W>) -> Four<W> {
        std::array::from_fn(|j| self.tau[j] * s[j])
    }
}

impl<T: Scalar> GroupColumns<'_, T> {
    /// The factor of columns with these `tau` for `W`, whose last column is applied first, or for `W*`.
    #[inline(always)]
    pub fn factor(self, ops: Registers<impl Simd>, tau: Four<T::Wide>, adjoint: bool) -> GroupFactor<T::Wide> {
        let mut rows = [[T::Wide::ZERO; GROUP]; GROUP];
        let column = |i: usize| if adjoint { i } else { GROUP - 1 - i };
        for i in 0..GROUP {
            let j = column(i);
            rows[j][j] = T::Wide::ONE;
            for l in (0..i).map(column) {
                let [v_j, v_l] = [j, l].map(|j| &self.v[j * self.ld..][..self.len]);
                let product = ops.project(v_j, v_l).widen() * tau[l];
                let of_l = rows[l];
                for (x, y) in rows[j].iter_mut().zip(of_l) {
                    *x -= product * y;
                }
            }
        }
        GroupFactor { columns: std::array::from_fn(|l| std::array::from_fn(|j| rows[j][l])), tau }
    }

    /// Where the columns begin.
    #[inline(always)]
    fn pointers(self) -> Four<*const T> {
        assert!(self.v.len() >= (GROUP - 1) * self.ld + self.len, "four columns");
        std::array::from_fn(|j| self.v.as_ptr().wrapping_add(j * self.ld))
    }
}

/// The numbers at `i` behind all pointers.
///
/// # Safety
/// The caller owns a register of numbers there.
#[inline(always)]
unsafe fn load_all<T: Scalar, S: Simd>(s: S, p: Four<*const T>, i: usize) -> Four<T::V<S>> {
    let mut registers = [T::splat(s, T::ZERO); GROUP];
    unroll!(for j in 0..GROUP {
        // SAFETY: the caller's.
        registers[j] = unsafe { T::load(s, p[j].wrapping_add(i)) };
    });
    registers
}

/// Evaluates `body` for tiles of as many of `rows` vectors as `sizes` offer, with the number of the first one.
macro_rules! tiles {
    ($rows:expr, [$($size:literal)+] up to $widest:expr, |$first:ident, $vectors:ident| $body:expr) => {
        let mut $first = 0;
        $(
            if const { $size <= $widest } {
                const $vectors: usize = $size;
                while $rows - $first >= $vectors {
                    $body;
                    $first += $vectors;
                }
            }
        )+
    };
}
use tiles;

#[cfg(test)]
mod tests {
    use super::super::columns::ReflectionColumns;
    use super::*;
    use crate::operator::{Form, Operator, Reflections};
    use crate::simd::isa::{InstructionSet, simd};

    /// `W h` or `W* h`, `dL/dh`, `dL/dV` and `dL/dtau`; vectors are as far apart as columns.
    type Results<T> = [Vec<T>; 4];

    simd! {
        fn pass<T: Scalar>(
            s, u: Reflections<'_, T>, in_groups: bool, adjoint: bool, h: &[T], g: &[T],
        ) -> Results<T> {
            let (ops, k) = (Registers(s), u.count());
            let mut columns = ReflectionColumns::new(u.n(), k).unwrap();
            columns.set(s, u).unwrap();
            let ld = columns.ld;
            let (mut x, mut back, rows) = (h.to_vec(), g.to_vec(), h.len() / ld);
            let mut grad_v = vec![T::ZERO; ReflectionColumns::<T>::len(u.n(), k)];
            let mut grad_tau = vec![T::ZERO; k];
            let mut kept = vec![[T::ZERO; GROUP]; k.next_multiple_of(GROUP) * rows];
            let out;
            if in_groups {
                columns.find_factors(ops, adjoint);
                columns.apply_groups(ops, adjoint, &mut x, ld, |group, r, factors| kept[group * rows + r] = factors);
                out = x.clone();
                columns.find_factors(ops, !adjoint);
                let kept = |group: usize, r: usize| kept[group * rows + r];
                columns.back_through_groups(ops, adjoint, [&mut x, &mut back], ld, kept, (&mut grad_v, &mut grad_tau));
            } else {
                let steps = columns.steps(adjoint);
                steps.apply(ops, &mut x, ld, |i, r, _, factor| kept[i * rows + r][0] = factor);
                out = x.clone();
                steps.backward(ops, &mut x, &mut back, ld, &mut grad_v, &mut grad_tau, true, |i, r, x| {
                    steps.recover(ops, i, kept[i * rows + r][0], x);
                    kept[i * rows + r][0]
                });
            }
            grad_v.truncate(k * ld);
            for (j, grad) in grad_v.chunks_mut(ld).enumerate() {
                grad[..u.form().first(j)].fill(T::ZERO);
            }
            [out, back, grad_v, grad_tau]
        }
    }

    fn groups_are_their_reflections<T: Scalar>(tolerance: f64) {
        let number = |i: usize| T::narrow(<T::Wide as Number>::from_real((1.7 * i as f64).sin()));
        let shapes: &[[usize; 3]] = if cfg!(miri) {
            &[[9, 5, 3]]
        } else {
            &[[2, 1, 5], [7, 4, 1], [16, 15, 2], [17, 9, 3], [33, 8, 4], [70, 31, 7], [130, 32, 9]]
        };
        for (isa, &[n, m, rows]) in
            InstructionSet::available().into_iter().flat_map(|isa| shapes.iter().map(move |shape| (isa, shape)))
        {
            let entries: Vec<T> = (0..n * m).map(|i| if i % m == 2 { T::ZERO } else { number(i) }).collect();
            // None, and some within the growth of reflections: of some columns zero.
            let tau = |j: usize| if j % 5 == 1 { 0.0 } else { (1.7 * j as f64).sin() * 2.0 / n as f64 };
            let any: Vec<T> = (0..m).map(|j| T::narrow(<T::Wide as Number>::from_real(tau(j)))).collect();
            let forms = [(Form::Trapezoidal, None), (Form::Full, None), (Form::UnitTrapezoidal, Some(&any[..]))];
            for ((form, tau), adjoint) in forms.into_iter().flat_map(|form| [(form, false), (form, true)]) {
                let w = Operator::with_form([1, n, m], &entries[..], form, tau).unwrap();
                let u = w.at(0).u;
                let ld = ReflectionColumns::<T>::new(n, u.count()).unwrap().ld;
                let vectors = |step: usize| -> Vec<T> {
                    (0..rows * ld).map(|i| if i % ld < n { number(step * i) } else { T::ZERO }).collect()
                };
                let [in_groups, alone] = [true, false].map(|way| pass(isa, u, way, adjoint, &vectors(5), &vectors(7)));
                for (part, (in_groups, alone)) in in_groups.iter().zip(&alone).enumerate() {
                    let size = alone.iter().fold(1.0, |size: f64, x| size.max(x.widen().abs2().sqrt()));
                    for (i, (x, alone)) in in_groups.iter().zip(alone).enumerate() {
                        let error = (x.widen() - alone.widen()).abs2().sqrt();
                        assert!(
                            error <= tolerance * size,
                            "{} {n} {m} {rows} {form:?} {adjoint}: {part} {i} {error:e} of {size:e}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn groups_of_every_real_type_are_their_reflections() {
        groups_are_their_reflections::<f32>(1e-5);
        groups_are_their_reflections::<f64>(1e-13);
    }
}
