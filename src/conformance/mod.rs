//! The contract as test cases, for this crate's engines and for those that other crates bring.
//!
//! A [`Case`] is one law with a name, and an async function that panics when the law does not hold. It gets a fresh subject
//! from a factory, which may keep something alive beside it (a temporary directory). What a subject's capabilities leave out
//! is skipped and said so. [`store_conformance!`](crate::store_conformance) makes one test of each case:
//!
//! ```no_run
//! use stratafs::conformance::Fresh;
//! use stratafs::store::{MemoryStore, Store};
//!
//! async fn fresh_memory() -> Fresh<dyn Store> {
//!     Fresh::new(std::sync::Arc::new(MemoryStore::new()))
//! }
//!
//! stratafs::store_conformance!(memory, fresh_memory);
//! ```

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

pub mod backend;
pub mod checkpointer;
pub mod history;
pub mod linearizability;
pub mod model;
mod pattern;
pub mod store;

/// A subject, and what has to live as long as it.
pub type Parts<S> = (Arc<S>, Vec<Box<dyn Any + Send>>);

/// A fresh subject of one case, and what has to live as long as it.
pub struct Fresh<S: ?Sized> {
    /// The subject, or why there is none.
    subject: Result<Arc<S>, String>,
    keep: Vec<Box<dyn Any + Send>>,
}

impl<S: ?Sized> Fresh<S> {
    /// Makes a subject that needs nothing beside it.
    pub fn new(subject: Arc<S>) -> Self {
        Self { subject: Ok(subject), keep: Vec::new() }
    }

    /// Makes none, and says why: the server that it needs is not there. The case is skipped.
    pub fn skipped(reason: impl Into<String>) -> Self {
        Self { subject: Err(reason.into()), keep: Vec::new() }
    }

    /// Keeps a value, such as a temporary directory, until the case is over.
    #[must_use]
    pub fn keeping(mut self, value: impl Any + Send) -> Self {
        self.keep.push(Box::new(value));
        self
    }

    /// Takes the subject and what it needs apart; the error says why there is none.
    pub fn into_parts(self) -> Result<Parts<S>, String> {
        Ok((self.subject?, self.keep))
    }
}

impl<S: ?Sized> fmt::Debug for Fresh<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fresh").finish_non_exhaustive()
    }
}

/// How a case ended that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The law holds.
    Passed,
    /// The subject does not offer what the case is about; the text says what.
    Skipped(Cow<'static, str>),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

/// What running a case gives.
pub type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One law of a contract.
pub struct Case<S: ?Sized> {
    name: &'static str,
    run: fn(Arc<S>) -> Running,
}

impl<S: ?Sized> Case<S> {
    /// Makes a case.
    pub const fn new(name: &'static str, run: fn(Arc<S>) -> Running) -> Self {
        Self { name, run }
    }

    /// Returns the name, which states the law.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case on a subject.
    ///
    /// # Panics
    /// When the law does not hold.
    pub async fn run(&self, subject: Arc<S>) -> Outcome {
        (self.run)(subject).await
    }
}

impl<S: ?Sized> fmt::Debug for Case<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({})", self.name)
    }
}

/// Runs the case of one name on a fresh subject, in a runtime of several threads; prints why if it is skipped.
///
/// # Panics
/// When the law does not hold, or no case has the name.
#[expect(clippy::print_stdout, reason = "a skipped case must be seen in the output of the tests")]
pub fn run_case<S: ?Sized, F: Future<Output = Fresh<S>>>(cases: &[Case<S>], name: &str, fresh: impl FnOnce() -> F) {
    let case = cases.iter().find(|case| case.name == name).expect("the name is one of the cases");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().expect("a runtime can be started");
    let (outcome, keep) = runtime.block_on(async {
        match fresh().await.into_parts() {
            Ok((subject, keep)) => (case.run(subject).await, keep),
            Err(reason) => (Outcome::Skipped(reason.into()), Vec::new()),
        }
    });
    // Tasks that a case left behind end before what they use is removed.
    drop(runtime);
    drop(keep);
    if let Outcome::Skipped(reason) = outcome {
        println!("skipped {name}: {reason}");
    }
}

/// Declares the cases of one contract: the list `CASES` in the room that calls it, and a macro of the crate that makes one
/// test of each. The first token is a literal `$`, for the macro that is made.
macro_rules! cases {
    ($dollar:tt $(#[$doc:meta])* $macro_name:ident, $room:ident, $subject:ty: $($name:ident,)+) => {
        /// Every case of this contract.
        pub const CASES: &[$crate::conformance::Case<$subject>] = &[$(
            $crate::conformance::Case::new(stringify!($name), |subject| {
                Box::pin(async move { $crate::conformance::Outcome::from($name(subject).await) })
            }),
        )+];

        $(#[$doc])*
        #[macro_export]
        macro_rules! $macro_name {
            ($dollar row:ident, $dollar fresh:expr) => {
                mod $dollar row {
                    use super::*;
                    $(
                        #[test]
                        fn $name() {
                            $crate::conformance::run_case($crate::conformance::$room::CASES, stringify!($name), $dollar fresh);
                        }
                    )+
                }
            };
        }
    };
}
use cases;
