//! The caller: what the transport knows about it, and what a call may specify.

#[cfg(feature = "http")]
use futures::future::BoxFuture;
#[cfg(feature = "http")]
use std::fmt;
#[cfg(feature = "http")]
use std::sync::Arc;
#[cfg(feature = "http")]
use std::time::Duration;
#[cfg(feature = "http")]
use tokio::sync::watch;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::scope::Scope;

/// The caller of a connection, as authenticated by its transport.
///
/// Without one, the scope in the server's options applies.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct McpCaller {
    /// The caller's scope.
    pub scope: Scope,
    /// Whether calls may use only the thread of `scope`.
    pub thread_fixed: bool,
    /// The threads that calls may use, or empty for all.
    pub threads: Vec<String>,
    /// What authenticated the caller, such as the id of a token. Sessions and replies to questions are bound to the tenant, user and
    /// credential that started them.
    pub credential: Option<String>,
}

impl McpCaller {
    /// Returns a caller whose calls may use any thread.
    pub fn new(scope: Scope) -> Self {
        Self { scope, thread_fixed: false, threads: Vec::new(), credential: None }
    }

    /// Restricts calls to the thread of the scope.
    #[must_use]
    pub fn with_thread_fixed(mut self) -> Self {
        self.thread_fixed = true;
        self
    }

    /// Sets the threads that calls may use.
    #[must_use]
    pub fn with_threads(mut self, threads: Vec<String>) -> Self {
        self.threads = threads;
        self
    }

    /// Sets what authenticated the caller.
    #[must_use]
    pub fn with_credential(mut self, credential: impl Into<String>) -> Self {
        self.credential = Some(credential.into());
        self
    }

    /// Returns the scope of a call. `thread` is empty if the call names none.
    ///
    /// # Errors
    /// [`PermissionDenied`](ErrorKind::PermissionDenied) for a thread that the caller may not use.
    pub(super) fn scope_of(&self, thread: &str) -> Result<Scope> {
        let mut scope = self.scope.clone();
        if thread.is_empty() || scope.thread.as_deref() == Some(thread) {
            return Ok(scope);
        }
        if self.thread_fixed {
            let own = scope.thread.as_deref().unwrap_or_default();
            let message = format!("this connection serves only thread `{own}`; leave `thread_id` out");
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        if !self.threads.is_empty() && !self.threads.iter().any(|own| own == thread) {
            let message = format!("this token does not allow thread `{thread}`; name one that it allows");
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        scope.thread = Some(thread.to_owned());
        Ok(scope)
    }
}

/// How long a token lookup may be cached.
#[cfg(feature = "http")]
pub const REMEMBERED_FOR: Duration = Duration::from_secs(1);

/// Checks whether a caller is still authorized with the same rights. Long-lived work such as streams and sessions checks repeatedly.
#[cfg(feature = "http")]
#[derive(Clone)]
pub struct Standing {
    holds: Arc<dyn Fn() -> BoxFuture<'static, Result<bool>> + Send + Sync>,
    changes: Arc<dyn Fn() -> Option<watch::Receiver<u64>> + Send + Sync>,
}

#[cfg(feature = "http")]
impl Standing {
    /// Checks with `holds`. `changes` returns a receiver that is notified when the result may have changed, if there is one.
    pub fn new(
        holds: impl Fn() -> BoxFuture<'static, Result<bool>> + Send + Sync + 'static,
        changes: impl Fn() -> Option<watch::Receiver<u64>> + Send + Sync + 'static,
    ) -> Self {
        Self { holds: Arc::new(holds), changes: Arc::new(changes) }
    }

    /// Returns whether the caller is still authorized.
    ///
    /// # Errors
    /// Errors of `holds`.
    pub(super) async fn holds(&self) -> Result<bool> {
        (self.holds)().await
    }

    /// Waits until the caller is no longer authorized. Checks after each notified change, and at least once per `interval`.
    pub async fn ends(self, interval: Duration) {
        let mut changes = (self.changes)();
        let mut wait = interval;
        // Keep waiting if the check fails: each request is authorized on its own anyway.
        while self.holds().await.unwrap_or(true) {
            let changed = async {
                if let Some(changes) = &mut changes
                    && changes.changed().await.is_ok()
                {
                    return;
                }
                std::future::pending::<()>().await;
            };
            // A lookup from just before the change may still be cached, so check again once it has expired.
            wait = if tokio::time::timeout(wait, changed).await.is_ok() { REMEMBERED_FOR } else { interval };
        }
    }
}

#[cfg(feature = "http")]
impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Standing(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_thread_refuses_other_threads() {
        let caller = McpCaller::new(Scope::new().with_user("ada").with_thread("t"));
        assert_eq!(caller.scope_of("").expect("its own"), caller.scope);
        assert_eq!(caller.scope_of("u").expect("any"), caller.scope.clone().with_thread("u"));
        let fixed = caller.clone().with_thread_fixed();
        assert_eq!(fixed.scope_of("t").expect("its own"), caller.scope);
        assert_eq!(fixed.scope_of("u").expect_err("another").kind(), ErrorKind::PermissionDenied);
    }
}
