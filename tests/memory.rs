//! How much memory calls take, in bytes that they allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use householder::apply;
use householder::factor;
use householder::method::Method;
use householder::number::c64;
use householder::operator::{Form, Operator};
use householder::rnn::{self, Sequence, Series, States, Steps};
use householder::threads::{Context, set_num_threads};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator, with a count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        System.alloc(layout)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        System.dealloc(block, layout);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that are allocated at a time while `work` runs. One test measures at a time.
fn most_of(work: impl FnOnce()) -> f64 {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    householder::release_memory();
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    work();
    (MOST.load(Ordering::Relaxed) - before) as f64
}

/// The most that a sequence of one step by compact WY takes, as a multiple of the memory of `U`.
fn taken(n: usize, m: usize) -> f64 {
    let entries: Vec<f32> = (0..n * m).map(|i| (i as f32).sin()).collect();
    let (x, mut h) = (vec![1.0; n], vec![0.0; n]);
    let operator = Operator::new([1, n, m], &entries).unwrap().by(Some(Method::Wy));
    let sequence = Sequence::new(operator, Steps::uniform(1, 1).unwrap(), Series::new(&x));
    let most = most_of(|| rnn::forward(&mut Context::default(), &sequence, States::new(&mut h)).unwrap());
    most / (n * m * size_of::<f32>()) as f64
}

#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn a_sequence_takes_a_few_times_the_memory_of_u() {
    set_num_threads(2).unwrap();
    // V and V*, N and its adjoint, T and its inverse in double precision, P, Q and their packed copies.
    for (n, m) in [(1024, 1000), (2048, 600)] {
        let times = taken(n, m);
        assert!(times < 16.0, "{n} x {m}: {times:.1} times the memory of U");
    }
}

/// A product of reflections along any vectors is hardly ever one along vectors with zeros at the beginning, so many signs of
/// phases are tried, down to the last of many columns.
#[test]
#[cfg_attr(miri, ignore)] // which takes long for so many numbers
fn a_search_of_signs_takes_a_few_matrices() {
    let (n, m) = (96, 90);
    let entries: Vec<c64> = (0..n * m).map(|i| c64::new((i as f64).sin(), (1.7 * i as f64).cos())).collect();
    let w = Operator::with_form([1, n, m], &entries, Form::Full, None).unwrap();
    let (mut q, mut u, mut phases) = (vec![c64::default(); n * n], vec![c64::default(); n * m], vec![0.0; n]);
    apply::matrix(&mut Context::default(), &w, &mut q).unwrap();
    let mut residual = 0.0;
    let most = most_of(|| {
        residual = factor::factor(&mut Context::default(), n, m, &q, &mut u, Some(&mut phases)).unwrap();
    });
    let matrices = most / (n * n * size_of::<c64>()) as f64;
    assert!(residual > 1e-3 && matrices < 20.0, "residual {residual:e}, {matrices:.1} matrices");
}
