//! A bound on how long a call takes.

use super::{Layer, LayerName, Next, Reply};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::time::Duration;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::ops::{Op, OpKind};

/// Ends a call that takes too long with `deadline`.
///
/// The call itself is dropped. A change then leaves the old content or the new, and the error says that its effect is unknown: an engine
/// that already received it may still finish. A batch of one change has that change's limit, a longer one that of [`OpKind::Apply`].
#[derive(Debug, Clone)]
pub struct Timeout {
    limit: Duration,
    limits: BTreeMap<OpKind, Duration>,
}

impl Timeout {
    /// Limits all calls to the same time.
    pub fn new(limit: Duration) -> Self {
        Self { limit, limits: BTreeMap::new() }
    }

    /// Sets the limit for calls of one operation.
    #[must_use]
    pub fn with_operation(mut self, operation: OpKind, limit: Duration) -> Self {
        self.limits.insert(operation, limit);
        self
    }

    fn limit_of(&self, operation: OpKind) -> Duration {
        self.limits.get(&operation).copied().unwrap_or(self.limit)
    }
}

#[async_trait]
impl Layer for Timeout {
    fn name(&self) -> LayerName {
        LayerName::new("Timeout").with_settings(format_args!("{:?}", self.limit))
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        let limit = self.limit_of(op.kind);
        match tokio::time::timeout(limit, next.run()).await {
            Ok(done) => done,
            Err(_) => Err(late(op, limit)),
        }
    }
}

fn late(op: Op<'_>, limit: Duration) -> Error {
    let advice = if op.changes.is_empty() {
        "try again, or request less at once"
    } else {
        "the change may or may not have taken effect: check before making it again"
    };
    let message = format!("`{}` of `{}` took longer than {limit:?}; {advice}", op.kind, op.path);
    Error::new(ErrorKind::Deadline, message).at(op.path).during(op.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::BoxFuture;
    use treehold_core::ops::{Change, Changed};
    use treehold_core::path::{VfsPath, VfsPathBuf};

    async fn run_for(layer: &Timeout, op: Op<'_>, seconds: u64) -> Result<Vec<Changed>> {
        let run = || -> BoxFuture<'_, Result<Vec<Changed>>> {
            async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(Vec::new())
            }
            .boxed()
        };
        layer.around(op, Next::new(&run)).await
    }

    #[tokio::test(start_paused = true)]
    async fn slow_call_ends_with_deadline() {
        let layer = Timeout::new(Duration::from_secs(2)).with_operation(OpKind::Grep, Duration::from_secs(20));
        assert!(run_for(&layer, Op::read(OpKind::Ls, VfsPath::ROOT), 1).await.is_ok());
        let error = run_for(&layer, Op::read(OpKind::Ls, VfsPath::ROOT), 3).await.expect_err("too slow");
        assert_eq!(error.kind(), ErrorKind::Deadline);
        assert_eq!(error.message(), "`ls` of `/` took longer than 2s; try again, or request less at once");
        assert!(run_for(&layer, Op::read(OpKind::Grep, VfsPath::ROOT), 19).await.is_ok());
        assert!(run_for(&layer, Op::read(OpKind::Grep, VfsPath::ROOT), 21).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_of_a_change_has_unknown_effect() {
        let change = Change::CreateDir { path: VfsPathBuf::parse("/a").expect("a legal path") };
        let error = run_for(&Timeout::new(Duration::from_secs(2)), Op::apply(&[change]), 3).await.expect_err("too slow");
        assert!(error.message().contains("may or may not have taken effect"), "{error}");
        assert!(!error.is_without_effect());
    }
}
