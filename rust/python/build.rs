//! Shows maturin the library of `rust/torch`, which has the kernels.
//!
//! Cargo builds that library as a dependency of this package. It is not there yet when this program runs, but maturin looks for it afterwards, in the folder of this program's output.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(unix)]
    {
        let folder = env::var("OUT_DIR").expect("cargo sets it");
        let suffix = if env::var("CARGO_CFG_TARGET_VENDOR").as_deref() == Ok("apple") { "dylib" } else { "so" };
        let name = format!("libhouseholder_torch.{suffix}");
        let link = std::path::Path::new(&folder).join(&name);
        let _ = std::fs::remove_file(&link); // of an earlier run
        // From PROFILE/build/PACKAGE/out to PROFILE/deps.
        std::os::unix::fs::symlink(format!("../../../deps/{name}"), link).expect("a link can be made");
    }
}
