//! The matrix `W` of few coordinates, and the gradient of `U` from a gradient of `W`.

mod backward;
mod blocks;
mod chain;

use pulp::Simd;

pub use backward::{FormationBackward, form_back};
use blocks::Reflectors;
use chain::Chain;

use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::{Reflections, Transform};
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::lanes::{Lanes, max_rows};

/// Up to this size reflections in registers form `W` in less time than compact WY needs for its factors.
pub const SMALL: usize = 64;

/// Most reflections of a block.
const LARGEST: usize = 8;

/// Workspace for matrices of one shape.
pub struct Formation<T: Scalar> {
    chain: Chain<T>,
    /// Row-major, rows `ld` apart, like the unit vectors that the reflections are applied to.
    w: Buffer<T>,
    unit: Buffer<T>,
    /// See [`Reflectors`].
    gram: Buffer<T>,
}

impl<T: Scalar> Formation<T> {
    /// For products of `k` reflections of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let chain = Chain::new(n, k)?;
        let mut unit = Buffer::zeroed(n * chain.ld)?;
        (0..n).for_each(|i| unit[i * chain.ld + i] = T::ONE);
        let gram = Buffer::zeroed(chain.ld_k * LARGEST)?;
        Ok(Self { w: Buffer::zeroed(n * chain.ld)?, unit, gram, chain })
    }

    /// Forms `W_1`, without the diagonal: whole registers of columns in `out` if there is one, all others in `w`. Returns
    /// how many columns went to `out`.
    ///
    /// # Safety
    /// The caller owns `n` rows of `n` numbers in `out`.
    #[inline(always)]
    unsafe fn form<S: Simd>(&mut self, s: S, u: Reflections<'_, T>, out: Option<ViewMut<'_, T>>) -> usize {
        self.chain.set(s, u);
        match (T::PARTS, self.chain.k) {
            (1, 5..) => self.form_by::<S, LARGEST>(s, out),
            (1, _) | (_, 3..) => self.form_by::<S, 4>(s, out),
            _ => self.form_by::<S, 2>(s, out),
        }
    }

    /// # Safety
    /// As of [`Formation::form`].
    #[inline(always)]
    unsafe fn form_by<S: Simd, const B: usize>(&mut self, s: S, out: Option<ViewMut<'_, T>>) -> usize {
        let Self { chain, w, unit, gram } = self;
        let (n, lanes) = (chain.n, T::lanes::<S>());
        let registers = n.div_ceil(lanes);
        let whole = if out.is_some() { n / lanes } else { 0 };
        let (w, unit) = (ViewMut::of(w, chain.ld, n), View::of(unit, chain.ld, n));
        let blocks = Reflectors::<T, B>::new(s, chain, gram);
        let mut done = 0;
        while done < registers {
            let most = if done < whole { whole } else { registers } - done;
            let width = if most > 1 && max_rows::<S>() > 2 { 2 } else { 1 };
            let begin = done * lanes;
            let unit = unit.from(begin, 0);
            let places = [w, out.filter(|_| done < whole).unwrap_or(w)].map(|x| x.from(begin, 0));
            // SAFETY: `width` registers inside rows of `ld` numbers, or of `out`.
            unsafe {
                match width {
                    2 => blocks.reflect::<S, 2>(s, unit, places, begin),
                    _ => blocks.reflect::<S, 1>(s, unit, places, begin),
                }
            }
            done += width;
        }
        whole * lanes
    }
}

/// Forms `W` in wide precision and rounds it once, for one problem after the other of the same shape.
pub struct Rounded<T: Scalar> {
    formation: Formation<T::Wide>,
    /// `W` in wide precision, unless `T` is that.
    wide: Buffer<T::Wide>,
}

impl<T: Scalar> Rounded<T> {
    /// For products of `k` reflections of size `n`.
    pub fn new(n: usize, k: usize) -> Result<Self> {
        let formation = Formation::new(n, k)?;
        Ok(Self { formation, wide: Buffer::scratch(if T::IS_WIDE { 0 } else { n * n })? })
    }

    /// Writes `W`, row-major. The caller has checked all sizes.
    pub fn run(&mut self, isa: InstructionSet, w: Transform<'_, T>, out: &mut [T]) -> Result<()> {
        let wide = w.widen(isa)?;
        if let Some(out) = T::as_wide_mut(out) {
            form(isa, &mut self.formation, wide.transform(), out);
            return Ok(());
        }
        form(isa, &mut self.formation, wide.transform(), &mut self.wide);
        out.iter_mut().zip(&*self.wide).for_each(|(out, x)| *out = T::narrow(*x));
        Ok(())
    }
}

simd! {
    /// Writes `W`, row-major.
    fn form<T: Scalar>(s, workspace: &mut Formation<T>, w: Transform<'_, T>, out: &mut [T]) -> () {
        let Transform { u, diagonal, .. } = w;
        let n = u.n();
        assert_eq!(out.len(), n * n, "W");
        // SAFETY: n rows of n numbers.
        let whole = unsafe { workspace.form(s, u, Some(ViewMut::of(out, n, n))) };
        for j in (whole..n).step_by(T::lanes::<S>()) {
            let inside = Lanes::<S, T, 1>::first(s, n - j);
            for (out, w) in out.chunks_exact_mut(n).zip(workspace.w.chunks_exact(workspace.chain.ld)) {
                // SAFETY: a whole register of a padded row, and the lanes of a row of W.
                unsafe { inside.store(out.as_mut_ptr().add(j), [T::load(s, w.as_ptr().add(j))]) };
            }
        }
        if !diagonal.is_one() {
            // Column j times d_j: the rows of W have it at entry j.
            out.chunks_exact_mut(n).for_each(|row| diagonal.apply(row, false));
        }
    }
}
