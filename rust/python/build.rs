//! Builds the library of `rust/torch` where the feature `torch-library` is on: a wheel has both, and maturin builds one.
//!
//! It has a folder of its own to build in, because the one of this build is locked.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    for path in ["build.rs", "../torch", "../binding", "../core", "../../Cargo.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let is_wanted = env::var_os("CARGO_FEATURE_TORCH_LIBRARY").is_some() && env::var_os("CARGO_CFG_UNIX").is_some();
    if !is_wanted {
        return;
    }
    let [cargo, target, out] = ["CARGO", "TARGET", "OUT_DIR"].map(|name| env::var(name).expect("cargo sets it"));
    let folder = Path::new(&out).join("target");
    let status = Command::new(cargo)
        .args(["build", "--release", "--manifest-path", "../torch/Cargo.toml", "--target", &target, "--target-dir"])
        .arg(&folder)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the library of rust/torch does not compile");
    let built: PathBuf = folder.join(target).join("release");
    for name in ["libhouseholder_torch.so", "libhouseholder_torch.dylib"] {
        if built.join(name).exists() {
            std::fs::copy(built.join(name), Path::new(&out).join(name)).expect("a file can be written");
        }
    }
}
