//! Freed workspaces, kept for the next call. The system allocator returns large blocks to the kernel and gets them back
//! page by page, a fault for each: that took longer than the arithmetic of a medium-sized call.

use std::alloc::{Layout, alloc, dealloc};
use std::sync::{Mutex, TryLockError};

/// Blocks between these sizes are kept, in bytes; smaller ones are no trouble.
const SIZES: std::ops::RangeInclusive<usize> = 1 << 12..=1 << 27;
/// Most bytes and most blocks that are kept.
const MOST_BYTES: usize = 1 << 27;
const MOST_BLOCKS: usize = 64;

/// Addresses of blocks, by layout.
struct Shelf {
    bytes: usize,
    blocks: Vec<(Layout, usize)>,
}

static SHELF: Mutex<Shelf> = Mutex::new(Shelf { bytes: 0, blocks: Vec::new() });

/// Runs `work` on the shelf unless somebody else is there. Nobody waits: in a forked child the lock may be held for ever.
fn with_shelf<R>(work: impl FnOnce(&mut Shelf) -> R) -> Option<R> {
    match SHELF.try_lock() {
        Ok(mut shelf) => Some(work(&mut shelf)),
        Err(TryLockError::Poisoned(shelf)) => Some(work(&mut shelf.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The layout that stands for all of similar size, at most a sixteenth larger.
pub fn rounded(layout: Layout) -> Layout {
    let bytes = layout.size();
    if !SIZES.contains(&bytes) {
        return layout;
    }
    let step = (bytes.next_power_of_two() / 32).max(layout.align());
    Layout::from_size_align(bytes.next_multiple_of(step), layout.align()).unwrap_or(layout)
}

/// Memory of a [`rounded`] layout with arbitrary contents; null if there is none.
pub fn take(layout: Layout) -> *mut u8 {
    let kept = with_shelf(|shelf| {
        let at = shelf.blocks.iter().rposition(|(kept, _)| *kept == layout)?;
        shelf.bytes -= layout.size();
        Some(shelf.blocks.remove(at).1 as *mut u8)
    });
    if let Some(Some(block)) = kept {
        return block;
    }
    // SAFETY: buffers are never empty.
    let fresh = unsafe { alloc(layout) };
    if !fresh.is_null() {
        return fresh;
    }
    release();
    // SAFETY: as above.
    unsafe { alloc(layout) }
}

/// Gives everything kept back to the system.
pub fn release() {
    let blocks = with_shelf(|shelf| {
        shelf.bytes = 0;
        std::mem::take(&mut shelf.blocks)
    });
    for (layout, block) in blocks.into_iter().flatten() {
        // SAFETY: `give` left it here with this layout.
        unsafe { dealloc(block as *mut u8, layout) };
    }
}

/// Takes back what [`take`] gave.
///
/// # Safety
/// The block is nobody's any more.
pub unsafe fn give(block: *mut u8, layout: Layout) {
    let kept = with_shelf(|shelf| {
        let keep = SIZES.contains(&layout.size()) && shelf.blocks.try_reserve(1).is_ok();
        if keep {
            shelf.bytes += layout.size();
            shelf.blocks.push((layout, block as usize));
            while shelf.bytes > MOST_BYTES || shelf.blocks.len() > MOST_BLOCKS {
                // The one that nobody has wanted for longest.
                let (oldest, block) = shelf.blocks.remove(0);
                shelf.bytes -= oldest.size();
                dealloc(block as *mut u8, oldest);
            }
        }
        keep
    });
    if kept != Some(true) {
        dealloc(block, layout);
    }
}
