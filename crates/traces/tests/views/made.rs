//! A made directory of traces, and what is in a directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use treehold_store::{MemoryStore, Store};
use treehold_traces::{StoredTraces, TraceAddress, Traces};

pub(crate) const SUB_TRACE: &str = "abc-123@explore-20260204123456-001";

pub(crate) fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

pub(crate) fn ada(store: &Arc<dyn Store>) -> StoredTraces {
    Traces::new(store.clone()).for_user("acme", "ada").unwrap()
}

pub(crate) fn address(id: &str) -> TraceAddress {
    id.parse().unwrap()
}

pub(crate) fn write(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, content).unwrap();
}

/// Returns the contents of all files beneath a directory.
pub(crate) fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else {
                let path = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(path, fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// Returns two directories as texts that show what differs.
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (files(one), files(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (path, content) in &one {
        assert_eq!(String::from_utf8_lossy(content), String::from_utf8_lossy(&other[path]), "{path}");
        assert_eq!(content, &other[path], "{path}");
    }
}

fn message(trace: &str, sequence: u64, parent: Option<u64>, rest: &str) -> String {
    let parent = parent.map_or("null".to_owned(), |parent| parent.to_string());
    format!(
        "{{\n  \"message_id\": \"{trace}-{sequence:04}\",\n  \"trace_id\": \"{trace}\",\n  \"role\": \"{}\",\n  \"sequence\": {sequence},\n  \
         \"parent_sequence\": {parent},\n  {rest},\n  \"created_at\": \"2026-02-04T12:34:{sequence:02}.000123\",\n  \"odd_field\": {{\n    \
         \"z\": 1,\n    \"a\": [\n      1.50,\n      1e-05\n    ]\n  }}\n}}",
        if sequence == 1 { "user" } else { "assistant" }
    )
}

/// Writes traces with branches, a compaction, a rewind, other languages, line ends of Windows, unknown fields and files, and damages.
pub(crate) fn write_traces(root: &Path) {
    let id = "abc-123";
    write(
        root,
        "abc-123/meta.json",
        "{\n  \"trace_id\": \"abc-123\",\n  \"mode\": \"agent\",\n  \"task\": \"Tee kochen — 煮茶 🍵\",\n  \"uid\": \"ada\",\n  \
         \"status\": \"completed\",\n  \"total_messages\": 8,\n  \"total_tokens\": 1200,\n  \"total_cost\": 0.30000000000000004,\n  \
         \"last_sequence\": 8,\n  \"last_event_id\": 7,\n  \"head_sequence\": 8,\n  \"current_goal_id\": \"2\",\n  \
         \"created_at\": \"2026-02-04T12:34:00.000001\",\n  \"completed_at\": \"2026-02-04T13:00:00\",\n  \
         \"llm_params\": {\n    \"temperature\": 0.30\n  },\n  \"zzz\": null\n}",
    );
    write(
        root,
        "abc-123/goal.json",
        "{\n  \"mission\": \"tea\",\n  \"current_id\": \"2\",\n  \"goals\": [\n    {\n      \"id\": \"1\",\n      \"description\": \"water\",\n      \
         \"status\": \"completed\",\n      \"self_stats\": {\n        \"message_count\": 2,\n        \"total_tokens\": 20,\n        \
         \"total_cost\": 0.5,\n        \"preview\": \"…\"\n      },\n      \"sub_trace_ids\": [\n        \
         \"abc-123@explore-20260204123456-001\"\n      ],\n      \"knowledge\": []\n    },\n    {\n      \"id\": \"2\",\n      \
         \"parent_id\": \"1\",\n      \"description\": \"leaves\"\n    }\n  ],\n  \"_next_id\": 3\n}",
    );
    let content = |text: &str| format!("\"content\": {{\n    \"text\": {text},\n    \"tool_calls\": null\n  }},\n  \"tokens\": 100");
    for (sequence, parent, rest) in [
        (1, None, "\"content\": \"Grünen Tee, bitte.\\u0007 \\/ 🍵\",\n  \"goal_id\": \"1\"".to_owned()),
        (2, Some(1), content("\"boil\"")),
        (3, Some(2), content("\"too hot\"")),
        // A rewind to the second message.
        (4, Some(2), content("\"just right\"")),
        // A side branch.
        (5, Some(4), "\"content\": \"thinking\",\n  \"branch_type\": \"reflection\"".to_owned()),
        (6, Some(4), content("\"pour\"")),
        // A compaction of 2 to 6.
        (7, Some(1), "\"content\": \"summary\",\n  \"summarizes\": {\n    \"from\": 2,\n    \"to\": 6\n  }".to_owned()),
        (8, Some(7), content("\"done\\nthree lines\\r\\n\"")),
    ] {
        write(root, &format!("abc-123/messages/{id}-{sequence:04}.json"), message(id, sequence, parent, &rest));
    }
    let events = [
        r#"{"event_id": 1, "event": "trace_started", "ts": "2026-02-04T12:34:00.000001", "trace": {"b": 1, "a": "é"}}"#,
        r#"{"event":"message_added","event_id":2,"sequence":1}"#,
        "this line is damaged",
        "",
        r#"{"event_id": 4, "event": "goal_added"}"#,
        r#"{"event_id": 3, "event": "late"}"#,
        r#"  {"event_id": 7, "event": "trace_completed", "cost": 1e-7}  "#,
    ];
    // Some lines end as on Windows, and the last one does not end.
    write(root, "abc-123/events.jsonl", [events[..3].join("\r\n"), events[3..].join("\n")].join("\n"));
    write(root, "abc-123/messages/notes.txt", "kept");
    write(root, "abc-123/messages/broken.json", "{\"role\": \"user\", ");
    write(root, "abc-123/attachments/deep/cup.bin", [0, 159, 146, 150, 255]);
    write(root, "abc-123/empty", "");
    write(root, "abc-123/model_usage.json", "{}\r\n");

    // Tabs, no line feeds, and ids of other forms.
    write(
        root,
        &format!("{SUB_TRACE}/meta.json"),
        format!(
            "{{\"parent_trace_id\":\"abc-123\",\"mode\":\"call\",\"trace_id\":\"{SUB_TRACE}\",\"status\":\"waiting\",\"total_cost\":null}}\n"
        ),
    );
    write(
        root,
        &format!("{SUB_TRACE}/messages/first.json"),
        "{\t\"sequence\":\t2,\t\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}",
    );
    write(
        root,
        &format!("{SUB_TRACE}/messages/last.json"),
        "{\"sequence\": 5, \"parent_sequence\": 4, \"role\": \"tool\", \"tokens\": \"few\"}",
    );
    write(root, &format!("{SUB_TRACE}/messages/same.json"), "{\"sequence\": 5, \"role\": \"tool\"}");

    write(root, "only-meta/meta.json", "{\"trace_id\": \"only-meta\", \"uid\": null, \"created_at\": \"2026-02-04T12:34:56+02:00\"}");
    write(root, "odd-goals/meta.json", "{\r\n  \"trace_id\": \"odd-goals\"\r\n}\r\n");
    write(
        root,
        "odd-goals/goal.json",
        r#"{"goals": [{"id": "1", "parent_id": "1"}, {"id": "1"}, {"id": "2", "parent_id": "9"}, {"id": "a/b"}, {"id": "3", "status": "lost"}]}"#,
    );
    write(root, "odd-goals/events.jsonl", "");
}
