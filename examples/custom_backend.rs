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
use treehold::forward_backend;
use treehold::ops::{Capabilities, Review, Sight};
use treehold::{Backend, Result, StateBackend};

#[tokio::main]
async fn main() {
    for case in CASES {
        let (tree, _keep) = fresh().await.into_parts();
        case.run(tree).await;
    }
    println!("Counting passes all {} cases of the contract", CASES.len());
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

    forward_backend! { self => self.counted(); stat, read, ls, glob, grep, search, apply }

    async fn review(&self, review: &Review) -> Result<Vec<Sight>> {
        Ok(review.open())
    }
}
