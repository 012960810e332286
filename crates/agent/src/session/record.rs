//! The audit row of one call: begun with the call and written when it ends, in whatever way.

use crate::audit::{OUTCOME_GIVEN_UP, OpenCall};
use std::sync::Arc;
use treehold_tree::checkpoint::CheckpointId;

/// The row of a running call. Dropping it before the call ended records that the call was abandoned.
pub(super) struct Recording(Option<Arc<OpenCall>>);

impl Recording {
    pub(super) fn begin(call: Arc<OpenCall>) -> Self {
        Self(Some(call))
    }

    /// The recording of a workspace without an audit log.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Returns the call that is recorded, if it is.
    pub(super) fn call(&self) -> Option<&Arc<OpenCall>> {
        self.0.as_ref()
    }

    /// Starts another attempt of the call.
    pub(super) fn retry(&self) {
        if let Some(call) = &self.0 {
            call.retry();
        }
    }

    /// Writes the row of an ended call, even if the future is dropped.
    pub(super) async fn end(mut self, outcome: String, bytes_out: u64, checkpoint: Option<CheckpointId>) {
        let Some(call) = self.0.take() else { return };
        let kept = tokio::spawn(async move { call.end(&outcome, Some(bytes_out), checkpoint).await });
        if let Err(error) = kept.await {
            tracing::error!(%error, "the audit row of a tool call was not finished");
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Without a runtime the process is ending, and nothing can write the row.
        if let Some(call) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { call.end(OUTCOME_GIVEN_UP, None, None).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CallNotes, ThreadDurability};
    use crate::audit::{AuditLog, AuditRow};
    use crate::feed::Feed;
    use crate::live::Lossy;
    use crate::tools::ToolCall;
    use crate::workspace::{Workspace, WorkspaceBuilder};
    use async_trait::async_trait;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use treehold_core::error::{Error, ErrorKind};
    use treehold_core::ops::{Op, Version};
    use treehold_core::scope::Scope;
    use treehold_store::{MemoryStore, Namespace, NamespacesOptions, ScanEntry, ScanOptions, Store};
    use treehold_tree::backend::{Backend, StoreBackend};
    use treehold_tree::checkpoint::{At, CheckpointId, ListOptions, PutOptions, StoreCheckpointer};
    use treehold_tree::layer::{Layer, LayerName, Layered, Next, Reply};

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
    async fn calls_between_two_checkpoints_are_found_even_within_one_tick() {
        for durability in [ThreadDurability::Step, ThreadDurability::Sync] {
            let workspace = workspace(durability).0.build();
            let session = workspace.session(scope()).await.expect("opened");
            for number in 0..50 {
                session.call(read("/a.md")).await;
                session.call_with(write(&format!("secret {number}")), CallNotes::new().with_tool_call_id(number.to_string())).await;
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
    async fn forks_and_copies_start_without_calls_and_deletion_removes_them() {
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
    async fn call_succeeds_when_its_audit_row_cannot_be_written_and_is_counted() {
        let lossy = Lossy::default();
        lossy.commits.store(1, Ordering::Relaxed);
        let workspace = Workspace::builder().audit_log(AuditLog::new(Arc::new(lossy))).build();
        let session = workspace.session(scope()).await.expect("opened");
        let output = session.call(write("one")).await;
        assert!(!output.is_error);
        assert_eq!(workspace.audit_log().expect("calls are recorded").lost(), 1);
    }

    /// A layer that never answers.
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
    async fn abandoned_call_is_recorded() {
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

    /// A namespace in the partition of the threads, which have no tenant or user.
    const OWN: &str = "-/-/memories";

    /// Mounts rows at `/memories`, in the store that also holds the threads.
    fn with_rows(builder: WorkspaceBuilder, store: &Arc<MemoryStore>, namespace: &'static str) -> Workspace {
        let (rows, of_watch) = (store.clone(), store.clone());
        let namespace = move || Namespace::parse(namespace);
        builder
            .mount("/memories", move |_| Ok(Arc::new(StoreBackend::new(rows.clone(), namespace()?))))
            .and_then(|builder| builder.with_change_source("/memories", move |_| Ok((of_watch.clone(), namespace()?))))
            .expect("one mount")
            .feed(Feed::new(store.clone()))
            .build()
    }

    fn call(tool: &str, arguments: serde_json::Value) -> ToolCall {
        ToolCall::from_json(tool, arguments).expect("a legal call")
    }

    /// Returns the keys that each commit of a call put: versions are consecutive within a commit, one for each put.
    async fn commits(store: &MemoryStore, call: impl Future<Output = ()>) -> Vec<Vec<String>> {
        let mut before = BTreeMap::new();
        for namespace in store.namespaces(NamespacesOptions::new()).await.expect("listed").namespaces {
            let partition = namespace.partition();
            let version = store.current_version(&partition).await.expect("read");
            before.insert(partition, version);
        }
        call.await;
        let mut rows = Vec::new();
        for namespace in store.namespaces(NamespacesOptions::new()).await.expect("listed").namespaces {
            let before = before.get(&namespace.partition()).copied().unwrap_or(Version::new(0));
            let page = store.scan(&namespace, ScanOptions::new()).await.expect("scanned");
            for entry in page.entries {
                if let ScanEntry::Item(item) = entry
                    && item.version > before
                {
                    rows.push((item.modified_at, item.version, namespace.to_string()));
                }
            }
        }
        rows.sort();
        rows.chunk_by(|one, other| one.0 == other.0).map(|commit| commit.iter().map(|(_, _, at)| at.clone()).collect()).collect()
    }

    #[tokio::test]
    async fn change_event_and_audit_row_share_one_commit() {
        let (builder, store) = workspace(ThreadDurability::Step);
        let workspace = with_rows(builder, &store, OWN);
        let session = workspace.session(scope()).await.expect("opened");
        session.call(write("in the state")).await;
        for path in ["/memories/a.md", "/b.md"] {
            let done = commits(&store, async {
                let output = session.call(call("write_file", json!({"path": path, "content": "text"}))).await;
                assert!(!output.is_error, "{}", output.text);
            });
            let done = done.await;
            assert_eq!(done.len(), 1, "{path}: {done:?}");
            for part in ["audit", "events"] {
                assert_eq!(done[0].iter().filter(|at| at.contains(part)).count(), 1, "{path}: {done:?}");
            }
        }
        let rows = calls(&workspace, None, None).await;
        assert_eq!(rows.iter().map(|row| row.outcome.as_str()).collect::<Vec<_>>(), ["ok"; 3]);
        assert!(rows.iter().all(|row| row.arguments_digest.len() == 64 && row.bytes_in > 0));
        assert_eq!(rows[1].checkpoint, None, "the state did not change");
        assert_ne!(rows[1].arguments_digest, rows[2].arguments_digest);
    }

    /// A commit lies in one partition, so the row of the call follows.
    #[tokio::test]
    async fn audit_row_of_a_change_to_another_partition_is_put_once_after_it() {
        for namespace in ["memories", "acme//memories", "acme/ada/memories"] {
            let (builder, store) = workspace(ThreadDurability::Step);
            let workspace = with_rows(builder, &store, namespace);
            let session = workspace.session(scope()).await.expect("opened");
            let done = commits(&store, async {
                let output = session.call(call("write_file", json!({"path": "/memories/a.md", "content": "text"}))).await;
                assert!(!output.is_error, "{}", output.text);
            });
            let done = done.await;
            let has = |commit: &[String], part: &str| commit.iter().filter(|at| at.contains(part)).count();
            assert_eq!(
                done.iter().map(|commit| (has(commit, "events"), has(commit, "audit"))).collect::<Vec<_>>(),
                [(1, 0), (0, 1)],
                "{done:?}"
            );
            let rows = calls(&workspace, None, None).await;
            assert_eq!(rows.iter().map(|row| row.outcome.as_str()).collect::<Vec<_>>(), ["ok"]);
        }
    }

    #[tokio::test]
    async fn call_with_several_commits_has_one_row_with_its_outcome() {
        let (builder, store) = workspace(ThreadDurability::Step);
        let workspace = with_rows(builder, &store, OWN);
        let session = workspace.session(scope()).await.expect("opened");
        session.call(call("write_file", json!({"path": "/a.md", "content": "text"}))).await;
        // A move writes to the rows first, then removes from the state.
        let moved = session.call(call("move", json!({"from": "/a.md", "to": "/memories/a.md"}))).await;
        assert!(!moved.is_error, "{}", moved.text);
        let rows = calls(&workspace, None, None).await;
        assert_eq!(
            rows.iter().map(|row| (row.tool.as_str(), row.outcome.as_str())).collect::<Vec<_>>(),
            [("write_file", "ok"), ("move", "ok")]
        );
        let latest = workspace.checkpointer().expect("kept").get(&scope(), At::Latest).await.expect("read").expect("saved");
        assert_eq!(rows[1].checkpoint, Some(latest.checkpoint.id));
        let until = calls(&workspace, rows[0].checkpoint, Some(latest.checkpoint.id)).await;
        assert_eq!(until.len(), 1, "it lies between the checkpoints before and after it");
        // The second part fails: the directory exists.
        let batch = "*** Begin Patch\n*** Add File: /memories/b.md\n+text\n*** Update File: /none.md\n@@\n-a\n+b\n*** End Patch";
        let failed = session.call(call("apply_patch", json!({"patch": batch}))).await;
        let last = calls(&workspace, None, None).await.pop().expect("a row");
        assert_eq!((last.tool.as_str(), last.outcome == "ok"), ("apply_patch", !failed.is_error));
    }

    #[tokio::test]
    async fn call_without_changes_is_recorded() {
        let (builder, store) = workspace(ThreadDurability::Step);
        let workspace = with_rows(builder, &store, OWN);
        let session = workspace.session(scope()).await.expect("opened");
        session.call(call("write_file", json!({"path": "/memories/a.md", "content": "same"}))).await;
        session.call(call("edit_file", json!({"path": "/memories/a.md", "old_string": "same", "new_string": "same"}))).await;
        assert_eq!(calls(&workspace, None, None).await.len(), 2);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_calls_in_one_session_have_a_row_each() {
        let (builder, _) = workspace(ThreadDurability::Step);
        let workspace = builder.build();
        let session = workspace.session(scope()).await.expect("opened");
        let written = (0..40).map(|number| {
            let session = session.clone();
            tokio::spawn(async move { session.call(call("write_file", json!({"path": format!("/{number}"), "content": "x"}))).await })
        });
        for output in futures::future::join_all(written).await {
            assert!(!output.expect("run").is_error);
        }
        let rows = calls(&workspace, None, None).await;
        assert_eq!(rows.iter().filter(|row| row.outcome == "ok").count(), 40);
        assert_eq!(rows.len(), 40);
    }

    /// Regression: a row recorded `ok` for work that conflicted with another's save and was dropped, and named a checkpoint that never
    /// existed.
    #[tokio::test]
    async fn call_whose_save_conflicts_is_not_recorded_as_done() {
        let (builder, store) = workspace(ThreadDurability::Step);
        let other = Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).build();
        let workspace = builder.build();
        let session = workspace.session(scope()).await.expect("opened");
        assert!(session.call(read("/a.md")).await.is_error);
        other.session(scope()).await.expect("opened").call(write("theirs")).await;
        let output = session.call(write("ours")).await;
        assert!(output.is_error && output.unsaved.is_some(), "{}", output.text);
        assert!(output.error.is_some_and(|error| error.code == "conflict" && error.may_have_effect));
        let last = calls(&workspace, None, None).await.pop().expect("a row");
        assert_eq!((last.tool.as_str(), last.outcome.as_str(), last.checkpoint), ("write_file", "conflict", None));
    }
}
