//! The composite: several backends as one tree, and regression tests for faults of its peers.

mod between_mounts;
mod building;
mod changing;
mod file_routes;
mod listing;
mod property;
mod routing;
mod searching;
mod subtrees;

use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Barrier;
use treehold::backend::{IndexKind, StoreBackend};
use treehold::composite::{CompositeBuilder, Routes};
use treehold::error::Result;
use treehold::layer::{Fault, Layer, LayerName, Layered, Next, ReadOnly, Reply};
use treehold::ops::{
    ApplyOptions, Change, EntryKind, GlobOptions, GrepOptions, GrepOutput, LsOptions, OnFailure, Op, SearchOptions, StatOptions, WriteMode,
};
use treehold::store::{MemoryStore, Namespace};
use treehold::{Backend, BackendExt, CompositeBackend, Error, ErrorKind, StateBackend, Subtree, VfsPath, VfsPathBuf};

fn state() -> Arc<dyn Backend> {
    Arc::new(StateBackend::new())
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}

/// Mounts a state tier at each prefix over another.
fn mounted(prefixes: &[&str]) -> CompositeBackend {
    built(CompositeBackend::builder(state()), prefixes)
}

fn built(builder: CompositeBuilder, prefixes: &[&str]) -> CompositeBackend {
    builder.routes(prefixes.iter().map(|prefix| (prefix, state()))).unwrap().build().unwrap()
}

async fn filled(prefixes: &[&str], files: &[&str]) -> CompositeBackend {
    let tree = mounted(prefixes);
    fill(&tree, files).await;
    tree
}

async fn fill(tree: &dyn Backend, files: &[&str]) {
    for file in files {
        tree.write(file, "needle\n").await.unwrap();
    }
}

/// The names in a directory; directories end with `/`.
async fn names(tree: &dyn Backend, of: &str) -> Vec<String> {
    let listing = tree.ls(&path(of), &LsOptions::new()).await.unwrap();
    assert_eq!((&listing.truncated, &listing.failures[..]), (&None, &[][..]));
    listing.entries.iter().map(|entry| format!("{}{}", entry.name(), if entry.is_directory() { "/" } else { "" })).collect()
}

async fn found(tree: &dyn Backend, of: &str, options: GlobOptions) -> Vec<String> {
    let result = tree.glob(&path(of), &options).await.unwrap();
    assert_eq!((&result.truncated, &result.failures[..]), (&None, &[][..]));
    result.entries.iter().map(|entry| entry.path.to_string()).collect()
}

async fn globbed(tree: &dyn Backend, pattern: &str) -> Vec<String> {
    found(tree, "/", GlobOptions::new(pattern)).await
}

async fn grepped(tree: &dyn Backend, of: &str, options: GrepOptions) -> Vec<String> {
    let result = tree.grep(&path(of), &options).await.unwrap();
    assert_eq!((&result.truncated, result.failures_count), (&None, 0));
    result.files.iter().map(|file| file.path.to_string()).collect()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, message: &str) -> Error {
    let error = result.expect_err("the call is refused");
    assert_eq!((error.kind(), error.message()), (kind, message));
    error
}

/// Every call waits until this many calls wait.
#[derive(Debug)]
struct Together(Arc<Barrier>);

#[async_trait]
impl Layer for Together {
    fn name(&self) -> LayerName {
        LayerName::new("Together")
    }

    async fn around<T: Reply>(&self, _: Op<'_>, next: Next<'_, T>) -> Result<T> {
        self.0.wait().await;
        next.run().await
    }
}

/// Counts calls, and the most concurrent ones.
#[derive(Debug, Default)]
struct Meter {
    calls: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Debug)]
struct Metered(Arc<Meter>);

#[async_trait]
impl Layer for Metered {
    fn name(&self) -> LayerName {
        LayerName::new("Metered")
    }

    async fn around<T: Reply>(&self, _: Op<'_>, next: Next<'_, T>) -> Result<T> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let now = self.0.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most.fetch_max(now, Ordering::Relaxed);
        tokio::task::yield_now().await;
        let result = next.run().await;
        self.0.now.fetch_sub(1, Ordering::Relaxed);
        result
    }
}
