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
#[cfg(feature = "http")]
use tokio::time::Instant;
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

/// How long a check of a [`Standing`] may take by default.
#[cfg(feature = "http")]
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// Checks whether a caller is still authorized with the same rights. Long-lived work such as streams and sessions checks repeatedly.
///
/// A check that gets no answer within a limit fails, so work whose caller cannot be checked always ends.
#[cfg(feature = "http")]
#[derive(Clone)]
pub struct Standing {
    holds: Arc<dyn Fn() -> BoxFuture<'static, Result<bool>> + Send + Sync>,
    changes: Arc<dyn Fn() -> Option<watch::Receiver<u64>> + Send + Sync>,
    limit: Duration,
}

#[cfg(feature = "http")]
impl Standing {
    /// Checks with `holds`. `changes` returns a receiver that is notified when the result may have changed, if there is one.
    pub fn new(
        holds: impl Fn() -> BoxFuture<'static, Result<bool>> + Send + Sync + 'static,
        changes: impl Fn() -> Option<watch::Receiver<u64>> + Send + Sync + 'static,
    ) -> Self {
        Self { holds: Arc::new(holds), changes: Arc::new(changes), limit: CHECK_TIMEOUT }
    }

    /// Sets how long a check may take, and for how long [`Standing::ends`] tolerates checks that fail. Default one minute.
    #[must_use]
    pub fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Returns how long a check may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns whether the caller is still authorized.
    ///
    /// # Errors
    /// [`Deadline`](ErrorKind::Deadline) if there is no answer within the limit, and errors of `holds`. The caller must be treated as not
    /// authorized then.
    pub async fn holds(&self) -> Result<bool> {
        tokio::time::timeout(self.limit, (self.holds)()).await.unwrap_or_else(|_| {
            let message = format!("whether the caller is still authorized could not be checked within {:?}", self.limit);
            Err(Error::new(ErrorKind::Deadline, message))
        })
    }

    /// Waits until the caller is no longer authorized. Checks after each notified change, and at least once per `interval`.
    ///
    /// Checks that fail are tolerated, but only for as long as a check may take, counted from the beginning of the first one: the caller
    /// may have lost the rights meanwhile.
    ///
    /// # Errors
    /// That of the last check, if checks failed for longer.
    pub async fn ends(self, interval: Duration) -> Result<()> {
        let mut changes = (self.changes)();
        let mut wait = interval;
        let mut failing_since: Option<Instant> = None;
        loop {
            let began = Instant::now();
            match self.holds().await {
                Ok(true) => failing_since = None,
                Ok(false) => return Ok(()),
                Err(error) => {
                    if failing_since.get_or_insert(began).elapsed() >= self.limit {
                        return Err(error);
                    }
                }
            }
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

    /// What one check of a caller does.
    #[cfg(feature = "http")]
    #[derive(Debug, Clone, Copy)]
    enum Check {
        Holds,
        Lost,
        Fails,
        Hangs,
    }

    /// Returns a standing whose checks follow a script, the last of them for ever.
    #[cfg(feature = "http")]
    fn scripted(checks: &'static [Check]) -> Standing {
        let made = std::sync::atomic::AtomicUsize::new(0);
        let holds = move || -> BoxFuture<'static, Result<bool>> {
            let number = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let check = checks[number.min(checks.len() - 1)];
            Box::pin(async move {
                match check {
                    Check::Holds => Ok(true),
                    Check::Lost => Ok(false),
                    Check::Fails => Err(Error::new(ErrorKind::Unavailable, "the store is away")),
                    Check::Hangs => std::future::pending().await,
                }
            })
        };
        Standing::new(holds, || None)
    }

    /// Regression: a check without an answer kept a stream open for ever, and was never repeated.
    #[cfg(feature = "http")]
    #[tokio::test(start_paused = true)]
    async fn standing_ends_when_it_is_lost_or_cannot_be_checked_for_a_minute() {
        use Check::*;
        /// The seconds after which it ends, and the kind of the error if that is why.
        type End = Option<(u64, Option<ErrorKind>)>;
        let cases: &[(&'static [Check], End)] = &[
            (&[Holds], None),
            (&[Lost], Some((0, None))),
            (&[Holds, Lost], Some((15, None))),
            (&[Fails, Lost], Some((15, None))),
            (&[Fails, Fails, Fails, Holds, Fails, Fails, Fails, Lost], Some((105, None))),
            (&[Fails], Some((60, Some(ErrorKind::Unavailable)))),
            (&[Holds, Fails], Some((75, Some(ErrorKind::Unavailable)))),
            (&[Hangs], Some((60, Some(ErrorKind::Deadline)))),
            (&[Hangs, Holds], Some((60, Some(ErrorKind::Deadline)))),
            (&[Holds, Hangs], Some((75, Some(ErrorKind::Deadline)))),
            (&[Fails, Hangs], Some((75, Some(ErrorKind::Deadline)))),
        ];
        for (checks, expected) in cases {
            let began = Instant::now();
            let ends = scripted(checks).ends(Duration::from_secs(15));
            let ended = tokio::time::timeout(Duration::from_secs(3_600), ends).await.ok();
            let ended = ended.map(|ended| (began.elapsed().as_secs(), ended.err().map(|error| error.kind())));
            assert_eq!(ended, *expected, "{checks:?}");
        }
    }

    #[cfg(feature = "http")]
    #[tokio::test(start_paused = true)]
    async fn check_without_an_answer_fails_at_its_limit() {
        for limit in [Duration::from_millis(100), CHECK_TIMEOUT] {
            let began = Instant::now();
            let error = scripted(&[Check::Hangs]).with_limit(limit).holds().await.expect_err("no answer");
            assert_eq!(error.kind(), ErrorKind::Deadline);
            assert!(began.elapsed() >= limit && began.elapsed() < limit * 2, "{limit:?}");
        }
    }
}
