//! Reflections in groups of four, `W = I - V S V*`, so that four of them read and write a vector once:
//!
//! ```text
//! z = V* x,   a = S z,   x <- x - V a,        S = (striu(V* V) + diag(1 / tau))^-1
//! ```
//!
//! `S` and `a` are computed in double precision. Row by row, `S_j = tau_j (e_j - sum_{l > j} v_j* v_l S_l)` holds where `tau_j`
//! is zero, too. `W*` has `S*`. A tile of four columns and some vectors keeps all sums, and then all `a`, in registers.

use pulp::Simd;

use super::vectors::Registers;
use crate::numbers::number::Number;
use crate::numbers::scalar::Scalar;
use crate::simd::lanes::unroll;

/// Reflections of a group.
pub const GROUP: usize = 4;

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

/// The columns of `S`, or of `S*`.
pub type GroupFactor<T> = [[T; GROUP]; GROUP];

/// Most vectors of a tile: its sums, its columns and a vector fit into the registers.
#[inline(always)]
const fn widest_tile<S: Simd>() -> usize {
    match S::REGISTER_COUNT {
        _ if S::IS_SCALAR => 1,
        32.. => 4,
        _ => 2,
    }
}

impl<T: Scalar> GroupColumns<'_, T> {
    /// `S` of columns with these `tau`, or `S*`.
    #[inline(always)]
    pub fn factor(self, ops: Registers<impl Simd>, tau: [T::Wide; GROUP], adjoint: bool) -> GroupFactor<T::Wide> {
        let mut rows = [[T::Wide::ZERO; GROUP]; GROUP];
        for j in (0..GROUP).rev() {
            rows[j][j] = T::Wide::ONE;
            for l in j + 1..GROUP {
                let [v_j, v_l] = [j, l].map(|i| &self.v[i * self.ld..][..self.len]);
                let gram = ops.project(v_j, v_l).widen();
                let of_l = rows[l];
                for (x, &y) in rows[j].iter_mut().zip(&of_l).skip(l) {
                    *x -= gram * y;
                }
            }
            rows[j] = rows[j].map(|x| tau[j] * x);
        }
        if adjoint { rows } else { std::array::from_fn(|l| std::array::from_fn(|j| rows[j][l])) }
    }

    /// Applies the group to vectors, `ld` apart.
    #[inline(always)]
    pub fn apply<S: Simd>(self, ops: Registers<S>, factor: &GroupFactor<T::Wide>, x: &mut [T], ld: usize) {
        let mut rest = x;
        macro_rules! tiles {
            ($($vectors:literal)+) => { $(
                if const { $vectors <= widest_tile::<S>() } {
                    while rest.len() > ($vectors - 1) * ld {
                        let (tile, others) = rest.split_at_mut(rest.len().min($vectors * ld));
                        self.apply_tile::<S, $vectors>(ops, factor, tile, ld);
                        rest = others;
                    }
                }
            )+ };
        }
        tiles!(4 2 1);
    }

    /// [`GroupColumns::apply`] for a tile of `VECTORS`.
    #[inline(always)]
    fn apply_tile<S: Simd, const VECTORS: usize>(
        self,
        Registers(s): Registers<S>,
        factor: &GroupFactor<T::Wide>,
        x: &mut [T],
        ld: usize,
    ) {
        let lanes = T::lanes::<S>();
        assert!(self.v.len() >= (GROUP - 1) * self.ld + self.len && x.len() >= (VECTORS - 1) * ld + self.len, "a tile");
        let v: [*const T; GROUP] = std::array::from_fn(|j| self.v.as_ptr().wrapping_add(j * self.ld));
        let x: [*mut T; VECTORS] = std::array::from_fn(|r| x.as_mut_ptr().wrapping_add(r * ld));
        let mut sums = [[T::splat(s, T::ZERO); GROUP]; VECTORS];
        // SAFETY: whole registers of columns and vectors, as asserted.
        unsafe {
            for i in (0..self.len).step_by(lanes) {
                let mut columns = [T::splat(s, T::ZERO); GROUP];
                unroll!(for j in 0..GROUP {
                    columns[j] = T::load(s, v[j].wrapping_add(i));
                });
                unroll!(for r in 0..VECTORS {
                    let x = T::load(s, x[r].wrapping_add(i));
                    unroll!(for j in 0..GROUP {
                        sums[r][j] = T::fma(s, columns[j], x, sums[r][j]);
                    });
                });
            }
            let mut minus_a = sums;
            unroll!(for r in 0..VECTORS {
                let z = T::sums_of_lanes(s, sums[r]);
                let mut a = [T::Wide::ZERO; GROUP];
                for (column, z) in factor.iter().zip(z) {
                    for (a, &factor) in a.iter_mut().zip(column) {
                        *a += factor * z.widen();
                    }
                }
                unroll!(for j in 0..GROUP {
                    minus_a[r][j] = T::splat(s, T::narrow(-a[j]));
                });
            });
            for i in (0..self.len).step_by(lanes) {
                let mut columns = [T::splat(s, T::ZERO); GROUP];
                unroll!(for j in 0..GROUP {
                    columns[j] = T::load(s, v[j].wrapping_add(i));
                });
                unroll!(for r in 0..VECTORS {
                    let at = x[r].wrapping_add(i);
                    let mut x = T::load(s, at);
                    unroll!(for j in 0..GROUP {
                        x = T::fma(s, minus_a[r][j], columns[j], x);
                    });
                    T::store(s, at, x);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::ReflectionColumns;
    use super::*;
    use crate::operator::{Form, Operator, Reflections};
    use crate::simd::isa::{InstructionSet, simd};

    simd! {
        fn apply<T: Scalar>(
            s, columns: &mut ReflectionColumns<T>, u: Reflections<'_, T>, grouped: bool, adjoint: bool, x: &mut [T], ld: usize,
        ) -> () {
            columns.set(s, u).unwrap();
            if grouped {
                columns.find_factors(Registers(s), adjoint);
            }
            columns.apply(Registers(s), adjoint, x, ld);
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
            // None, a reflection's, and anything.
            let any: Vec<T> = (0..m).map(|j| number(3 * j + 1)).collect();
            let forms = [(Form::Trapezoidal, None), (Form::Full, None), (Form::UnitTrapezoidal, Some(&any[..]))];
            for ((form, tau), adjoint) in forms.into_iter().flat_map(|form| [(form, false), (form, true)]) {
                let w = Operator::with_form([1, n, m], &entries[..], form, tau).unwrap();
                let u = w.at(0).u;
                let mut columns = ReflectionColumns::new(n, u.count()).unwrap();
                let ld = columns.ld;
                let x: Vec<T> = (0..rows * ld).map(|i| if i % ld < n { number(5 * i) } else { T::ZERO }).collect();
                let [grouped, single] = [true, false].map(|grouped| {
                    let mut x = x.clone();
                    apply(isa, &mut columns, u, grouped, adjoint, &mut x, ld);
                    x
                });
                let size = single.iter().fold(1.0, |size: f64, x| size.max(x.widen().abs2().sqrt()));
                for (i, (x, single)) in grouped.iter().zip(&single).enumerate() {
                    let error = (x.widen() - single.widen()).abs2().sqrt();
                    assert!(
                        error <= tolerance * size,
                        "{} {n} {m} {rows} {form:?} {adjoint}: {i} {error:e}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn groups_of_every_real_type_are_their_reflections() {
        groups_are_their_reflections::<f32>(1e-5);
        groups_are_their_reflections::<f64>(1e-14);
    }
}
