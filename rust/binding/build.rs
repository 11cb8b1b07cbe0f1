//! A number for the build: equal ones were compiled from the same sources by the same compiler with the same options.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let mut hasher = DefaultHasher::new();
    for folder in [".", "../core"] {
        println!("cargo::rerun-if-changed={folder}");
        for file in sources(Path::new(folder)) {
            file.hash(&mut hasher);
            fs::read(file).expect("a file of the crate").hash(&mut hasher);
        }
    }
    let compiler = Command::new(env::var_os("RUSTC").expect("cargo sets it")).arg("-vV").output();
    compiler.expect("the compiler says which it is").stdout.hash(&mut hasher);
    for name in ["TARGET", "PROFILE", "OPT_LEVEL", "DEBUG", "CARGO_ENCODED_RUSTFLAGS"] {
        env::var_os(name).hash(&mut hasher);
    }
    println!("cargo::rustc-env=HOUSEHOLDER_BUILD={:016x}", hasher.finish());
}

/// The files of Rust in a folder, in one order.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of the crate");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let (folders, files): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension() == Some(OsStr::new("rs")));
    files.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}
