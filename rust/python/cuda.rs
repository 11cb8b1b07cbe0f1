//! The sources of the CUDA kernels, embedded so that every installation has those that belong to it.

use std::collections::BTreeMap;

use pyo3::prelude::*;

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../cuda/", $name)))),*]
    };
}

const SOURCES: &[(&str, &str)] = sources![
    "prims.cuh",
    "numbers.cuh",
    "activation.cuh",
    "rows.cuh",
    "recurrence.cuh",
    "cluster.cuh",
    "lowrank.cu",
    "dense.cu",
    "fallback.cu",
    "squares.cuh",
    "factors.cu",
    "gradients.cu",
    "application.cu",
    "packing.cu",
    "probe.cu",
];

/// Text of each file of `cuda/` by name.
#[pyfunction]
pub fn cuda_sources() -> BTreeMap<&'static str, &'static str> {
    SOURCES.iter().copied().collect()
}
