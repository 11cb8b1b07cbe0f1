//! Root mean square norms of rows, multiplied by weights and by an activation of gates.
//!
//! ```text
//! n = x / sqrt(mean x^2 + epsilon),    y = w n phi(z),    phi(z) = z sigmoid(z) or sigmoid(z)
//! dw = sum dy n phi(z),    dz = dy w n phi'(z),    dx = (d - n mean(d n)) / sqrt(mean x^2 + epsilon),    d = dy w phi(z)
//! ```
//!
//! ```
//! use householder::Context;
//! use householder::gated_norm::{Operands, forward};
//!
//! let (x, z) = ([3.0, 4.0], [0.0, 0.0]); // gates of zero: one half
//! let operands = Operands { rows: 1, x: (&x).into(), z: (&z).into(), weight: &[1.0, 2.0], epsilon: 0.0, silu: false };
//! let mut y = [0.0_f64; 2];
//! forward(&mut Context::default(), operands, (&mut y).into())?;
//! assert!((y[0] - 1.5 / 12.5_f64.sqrt()).abs() < 1e-15 && (y[1] - 4.0 / 12.5_f64.sqrt()).abs() < 1e-15);
//! # Ok::<(), householder::Error>(())
//! ```

use crate::arrays::lengths::{flops, product, require};
use crate::arrays::stored::{NumbersMut, Tokens};
use crate::arrays::view::Shared;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::memory::workspace::WorkRows;
use crate::numbers::exponential::Exponential;
use crate::simd::isa::{InstructionSet, simd};
use crate::simd::vector::dot;
use crate::threads::Context;

/// Rows of a task, whose contributions to `dw` are added up.
const TASK: usize = 512;
/// Rows that are read together.
const TILE: usize = 16;

/// What a norm reads.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a, T> {
    /// Number of rows.
    pub rows: usize,
    /// `(batch, tokens, 1, width)`, `rows` vectors in all.
    pub x: Tokens<'a, T>,
    /// The gates, like `x`.
    pub z: Tokens<'a, T>,
    /// `(width,)`.
    pub weight: &'a [T],
    /// Added to mean squares.
    pub epsilon: T,
    /// Whether gates pass through `SiLU`, not the logistic function alone.
    pub silu: bool,
}

/// Gradients of the operands, those that are needed.
#[derive(Debug)]
pub struct Gradients<'a, T> {
    /// Like `x`, row after row.
    pub x: Option<NumbersMut<'a, T>>,
    /// Like `z`, row after row.
    pub z: Option<NumbersMut<'a, T>>,
    /// `(width,)`.
    pub weight: Option<&'a mut [T]>,
}

impl<T: Exponential> Operands<'_, T> {
    fn width(&self) -> usize {
        self.weight.len()
    }

    fn check(&mut self) -> Result<()> {
        let (rows, width) = (self.rows, self.width());
        if width == 0 {
            return Err(Error::value("weight", "at least one number", width));
        }
        if product(&[rows, width, size_of::<T>()]).is_none() {
            return Err(Error::Shape { name: "x", shape: vec![rows, width] });
        }
        self.x.expect("x", [rows, 1, width])?;
        self.z.expect("z", [rows, 1, width])
    }

    fn check_like(&self, name: &'static str, array: Option<&NumbersMut<'_, T>>) -> Result<()> {
        require(1, &[(name, array.map(NumbersMut::len), &[self.rows, self.width()])])
    }

    fn tasks(&self) -> usize {
        self.rows.div_ceil(TASK)
    }

    /// The tiles of a task: first rows and how many.
    fn tiles(&self, task: usize) -> impl Iterator<Item = (usize, usize)> + use<T> {
        let end = self.rows.min((task + 1) * TASK);
        (task * TASK..end).step_by(TILE).map(move |first| (first, TILE.min(end - first)))
    }
}

/// Computes outputs, row after row.
pub fn forward<T: Exponential>(
    context: &mut Context<'_>,
    operands: Operands<'_, T>,
    out: NumbersMut<'_, T>,
) -> Result<()> {
    T::gated_norm(context, operands, out)
}

/// [`forward`], to be compiled for each type.
pub(crate) fn forward_of_type<T: Exponential>(
    context: &mut Context<'_>,
    mut operands: Operands<'_, T>,
    out: NumbersMut<'_, T>,
) -> Result<()> {
    operands.check()?;
    operands.check_like("out", Some(&out))?;
    let (isa, width) = (context.isa, operands.width());
    let out = out.rows(width);
    context.run(operands.tasks(), flops(&[20, operands.rows, width]), &|task, cancel| {
        cancel.check()?;
        let (mut x, mut z) = (WorkRows::zeroed(TILE, width)?, WorkRows::zeroed(TILE, width)?);
        for tile in operands.tiles(task) {
            read(isa, &operands.x, tile, &mut x);
            read(isa, &operands.z, tile, &mut z);
            for i in 0..tile.1 {
                let inverse = inverse_norm(isa, x.row(i), operands.epsilon);
                normalised(isa, inverse, operands.weight, z.row(i), operands.silu, x.row_mut(i));
            }
            // SAFETY: tasks write disjoint rows.
            unsafe { out.part(tile.0, tile.1, 0).write(isa, width, x.view(0, tile.1)) };
        }
        Ok(())
    })
}

/// Computes gradients from those of the outputs, `(batch, tokens, 1, width)`.
pub fn backward<T: Exponential>(
    context: &mut Context<'_>,
    operands: Operands<'_, T>,
    grad_out: Tokens<'_, T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    T::gated_norm_backward(context, operands, grad_out, gradients)
}

/// [`backward`], to be compiled for each type.
pub(crate) fn backward_of_type<T: Exponential>(
    context: &mut Context<'_>,
    mut operands: Operands<'_, T>,
    mut grad_out: Tokens<'_, T>,
    gradients: Gradients<'_, T>,
) -> Result<()> {
    operands.check()?;
    let (isa, width) = (context.isa, operands.width());
    grad_out.expect("grad_out", [operands.rows, 1, width])?;
    operands.check_like("grad_x", gradients.x.as_ref())?;
    operands.check_like("grad_z", gradients.z.as_ref())?;
    require(1, &[("grad_weight", gradients.weight.as_ref().map(|weight| weight.len()), &[width])])?;
    let [of_x, of_z] = [gradients.x, gradients.z].map(|array| array.map(|array| array.rows(width)));
    let mut sums: Buffer<T> = Buffer::zeroed(operands.tasks().saturating_mul(width))?;
    let shared = Shared(sums.ptr_mut());
    context.run(operands.tasks(), flops(&[50, operands.rows, width]), &|task, cancel| {
        cancel.check()?;
        let [mut x, mut z, mut grad] =
            [WorkRows::zeroed(TILE, width)?, WorkRows::zeroed(TILE, width)?, WorkRows::zeroed(TILE, width)?];
        let mut products = WorkRows::zeroed(1, width)?;
        // SAFETY: tasks have numbers of their own.
        let sum = unsafe { std::slice::from_raw_parts_mut(shared.get().add(task * width), width) };
        for tile in operands.tiles(task) {
            for (from, to) in [(&operands.x, &mut x), (&operands.z, &mut z), (&grad_out, &mut grad)] {
                read(isa, from, tile, to);
            }
            for i in 0..tile.1 {
                let inverse = inverse_norm(isa, x.row(i), operands.epsilon);
                let (x, z, grad) = (x.row(i), z.row_mut(i), grad.row_mut(i));
                of_row(isa, inverse, operands.weight, operands.silu, x, z, grad, products.row_mut(0), sum);
                let along = dot(isa, grad, products.row(0)) * T::of((width as f64).recip());
                along_row(isa, inverse, along, products.row(0), grad);
            }
            for (to, from) in [(of_x, &grad), (of_z, &z)] {
                if let Some(to) = to {
                    // SAFETY: as above, rows.
                    unsafe { to.part(tile.0, tile.1, 0).write(isa, width, from.view(0, tile.1)) };
                }
            }
        }
        Ok(())
    })?;
    if let Some(weight) = gradients.weight {
        weight.fill(T::ZERO);
        for sum in sums.chunks_exact(width) {
            weight.iter_mut().zip(sum).for_each(|(to, &x)| *to += x);
        }
    }
    Ok(())
}

/// Reads the rows of a tile.
fn read<T: Exponential>(isa: InstructionSet, from: &Tokens<'_, T>, tile: (usize, usize), to: &mut WorkRows<T>) {
    let mut first = 0;
    for piece in from.pieces(tile, 0) {
        to.read(isa, first, piece);
        first += piece.count;
    }
}

fn inverse_norm<T: Exponential>(isa: InstructionSet, x: &[T], epsilon: T) -> T {
    T::ONE / (dot(isa, x, x) * T::of((x.len() as f64).recip()) + epsilon).sqrt()
}

simd! {
    /// `x = w n phi(z)`.
    fn normalised<T: Exponential>(s, inverse: T, weight: &[T], z: &[T], silu: bool, x: &mut [T]) -> () {
        for ((x, &z), &weight) in x.iter_mut().zip(z).zip(weight) {
            let sigmoid = z.sigmoid(s);
            *x = weight * (*x * inverse) * if silu { z * sigmoid } else { sigmoid };
        }
    }

    /// `grad` becomes `d`, `z` becomes `dz`, `norm` becomes `n`, and `dy n phi(z)` is added to `sum`.
    fn of_row<T: Exponential>(
        s, inverse: T, weight: &[T], silu: bool, x: &[T], z: &mut [T], grad: &mut [T], norm: &mut [T], sum: &mut [T],
    ) -> () {
        let width = weight.len();
        let (x, z, grad, norm, sum) =
            (&x[..width], &mut z[..width], &mut grad[..width], &mut norm[..width], &mut sum[..width]);
        for i in 0..width {
            let (gate, out) = (z[i], grad[i]);
            let sigmoid = gate.sigmoid(s);
            let other = T::ONE - sigmoid;
            let phi = if silu { gate * sigmoid } else { sigmoid };
            let slope = sigmoid * if silu { T::ONE + gate * other } else { other };
            norm[i] = x[i] * inverse;
            sum[i] += out * norm[i] * phi;
            z[i] = out * weight[i] * norm[i] * slope;
            grad[i] = out * weight[i] * phi;
        }
    }

    /// `d = (d - n along) inverse`.
    fn along_row<T: Exponential>(_s, inverse: T, along: T, norm: &[T], grad: &mut [T]) -> () {
        for (d, &n) in grad.iter_mut().zip(norm) {
            *d = (*d - n * along) * inverse;
        }
    }
}
