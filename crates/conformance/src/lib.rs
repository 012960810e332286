//! The contracts as test cases, for the engines of this crate and of others.
//!
//! A [`Case`] is one rule with a name, and an async function that panics if the rule is broken. It gets a fresh subject from a
//! factory, which may keep resources alive with it (such as a temporary directory).
//! [`store_conformance!`](crate::store_conformance) creates one test for each case:
//!
//! ```no_run
//! use treehold_conformance::Fresh;
//! use treehold_store::{MemoryStore, Store};
//!
//! async fn fresh_memory() -> Fresh<dyn Store> {
//!     Fresh::new(std::sync::Arc::new(MemoryStore::new()))
//! }
//!
//! treehold_conformance::store_conformance!(memory, fresh_memory);
//! ```
//!
//! Attributes before the name of a row go to each of its tests. Mark a row that needs a server as ignored, with the reason, so that
//! no run without the server reports it as passed:
//!
//! ```no_run
//! # use treehold_conformance::Fresh;
//! # use treehold_store::{MemoryStore, Store};
//! # async fn fresh_remote() -> Fresh<dyn Store> {
//! #     Fresh::new(std::sync::Arc::new(MemoryStore::new()))
//! # }
//! treehold_conformance::store_conformance!(#[ignore = "needs a server: set STORE_URL"] remote, fresh_remote);
//! ```

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

pub mod backend;
pub mod checkpointer;
pub mod history;
pub mod linearizability;
pub mod model;
mod noise;
mod pattern;
pub mod store;

/// A subject, and the values that must live as long as it.
pub type Parts<S> = (Arc<S>, Vec<Box<dyn Any + Send>>);

/// A fresh subject for one case, and the values that must live as long as it.
pub struct Fresh<S: ?Sized> {
    subject: Arc<S>,
    keep: Vec<Box<dyn Any + Send>>,
}

impl<S: ?Sized> Fresh<S> {
    /// Creates a subject without further resources.
    pub fn new(subject: Arc<S>) -> Self {
        Self { subject, keep: Vec::new() }
    }

    /// Keeps a value, such as a temporary directory, until the case has ended.
    #[must_use]
    pub fn keeping(mut self, value: impl Any + Send) -> Self {
        self.keep.push(Box::new(value));
        self
    }

    /// Returns the subject and what must live as long as it.
    pub fn into_parts(self) -> Parts<S> {
        (self.subject, self.keep)
    }
}

impl<S: ?Sized> fmt::Debug for Fresh<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh").finish_non_exhaustive()
    }
}

/// A running case.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One rule of a contract.
pub struct Case<S: ?Sized> {
    name: &'static str,
    run: fn(Arc<S>) -> Running,
}

impl<S: ?Sized> Case<S> {
    /// Creates a case.
    pub const fn new(name: &'static str, run: fn(Arc<S>) -> Running) -> Self {
        Self { name, run }
    }

    /// Returns the name, which states the rule.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case on a subject.
    ///
    /// # Panics
    /// If the rule is broken.
    pub async fn run(&self, subject: Arc<S>) {
        (self.run)(subject).await;
    }
}

impl<S: ?Sized> fmt::Debug for Case<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({})", self.name)
    }
}

/// Runs the named case on a fresh subject, in a multi-threaded runtime.
///
/// # Panics
/// If the rule is broken, or if there is no such case.
pub fn run_case<S: ?Sized, F: Future<Output = Fresh<S>>>(cases: &[Case<S>], name: &str, fresh: impl FnOnce() -> F) {
    let case = cases.iter().find(|case| case.name == name).expect("the name is one of the cases");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime can be started");
    let keep = runtime.block_on(async {
        let (subject, keep) = fresh().await.into_parts();
        case.run(subject).await;
        keep
    });
    // Stop the tasks that a case left running before removing what they use.
    drop(runtime);
    drop(keep);
}

/// Declares the cases of one contract: the list `CASES` in the calling module, and a public macro that creates one test for each
/// case. The first token is a literal `$`, needed to define the inner macro.
macro_rules! cases {
    ($dollar:tt $(#[$doc:meta])* $macro_name:ident, $room:ident, $subject:ty: $($name:ident,)+) => {
        /// Every case of this contract.
        pub const CASES: &[$crate::Case<$subject>] = &[$(
            $crate::Case::new(stringify!($name), |subject| {
                Box::pin($name(subject))
            }),
        )+];

        $(#[$doc])*
        #[macro_export]
        macro_rules! $macro_name {
            ($dollar (#[$dollar attribute:meta])* $dollar row:ident, $dollar fresh:expr) => {
                mod $dollar row {
                    use super::*;
                    $(
                        #[test]
                        $dollar (#[$dollar attribute])*
                        fn $name() {
                            $crate::run_case($crate::$room::CASES, stringify!($name), $dollar fresh);
                        }
                    )+
                }
            };
        }
    };
}
use cases;
