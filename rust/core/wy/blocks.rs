//! Many reflections as a product of blocks, each in its compact WY form:
//!
//! ```text
//! W_1 = W_(1) W_(2) .. W_(p),     W_(b) = I + V N V*    on the coordinates from the block's first one on
//! ```
//!
//! Unlike a single compact WY form, blocks need no Gram matrix in `n x m x m` operations and no inverse of an `m x m`
//! triangle. A block does not touch the coordinates before its first one, which saves half of all work where `m = n`.

use super::compact::CompactWy;
use crate::arrays::lengths::flops;
use crate::arrays::view::{Shared, View, ViewMut};
use crate::error::{Error, Result};
use crate::memory::{Buffer, collected, padded};
use crate::numbers::scalar::Scalar;
use crate::operator::Reflections;
use crate::simd::epilogue::Store;
use crate::simd::gemm::gemm;
use crate::simd::isa::InstructionSet;
use crate::simd::pack::{Packed, Part, pack};
use crate::threads::Context;

/// Columns of a task that forms a matrix, in whole tiles: few enough to stay in the second-level cache while all blocks pass
/// (up to a thousand coordinates), and many enough to make up for reading the blocks.
const TILE: usize = 24;
const WIDEST_TASK: usize = 4 * TILE;
/// Tasks that suffice for many threads.
const TASKS_OF_MATRIX: usize = 12;

/// One block.
pub struct Block<T: Scalar> {
    /// Its first coordinate.
    pub begin: usize,
    /// The number of reflections before it.
    pub first: usize,
    /// `V` and `N`, for the coordinates from `begin` on.
    pub wy: CompactWy<T>,
}

impl<T: Scalar> Block<T> {
    /// `y = N V* a` for each vector, or `N* V* a`; `z` is a workspace with as many rows.
    ///
    /// # Safety
    /// The caller owns the vectors of all three, those of `z` and `y` with a whole register for each.
    pub unsafe fn project(
        &self,
        isa: InstructionSet,
        a: View<'_, T>,
        z: ViewMut<'_, T>,
        y: ViewMut<'_, T>,
        adjoint: bool,
    ) {
        let (factors, z) = (self.wy.factors(), z.part(0, a.count)); // `z` may have more rows
        factors.gather(isa, 0, a.from(self.begin, 0), z);
        factors.turn(isa, z.read(), y, adjoint);
    }

    /// `out = a + V y` for each vector, on the block's coordinates; `out` may be `a`.
    ///
    /// # Safety
    /// The caller owns the vectors of all three.
    pub unsafe fn expand(&self, isa: InstructionSet, y: View<'_, T>, a: View<'_, T>, out: ViewMut<'_, T>) {
        self.wy.factors().scatter(isa, y, a.from(self.begin, 0), out.from(self.begin, 0));
    }
}

/// All blocks, from the first reflection to the last.
pub struct Blocks<T: Scalar> {
    /// Size of the vectors.
    pub n: usize,
    /// Number of reflections.
    pub k: usize,
    /// The blocks.
    pub list: Vec<Block<T>>,
}

impl<T: Scalar> Blocks<T> {
    /// Forms blocks of `width` reflections.
    pub fn new(context: &mut Context<'_>, u: Reflections<'_, T>, width: usize) -> Result<Self> {
        let (n, k) = (u.n(), u.count());
        let count = k.div_ceil(width);
        let mut formed: Vec<Option<CompactWy<T>>> = collected((0..count).map(|_| None))?;
        let shared = Shared(formed.as_mut_ptr());
        context.for_each(count, flops(&[4, n, k, width]), &|i, context| {
            let wy = CompactWy::new(context, u.columns(i * width, k.min((i + 1) * width)))?;
            // SAFETY: task i alone writes entry i.
            unsafe { *shared.get().add(i) = Some(wy) };
            Ok(())
        })?;
        let block = |(i, wy)| Block { begin: u.form().first(i * width), first: i * width, wy };
        let list = formed.into_iter().flatten().enumerate().map(block).collect();
        Ok(Self { n, k, list })
    }

    /// Rounds the blocks to the narrow precision.
    pub(super) fn narrow<N: Scalar<Wide = T>>(&self, isa: InstructionSet) -> Result<Blocks<N>> {
        let narrow = |block: &Block<T>| Ok(Block { begin: block.begin, first: block.first, wy: block.wy.narrow(isa)? });
        Ok(Blocks { n: self.n, k: self.k, list: self.list.iter().map(narrow).collect::<Result<_>>()? })
    }

    /// Refuses blocks of other reflections than of so many, of this size and form.
    pub fn check(&self, u: Reflections<'_, T>) -> Result<()> {
        let same_form = self.list.first().is_none_or(|block| block.wy.is_like(u));
        if [self.n, self.k] == [u.n(), u.count()] && same_form {
            return Ok(());
        }
        let text =
            format!("prepared for {} reflections of size {}, got {} of size {}", self.k, self.n, u.count(), u.n());
        Err(Error::InvalidArgument(text))
    }

    /// A single block.
    pub fn of_one(wy: CompactWy<T>) -> Self {
        Self { n: wy.n, k: wy.k, list: vec![Block { begin: 0, first: 0, wy }] }
    }

    /// Distance between rows of coefficients that suits every block.
    pub fn widest(&self) -> usize {
        self.list.first().map_or(0, |block| block.wy.ld_k())
    }

    /// `to = W_1 from` for each vector, or `W_1* from`; `to` may be `from`. The coefficients `y` of every block go to
    /// `keep`.
    ///
    /// # Safety
    /// The caller owns as many vectors of `n` numbers in `from` and `to`, and their coefficients in `keep`; `scratch` is for
    /// at least as many.
    pub unsafe fn apply(
        &self,
        isa: InstructionSet,
        from: View<'_, T>,
        to: ViewMut<'_, T>,
        scratch: &mut Scratch<T>,
        keep: Option<CoefficientsMut<'_, T>>,
        adjoint: bool,
    ) {
        let first = if adjoint { self.list.first() } else { self.list.last() };
        let mut source = from;
        if first.is_none_or(|block| block.begin > 0) && from.ptr != to.ptr.cast_const() {
            from.copy_to(to, self.n);
            source = to.read();
        }
        let (z, y) = scratch.views();
        let y = keep.unwrap_or(y);
        for i in 0..self.list.len() {
            let i = if adjoint { i } else { self.list.len() - 1 - i };
            let block = &self.list[i];
            let y = y.of(i);
            block.project(isa, source, z, y, adjoint);
            block.expand(isa, y.read(), source, to);
            source = to.read();
        }
    }

    /// Forms `W_1`, some columns a task. `finish` gets each task's columns, column-major and `padded(n)` apart. `keep` gets the
    /// coefficients `y` of each block, rows [`Blocks::widest`] apart, for the columns from the block's first coordinate on.
    ///
    /// A block does not change the columns before its first coordinate. What the blocks behind it left is zero but for ones
    /// in front of *their* first coordinate, and these ones and zeros are neither stored nor multiplied:
    ///
    /// ```text
    /// W_(b) [1  0]   [1 + V_1 N V_1*   V_1 N V_2* A    ]        V = [V_1; V_2]
    ///       [0  A] = [    V_2 N V_1*   A + V_2 N V_2* A]
    /// ```
    pub fn matrix(&self, context: &mut Context<'_>, keep: Option<Keep<'_, T>>, finish: Finish<'_, T>) -> Result<()> {
        let (n, isa, ld, blocks) = (self.n, context.isa, padded::<T>(self.n), self.list.len());
        // Where the blocks behind block i begin.
        let behind = |i: usize| self.list.get(i + 1).map_or(n, |next| next.begin);
        let mut halves: Vec<Option<[Packed<T>; 2]>> = collected((0..blocks).map(|_| None))?;
        let of_halves = Shared(halves.as_mut_ptr());
        let width = (n / TASKS_OF_MATRIX).next_multiple_of(TILE).clamp(TILE, WIDEST_TASK);
        context.run_stages(&[blocks, n.div_ceil(width)], flops(&[2, n, n, self.k]), &|stage, i, cancel| {
            if stage == 0 {
                let Block { begin, wy, .. } = &self.list[i];
                let top = behind(i) - begin;
                let part = |row: usize| Part::columns(&wy.v, wy.ld_n(), wy.k).from(row, 0, wy.k);
                // SAFETY: columns of `wy.n` numbers; task i alone writes entry i.
                unsafe {
                    let halves = [pack(isa, top, &[part(0)])?, pack(isa, wy.n - top, &[part(top)])?];
                    *of_halves.get().add(i) = Some(halves);
                }
                return Ok(());
            }
            // The last columns take longest: they go first.
            let end = n - i * width;
            let begin = end.saturating_sub(width);
            let count = end - begin;
            let mut columns = Buffer::<T>::scratch(count * ld)?;
            let ld_y = self.widest();
            let (mut z, mut y) = (Buffer::<T>::scratch(count * ld_y)?, Buffer::<T>::zeroed(count * ld_y)?);
            if blocks == 0 {
                columns.fill(T::ZERO);
                (0..count).for_each(|j| columns[j * ld + begin + j] = T::ONE);
            }
            let w = ViewMut::of(&mut columns, ld, count);
            for (i, block) in self.list.iter().enumerate().rev().filter(|(_, block)| block.begin < end) {
                cancel.check()?;
                // The columns of A; those before are still unit vectors.
                let split = behind(i).clamp(begin, end);
                let first = begin.max(block.begin);
                let (factors, top) = (block.wy.factors(), behind(i) - block.begin);
                let (of_z, of_y) = (ViewMut::of(&mut z, ld_y, count), ViewMut::of(&mut y, ld_y, count));
                let y_part = |from: usize, to: usize| of_y.part(from - begin, to - begin);
                let w_part = |row: usize, from: usize, to: usize| w.from(row, 0).part(from - begin, to - begin);
                // SAFETY: tasks own their columns and coefficients; all halves are packed in the stage before.
                unsafe {
                    let [above, below] = (*of_halves.get().add(i)).as_ref().expect("halves of every block");
                    let expand = |from: usize, to: usize, is_unit: bool| {
                        let (y, out) = (y_part(from, to).read(), w_part(block.begin, from, to));
                        gemm(isa, (top, y.count), above.weights(), y, &Store::new(out));
                        let out = out.from(top, 0);
                        let add = if is_unit { View::none() } else { out.read() };
                        gemm(isa, (block.wy.n - top, y.count), below.weights(), y, &Store::plus(out, add));
                    };
                    if first < split {
                        let units = factors.units(first - block.begin, split - block.begin);
                        factors.turn(isa, units, y_part(first, split), false);
                        expand(first, split, true);
                        (first..split).for_each(|j| *w.at(j, j - begin) += T::ONE);
                    }
                    if split < end {
                        let z = of_z.part(split - begin, count);
                        factors.gather(isa, top, w_part(behind(i), split, end).read(), z);
                        factors.turn(isa, z.read(), y_part(split, end), false);
                        expand(split, end, false);
                    }
                }
                if let Some(keep) = keep {
                    keep(i, first, &y[(first - begin) * ld_y..]);
                }
            }
            finish(begin, &mut columns)
        })
    }
}

/// Takes a block's number, a first column, and the block's coefficients of the columns from there on.
pub type Keep<'a, T> = &'a (dyn Fn(usize, usize, &[T]) + Sync);
/// Takes a first column, and the columns from there on.
pub type Finish<'a, T> = &'a (dyn Fn(usize, &mut [T]) -> Result<()> + Sync);

/// `y = N V* a` of some vectors for each block.
#[derive(Clone, Copy)]
pub struct Coefficients<'a, T> {
    first: View<'a, T>,
    /// Distance between blocks.
    stride: usize,
}

/// The same, to be written.
#[derive(Clone, Copy)]
pub struct CoefficientsMut<'a, T> {
    first: ViewMut<'a, T>,
    stride: usize,
}

impl<'a, T: Scalar> Coefficients<'a, T> {
    /// Counts the numbers for `rows` vectors.
    pub fn len(blocks: &Blocks<T>, rows: usize) -> usize {
        blocks.list.len() * rows * blocks.widest()
    }

    /// Views `memory`, which has [`Coefficients::len`] numbers.
    pub fn new(blocks: &Blocks<T>, memory: &'a [T], rows: usize) -> Self {
        Self { first: View::of(memory, blocks.widest(), rows), stride: rows * blocks.widest() }
    }

    /// Views the coefficients of block `i`.
    pub fn of(self, i: usize) -> View<'a, T> {
        self.first.from(i * self.stride, 0)
    }

    /// Those of the vectors `begin..end`.
    pub fn part(self, begin: usize, end: usize) -> Self {
        Self { first: self.first.part(begin, end), ..self }
    }
}

impl<'a, T: Scalar> CoefficientsMut<'a, T> {
    /// Views `memory`, which has [`Coefficients::len`] numbers.
    pub fn new(blocks: &Blocks<T>, memory: &'a mut [T], rows: usize) -> Self {
        Self { first: ViewMut::of(memory, blocks.widest(), rows), stride: rows * blocks.widest() }
    }

    /// Views the coefficients of block `i`.
    pub fn of(self, i: usize) -> ViewMut<'a, T> {
        self.first.from(i * self.stride, 0)
    }

    /// Those of the vectors `begin..end`.
    pub fn part(self, begin: usize, end: usize) -> Self {
        Self { first: self.first.part(begin, end), ..self }
    }

    /// The same, to be read.
    pub fn read(self) -> Coefficients<'a, T> {
        Coefficients { first: self.first.read(), stride: self.stride }
    }
}

/// Workspace for `z = V* a` and `y = N z` of some vectors, one block after the other.
pub struct Scratch<T: Scalar> {
    z: Buffer<T>,
    y: Buffer<T>,
    ld: usize,
    rows: usize,
}

impl<T: Scalar> Scratch<T> {
    /// For `rows` vectors.
    pub fn new(blocks: &Blocks<T>, rows: usize) -> Result<Self> {
        let ld = blocks.widest();
        Ok(Self { z: Buffer::scratch(rows * ld)?, y: Buffer::scratch(rows * ld)?, ld, rows })
    }

    /// `z`, and one `y` for all blocks.
    fn views(&mut self) -> (ViewMut<'_, T>, CoefficientsMut<'_, T>) {
        let Self { z, y, ld, rows } = self;
        let y = CoefficientsMut { first: ViewMut::of(y, *ld, *rows), stride: 0 };
        (ViewMut::of(z, *ld, *rows), y)
    }
}
