//! The backward pass through blocks of reflections, all threads on one block at a time.
//!
//! For each block, from the one applied last to the one applied first, `a` being its input and `b` the gradient of its output:
//!
//! ```text
//! y = N V* a,    w = N* V* b,    M = sum y w*,    E_ij = M_ij (i > j), Re M_ii, conj(M_ji) (i < j)
//! dL/dV = sum b y* + a w* + V E,      b <- b + V w
//! ```
//!
//! A first sweep makes every `y` that the forward pass has not kept. The inputs `a` are then recovered block by block,
//! `a = c - V y`, so a single copy of the vectors suffices. Threads share out vectors where each is handled separately, and
//! coordinates where sums over all vectors are formed. No thread has partial sums, so results do not depend on the number
//! of threads.

use super::{TASK, TASKS};
use crate::arrays::lengths::flops;
use crate::arrays::view::{View, ViewMut};
use crate::error::Result;
use crate::memory::Buffer;
use crate::numbers::scalar::Scalar;
use crate::operator::Reflections;
use crate::simd::epilogue::Store;
use crate::simd::gemm::gemm;
use crate::simd::isa::InstructionSet;
use crate::threads::{Context, slices};
use crate::wy::blocks::{Blocks, Coefficients, CoefficientsMut};

/// Coordinates of a task that forms sums, at least.
const COORDINATES: usize = 32;
/// Vectors and coordinates of a piece of a sum, and the distance between its vectors once they are packed.
const PIECE: usize = 64;
const COLUMNS: usize = 64;
const PACKED: usize = COLUMNS + 16;

/// The vectors of a backward pass and where its results go.
pub struct Pass<'a, T: Scalar> {
    /// The reflections in blocks.
    pub blocks: &'a Blocks<T>,
    /// The reflections as they were given.
    pub u: Reflections<'a, T>,
    /// `D h`: the input of the block applied first.
    pub a: View<'a, T>,
    /// Workspace for as many vectors, used if there are several blocks; may be `a` itself.
    pub state: ViewMut<'a, T>,
    /// `y` of every block, if known.
    pub y: Option<Coefficients<'a, T>>,
    /// `dL/dc`.
    pub b: View<'a, T>,
    /// `dL/da` of the first block; may be `b` itself. Without it only a single block is allowed.
    pub q: Option<ViewMut<'a, T>>,
    /// `W_1 D h`, if wanted.
    pub c: Option<ViewMut<'a, T>>,
    /// `dL/dU`, rows `u.m()` apart; entries outside the columns are not written.
    pub grad_u: Option<ViewMut<'a, T>>,
    /// `dL/dtau`, one vector, zero before the first vectors.
    pub grad_tau: Option<ViewMut<'a, T>>,
    /// Whether these are the first vectors of a batch, whose sums begin at zero.
    pub first_chunk: bool,
    /// Whether they are the last, which complete the sums.
    pub last_chunk: bool,
    /// The input is the identity; `state` already holds `W_1`, and `y` is known. The pass forms only the part of `q` that
    /// `dL/dU` needs.
    pub identity: bool,
}

/// A step of the pass; vectors or coordinates are its tasks.
#[derive(Clone, Copy)]
enum PassStage {
    /// All blocks forward.
    Sweep,
    /// `b` behind the previous block, `a` before this one, and `w`.
    Back(usize),
    /// `E` and `dL/dtau`.
    Middle(usize),
    /// `dL/dV`, and from it `dL/dU`.
    Sum(usize),
    /// `b` behind the last block.
    Leave,
}

impl<'a, T: Scalar> Pass<'a, T> {
    /// Runs the whole pass.
    ///
    /// # Safety
    /// The caller owns as many vectors of `n` numbers in all views, and has gradients of the size of `u` and `tau`.
    pub unsafe fn run(self, context: &mut Context<'_>) -> Result<()> {
        let isa = context.isa;
        let (rows, p) = (self.a.count, self.blocks.list.len());
        assert!(self.q.is_some() || p <= 1, "several blocks leave their gradients in q");
        if p == 0 {
            // SAFETY: as many vectors of n numbers each.
            unsafe {
                self.q.into_iter().for_each(|q| self.b.copy_to(q, self.blocks.n));
                self.c.into_iter().for_each(|c| self.a.copy_to(c, self.blocks.n));
            }
            return Ok(());
        }
        let mut stages = Vec::new();
        if !self.identity && (p > 1 || self.y.is_none() || self.c.is_some()) {
            stages.push(PassStage::Sweep);
        }
        for block in 0..p {
            stages.push(PassStage::Back(block));
            if self.grad_u.is_some() || self.grad_tau.is_some() {
                stages.push(PassStage::Middle(block));
            }
            if self.grad_u.is_some() {
                stages.push(PassStage::Sum(block));
            }
        }
        if self.q.is_some() && !self.identity && !self.leaves_early() {
            stages.push(PassStage::Leave);
        }
        let bounds: Vec<Vec<usize>> = stages.iter().map(|&stage| self.bounds(stage)).collect();
        let counts: Vec<usize> = bounds.iter().map(|bounds| bounds.len() - 1).collect();
        let mut memory = WorkspaceMemory::new(self.blocks, rows, self.y.is_none())?;
        let workspace = memory.workspace(self.blocks, rows, self.y);
        let flops = flops(&[14, self.blocks.n, self.blocks.k, rows]);
        context.run_stages(&counts, flops, &|stage, task, cancel| {
            cancel.check()?;
            let (begin, end) = (bounds[stage][task], bounds[stage][task + 1]);
            // SAFETY: within a stage tasks own disjoint vectors, or disjoint coordinates of dL/dU; what they share they
            // only read. Stages follow one another.
            unsafe {
                match stages[stage] {
                    PassStage::Sweep => self.sweep(isa, &workspace, begin, end),
                    PassStage::Back(block) => self.back(isa, &workspace, block, begin, end),
                    PassStage::Middle(block) => self.middle(isa, &workspace, block),
                    PassStage::Sum(block) => self.sum(isa, &workspace, block, begin, end)?,
                    PassStage::Leave => self.leave(isa, &workspace, p - 1, begin, end),
                }
            }
            Ok(())
        })
    }

    /// How a stage is split, by shape alone.
    fn bounds(&self, stage: PassStage) -> Vec<usize> {
        let first = |block: usize| self.first_vector(block);
        let vectors = |first: usize| -> Vec<usize> {
            slices(self.a.count - first, TASK, TASKS).into_iter().map(|i| first + i).collect()
        };
        match stage {
            PassStage::Sweep | PassStage::Leave => vectors(0),
            PassStage::Back(block) => vectors(first(block)),
            PassStage::Middle(_) => vec![0, 1],
            PassStage::Sum(block) => slices(self.blocks.list[block].wy.n, COORDINATES, TASKS),
        }
    }

    /// A block does not change unit vectors before its first coordinate, and they do not contribute to its gradient.
    fn first_vector(&self, block: usize) -> usize {
        if self.identity { self.blocks.list[block].begin } else { 0 }
    }

    /// Makes every `y`, and the input of the block that is applied last; its output if wanted.
    ///
    /// # Safety
    /// As of [`Pass::run`], for the vectors `begin..end` of this task.
    unsafe fn sweep(&self, isa: InstructionSet, workspace: &Workspace<'_, T>, begin: usize, end: usize) {
        for (i, block) in self.blocks.list.iter().enumerate().rev() {
            let source = self.input_of(i).part(begin, end);
            let y = workspace.y.of(i).part(begin, end);
            if let Some(made) = workspace.made {
                block.project(isa, source, workspace.z.part(begin, end), made.of(i).part(begin, end), false);
            }
            if i > 0 {
                let state = self.state.part(begin, end);
                if source.ptr != state.ptr.cast_const() {
                    source.copy_to(state, block.begin);
                }
                block.expand(isa, y, source, state);
            } else if let Some(c) = self.c {
                let c = c.part(begin, end);
                block.expand(isa, y, source, c);
            }
        }
    }

    /// # Safety
    /// As of [`Pass::run`], for the vectors `begin..end` of this task.
    unsafe fn back(&self, isa: InstructionSet, workspace: &Workspace<'_, T>, i: usize, begin: usize, end: usize) {
        let block = &self.blocks.list[i];
        let y = workspace.y.of(i).part(begin, end);
        let [z, w] = [workspace.z, workspace.w].map(|x| x.part(begin, end));
        let len = (end - begin) * y.ld;
        if i > 0 {
            self.leave(isa, workspace, i - 1, begin, end);
        }
        if (i > 0 || self.identity) && self.grad_u.is_some() && self.input_of(i).ptr == self.state.ptr.cast_const() {
            // a = c - V y
            for j in 0..len {
                *z.ptr.add(j) = -*y.ptr.add(j);
            }
            let state = self.state.part(begin, end);
            block.expand(isa, z.read(), state.read(), state);
        }
        block.project(isa, self.gradient_of(i).part(begin, end), z, w, true);
        if i + 1 == self.blocks.list.len() && self.leaves_early() {
            self.leave(isa, workspace, i, begin, end);
        }
        if T::COMPLEX {
            let [conjugate_y, conjugate_w] = workspace.conjugates.map(|x| x.part(begin, end));
            for j in 0..len {
                *conjugate_y.ptr.add(j) = (*y.ptr.add(j)).conj();
                *conjugate_w.ptr.add(j) = (*w.ptr.add(j)).conj();
            }
        }
    }

    /// Where the input of block `i` is, when its turn comes.
    fn input_of(&self, i: usize) -> View<'a, T> {
        if i + 1 == self.blocks.list.len() { self.a } else { self.state.read() }
    }

    /// Where the gradient of the output of block `i` is.
    fn gradient_of(&self, i: usize) -> View<'a, T> {
        self.q.filter(|_| i > 0).map_or(self.b, ViewMut::read)
    }

    /// Whether `q` can be written before the last sum, because that sum reads other memory.
    fn leaves_early(&self) -> bool {
        let last = self.gradient_of(self.blocks.list.len() - 1);
        !self.identity && self.q.is_some_and(|q| q.ptr.cast_const() != last.ptr)
    }

    /// `b + V w` behind block `i`, for vectors `begin..end`.
    ///
    /// # Safety
    /// As of [`Pass::run`], for the vectors `begin..end` of this task.
    unsafe fn leave(&self, isa: InstructionSet, workspace: &Workspace<'_, T>, i: usize, begin: usize, end: usize) {
        let block = &self.blocks.list[i];
        let Some(to) = self.q else { return };
        let (w, from) = (workspace.w.part(begin, end), self.gradient_of(i).part(begin, end));
        block.expand(isa, w.read(), from, to.part(begin, end));
    }

    /// # Safety
    /// As of [`Pass::run`]; one task.
    unsafe fn middle(&self, isa: InstructionSet, workspace: &Workspace<'_, T>, i: usize) {
        let block = &self.blocks.list[i];
        let (k, first, rows) = (block.wy.k, self.first_vector(i), self.a.count);
        // Column-major conj(E) is E with its rows contiguous, as the sum takes it.
        let [y, w] = [workspace.conjugates(i)[0], workspace.w.read()].map(|x| x.part(first, rows));
        let e = workspace.e;
        gemm(isa, (k, k), y, w.transposed(k), &Store::new(e));
        let grad_tau = self.grad_tau.map(|grad| grad.from(block.first, 0).vector_mut(0, k));
        block.wy.hermitian(std::slice::from_raw_parts_mut(e.ptr, k * e.ld), e.ld, true, grad_tau);
    }

    /// Rows `begin..end` of the block's part of `dL/dU`.
    ///
    /// # Safety
    /// As of [`Pass::run`], for the coordinates `begin..end` of this task.
    unsafe fn sum(
        &self,
        isa: InstructionSet,
        workspace: &Workspace<'_, T>,
        i: usize,
        begin: usize,
        end: usize,
    ) -> Result<()> {
        let Some(grad_u) = self.grad_u else { return Ok(()) };
        let block = &self.blocks.list[i];
        let wy = &block.wy;
        let (k, m, first, rows) = (wy.k, self.u.m(), self.first_vector(i), self.a.count);
        let a = self.input_of(i);
        let grad = grad_u.from(block.first, block.begin);
        let mut packed = Buffer::<T>::scratch(if rows > PIECE { PIECE * PACKED } else { 0 })?;
        for begin in (begin..end).step_by(COLUMNS) {
            let count = COLUMNS.min(end - begin);
            let out = grad.part(begin, begin + count);
            let mut add = if self.first_chunk { View::none() } else { out.read() };
            for (vectors, weights) in [self.gradient_of(i), a].into_iter().zip(workspace.conjugates(i)) {
                for row in (first..rows).step_by(PIECE) {
                    let end = rows.min(row + PIECE);
                    let mut vectors = vectors.from(block.begin + begin, 0).part(row, end);
                    if !packed.is_empty() {
                        // Vectors that many numbers apart fall into few sets of the cache.
                        let near = ViewMut::of(&mut packed, PACKED, vectors.count);
                        vectors.copy_to(near, count);
                        vectors = near.read();
                    }
                    gemm(isa, (k, count), weights.part(row, end), vectors.transposed(count), &Store::plus(out, add));
                    add = out.read();
                }
            }
            let v = View::of(&wy.v, wy.ld_n(), k).from(begin, 0).transposed(count);
            gemm(isa, (k, count), workspace.e.read().part(0, k), v, &Store::plus(out, out.read()));
        }
        if self.last_chunk {
            let grad = std::slice::from_raw_parts_mut(grad.at(0, begin), (end - begin - 1) * m + k);
            wy.finish_gradient(isa, begin, grad, m);
        }
        Ok(())
    }
}

/// The gradients for a pass, with zeros in the entries that it does not write or that it adds to.
pub fn empty<'a, T: Scalar>(
    u: Reflections<'_, T>,
    grad_u: Option<&'a mut [T]>,
    grad_tau: Option<&'a mut [T]>,
) -> (Option<ViewMut<'a, T>>, Option<ViewMut<'a, T>>) {
    let grad_u = grad_u.map(|grad_u| {
        u.clear_unused(grad_u);
        ViewMut::of(grad_u, u.m(), u.n())
    });
    let grad_tau = grad_tau.map(|grad_tau| {
        grad_tau.fill(T::ZERO);
        ViewMut::of(grad_tau, 0, 1)
    });
    (grad_u, grad_tau)
}

/// Intermediate results, a row for each vector.
struct Workspace<'a, T> {
    /// `y` of each block.
    y: Coefficients<'a, T>,
    /// The same, if the pass makes it.
    made: Option<CoefficientsMut<'a, T>>,
    z: ViewMut<'a, T>,
    w: ViewMut<'a, T>,
    /// `conj(y)` and `conj(w)` of one block, for complex numbers.
    conjugates: [ViewMut<'a, T>; 2],
    e: ViewMut<'a, T>,
}

impl<'a, T: Scalar> Workspace<'a, T> {
    /// `conj(y)` and `conj(w)`.
    fn conjugates(&self, i: usize) -> [View<'a, T>; 2] {
        if T::COMPLEX { self.conjugates.map(ViewMut::read) } else { [self.y.of(i), self.w.read()] }
    }
}

/// Where the intermediate results are.
struct WorkspaceMemory<T: Scalar> {
    /// Empty if `y` is known.
    y: Buffer<T>,
    z: Buffer<T>,
    w: Buffer<T>,
    conjugates: [Buffer<T>; 2],
    e: Buffer<T>,
}

impl<T: Scalar> WorkspaceMemory<T> {
    fn new(blocks: &Blocks<T>, rows: usize, makes_y: bool) -> Result<Self> {
        // In sums, registers read beyond the ends of rows, where denormal numbers would be slow.
        let take = |rows: usize| Buffer::zeroed(rows * blocks.widest());
        let conjugate = if T::COMPLEX { rows } else { 0 };
        Ok(Self {
            y: take(if makes_y { blocks.list.len() * rows } else { 0 })?,
            z: take(rows)?,
            w: take(rows)?,
            conjugates: [take(conjugate)?, take(conjugate)?],
            e: take(blocks.widest())?,
        })
    }

    /// Views of it, with `y` as it is known, or to be made.
    fn workspace<'a>(
        &'a mut self,
        blocks: &Blocks<T>,
        rows: usize,
        known: Option<Coefficients<'a, T>>,
    ) -> Workspace<'a, T> {
        let Self { y, z, w, conjugates, e } = self;
        let ld = blocks.widest();
        let made = CoefficientsMut::new(blocks, y, rows);
        let [z, w] = [z, w].map(|x| ViewMut::of(x, ld, rows));
        Workspace {
            y: known.unwrap_or(made.read()),
            made: known.is_none().then_some(made),
            z,
            w,
            conjugates: conjugates.each_mut().map(|x| ViewMut::of(x, ld, rows)),
            e: ViewMut::of(e, ld, ld),
        }
    }
}
