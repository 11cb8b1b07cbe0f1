//! The columns of a group of problems, with `tau = 2 / |v|^2` or as given.

use pulp::Simd;

use super::{LaneLayout, PIECE};
use crate::error::Result;
use crate::memory::{Buffer, filled};
use crate::numbers::number::{Number, Real};
use crate::numbers::scalar::Scalar;
use crate::operator::Form;
use crate::operator::Operator;
use crate::wy::layout::{ORDINARY, inverse_square, scale_columns, tau_of};

/// Columns of one group after the other of the same shape.
pub struct LaneColumns<T: Scalar> {
    /// Size of the vectors.
    pub n: usize,
    /// Columns of `U`.
    pub m: usize,
    /// Number of reflections.
    pub k: usize,
    /// Which entries the columns consist of.
    pub form: Form,
    /// Whether `tau` is given.
    pub given: bool,
    /// The group.
    pub layout: LaneLayout,
    /// `U`, row-major; only entries of columns count.
    entries: Buffer<T::Real>,
    /// `tau` of every column.
    tau: Buffer<T::Real>,
    /// What the columns of each problem were multiplied by: see [`crate::wy::layout::Trapezoid`].
    scale: Vec<f64>,
    /// Whether any of these is not one.
    scaled: bool,
    /// A column of a piece.
    column: Buffer<T::Real>,
}

impl<T: Scalar> LaneColumns<T> {
    /// Memory for problems like this one, `group` side by side.
    pub fn new(shape: &Operator<'_, T>, group: usize) -> Result<Self> {
        let (n, m, form) = (shape.n(), shape.m(), shape.form);
        let layout = LaneLayout { group, used: 0 };
        let k = form.reflections(n, m);
        Ok(Self {
            n,
            m,
            k,
            form,
            given: shape.tau.is_some(),
            layout,
            entries: Buffer::zeroed(n * m * layout.number::<T>())?,
            tau: Buffer::zeroed(m * layout.number::<T>())?,
            scale: filled(k * group, 1.0)?,
            scaled: false,
            column: Buffer::zeroed((n * T::PARTS).next_multiple_of(4) * PIECE)?,
        })
    }

    /// Takes the columns of these problems.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, problems: &Operator<'_, T>) {
        let Self { n, m, k, form, given, .. } = *self;
        self.layout.used = problems.count();
        let layout = self.layout;
        assert!(problems.entries.len() == problems.count() * n * m && problems.count() <= layout.group, "a group");
        // SAFETY: `U` of these problems, and memory for that of a group.
        unsafe { layout.take(s, n * m, problems.entries.as_ptr(), n * m, self.entries.ptr_mut()) };
        if let Some(tau) = problems.tau {
            assert_eq!(tau.len(), problems.count() * m, "tau of a group");
            // SAFETY: as above.
            unsafe { layout.take(s, m, tau.as_ptr(), m, self.tau.ptr_mut()) };
        }
        if form.has_ones() {
            for j in 0..k {
                let (re, im) = self.entry_mut(j * m + j).split_at_mut(layout.group);
                re.fill(T::Real::ONE);
                im.fill(T::Real::ZERO);
            }
        }
        if self.scaled {
            self.scale.fill(1.0);
            self.scaled = false;
        }
        for j in 0..k {
            for piece in (0..layout.group).step_by(PIECE) {
                let mut square = self.square(j, piece);
                // Counted rather than searched, so that the comparisons are vectorised.
                let ordinary =
                    (0..PIECE).filter(|&l| piece + l >= layout.used || ORDINARY.contains(&square[l])).count();
                if ordinary < PIECE {
                    square = self.scale_piece(j, piece, &square);
                }
                if !given {
                    let tau = &mut self.tau[j * layout.number::<T>() + piece..][..PIECE];
                    for (tau, square) in tau.iter_mut().zip(square) {
                        *tau = T::Real::of(tau_of(square));
                    }
                }
            }
        }
    }

    /// Number `e` of `U`, of all problems.
    #[inline(always)]
    fn entry_mut(&mut self, e: usize) -> &mut [T::Real] {
        let number = self.layout.number::<T>();
        &mut self.entries[e * number..][..number]
    }

    /// `|v_j|^2` of the problems of a piece.
    #[inline(always)]
    fn square(&self, j: usize, piece: usize) -> [f64; PIECE] {
        let mut sums = [[0.0; PIECE]; 2];
        for i in self.form.first(j)..self.n {
            for part in 0..T::PARTS {
                let at = (i * self.m + j) * self.layout.number::<T>() + part * self.layout.group + piece;
                debug_assert!(at + PIECE <= self.entries.len());
                // SAFETY: a whole piece of an entry.
                let x = unsafe { *self.entries.ptr().add(at).cast::<[T::Real; PIECE]>() };
                for l in 0..PIECE {
                    let x = x[l].to_f64();
                    sums[0][l] += x * x;
                }
                sums.swap(0, 1);
            }
        }
        let [even, odd] = sums;
        std::array::from_fn(|l| even[l] + odd[l])
    }

    /// Scales column `j` of the problems of a piece that need it, and `tau` if given. Returns the new squares.
    #[inline(never)]
    fn scale_piece(&mut self, j: usize, piece: usize, square: &[f64; PIECE]) -> [f64; PIECE] {
        let Self { n, m, layout: LaneLayout { group, .. }, .. } = *self;
        let first = self.form.first(j);
        let at = |i: usize| ((first + i / T::PARTS) * m + j) * T::PARTS * group + i % T::PARTS * group + piece;
        let reals = (n - first) * T::PARTS;
        for (i, row) in self.column.chunks_exact_mut(PIECE).enumerate() {
            if i < reals {
                row.copy_from_slice(&self.entries[at(i)..][..PIECE]);
            } else {
                row.fill(T::Real::ZERO);
            }
        }
        let (scale, scaled) = scale_columns(&mut self.column, PIECE, square);
        for (i, row) in self.column.chunks_exact(PIECE).take(reals).enumerate() {
            self.entries[at(i)..][..PIECE].copy_from_slice(row);
        }
        self.scale[j * group + piece..][..PIECE].copy_from_slice(&scale);
        self.scaled = true;
        if self.given {
            self.unscale_tau_of_piece(j, piece, None);
        }
        // Summed in another order: no problem may depend on those beside it.
        std::array::from_fn(|l| if scale[l] == 1.0 { square[l] } else { scaled[l] })
    }

    /// Divides `tau` of column `j`, or its gradient, by the square of the scale.
    fn unscale_tau_of_piece(&mut self, j: usize, piece: usize, grad: Option<&mut [T::Real]>) {
        let Self { layout, .. } = *self;
        let tau = grad.unwrap_or(&mut self.tau);
        for part in 0..T::PARTS {
            let tau = &mut tau[j * layout.number::<T>() + part * layout.group + piece..][..PIECE];
            for (tau, &scale) in tau.iter_mut().zip(&self.scale[j * layout.group + piece..]) {
                *tau = T::Real::of(tau.to_f64() * inverse_square(scale));
            }
        }
    }

    /// Turns gradients of the scaled columns into those of `U`.
    pub fn unscale(&mut self, grad_u: &mut [T::Real], grad_tau: &mut [T::Real]) {
        if !self.scaled {
            return;
        }
        let Self { n, m, k, layout, .. } = *self;
        for j in 0..k {
            let scale = &self.scale[j * layout.group..][..layout.group];
            for i in self.form.first(j)..n {
                let grad = &mut grad_u[(i * m + j) * layout.number::<T>()..][..layout.number::<T>()];
                for grad in grad.chunks_exact_mut(layout.group) {
                    grad.iter_mut().zip(scale).for_each(|(x, scale)| *x = T::Real::of(x.to_f64() * scale));
                }
            }
            if self.given {
                (0..layout.group)
                    .step_by(PIECE)
                    .for_each(|piece| self.unscale_tau_of_piece(j, piece, Some(&mut *grad_tau)));
            }
        }
    }

    /// Where entry `(i, j)` of `V` stands.
    #[inline(always)]
    pub fn at(&self, i: usize, j: usize) -> *const T::Real {
        self.entries.ptr().wrapping_add((i * self.m + j) * self.layout.number::<T>())
    }

    /// Where `tau_j` stands.
    #[inline(always)]
    pub fn tau(&self, j: usize) -> *const T::Real {
        self.tau.ptr().wrapping_add(j * self.layout.number::<T>())
    }
}
