//! Packed SIMD tiles, written once over `pulp` for every number type and instruction set.
//!
//! All heavy work is one shape of product. *Rows lie in SIMD lanes, columns are broadcast*:
//!
//! ```text
//! out[j][r] = epilogue( sum_k  w[k][r] * b[k][j] )        r: lanes, j: columns (the batch), k: summed
//! ```
//!
//! so the batch-major layout of user arrays (`(rows, n)`, vectors contiguous) is used as it lies: a column `j` is one
//! vector of the batch, its entries `r` are contiguous. Weights come packed into panels ([`pack`]) or strided
//! (`w[k]` contiguous over the lanes at a leading dimension).

pub mod activation;
pub mod element;
pub mod epilogue;
pub mod fetch;
pub mod gemm;
pub mod isa;
pub mod lanes;
pub mod pack;
pub mod tile;
pub mod transpose;
pub mod vector;
