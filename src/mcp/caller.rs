//! Who calls: what a transport knows of it, and what a call may say itself.

use crate::error::{Error, ErrorKind, Result};
use crate::scope::Scope;
#[cfg(feature = "serve")]
use futures::future::BoxFuture;
#[cfg(feature = "serve")]
use std::fmt;
#[cfg(feature = "serve")]
use std::sync::Arc;
#[cfg(feature = "serve")]
use std::time::Duration;
#[cfg(feature = "serve")]
use tokio::sync::watch;

/// Who calls over a connection, as its transport found out before the request came here.
///
/// A transport that knows no more than the options of the server gives none.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpCaller {
    /// Who calls.
    pub scope: Scope,
    /// The connection is about the thread of `scope` and no other.
    pub thread_fixed: bool,
    /// The only threads that calls may be about; any when there are none.
    pub threads: Vec<String>,
    /// What the caller was let in by, such as the id of a token. A session and an answer to a question belong to the tenant, user and
    /// credential that began them.
    pub credential: Option<String>,
}

impl McpCaller {
    /// Makes a caller whose calls may name any thread.
    pub fn new(scope: Scope) -> Self {
        Self { scope, thread_fixed: false, threads: Vec::new(), credential: None }
    }

    /// Makes a caller that is about one thread alone: that of the scope.
    #[must_use]
    pub fn with_thread_fixed(mut self) -> Self {
        self.thread_fixed = true;
        self
    }

    /// Sets the only threads that calls may be about.
    #[must_use]
    pub fn with_threads(mut self, threads: Vec<String>) -> Self {
        self.threads = threads;
        self
    }

    /// Sets what the caller was let in by.
    #[must_use]
    pub fn with_credential(mut self, credential: impl Into<String>) -> Self {
        self.credential = Some(credential.into());
        self
    }

    /// Returns the scope of a call that names a thread, or none by the empty text.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for another thread than that of a connection which has one.
    pub(super) fn scope_of(&self, thread: &str) -> Result<Scope> {
        let mut scope = self.scope.clone();
        if thread.is_empty() || scope.thread.as_deref() == Some(thread) {
            return Ok(scope);
        }
        if self.thread_fixed {
            let own = scope.thread.as_deref().unwrap_or_default();
            let message = format!("this connection is about thread `{own}` alone; leave `thread_id` out");
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        if !self.threads.is_empty() && !self.threads.iter().any(|own| own == thread) {
            let message = format!("this token is not for thread `{thread}`; name one of its own");
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        scope.thread = Some(thread.to_owned());
        Ok(scope)
    }
}

/// How long what was read of a token may be remembered.
#[cfg(feature = "serve")]
pub(crate) const REMEMBERED_FOR: Duration = Duration::from_secs(1);

/// Asks whether a caller would still be let in with the same rights: what lasts, such as a stream or a session, asks again.
#[cfg(feature = "serve")]
#[derive(Clone)]
pub(crate) struct Standing {
    holds: Arc<dyn Fn() -> BoxFuture<'static, Result<bool>> + Send + Sync>,
    changes: Arc<dyn Fn() -> Option<watch::Receiver<u64>> + Send + Sync>,
}

#[cfg(feature = "serve")]
impl Standing {
    /// Asks `holds`. `changes` returns what tells that the answer may be another one, if anything does.
    pub(crate) fn new(
        holds: impl Fn() -> BoxFuture<'static, Result<bool>> + Send + Sync + 'static,
        changes: impl Fn() -> Option<watch::Receiver<u64>> + Send + Sync + 'static,
    ) -> Self {
        Self { holds: Arc::new(holds), changes: Arc::new(changes) }
    }

    /// Tells whether the caller would be let in.
    ///
    /// # Errors
    /// Those of what is asked.
    pub(super) async fn holds(&self) -> Result<bool> {
        (self.holds)().await
    }

    /// Waits until the caller would not be let in any more: until a change tells so, or one of the looks at every `interval`.
    pub(super) async fn ends(self, interval: Duration) {
        let mut changes = (self.changes)();
        let mut wait = interval;
        // Where nobody can say it is asked again: each request is asked about for itself.
        while self.holds().await.unwrap_or(true) {
            let changed = async {
                if let Some(changes) = &mut changes
                    && changes.changed().await.is_ok()
                {
                    return;
                }
                std::future::pending::<()>().await;
            };
            // What was read just before a change may be remembered after it.
            wait = if tokio::time::timeout(wait, changed).await.is_ok() { REMEMBERED_FOR } else { interval };
        }
    }
}

#[cfg(feature = "serve")]
impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Standing(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_about_one_thread_leads_to_no_other() {
        let caller = McpCaller::new(Scope::new().with_user("ada").with_thread("t"));
        assert_eq!(caller.scope_of("").expect("its own"), caller.scope);
        assert_eq!(caller.scope_of("u").expect("any"), caller.scope.clone().with_thread("u"));
        let fixed = caller.clone().with_thread_fixed();
        assert_eq!(fixed.scope_of("t").expect("its own"), caller.scope);
        assert_eq!(fixed.scope_of("u").expect_err("another").kind(), ErrorKind::PermissionDenied);
    }
}
