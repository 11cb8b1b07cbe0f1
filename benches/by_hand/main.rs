//! The functions of linear attention beside what engines write by hand, on one thread.
//!
//! ```sh
//! cargo bench --bench by_hand
//! ```
//!
//! The rivals are a loop over tokens, which the compiler vectorises for this processor, and chunks of tokens in products of
//! whole matrices. All are compared before they are timed. Times are medians of rounds in which all take turns. On Linux they
//! are those of the thread itself, which other programs disturb little.

#![allow(clippy::print_stdout)] // it prints a table

mod chunks;
mod recurrence;
mod rows;

use householder::delta::Sizes;
use householder::threads::set_num_threads;

use recurrence::Recurrence;
use rows::{Convolution, GatedNorm};

const ROUNDS: usize = 15;
/// The seconds that one measurement lasts at least.
const SHORTEST: f64 = 0.04;

/// One way to compute an array.
type Call<'a> = Box<dyn FnMut(&mut [f32]) + 'a>;

/// Numbers in [-1, 1).
fn numbers(len: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn main() {
    set_num_threads(1).unwrap();
    println!("| one thread | tokens | this crate, ms | loop over tokens | chunks |\n|---|---|---|---|---|");
    for tokens in [1, 512, 2048] {
        let given = Recurrence::new(Sizes::new(16, 128, 128), tokens, None);
        let calls = [given.by_crate(), given.by_tokens(), given.by_chunks()];
        row("gated delta rule, 16 heads of 128", tokens, 16 * 128, calls.into());
    }
    for tokens in [1, 512, 2048] {
        let sizes = Sizes { value_heads: 48, ..Sizes::new(1, 128, 64) };
        let given = Recurrence::new(sizes, tokens, Some(numbers(48)));
        let calls = [given.by_crate(), given.by_tokens(), given.by_chunks()];
        row("Mamba-2, 48 heads of 64, states of 128", tokens, 48 * 64, calls.into());
    }
    for tokens in [1, 512] {
        let given = Convolution::new(tokens, 6144, 4);
        row("convolution and SiLU, 6144 channels", tokens, 6144, [given.by_crate(), given.by_tokens()].into());
    }
    for tokens in [1, 512] {
        let given = GatedNorm::new(tokens * 16, 128);
        row("gated norm, 16 heads of 128", tokens, 16 * 128, [given.by_crate(), given.by_rows()].into());
    }
}

/// Prints the time of the first call, and those of the others as multiples of it. Each writes `width` numbers a token.
fn row(name: &str, tokens: usize, width: usize, mut calls: Vec<Call<'_>>) {
    let (mut expected, mut out) = (vec![0.0; tokens * width], vec![0.0; tokens * width]);
    calls[0](&mut expected);
    for call in &mut calls[1..] {
        call(&mut out);
        let largest = expected.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let apart = out.iter().zip(&expected).fold(0.0_f32, |apart, (x, y)| apart.max((x - y).abs()));
        assert!(apart < 1e-5 * largest, "{name}, {tokens} tokens: {apart:e} of {largest}");
    }
    let seconds = medians(&mut calls, &mut out);
    let others = seconds[1..].iter().map(|other| format!("{:.1} x", other / seconds[0]));
    let others: Vec<_> = others.chain([String::new()]).take(2).collect();
    println!("| {name} | {tokens} | {:.3} | {} |", 1e3 * seconds[0], others.join(" | "));
}

/// The median time of each call in seconds.
fn medians(calls: &mut [Call<'_>], out: &mut [f32]) -> Vec<f64> {
    let repeats: Vec<_> = calls.iter_mut().map(|call| (SHORTEST / time(call, out, 1)).ceil() as usize).collect();
    let mut times = vec![Vec::with_capacity(ROUNDS); calls.len()];
    for _ in 0..ROUNDS {
        for ((call, times), &repeats) in calls.iter_mut().zip(&mut times).zip(&repeats) {
            times.push(time(call, out, repeats));
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        times[ROUNDS / 2]
    };
    times.into_iter().map(median).collect()
}

/// The seconds of a call, of so many.
fn time(call: &mut Call<'_>, out: &mut [f32], repeats: usize) -> f64 {
    let begin = now();
    for _ in 0..repeats {
        call(std::hint::black_box(out));
    }
    (now() - begin) / repeats as f64
}

/// Seconds that this thread has run.
#[cfg(target_os = "linux")]
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the time.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(code, 0);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Seconds since the first call.
#[cfg(not(target_os = "linux"))]
fn now() -> f64 {
    static FIRST: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    FIRST.elapsed().as_secs_f64()
}
