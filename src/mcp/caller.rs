//! Who calls: what a transport knows of it, and what a call may say itself.

use crate::error::{Error, ErrorKind, Result};
use crate::scope::Scope;
#[cfg(feature = "serve")]
use futures::future::BoxFuture;
#[cfg(feature = "serve")]
use std::fmt;
#[cfg(feature = "serve")]
use std::sync::Arc;

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

/// Asks whether a caller would still be let in with the same rights: what lasts, such as a stream, asks again before each part.
#[cfg(feature = "serve")]
#[derive(Clone)]
pub(crate) struct Standing(Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>);

#[cfg(feature = "serve")]
impl Standing {
    pub(crate) fn new(ask: impl Fn() -> BoxFuture<'static, bool> + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }

    pub(super) async fn holds(&self) -> bool {
        (self.0)().await
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
