//! Freed workspaces, kept for the next call. The system allocator returns large blocks to the kernel and gets them back
//! with a fault for each page, which took longer than the arithmetic of a medium-sized call. It spends a thousand
//! instructions on a small aligned block, as long as a small call computes. Each thread keeps some small blocks.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::sync::{Mutex, TryLockError};

/// Sizes of the blocks that all threads share, in bytes.
const SIZES: std::ops::RangeInclusive<usize> = 1 << 12..=1 << 27;
/// Most bytes and most blocks that are kept.
const MOST_BYTES: usize = 1 << 27;
const MOST_BLOCKS: usize = 64;

/// Most blocks that a thread keeps, each smaller than those of [`SIZES`].
const MOST_SMALL: usize = 32;

/// Addresses of blocks, by layout.
struct Shelf {
    bytes: usize,
    blocks: Vec<(Layout, usize)>,
}

impl Shelf {
    const fn new() -> Self {
        Self { bytes: 0, blocks: Vec::new() }
    }

    /// A block that was kept.
    fn take(&mut self, layout: Layout) -> Option<*mut u8> {
        let at = self.blocks.iter().rposition(|(kept, _)| *kept == layout)?;
        self.bytes -= layout.size();
        Some(self.blocks.remove(at).1 as *mut u8)
    }

    /// Keeps a block and frees the least recently given ones above the limits. False if the list cannot grow.
    fn give(&mut self, block: *mut u8, layout: Layout, most_bytes: usize, most_blocks: usize) -> bool {
        if self.blocks.try_reserve(1).is_err() {
            return false;
        }
        self.bytes += layout.size();
        self.blocks.push((layout, block as usize));
        while self.bytes > most_bytes || self.blocks.len() > most_blocks {
            let (oldest, block) = self.blocks.remove(0);
            self.bytes -= oldest.size();
            // SAFETY: it was given away with this layout.
            unsafe { dealloc(block as *mut u8, oldest) };
        }
        true
    }
}

impl Drop for Shelf {
    fn drop(&mut self) {
        for (layout, block) in self.blocks.drain(..) {
            // SAFETY: it was given away with this layout.
            unsafe { dealloc(block as *mut u8, layout) };
        }
    }
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf::new());

thread_local! {
    static SMALL: RefCell<Shelf> = const { RefCell::new(Shelf::new()) };
}

/// Runs `work` on the shelf unless another thread holds it. No thread waits: a forked child may inherit a held lock.
fn with_shelf<R>(work: impl FnOnce(&mut Shelf) -> R) -> Option<R> {
    match SHELF.try_lock() {
        Ok(mut shelf) => Some(work(&mut shelf)),
        Err(TryLockError::Poisoned(shelf)) => Some(work(&mut shelf.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The layout that serves all of similar size. It is at most a sixteenth larger; if small, at most an eighth or by less
/// than its alignment.
pub fn rounded(layout: Layout) -> Layout {
    let bytes = layout.size();
    if cfg!(feature = "system-allocator") {
        return layout;
    }
    let step = bytes.next_power_of_two() / if bytes < *SIZES.start() { 16 } else { 32 };
    let step = step.max(layout.align());
    let size = if bytes > *SIZES.end() { bytes } else { bytes.next_multiple_of(step) };
    Layout::from_size_align(size, layout.align()).unwrap_or(layout)
}

/// Memory of a [`rounded`] layout; null if there is none. It holds zeros or what its last owner left. With the feature
/// `system-allocator` it holds nothing yet, so that memory checkers see what is read before it is written. Also returns
/// whether it holds zeros.
pub fn take(layout: Layout) -> (*mut u8, bool) {
    let kept = if layout.size() < *SIZES.start() {
        SMALL.try_with(|shelf| shelf.borrow_mut().take(layout)).ok()
    } else {
        with_shelf(|shelf| shelf.take(layout))
    };
    if let Some(Some(block)) = kept {
        return (block, false);
    }
    // SAFETY: buffers are never empty.
    let mut fresh = unsafe { alloc(layout) };
    if fresh.is_null() {
        release();
        // SAFETY: as above.
        fresh = unsafe { alloc(layout) };
    }
    let zeros = !fresh.is_null() && !cfg!(feature = "system-allocator");
    if !fresh.is_null() {
        advise(fresh as usize, layout.size());
    }
    if zeros {
        // SAFETY: a block of this size.
        unsafe { fresh.write_bytes(0, layout.size()) };
    }
    (fresh, zeros)
}

/// Asks for huge pages behind a large array that is about to be written, perhaps for the first time: one page fault for
/// two megabytes instead of five hundred, which may take longer than the computation. A hint, never an error. NumPy asks
/// for its own arrays, torch does not.
pub fn advise_huge_pages<T>(array: &mut [T]) {
    advise(array.as_ptr() as usize, size_of_val(array));
}

fn advise(block: usize, bytes: usize) {
    const HUGE: usize = 1 << 21;
    let (begin, end) = (block.next_multiple_of(HUGE), (block + bytes) / HUGE * HUGE);
    if end > begin + HUGE {
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: whole pages inside the block; the advice changes no contents.
        unsafe {
            libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_HUGEPAGE)
        };
    }
}

/// Returns to the system everything that is kept, except the small blocks of other threads, and shared blocks whose list
/// another thread is using.
pub fn release() {
    drop(with_shelf(|shelf| std::mem::replace(shelf, Shelf::new())));
    drop(SMALL.try_with(|shelf| shelf.replace(Shelf::new())));
}

/// Takes back what [`take`] gave.
///
/// # Safety
/// Nothing uses the block any more.
pub unsafe fn give(block: *mut u8, layout: Layout) {
    let kept = if cfg!(feature = "system-allocator") {
        None
    } else if layout.size() < *SIZES.start() {
        SMALL.try_with(|shelf| shelf.borrow_mut().give(block, layout, usize::MAX, MOST_SMALL)).ok()
    } else if SIZES.contains(&layout.size()) {
        with_shelf(|shelf| shelf.give(block, layout, MOST_BYTES, MOST_BLOCKS))
    } else {
        None
    };
    if kept != Some(true) {
        dealloc(block, layout);
    }
}
