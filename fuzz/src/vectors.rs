//! Vectors of all steps of all sequences, lying at even distances or row after row.

use householder::rnn::Series;
use householder::scalar::Scalar;

use crate::shape::Shape;
use crate::source::{Source, Wildness};

/// A vector for each row.
pub struct Vectors<T> {
    numbers: Vec<T>,
    /// The same as row after row, wherever they lie.
    pub rows: Vec<T>,
    distances: Option<[usize; 2]>,
}

impl<T: Scalar> Vectors<T> {
    pub fn any(source: &mut Source, shape: &Shape, width: usize, wildness: Wildness) -> Self {
        if !shape.even || source.one_in(2) {
            let rows = source.numbers::<T>(shape.rows() * width, wildness);
            return Self { numbers: rows.clone(), rows, distances: None };
        }
        let (steps, batch) = (shape.sizes.len(), shape.batch());
        let distances = distances(source, [steps, batch, width]);
        let numbers = source.numbers::<T>(Series::<T>::span([steps, batch, width], distances), wildness);
        let place = |row: usize| row / batch * distances[0] + row % batch * distances[1];
        let rows = (0..shape.rows()).flat_map(|row| &numbers[place(row)..][..width]).copied().collect();
        Self { numbers, rows, distances: Some(distances) }
    }

    pub fn series(&self) -> Series<'_, T> {
        let strided = |distances| Series::strided(&self.numbers, distances);
        self.distances.map_or_else(|| Series::new(&self.numbers), strided)
    }
}

/// From a step to the next one, and from a sequence to the next one.
fn distances(source: &mut Source, [steps, batch, width]: [usize; 3]) -> [usize; 2] {
    let directions = 1 + source.below(2); // the other one's vectors stand beside these
    let gap = if source.one_in(4) { source.below(9) } else { 0 };
    let vector = directions * width + gap;
    match source.below(6) {
        0 => [0, vector],                                      // one step for all
        1 => [vector, 0],                                      // one sequence for all
        2 | 3 => [vector * (batch + source.below(3)), vector], // some of more sequences
        _ => [vector, vector * (steps + source.below(3))],     // one sequence after the other
    }
}
