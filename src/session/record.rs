//! The audit row of one call: begun with it, kept when it ends, however that is.

use crate::audit::{AuditLog, AuditRow, OUTCOME_OK};
use crate::checkpoint::CheckpointId;
use crate::scope::Scope;
use crate::tools::ToolOutput;
use std::sync::Arc;
use std::time::Instant;

/// A row whose call runs. Dropped before the call ended, it records that it was given up.
pub(super) struct Recording {
    log: Arc<AuditLog>,
    scope: Scope,
    started: Instant,
    row: Option<AuditRow>,
}

impl Recording {
    pub(super) fn begin(log: Arc<AuditLog>, scope: Scope, row: AuditRow) -> Self {
        Self { log, scope, started: Instant::now(), row: Some(row) }
    }

    /// Keeps the row of a call that ended; to the end even when the future is dropped.
    pub(super) async fn end(mut self, output: &ToolOutput, checkpoint: Option<CheckpointId>) {
        let Some(mut row) = self.row.take() else { return };
        row.outcome = output.error.as_ref().map_or_else(|| OUTCOME_OK.to_owned(), |error| error.code.clone());
        if let Some(checkpoint) = checkpoint {
            row.id = checkpoint;
            row.checkpoint = Some(checkpoint);
        }
        row.duration = self.started.elapsed();
        let kept = tokio::spawn(keep(self.log.clone(), self.scope.clone(), row));
        if let Err(error) = kept.await {
            tracing::error!(%error, "the audit row of a tool call was not finished");
        }
    }
}

async fn keep(log: Arc<AuditLog>, scope: Scope, row: AuditRow) {
    log.record(&scope, &row).await;
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Without a runtime the process ends; then there is nothing that could write.
        if let Some(mut row) = self.row.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            row.duration = self.started.elapsed();
            runtime.spawn(keep(self.log.clone(), self.scope.clone(), row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::thread::tests::Lossy;
    use super::super::{CallNotes, ThreadDurability};
    use crate::audit::{AuditLog, AuditRow};
    use crate::backend::Backend;
    use crate::checkpoint::{At, CheckpointId, ListOptions, PutOptions, StoreCheckpointer};
    use crate::error::{Error, ErrorKind};
    use crate::layer::{Layer, LayerName, Layered, Next, Reply};
    use crate::ops::Op;
    use crate::scope::Scope;
    use crate::store::MemoryStore;
    use crate::tools::ToolCall;
    use crate::workspace::{Workspace, WorkspaceBuilder};
    use async_trait::async_trait;
    use serde_json::json;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    fn workspace(durability: ThreadDurability) -> (WorkspaceBuilder, Arc<MemoryStore>) {
        let store = Arc::new(MemoryStore::new());
        let checkpointer = StoreCheckpointer::new(store.clone());
        let log = AuditLog::new(store.clone());
        (Workspace::builder().checkpointer(checkpointer).audit_log(log).durability(durability), store)
    }

    fn scope() -> Scope {
        Scope::new().with_thread("t").with_agent("coder")
    }

    fn write(content: &str) -> ToolCall {
        ToolCall::from_json("write_file", json!({"path": "/a.md", "content": content})).expect("a legal call")
    }

    fn read(path: &str) -> ToolCall {
        ToolCall::from_json("read_file", json!({"path": path})).expect("a legal call")
    }

    async fn calls(workspace: &Workspace, after: Option<CheckpointId>, until: Option<CheckpointId>) -> Vec<AuditRow> {
        let log = workspace.audit_log().expect("calls are recorded");
        log.calls(&scope(), after, until, 1_000).await.expect("read").calls
    }

    #[tokio::test]
    async fn the_calls_between_two_checkpoints_are_found_however_quick_they_were() {
        for durability in [ThreadDurability::Step, ThreadDurability::Sync] {
            let workspace = workspace(durability).0.build();
            let session = workspace.session(scope()).await.expect("opened");
            for number in 0..50 {
                session.call(read("/a.md")).await;
                session.call_noting(write(&format!("secret {number}")), CallNotes::new().with_tool_call_id(number.to_string())).await;
            }
            let checkpointer = workspace.checkpointer().expect("threads are kept");
            let page = checkpointer.list(&scope(), &ListOptions::new()).await.expect("read");
            let mut ids: Vec<CheckpointId> = page.checkpoints.iter().map(|checkpoint| checkpoint.id).collect();
            ids.reverse();
            assert_eq!(ids.len(), 50);
            for (number, id) in ids.iter().enumerate() {
                let found = calls(&workspace, number.checked_sub(1).map(|before| ids[before]), Some(*id)).await;
                let tools: Vec<&str> = found.iter().map(|call| call.tool.as_str()).collect();
                assert_eq!(tools, ["read_file", "write_file"], "{durability} {number}");
                assert_eq!((found[0].checkpoint, found[1].checkpoint), (None, Some(*id)), "{durability} {number}");
                assert_eq!(found[1].tool_call_id, Some(number.to_string()));
                assert_eq!((found[1].actor.as_deref(), found[1].outcome.as_str()), (Some("coder"), "ok"));
                assert_eq!(found[0].outcome, if number == 0 { "not_found" } else { "ok" });
                assert!(found[1].arguments["content"]["bytes"].is_number() && !found[1].arguments.to_string().contains("secret"));
            }
        }
    }

    #[tokio::test]
    async fn a_fork_and_a_copy_start_without_calls_and_a_removed_thread_leaves_none() {
        let workspace = workspace(ThreadDurability::Step).0.build();
        let session = workspace.session(scope()).await.expect("opened");
        session.call(write("one")).await;
        drop(session);
        let checkpointer = workspace.checkpointer().expect("threads are kept");
        checkpointer.fork(&scope(), At::Latest, "fork", &PutOptions::new()).await.expect("forked");
        checkpointer.copy(&scope(), "copy").await.expect("copied");
        let log = workspace.audit_log().expect("calls are recorded");
        for other in ["fork", "copy"] {
            assert!(log.calls(&scope().with_thread(other), None, None, 9).await.expect("read").calls.is_empty());
        }
        assert_eq!(calls(&workspace, None, None).await.len(), 1);
        workspace.delete_thread(&scope()).await.expect("removed");
        assert!(calls(&workspace, None, None).await.is_empty());
        assert_eq!(workspace.delete_thread(&scope()).await.expect_err("it is gone").kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_row_that_cannot_be_kept_is_counted_and_the_call_is_answered() {
        let lossy = Lossy::default();
        lossy.commits.store(1, Ordering::Relaxed);
        let workspace = Workspace::builder().audit_log(AuditLog::new(Arc::new(lossy))).build();
        let session = workspace.session(scope()).await.expect("opened");
        let output = session.call(write("one")).await;
        assert!(!output.is_error);
        assert_eq!(workspace.audit_log().expect("calls are recorded").lost(), 1);
    }

    /// Never answers.
    #[derive(Debug)]
    struct Silent;

    #[async_trait]
    impl Layer for Silent {
        fn name(&self) -> LayerName {
            LayerName::new("Silent")
        }

        async fn around<T: Reply>(&self, _op: Op<'_>, _next: Next<'_, T>) -> Result<T, Error> {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn a_call_given_up_is_on_record() {
        let silent = Arc::new(Silent);
        let (builder, _) = workspace(ThreadDurability::Step);
        let workspace = builder.layer(move |tree, _| -> Arc<dyn Backend> { Arc::new(Layered::new(silent.clone(), tree)) }).build();
        let session = workspace.session(scope()).await.expect("opened");
        let call = session.call(read("/a.md"));
        drop(futures::future::select(Box::pin(call), Box::pin(tokio::task::yield_now())).await);
        tokio::task::yield_now().await;
        let found = calls(&workspace, None, None).await;
        assert_eq!(found.iter().map(|call| call.outcome.as_str()).collect::<Vec<_>>(), ["given_up"]);
    }
}
