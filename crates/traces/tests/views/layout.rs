//! Round trips between directories and stores.

use super::made::{SUB_TRACE, ada, address, assert_same, files, store, write, write_traces};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use treehold_core::error::ErrorKind;
use treehold_core::json::Json;
use treehold_store::Partition;
use treehold_traces::layout::{ExportOptions, ImportOptions, ImportReport, ImportedTrace, export_directory, import_directory};
use treehold_traces::{
    AddOptions, GoalStatus, GoalUpdate, MessageRef, MessageUpdate, MessagesQuery, NewGoal, NewMessage, NewTrace, PathQuery, StoredTraces,
    TraceId, TraceStatus, TraceStore, TraceUpdate,
};

pub(crate) async fn import(traces: &StoredTraces, root: &Path) -> ImportReport {
    import_directory(traces, root, &ImportOptions::new()).await.unwrap()
}

pub(crate) async fn export(traces: &StoredTraces, root: &Path) -> u64 {
    let report = export_directory(traces, root, &ExportOptions::new().with_sync(false)).await.unwrap();
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    report.traces.iter().map(|trace| trace.written).sum()
}

fn of<'r>(report: &'r ImportReport, id: &str) -> &'r ImportedTrace {
    report.traces.iter().find(|trace| trace.id.as_str() == id).unwrap()
}

fn damages(trace: &ImportedTrace) -> Vec<String> {
    trace.damages.iter().map(|damage| format!("{}:{} {}", damage.path, damage.line.unwrap_or(0), damage.reason)).collect()
}

async fn path_of(traces: &StoredTraces, id: &str) -> Vec<u64> {
    let page = traces.get_main_path(&address(id), &PathQuery::default()).await.unwrap();
    page.messages.iter().map(|message| message.sequence).collect()
}

#[tokio::test]
async fn imported_directory_is_exported_byte_for_byte() {
    let (original, exported) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_traces(original.path());
    let traces = ada(&store());
    let report = import(&traces, original.path()).await;
    assert_eq!((report.traces.len(), report.left_out), (4, 0));
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    export(&traces, exported.path()).await;
    assert_same(original.path(), exported.path());
    assert_eq!(export(&traces, exported.path()).await, 2, "only the files of events are written again");

    // The copy reads back as the same traces.
    let other = ada(&store());
    import(&other, exported.path()).await;
    for id in ["abc-123", SUB_TRACE, "only-meta", "odd-goals"] {
        let id = address(id);
        let strip = |mut trace: treehold_traces::Trace| {
            // Without a time in the files, a trace was created when it was imported.
            trace.created_at = None;
            trace
        };
        assert_eq!(strip(other.get_trace(&id).await.unwrap().unwrap()), strip(traces.get_trace(&id).await.unwrap().unwrap()));
        assert_eq!(other.get_goal_tree(&id).await.unwrap(), traces.get_goal_tree(&id).await.unwrap());
        let query = MessagesQuery::default();
        assert_eq!(other.get_messages(&id, &query).await.unwrap(), traces.get_messages(&id, &query).await.unwrap());
        assert_eq!(other.get_events(&id, 0, 100).await.unwrap(), traces.get_events(&id, 0, 100).await.unwrap());
    }
}

#[tokio::test]
async fn imported_traces_keep_sequences_parents_heads_and_totals() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    let traces = ada(&store());
    import(&traces, original.path()).await;
    let trace = traces.get_trace(&address("abc-123")).await.unwrap().unwrap();
    assert_eq!((trace.head_sequence, trace.last_sequence, trace.last_event_id), (8, 8, 7));
    assert_eq!((trace.total_messages, trace.total_tokens, trace.status), (8, 1_200, TraceStatus::Completed));
    assert_eq!(trace.created_at.as_deref(), Some("2026-02-04T12:34:00.000001Z"));
    assert_eq!(trace.other["llm_params"], json!({"temperature": 0.3}));
    assert_eq!(path_of(&traces, "abc-123").await, [1, 7, 8]);
    let mut before = PathQuery::default();
    before.head_sequence = Some(6);
    let before = traces.get_main_path(&address("abc-123"), &before).await.unwrap();
    assert_eq!(before.messages.iter().map(|message| message.sequence).collect::<Vec<_>>(), [1, 2, 4, 6]);
    let goals = traces.get_goal_tree(&address("abc-123")).await.unwrap();
    assert_eq!(goals.current_id.as_deref(), Some("2"));
    assert_eq!((goals.goals[0].self_stats.total_tokens, goals.goals[0].cumulative_stats.total_cost), (20, 0.5));
    // The next message and event follow the imported ones.
    let added = traces.add_messages(&address("abc-123"), vec![NewMessage::text("user", "more")], &AddOptions::new()).await.unwrap();
    assert_eq!((added.head_sequence, added.messages[0].parent_sequence), (9, Some(8)));
    assert_eq!(traces.get_trace(&address("abc-123")).await.unwrap().unwrap().last_event_id, 8);
}

#[tokio::test]
async fn damages_are_reported_with_their_places() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    let traces = ada(&store());
    let report = import(&traces, original.path()).await;
    let trace = of(&report, "abc-123");
    assert_eq!((trace.messages, trace.events, trace.other_files, trace.repeated), (8, 4, 5, false));
    let found = damages(trace);
    let expected = [
        "messages/broken.json:0 ",
        "events.jsonl:3 ",
        "events.jsonl:5 1 event ids before 4",
        "events.jsonl:6 its event id 3",
        "events.jsonl:7 2 event ids before 7",
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    let found = damages(of(&report, SUB_TRACE));
    let expected = [
        "meta.json:0 `status` does not fit",
        "messages/last.json:0 `tokens` does not fit",
        "messages:0 1 sequences from 1 on",
        "messages:0 2 sequences from 3 on",
        "messages/same.json:0 another message has the sequence 5",
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    let found = damages(of(&report, "odd-goals"));
    assert_eq!(found.len(), 5, "{found:?}");
    let goals = traces.get_goal_tree(&address("odd-goals")).await.unwrap();
    assert_eq!(
        goals.goals.iter().map(|goal| (goal.id.as_str(), goal.parent_id.as_deref())).collect::<Vec<_>>(),
        [("1", None), ("2", None), ("3", None)]
    );
}

#[tokio::test]
async fn missing_messages_and_events_are_placeholders_that_are_not_exported() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    let traces = ada(&store());
    import(&traces, original.path()).await;
    assert_eq!(path_of(&traces, SUB_TRACE).await, [4, 5]);
    let page = traces.get_messages(&address(SUB_TRACE), &MessagesQuery::default()).await.unwrap();
    let branches: Vec<(u64, &str, Option<&str>)> =
        page.messages.iter().map(|message| (message.sequence, message.role.as_str(), message.branch_type.as_deref())).collect();
    let missing = Some("missing");
    assert_eq!(branches, [(1, "system", missing), (2, "user", None), (3, "system", missing), (4, "system", missing), (5, "tool", None)]);
    let events = traces.get_events(&address("abc-123"), 0, 100).await.unwrap().events;
    let kinds: Vec<&str> = events.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(kinds, ["trace_started", "message_added", "missing", "goal_added", "missing", "missing", "trace_completed"]);
    // A placeholder that somebody filled in is a message.
    let mut update = MessageUpdate::default();
    update.content = Some(Json::of("found again").unwrap());
    traces.update_message(&address(SUB_TRACE), &MessageRef::Sequence(3), update).await.unwrap();
    let exported = tempfile::tempdir().unwrap();
    export(&traces, exported.path()).await;
    let names: Vec<String> = files(&exported.path().join(SUB_TRACE).join("messages")).into_keys().collect();
    assert_eq!(names, [&format!("{SUB_TRACE}-0003.json"), "first.json", "last.json", "same.json"]);
}

#[tokio::test]
async fn repeated_import_changes_nothing_and_changed_files_are_refused() {
    let original = tempfile::tempdir().unwrap();
    write_traces(original.path());
    let store = store();
    let traces = ada(&store);
    import(&traces, original.path()).await;
    traces.add_messages(&address("abc-123"), vec![NewMessage::text("user", "more")], &AddOptions::new()).await.unwrap();
    let partition = Partition::new(["acme", "ada"]).unwrap();
    let version = store.current_version(&partition).await.unwrap();
    let report = import(&traces, original.path()).await;
    assert!(report.traces.len() == 4 && report.traces.iter().all(|trace| trace.repeated && trace.messages == 0), "{report:?}");
    assert_eq!(store.current_version(&partition).await.unwrap(), version);
    write(original.path(), "abc-123/new.txt", "new");
    let report = import(&traces, original.path()).await;
    assert_eq!((report.traces.len(), report.failures.len()), (3, 1));
    assert_eq!(report.failures[0].1.kind(), ErrorKind::AlreadyExists);
    assert_eq!(path_of(&traces, "abc-123").await, [1, 7, 8, 9]);
}

#[tokio::test]
async fn changes_after_an_import_leave_everything_else_as_it_was() {
    let (original, exported) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_traces(original.path());
    let traces = ada(&store());
    import(&traces, original.path()).await;
    let id = address("abc-123");
    let mut update = MessageUpdate::default();
    update.tokens = Some(7);
    traces.update_message(&id, &MessageRef::Sequence(2), update).await.unwrap();
    let mut update = GoalUpdate::default();
    update.status = Some(GoalStatus::Completed);
    traces.update_goal(&id, "2", update).await.unwrap();
    traces.update_trace(&id, TraceUpdate::new().with_status(TraceStatus::Running)).await.unwrap();
    export(&traces, exported.path()).await;
    let (before, after) = (files(original.path()), files(exported.path()));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    let changed: Vec<&str> = before.keys().filter(|path| before[*path] != after[*path]).map(String::as_str).collect();
    assert_eq!(changed, ["abc-123/events.jsonl", "abc-123/goal.json", "abc-123/messages/abc-123-0002.json", "abc-123/meta.json"]);
    let text = |path: &str| String::from_utf8(after[path].clone()).unwrap();
    let old = |path: &str| String::from_utf8(before[path].clone()).unwrap();
    // `1.50` is rewritten as Python writes it.
    let message = old("abc-123/messages/abc-123-0002.json").replace("\"tokens\": 100", "\"tokens\": 7").replace("1.50", "1.5");
    assert_eq!(text("abc-123/messages/abc-123-0002.json"), message);
    let meta = text("abc-123/meta.json");
    let fields = ["trace_id", "mode", "task", "uid", "status", "total_messages"];
    let places: Vec<usize> = fields.iter().map(|field| meta.find(&format!("\n  \"{field}\": ")).unwrap()).collect();
    assert!(places.is_sorted(), "{meta}");
    for part in [
        "\"task\": \"Tee kochen — 煮茶 🍵\"",
        "\"status\": \"running\"",
        "\"total_tokens\": 1107",
        "\"temperature\": 0.3\n",
        "\"zzz\": null",
    ] {
        assert!(meta.contains(part), "{part} in {meta}");
    }
    assert!(meta.contains("\"created_at\": \"2026-02-04T12:34:00.000001\""), "a time that did not change keeps its form: {meta}");
    let goals = text("abc-123/goal.json");
    assert!(goals.contains("\"knowledge\": []") && goals.contains("\"_next_id\": 3") && goals.contains("\"preview\": \"…\""), "{goals}");
    let events = text("abc-123/events.jsonl");
    let added = events.strip_prefix(&old("abc-123/events.jsonl")).unwrap();
    let added: Vec<&str> = added.strip_prefix('\n').unwrap().lines().collect();
    assert_eq!(added.len(), 3, "{added:?}");
    assert!(added.iter().zip(8..).all(|(line, id)| line.starts_with(&format!("{{\"event_id\": {id}, \"event\": \""))), "{added:?}");
}

#[tokio::test]
async fn created_trace_is_written_as_python_does_and_reads_back() {
    let exported = tempfile::tempdir().unwrap();
    let traces = ada(&store());
    let id = address("made");
    let mut new = NewTrace::new("make «tea»").with_id(id.clone());
    new.other.insert("llm".into(), json!({"temperature": 0.00001}));
    traces.create_trace(new).await.unwrap();
    traces.add_goal(&id, NewGoal::new("water")).await.unwrap();
    let content = Json::parse(r#"{"text":"é\u0007","tool_calls":[]}"#).unwrap();
    let messages = vec![NewMessage::text("user", "hello"), NewMessage::new("assistant", content).with_usage(3, 1e-6).with_goal("1")];
    traces.add_messages(&id, messages, &AddOptions::new()).await.unwrap();
    export(&traces, exported.path()).await;
    let written = files(&exported.path().join("made"));
    assert_eq!(
        written.keys().collect::<Vec<_>>(),
        ["events.jsonl", "goal.json", "messages/made-0001.json", "messages/made-0002.json", "meta.json"]
    );
    let message = String::from_utf8(written["messages/made-0002.json"].clone()).unwrap();
    let (start, end) = message.split_once("  \"created_at\": \"").unwrap();
    let expected = "{\n  \"message_id\": \"made-0002\",\n  \"trace_id\": \"made\",\n  \"role\": \"assistant\",\n  \"sequence\": 2,\n  \
        \"parent_sequence\": 1,\n  \"goal_id\": \"1\",\n  \"tool_call_id\": null,\n  \"content\": {\n    \"text\": \"é\\u0007\",\n    \
        \"tool_calls\": []\n  },\n  \"tokens\": 3,\n  \"cost\": 1e-06,\n";
    assert_eq!(start, expected);
    assert!(end.ends_with("+00:00\"\n}"), "{end}");
    let events = String::from_utf8(written["events.jsonl"].clone()).unwrap();
    assert!(events.ends_with('\n') && events.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{events}");

    let other = ada(&store());
    import(&other, exported.path()).await;
    let (one, two) = (traces.get_trace(&id).await.unwrap().unwrap(), other.get_trace(&id).await.unwrap().unwrap());
    assert_eq!(one, two);
    assert_eq!(traces.get_goal_tree(&id).await.unwrap(), other.get_goal_tree(&id).await.unwrap());
    let copied = tempfile::tempdir().unwrap();
    export(&other, copied.path()).await;
    assert_same(exported.path(), copied.path());
}

#[tokio::test]
async fn chosen_traces_are_imported_and_exported_and_unknown_ones_are_failures() {
    let (original, exported) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_traces(original.path());
    let traces = ada(&store());
    let ids = ["only-meta", "none"].map(|id| TraceId::new(id).unwrap());
    let report = import_directory(&traces, original.path(), &ImportOptions::new().with_among(ids.clone())).await.unwrap();
    assert_eq!((report.traces.len(), report.failures.len()), (1, 1));
    assert_eq!(report.failures[0].1.kind(), ErrorKind::NotFound);
    let report = export_directory(&traces, exported.path(), &ExportOptions::new().with_among(ids)).await.unwrap();
    assert_eq!((report.traces.len(), report.failures[0].1.kind()), (1, ErrorKind::NotFound));
    assert_eq!(files(exported.path()).into_keys().collect::<Vec<_>>(), ["only-meta/meta.json"]);
    let error = import_directory(&traces, &original.path().join("nowhere"), &ImportOptions::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// A file that is larger than a row, and more messages than one commit takes.
#[tokio::test]
async fn large_files_and_many_messages_are_exported_byte_for_byte() {
    let (original, exported) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = original.path();
    write(root, "t/meta.json", r#"{"trace_id": "t", "head_sequence": 1200}"#);
    write(root, "t/large.bin", vec![7; 700_000]);
    for sequence in 1..=1_200_u64 {
        let text = if sequence == 600 { "x".repeat(600_000) } else { "short".to_owned() };
        let parent = sequence - 1;
        write(
            root,
            &format!("t/messages/m{sequence}.json"),
            format!("{{\"role\":\"user\",\"sequence\":{sequence},\"parent_sequence\":{parent},\"content\":\"{text}\"}}"),
        );
    }
    let lines: String = (1..=1_200).map(|id| format!("{{\"event\":\"e\",\"event_id\":{id},\"text\":\"{}\"}}\n", "y".repeat(300))).collect();
    write(root, "t/events.jsonl", lines);
    let traces = ada(&store());
    let report = import(&traces, root).await;
    assert_eq!((report.traces[0].messages, report.traces[0].events, report.traces[0].damages_count), (1_200, 1_200, 0), "{report:?}");
    export(&traces, exported.path()).await;
    assert_same(root, exported.path());
    let page = traces.get_main_path(&address("t"), &PathQuery::default()).await.unwrap();
    assert_eq!((page.messages.len(), page.earlier), (1_000, Some(200)));
    fs::remove_dir_all(exported.path()).unwrap();
}
