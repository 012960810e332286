//! A custom backend, verified by the published conformance kit.
//!
//! `Counting` stands for a backend in another crate. The ten lines of `main` verify it: every case of the contract runs
//! on a fresh tree, and a failing case panics with what it found. In a test suite,
//! `treehold::backend_conformance!(counting, fresh);` makes each case a test instead.
//!
//! ```text
//! cargo run --example custom_backend --features conformance
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use async_trait::async_trait;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold::conformance::Fresh;
use treehold::conformance::backend::{CASES, Tree};
use treehold::ops::{
    ApplyOptions, Capabilities, Change, Changed, Entry, FileRead, GlobOptions, GlobResult, GrepOptions, GrepResult, Listing, LsOptions,
    ReadOptions, Review, SearchOptions, SearchResult, Sight,
};
use treehold::{Backend, Result, StateBackend, VfsPath};

#[tokio::main]
async fn main() {
    for case in CASES {
        let (tree, _keep) = fresh().await.into_parts();
        case.run(tree).await;
    }
    println!("Counting keeps all {} laws of the contract", CASES.len());
}

async fn fresh() -> Fresh<Tree> {
    Tree::new(Counting { inner: StateBackend::new(), calls: AtomicUsize::new(0) }).fresh()
}

/// A tree that counts the calls it receives.
#[derive(Debug)]
struct Counting {
    inner: StateBackend,
    calls: AtomicUsize,
}

impl Counting {
    fn counted(&self) -> &StateBackend {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.inner
    }
}

impl fmt::Display for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counting({})", self.inner)
    }
}

#[async_trait]
impl Backend for Counting {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn stat(&self, path: &VfsPath) -> Result<Entry> {
        self.counted().stat(path).await
    }

    async fn read(&self, path: &VfsPath, options: &ReadOptions) -> Result<FileRead> {
        self.counted().read(path, options).await
    }

    async fn ls(&self, path: &VfsPath, options: &LsOptions) -> Result<Listing> {
        self.counted().ls(path, options).await
    }

    async fn glob(&self, path: &VfsPath, options: &GlobOptions) -> Result<GlobResult> {
        self.counted().glob(path, options).await
    }

    async fn grep(&self, path: &VfsPath, options: &GrepOptions) -> Result<GrepResult> {
        self.counted().grep(path, options).await
    }

    async fn search(&self, path: &VfsPath, options: &SearchOptions) -> Result<SearchResult> {
        self.counted().search(path, options).await
    }

    async fn apply(&self, changes: &[Change], options: &ApplyOptions) -> Result<Vec<Changed>> {
        self.counted().apply(changes, options).await
    }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
