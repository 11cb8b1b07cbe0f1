//! The gated norm and its gradients by the definition in double precision, and the library's on the same operands.

use householder::error::Result;
use householder::exponential::Exponential;
use householder::gated_norm::{Gradients, Operands, backward, forward};
use householder::stored::Tokens;
use householder::threads::Context;

/// Operands and the gradient of the outputs.
pub struct Given<T> {
    pub rows: usize,
    pub x: Vec<T>,
    pub z: Vec<T>,
    pub weight: Vec<T>,
    pub grad: Vec<T>,
    pub silu: bool,
}

/// Outputs, and the gradients of `x`, the gates and the weights.
pub type Found<X> = [Vec<X>; 4];

pub const EPSILON: f64 = 1e-3;

impl<T: Exponential> Given<T> {
    /// `numbers` draws so many of them.
    pub fn random(mut numbers: impl FnMut(usize) -> Vec<T>, rows: usize, width: usize, silu: bool) -> Self {
        let [x, z, grad, weight] = [rows * width, rows * width, rows * width, width].map(&mut numbers);
        Self { rows, x, z, weight, grad, silu }
    }

    pub fn compute(&self, context: &mut Context<'_>) -> Found<T> {
        self.compute_from(context, [&self.x, &self.z, &self.grad].map(Tokens::from))
            .expect("operands that fit together")
    }

    /// The same of copies of `x`, of the gates and of the gradient.
    pub fn compute_from(&self, context: &mut Context<'_>, [x, z, grad]: [Tokens<'_, T>; 3]) -> Result<Found<T>> {
        let (epsilon, weight) = (T::of(EPSILON), &self.weight[..]);
        let operands = Operands { rows: self.rows, x, z, weight, epsilon, silu: self.silu };
        let mut found = [&self.x, &self.x, &self.z, &self.weight].map(|like| vec![T::of(7.0); like.len()]);
        let [y, x, z, weight] = &mut found;
        forward(context, operands, y.into())?;
        let gradients = Gradients { x: Some(x.into()), z: Some(z.into()), weight: Some(weight) };
        backward(context, operands, grad, gradients)?;
        Ok(found)
    }

    /// The same by the definition.
    pub fn exact(&self) -> Found<f64> {
        let width = self.weight.len();
        let mut found = [&self.x, &self.x, &self.z, &self.weight].map(|like| vec![0.0; like.len()]);
        let [y, of_x, of_z, of_weight] = &mut found;
        let wide = |numbers: &[T]| numbers.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
        let weight = wide(&self.weight);
        for row in (0..self.rows).map(|row| row * width..(row + 1) * width) {
            let [x, z, grad] = [&self.x, &self.z, &self.grad].map(|array| wide(&array[row.clone()]));
            let inverse = (x.iter().map(|x| x * x).sum::<f64>() / width as f64 + EPSILON).sqrt().recip();
            let mut along = 0.0; // mean d n
            let mut d = vec![0.0; width];
            for i in 0..width {
                let sigmoid = 1.0 / (1.0 + (-z[i]).exp());
                let slope = sigmoid * (1.0 - sigmoid);
                let [phi, slope] = if self.silu { [z[i] * sigmoid, sigmoid + z[i] * slope] } else { [sigmoid, slope] };
                let n = x[i] * inverse;
                y[row.start + i] = weight[i] * n * phi;
                of_weight[i] += grad[i] * n * phi;
                of_z[row.start + i] = grad[i] * weight[i] * n * slope;
                d[i] = grad[i] * weight[i] * phi;
                along += d[i] * n / width as f64;
            }
            (0..width).for_each(|i| of_x[row.start + i] = (d[i] - x[i] * inverse * along) * inverse);
        }
        found
    }
}
