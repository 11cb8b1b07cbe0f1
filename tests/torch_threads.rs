//! torch's threads: the same results and errors as with threads of the library's own.

use std::ffi::c_void;

use householder::apply;
use householder::error::{Error, Result};
use householder::operator::Operator;
use householder::threads::{Chunk, Context, TorchThreads, set_num_threads, share_torch_threads};

const N: usize = 256;
const ROWS: usize = 1024;

/// As torch does it with two threads.
unsafe extern "C-unwind" fn parallel_for(begin: i64, end: i64, _: i64, chunk: Chunk, data: *mut c_void) -> i32 {
    assert_eq!((begin, end), (0, 2));
    let data = data as usize;
    std::thread::scope(|scope| {
        // SAFETY: the caller waits for both.
        scope.spawn(move || unsafe { chunk(1, 2, data as *mut c_void) });
        // SAFETY: as above.
        unsafe { chunk(0, 1, data as *mut c_void) };
    });
    0
}

unsafe extern "C-unwind" fn two(count: *mut u32) -> i32 {
    // SAFETY: a place for the number.
    unsafe { *count = 2 };
    0
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i as f32).sin()).collect()
}

/// One call after the other, until the poll ends one of them.
fn interrupted(poll: &mut dyn FnMut() -> bool) -> Error {
    let (entries, h, mut out) = (numbers(N * 64), numbers(ROWS * N), vec![0.0; ROWS * N]);
    let w = Operator::new([1, N, 64], &entries).unwrap();
    let mut context = Context::new(poll);
    let mut call = || apply::forward(&mut context, &w, &h, &mut out);
    (0..100_000).find_map(|_| call().err()).expect("a poll every 50 milliseconds")
}

fn result() -> Result<Vec<f32>> {
    let (entries, h, mut out) = (numbers(N * 64), numbers(ROWS * N), vec![0.0; ROWS * N]);
    let w = Operator::new([1, N, 64], &entries)?;
    apply::forward(&mut Context::default(), &w, &h, &mut out)?;
    Ok(out)
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn whoever_owns_the_threads() {
    set_num_threads(2).unwrap();
    let outcomes = || (result(), interrupted(&mut || true), interrupted(&mut || panic!("the poll broke")));
    let own = outcomes();
    assert_eq!((&own.1, &own.2), (&Error::Interrupted, &Error::Internal("the poll broke".to_owned())));
    // SAFETY: both do what is said of them.
    unsafe { share_torch_threads(TorchThreads { parallel_for, num_threads: two }) };
    assert_eq!(outcomes(), own);
}
