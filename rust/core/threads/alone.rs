//! Without the feature `rayon` no thread runs jobs: every caller is in a pool whose only thread is its own. Jobs never begin,
//! and calls never wait for jobs that have not begun.

#![allow(clippy::unnecessary_wraps, clippy::unused_self)] // the functions of rayon that the pool uses

use crate::error::Result;

/// No threads.
pub struct ThreadPool;

impl ThreadPool {
    pub fn current_num_threads(&self) -> usize {
        0
    }

    pub fn current_thread_index(&self) -> Option<usize> {
        None
    }

    pub fn spawn(&self, _: impl FnOnce() + Send + 'static) {}
}

pub fn start(_: usize) -> Result<ThreadPool> {
    Ok(ThreadPool)
}

pub fn current_num_threads() -> usize {
    1
}

pub fn current_thread_index() -> Option<usize> {
    Some(0)
}

pub fn spawn(_: impl FnOnce() + Send + 'static) {}
