//! Arrays of the caller: their lengths, rows at any distances, strided views, and one array for each problem.

pub mod lengths;
pub mod rows;
pub mod stack;
pub mod stored;
pub mod view;
