//! Imports and exports that end in the middle.

use super::gate::{Calls, Fate, Gate};
use super::layout::{export, import};
use super::made::{SUB_TRACE, ada, address, assert_same, files, store, write_traces};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::ops::Version;
use treehold_store::{NamespacesOptions, Partition, Store};
use treehold_traces::layout::{ExportOptions, ImportOptions, export_directory, import_directory};
use treehold_traces::{TraceStore, Traces, TracesQuery};

const IDS: [&str; 4] = ["abc-123", SUB_TRACE, "odd-goals", "only-meta"];

/// Returns the traces that are there. Each must be whole.
async fn whole_traces(store: &Arc<dyn Store>) -> usize {
    let traces = ada(store);
    let listed = traces.list_traces(&TracesQuery::default()).await.unwrap();
    assert_eq!(listed.total, listed.traces.len() as u64);
    for trace in &listed.traces {
        let query = treehold_traces::MessagesQuery::default();
        let messages = traces.get_messages(&trace.trace_id, &query).await.unwrap().messages;
        assert_eq!(messages.len() as u64, trace.last_sequence, "{}", trace.trace_id);
        let events = traces.get_events(&trace.trace_id, 0, 100).await.unwrap().events;
        assert_eq!(events.len() as u64, trace.last_event_id, "{}", trace.trace_id);
    }
    listed.traces.len()
}

/// Returns how many namespaces hold rows.
async fn spaces(store: &Arc<dyn Store>) -> usize {
    store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces.len()
}

/// Sweeps as if two hours had passed.
async fn sweep_later(store: &Arc<dyn Store>) {
    let later = Clock::from_fn(|| jiff::Timestamp::now() + Duration::from_secs(2 * 60 * 60));
    let traces = Traces::new(store.clone()).with_clock(later);
    while traces.sweep_some(100).await.unwrap() > 0 {}
}

#[tokio::test]
async fn import_that_fails_at_any_commit_leaves_whole_traces_and_continues() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    for fate in [Fate::Refused, Fate::Unanswered] {
        let mut reached = true;
        for at in 0.. {
            let inner = store();
            let gate = Gate::new(inner.clone(), Calls::Commits, at, fate);
            let done = import_directory(&ada(&(gate.clone() as Arc<dyn Store>)), original.path(), &ImportOptions::new()).await;
            reached = reached && gate.was_reached();
            // The last commit removes the record of an import that has completed.
            let is_complete = at == 4 * COMMITS - 1;
            assert_eq!(done.is_err(), gate.was_reached() && !is_complete, "commit {at}, {fate:?}");
            let there = whole_traces(&inner).await;
            assert!(there <= 4, "commit {at}, {fate:?}");
            sweep_later(&inner).await;
            assert_eq!(whole_traces(&inner).await, there, "a sweep removes no trace");
            // What an interrupted import left is gone, so that only the rows of whole traces remain.
            let fresh = store();
            import(&ada(&inner), original.path()).await;
            import(&ada(&fresh), original.path()).await;
            assert_eq!(whole_traces(&inner).await, 4);
            // A process that dies between the first two commits leaves the row that the first one put, until it expires.
            let is_between = (at % COMMITS, fate) == (1, Fate::Refused) && gate.was_reached();
            assert_eq!(spaces(&inner).await - usize::from(is_between), spaces(&fresh).await, "commit {at}, {fate:?}");
            if !gate.was_reached() {
                break;
            }
        }
        assert!(!reached, "the last import was not interrupted");
    }
}

#[tokio::test]
async fn import_whose_caller_goes_away_leaves_whole_traces_and_continues() {
    let (original, exported) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_traces(original.path());
    for at in 0.. {
        let inner = store();
        let gate = Gate::new(inner.clone(), Calls::All, at, Fate::Stuck);
        let traces = ada(&(gate.clone() as Arc<dyn Store>));
        let options = ImportOptions::new();
        tokio::select! {
            _ = import_directory(&traces, original.path(), &options) => {}
            () = gate.reached() => {}
        }
        whole_traces(&inner).await;
        import(&ada(&inner), original.path()).await;
        assert_eq!(whole_traces(&inner).await, 4, "call {at}");
        if !gate.was_reached() {
            export(&ada(&inner), exported.path()).await;
            assert_same(original.path(), exported.path());
            assert!(at > 20, "the sweep covers every call");
            break;
        }
    }
}

/// How many commits the import of a small trace has: two begin it, one writes the rows, two enter the trace into the directory, one makes it
/// appear, and one ends the import.
const COMMITS: usize = 7;

/// Regression: an import that paused for over an hour must not complete a trace whose rows were swept.
#[tokio::test]
async fn import_that_was_swept_while_it_paused_adds_no_trace_in_part() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    for at in 0.. {
        let inner = store();
        let gate = Gate::new(inner.clone(), Calls::Commits, at, Fate::Paused);
        let (root, paused) = (original.path().to_owned(), ada(&(gate.clone() as Arc<dyn Store>)));
        let import_paused = tokio::spawn(async move { import_directory(&paused, &root, &ImportOptions::new()).await });
        if at < 4 * COMMITS {
            gate.reached().await;
            sweep_later(&inner).await;
            gate.resume();
        }
        let report = import_paused.await.unwrap().unwrap();
        let there = whole_traces(&inner).await;
        assert_eq!(there + report.failures.len(), 4, "{report:?}");
        import(&ada(&inner), original.path()).await;
        assert_eq!(whole_traces(&inner).await, 4);
        if at == 4 * COMMITS {
            assert!(!gate.was_reached());
            break;
        }
        // The first two begin the import, so that a sweep finds it. The last but one makes the trace appear.
        let is_found = (2..COMMITS - 1).contains(&(at % COMMITS));
        assert_eq!(report.failures.len(), usize::from(is_found), "commit {at}");
    }
}

#[tokio::test]
async fn export_that_fails_at_any_call_shows_no_trace_in_part_and_continues() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    let inner = store();
    import(&ada(&inner), original.path()).await;
    let whole = files(original.path());
    for at in 0.. {
        let exported = tempfile::tempdir().unwrap();
        let gate = Gate::new(inner.clone(), Calls::All, at, Fate::Refused);
        let traces = ada(&(gate.clone() as Arc<dyn Store>));
        let done = export_directory(&traces, exported.path(), &ExportOptions::new().with_sync(false)).await;
        assert_eq!(done.is_err(), gate.was_reached(), "call {at}");
        let there = files(exported.path());
        for (path, content) in &there {
            assert_eq!(whole.get(path), Some(content), "{path} at call {at}");
        }
        for id in IDS.iter().filter(|id| there.contains_key(&format!("{id}/meta.json"))) {
            let of = |files: &std::collections::BTreeMap<String, Vec<u8>>| {
                files.keys().filter(|path| path.starts_with(&format!("{id}/"))).count()
            };
            assert_eq!(of(&there), of(&whole), "{id} at call {at}");
        }
        export(&ada(&inner), exported.path()).await;
        assert_same(original.path(), exported.path());
        if !gate.was_reached() {
            assert!(at > 20, "the sweep covers every call");
            break;
        }
    }
}

#[tokio::test]
async fn export_removes_unfinished_files_of_an_interrupted_one_and_imports_ignore_them() {
    let (original, exported) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_traces(original.path());
    let traces = ada(&store());
    import(&traces, original.path()).await;
    let leftover = ".treehold-2f1e9b86-3a52-4a3e-9b57-0c6a5f6d7e8f.tmp";
    for directory in ["abc-123", "abc-123/messages"] {
        super::made::write(exported.path(), &format!("{directory}/{leftover}"), "half of a fi");
    }
    export(&traces, exported.path()).await;
    assert_same(original.path(), exported.path());
    super::made::write(exported.path(), &format!("abc-123/{leftover}"), "half of a fi");
    let report = import(&traces, exported.path()).await;
    assert!(report.traces.iter().all(|trace| trace.repeated), "{report:?}");
}

/// Rows that belong to no trace would stay for ever.
#[tokio::test]
async fn deleted_import_leaves_no_rows() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    let store = store();
    let traces = ada(&store);
    traces.create_trace(treehold_traces::NewTrace::new("other").with_id(address("other"))).await.unwrap();
    let before = spaces(&store).await;
    import(&traces, original.path()).await;
    for id in IDS {
        assert!(traces.delete_trace(&address(id)).await.unwrap());
    }
    sweep_later(&store).await;
    assert_eq!(spaces(&store).await, before);
    assert!(store.current_version(&Partition::new(["acme", "ada"]).unwrap()).await.unwrap() > Version::new(0));
    import(&traces, original.path()).await;
    assert_eq!(traces.list_traces(&TracesQuery::default()).await.unwrap().total, 5);
}
