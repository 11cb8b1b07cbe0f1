//! Arbitrary problems against explicit reflections: right results, no panic, nothing out of bounds.
//!
//! ```sh
//! cargo run --release --manifest-path fuzz/Cargo.toml -- 10000000        # so many problems; the seed follows, 0 by default
//! cargo run --release --manifest-path fuzz/Cargo.toml -- 1 12345         # the problem of one seed
//! RUSTFLAGS=-Zsanitizer=address cargo +nightly run --release --target x86_64-unknown-linux-gnu \
//!     --manifest-path fuzz/Cargo.toml -- 1000000                         # every access to memory is checked
//! ```
//!
//! A problem is a function of its seed: sizes around the edges of registers and panels, now and then of tiles, rings and
//! the shares of threads; numbers from ordinary ones over columns of any magnitude to NaN and infinities; every method,
//! activation, number type and instruction set; sequences in either direction, lying at even distances of any kind; rows of tokens
//! at any distances.

mod activation;
mod application;
mod call;
mod common;
mod delta;
mod factor;
mod given;
mod oracle;
mod rows;
mod sequence;
mod shape;
mod source;
mod through_time;
mod vectors;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

use householder::number::{c32, c64};
use source::Source;

/// A module's check of one of the four number types.
macro_rules! check {
    ($module:ident, $source:ident) => {
        match $source.below(4) {
            0 => $module::check::<f32>(&mut $source),
            1 => $module::check::<f64>(&mut $source),
            2 => $module::check::<c32>(&mut $source),
            _ => $module::check::<c64>(&mut $source),
        }
    };
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("numbers: COUNT [SEED]"));
    let (count, first) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(0));
    let begin = Instant::now();
    let mut failed = 0_u32;
    for done in 0..count {
        let seed = first + done;
        if catch_unwind(|| problem(seed)).is_err() {
            eprintln!("seed {seed} failed");
            failed += 1;
        }
        if (done + 1) % 1_000_000 == 0 || done + 1 == count {
            println!("{} problems, {failed} failed, {:.0} s", done + 1, begin.elapsed().as_secs_f64());
        }
    }
    ExitCode::from(u8::from(failed > 0))
}

fn problem(seed: u64) {
    let mut source = Source::new(seed);
    match source.below(10) {
        0..=3 => check!(application, source),
        4..=6 => check!(sequence, source),
        7 => check!(factor, source),
        8 if source.one_in(2) => rows::check::<f32>(&mut source),
        8 => rows::check::<f64>(&mut source),
        _ if source.one_in(2) => delta::check::<f32>(&mut source),
        _ => delta::check::<f64>(&mut source),
    }
}
