//! Properties of imports and exports: what an export returns, and numbers that no session can continue from.

#![allow(missing_docs, clippy::unwrap_used)]

use async_trait::async_trait;
use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;
use treehold_core::{ErrorKind, Result};
use treehold_sessions::layout::{SessionFiles, read_directory};
use treehold_sessions::orchestration::{
    Agent, AgentRuntime, AgentSpawn, Delivery, InputEnvelope, ManagerOptions, OrchestrationManager, OrchestrationPersistence,
};
use treehold_sessions::{
    AppendOptions, CompactOptions, Compaction, ConsolidationOptions, Consolidator, InspectorDataSource, MemorySummarizer, Message,
    MessagesView, SessionRef, SessionTraceStore, SessionWindow, Sessions, SkillLog, SummarizeWith, Usage,
};
use treehold_store::MemoryStore;

const INIT: &str = r#"{"type":"init","sessionId":"s","tenantId":"t","userId":"u","agentId":"h","title":null,"createdAt":1000}"#;

fn session() -> SessionRef {
    SessionRef::new("t", "s").unwrap()
}

fn summary(archive: &str) -> String {
    json!({"role": "user", "timestamp": 1, "content": format!("[Conversation compacted at x\nArchive ID: {archive}\n]")}).to_string()
}

fn user(number: usize) -> String {
    json!({"role": "user", "timestamp": 1, "content": number.to_string()}).to_string()
}

/// A session with every number that files have.
fn files() -> SessionFiles {
    let lines = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let turn = json!({
        "type": "turn", "turnIndex": 0, "inputTokens": 1, "outputTokens": 2, "cacheReadTokens": 3, "cacheWriteTokens": 4, "updatedAt": 5,
        "usage": {"inputTokens": 1, "totalTokens": 1, "cost": {"input": 1, "output": 1, "cacheRead": 1, "cacheWrite": 1, "total": 1}},
    });
    let update = json!({"type": "update", "title": "x", "updatedAt": 6});
    let answer = json!({"role": "toolResult", "toolCallId": "c", "content": [], "timestamp": 1});
    let call = json!({"role": "assistant", "content": [{"type": "toolCall", "id": "c", "name": "t", "arguments": {"n": 1}}]});
    let mut window = vec![summary("0002")];
    window.extend((0..7).map(user));
    let envelope = json!({"id": "e", "timestamp": "t", "sequence": 1, "source": "host", "event": {"type": "error", "n": 1}});
    let orchestration = [
        json!({"eventId": "1", "occurredAt": "t", "runId": "r", "type": "run_started", "initialTask": {"id": "k", "kind": "x", "input": 1}}),
        json!({"eventId": "2", "occurredAt": "t", "runId": "r", "type": "agent_spawned", "agent": {"id": "a", "role": "x"}}),
    ];
    let mail = json!({"eventId": "m", "type": "input_enqueued", "agentId": "a", "occurredAt": "t", "inputId": "i", "payload": 1});
    [
        ("session.jsonl", lines(&[INIT.to_owned(), turn.to_string(), update.to_string()])),
        ("messages.compactions/0001.jsonl", lines(&[user(8), call.to_string(), answer.to_string()])),
        ("messages.compactions/0002.jsonl", lines(&[summary("0001"), user(9)])),
        ("messages.jsonl", lines(&window)),
        ("trace/events.jsonl", lines(&[envelope.to_string()])),
        ("orchestration/events.jsonl", lines(&orchestration.map(|event| event.to_string()))),
        ("orchestration/checkpoint.json", json!({"n": 1}).to_string()),
        ("orchestration/subagents/a/mailbox.jsonl", lines(&[mail.to_string()])),
        ("orchestration/subagents/a/mailbox-state.json", json!({"processedEventCount": 0}).to_string()),
        ("orchestration/subagents/a/history.json", "[1]".to_owned()),
    ]
    .map(|(path, text)| (path.to_owned(), Bytes::from(text)))
    .into()
}

/// Returns the ranges of the numbers of a text that are JSON values.
fn numbers(text: &str) -> Vec<std::ops::Range<usize>> {
    let (mut found, mut in_string, mut start) = (Vec::new(), false, None);
    let bytes = text.as_bytes();
    for (index, byte) in bytes.iter().enumerate() {
        if *byte == b'"' && bytes[..index].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 0 {
            in_string = !in_string;
        }
        let is_digit = !in_string && byte.is_ascii_digit();
        match start {
            None if is_digit => start = Some(index),
            Some(from) if !is_digit => {
                found.push(from..index);
                start = None;
            }
            _ => {}
        }
    }
    found
}

const EXTREMES: &[&str] = &[
    "0",
    "-1",
    "1.5",
    "-0.0",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
    "-1e999",
    "1000000000",
];

/// The ids that archives get in the names of their files.
const ARCHIVE_IDS: &[&str] = &["0001", "0009", "1000000000", "1000000001", "18446744073709551615", "99999999999999999999"];

struct Idle;

#[async_trait]
impl AgentRuntime for Idle {
    async fn attach(&self, _: &Agent) -> Result<()> {
        Ok(())
    }

    async fn deliver(&self, _: &Agent, _: &InputEnvelope) -> Result<Delivery> {
        Ok(Delivery::completed("done"))
    }

    async fn detach(&self, _: &Agent) {}
}

#[async_trait]
impl MemorySummarizer for Idle {
    async fn summarize_session(&self, _: &[Message]) -> Result<String> {
        Ok("short".to_owned())
    }

    async fn consolidate(&self, _: Option<&str>, _: &[String]) -> Result<String> {
        Ok("all".to_owned())
    }
}

async fn compact(sessions: &Sessions) -> Result<Option<Compaction>> {
    sessions.compact("t", "s", &SummarizeWith(|_| async { Ok("short".to_owned()) }), &CompactOptions::new()).await
}

/// Does everything with a session that has a number of its own, and that adds to its numbers.
async fn exercise(sessions: &Sessions) {
    let ends = [None, Some(0), Some(u64::MAX - 1), Some(u64::MAX)];
    sessions.describe("t", "s").await.unwrap().unwrap();
    sessions.list_all("t", "u").await.unwrap();
    sessions.list_sessions().await.unwrap();
    for end in ends {
        sessions.turns("t", "s", end, usize::MAX).await.unwrap();
        let (from, budget) = (end.unwrap_or(1), end.unwrap_or(9));
        for view in [
            MessagesView::Log { from, limit: usize::MAX },
            MessagesView::Recent(Some(from as usize)),
            MessagesView::Budget(budget),
            MessagesView::Full,
            MessagesView::Archive(None, Some(from as usize)),
        ] {
            sessions.read_messages_of("t", "s", view).await.unwrap();
        }
        for id in ARCHIVE_IDS {
            sessions.load_compacted("t", "s", Some(id), None).await.unwrap();
        }
        let log = json!({"log": "x", "archive": null, "from": from, "end": from, "tokens": from});
        let window: SessionWindow = serde_json::from_value(log).unwrap();
        sessions.apply_compaction("t", "s", &window, from, "short", None).await.unwrap_err();
        let now = sessions.read_messages_of("t", "s", MessagesView::Recent(Some(0))).await.unwrap().unwrap().window;
        if from > 1_000 {
            sessions.apply_compaction("t", "s", &now, from, "short", None).await.unwrap_err();
        }
        let usage =
            json!({"inputTokens": from, "outputTokens": from, "cacheReadTokens": from, "cacheWriteTokens": from, "totalTokens": from});
        sessions.record_turn("t", "s", &Usage::parse(&usage.to_string()).unwrap()).await.unwrap();
        sessions.last_context_usage("t", "s").await.unwrap();
    }
    for number in 0..7 {
        sessions.append("t", "s", &[Message::user(&number.to_string(), 1)], &AppendOptions::new()).await.unwrap();
    }
    for _ in 0..2 {
        compact(sessions).await.unwrap();
    }
    sessions.set_title("t", "s", Some("y")).await.unwrap();
    for (started_at, finished_at) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)] {
        let text = String::new;
        let (skill_name, task, input, system_prompt, result_text) = (text(), text(), text(), text(), text());
        let log = SkillLog { skill_name, task, input, system_prompt, messages: Vec::new(), result_text, started_at, finished_at };
        sessions.persist_skill_log(&session(), &log).await.unwrap();
    }
    sessions.trace(session()).load_envelopes().await.unwrap();
    let orchestration = Arc::new(sessions.orchestration(session()));
    orchestration.recover_state().await.unwrap();
    let manager = OrchestrationManager::open("s", orchestration, Arc::new(Idle), ManagerOptions::new()).await.unwrap();
    manager.start_run(Some("r"), None).await.unwrap();
    let spawn: AgentSpawn = serde_json::from_value(json!({"id": "a", "role": "x"})).unwrap();
    // The agent of the files may be there, with another task.
    manager.spawn_agent("r", spawn).await.ok();
    manager.send_input("a", json!(1)).await.unwrap();
    manager.close_agent("a", None).await.unwrap();
    manager.close().await.unwrap();
    let consolidator = Consolidator::new(sessions.clone(), ConsolidationOptions::default());
    consolidator.run("t", "u", &Idle).await.unwrap();
    let exported = sessions.export_session(&session()).await.unwrap().unwrap();
    sessions.delete("t", "s").await.unwrap();
    sessions.import_session(&session(), &exported).await.unwrap();
    sessions.delete("t", "s").await.unwrap();
}

async fn import_and_exercise(files: &SessionFiles) {
    let sessions = Sessions::new(Arc::new(MemoryStore::new()));
    match sessions.import_session(&session(), files).await {
        Ok(_) => exercise(&sessions).await,
        // The time of the event `init`.
        Err(error) => assert!(matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Corrupt), "{error}"),
    }
}

/// Replaces one number of a file.
fn with_number(files: &SessionFiles, path: &str, number: usize, value: &str) -> SessionFiles {
    let text = std::str::from_utf8(&files[path]).unwrap();
    let range = numbers(text)[number].clone();
    let mut files = files.clone();
    files.insert(path.to_owned(), format!("{}{value}{}", &text[..range.start], &text[range.end..]).into());
    files
}

/// Each number of the files in turn, and the number of each archive.
#[tokio::test(start_paused = true)]
async fn session_with_any_extreme_number_imports_and_continues() {
    let (files, mut count) = (files(), 0);
    for (path, content) in &files {
        for number in 0..numbers(std::str::from_utf8(content).unwrap()).len() {
            for value in EXTREMES {
                import_and_exercise(&with_number(&files, path, number, value)).await;
                count += 1;
            }
        }
    }
    for archive in ["0001", "0002"] {
        for id in ARCHIVE_IDS {
            let mut files = files.clone();
            let content = files.remove(&format!("messages.compactions/{archive}.jsonl")).unwrap();
            files.insert(format!("messages.compactions/{id}.jsonl"), content);
            files.insert("messages.jsonl".to_owned(), format!("{}\n{}\n", summary(id), user(1)).into());
            import_and_exercise(&files).await;
        }
    }
    assert!(count > 300, "{count}");
}

/// Files of the host that cannot be read are reported, and the rest of the session is read.
#[cfg(unix)]
#[tokio::test]
async fn host_files_that_are_not_read_are_reported() {
    use std::os::unix::ffi::OsStrExt;
    let sessions = Sessions::new(Arc::new(MemoryStore::new()));
    let directory = tempfile::tempdir().unwrap();
    let of_tenant = directory.path().join("tenants/t");
    let of_session = of_tenant.join("sessions/s");
    for (path, content) in files() {
        let path = of_session.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    std::fs::write(of_session.join(std::ffi::OsStr::from_bytes(b"not-utf-8-\xff")), "x").unwrap();
    std::fs::File::create(of_session.join("trace/large")).unwrap().set_len((4 << 30) + 1).unwrap();
    std::os::unix::fs::symlink("messages.jsonl", of_session.join("link")).unwrap();
    std::os::unix::fs::symlink("s", of_tenant.join("sessions/linked")).unwrap();
    std::fs::create_dir_all(of_tenant.join("users/u")).unwrap();
    std::fs::create_dir_all(of_tenant.join("users/a%41")).unwrap();
    std::fs::write(of_tenant.join("users/u/diary.md"), "x").unwrap();
    let report = read_directory(&sessions, directory.path()).await.unwrap();
    assert_eq!(report.sessions.len(), 1, "{report:?}");
    let mut failed: Vec<_> = report.failures.iter().map(|(path, error)| (path.rsplit('/').next().unwrap(), error.kind())).collect();
    failed.sort_by_key(|(name, _)| *name);
    let expected = [
        ("a%41", ErrorKind::InvalidArgument),
        ("diary.md", ErrorKind::Unsupported),
        ("large", ErrorKind::TooLarge),
        ("link", ErrorKind::Unsupported),
        ("linked", ErrorKind::Unsupported),
        ("not-utf-8-\u{fffd}", ErrorKind::InvalidArgument),
    ];
    assert_eq!(failed, expected);
    assert_eq!(sessions.export_session(&session()).await.unwrap().unwrap(), files());
}

/// A line of a file: its value, the space around it, its end and the blank lines before it.
type Line = (prop::sample::Index, &'static str, &'static str, &'static str, &'static str);

fn line() -> impl Strategy<Value = Line> {
    let space = prop::sample::select(vec!["", " ", "\t ", "\r"]);
    let end = prop::sample::select(vec!["\n", "\r\n", "\n\n", "\n \r\n"]);
    let blank = prop::sample::select(vec!["", "", "\n", " \n", "\r\n"]);
    (any::<prop::sample::Index>(), space.clone(), space, end, blank)
}

/// The lines of a file, or `None` for no such file, and whether the last line has an end.
fn content() -> impl Strategy<Value = Option<(Vec<Line>, bool)>> {
    prop::option::of((prop::collection::vec(line(), 0..4), any::<bool>()))
}

fn text_of(values: &[&str], (lines, has_end): &(Vec<Line>, bool)) -> String {
    let mut text = String::new();
    for (index, (value, before, after, end, blank)) in lines.iter().enumerate() {
        text.push_str(blank);
        text.push_str(&format!("{before}{}{after}", index_of(values, value)));
        if *has_end || index + 1 < lines.len() {
            text.push_str(end);
        }
    }
    text
}

fn index_of<'v>(values: &[&'v str], index: &prop::sample::Index) -> &'v str {
    values[index.index(values.len())]
}

const MESSAGES: &[&str] = &[
    r#"{"role":"user","content":"é\u00e9","later":{"z":1.50,"a":[ ]}}"#,
    "{ \"role\" : \"user\",\r\"content\":[{\"type\":\"foo\",\"text\":5}] }",
    r#"{"role":"user","content":"[Conversation compacted at x\nArchive ID: 0001\n]"}"#,
];
const EVENTS: &[&str] = &[
    r#"{"type":"turn","turnIndex":4,"updatedAt":7,"usage":{"x":"\ud800"},"later":1.0}"#,
    r#"{"type":"update","title":null,"updatedAt":7,"x":1e999}"#,
    r#"{"type":"later","turnIndex":"x"}"#,
    "[ 1 ]",
];
const ENVELOPES: &[&str] = &[r#"{"id":"e","timestamp":"t","sequence":1.0,"source":"host","event":{"type":"later","x":"\ud800"}}"#];
const ORCHESTRATION: &[&str] = &[
    r#"{"eventId":"1","occurredAt":"t","type":"later","runId":5,"agent":5}"#,
    r#"{"eventId":"2","occurredAt":"t","runId":"r","type":"agent_spawned","agent":{"id":"a","role":"x","later":1.0}}"#,
];
const MAIL: &[&str] = &[
    r#"{"eventId":"m","type":"input_enqueued","agentId":"a/b","occurredAt":"t","inputId":"i","payload":{"z":1.0}}"#,
    r#"{"eventId":"m","type":"later","agentId":"a/b","occurredAt":"t","reason":5}"#,
];

/// The files of JSON lines, each with values for its lines.
const LINES: &[(&str, &[&str])] = &[
    ("messages.compactions/0001.jsonl", MESSAGES),
    ("messages.compactions/0007.jsonl", MESSAGES),
    ("messages.jsonl", MESSAGES),
    ("orchestration/events.jsonl", ORCHESTRATION),
    ("orchestration/subagents/a%2Fb/mailbox.jsonl", MAIL),
    ("trace/events.jsonl", ENVELOPES),
];

/// The files that are kept as they are, each with contents.
const WHOLE: &[(&str, &[&str])] = &[
    ("NOTES.md", &["", "no end", "a\r\nb\n"]),
    ("TODO.md", &["", "\n\n"]),
    ("orchestration/checkpoint.json", &["{}", "{\n  \"run\": null }\r\n\n"]),
    ("orchestration/subagents/a%2Fb/history.json", &["[]", " [\n1.0 ]\n"]),
    ("orchestration/subagents/a%2Fb/mailbox-state.json", &["{}", "{ \"processedEventCount\": 3, \"later\": 1.0 }\n"]),
    ("orchestration/subagents/a%41/history.json", &["", "no JSON"]),
    ("orchestration/subagents/a/other.txt", &["", "x"]),
    ("subagent-logs/skill-x-1.jsonl", &["", "{ }\r\n\r\nno JSON"]),
    ("subagent-logs/deep/x", &["", "x"]),
    ("tool-results/c%2F1.txt", &["", "x\r\n"]),
    ("tool-results/call%41.txt", &["", "x"]),
    ("tool-results/sub/x.txt", &["", "x"]),
    ("user-memory.json", &["", "{ }\n"]),
];

/// Returns the content that an export has for a file: as [`treehold_sessions::layout`] promises.
fn promised(path: &str, content: &str) -> String {
    if !path.ends_with(".jsonl") || path.starts_with("subagent-logs/") {
        return content.to_owned();
    }
    let lines = content.split('\n').map(|line| line.trim_ascii().replace('\r', "")).filter(|line| !line.is_empty());
    lines.map(|line| format!("{line}\n")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    /// Several numbers at once.
    #[test]
    fn session_with_extreme_numbers_imports_and_continues(
        chosen in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop::sample::select(EXTREMES)), 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let mut files = files();
        for (path, number, value) in chosen {
            let paths: Vec<String> = files.keys().cloned().collect();
            let path = path.get(&paths);
            let count = numbers(std::str::from_utf8(&files[path]).unwrap()).len();
            if count > 0 {
                files = with_number(&files, path, number.index(count), value);
            }
        }
        runtime.block_on(import_and_exercise(&files));
    }

    /// An export has the files that were imported and no others. Only the ends and the space of lines change.
    #[test]
    fn exported_files_are_what_was_imported_except_for_the_space_of_lines(
        events in (prop::collection::vec(line(), 0..4), any::<bool>()),
        lines in prop::collection::vec(content(), LINES.len()),
        whole in prop::collection::vec(prop::option::of(any::<prop::sample::Index>()), WHOLE.len()),
    ) {
        let mut given = vec![("session.jsonl", format!("{INIT}\r\n{}", text_of(EVENTS, &events)))];
        given.extend(LINES.iter().zip(&lines).filter_map(|((path, values), lines)| Some((*path, text_of(values, lines.as_ref()?)))));
        given.extend(WHOLE.iter().zip(&whole).filter_map(|((path, texts), index)| Some((*path, index_of(texts, index.as_ref()?).to_owned()))));
        let files: SessionFiles = given.iter().map(|(path, text)| ((*path).to_owned(), text.clone().into())).collect();
        let expected: SessionFiles = given.iter().map(|(path, text)| ((*path).to_owned(), promised(path, text).into())).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let sessions = Sessions::new(Arc::new(MemoryStore::new()));
            let report = sessions.import_session(&session(), &files).await.unwrap();
            assert_eq!(report.damaged, []);
            let exported = sessions.export_session(&session()).await.unwrap().unwrap();
            assert_eq!(exported, expected);
            sessions.delete("t", "s").await.unwrap();
            sessions.import_session(&session(), &exported).await.unwrap();
            assert_eq!(sessions.export_session(&session()).await.unwrap().unwrap(), exported);
        });
    }
}
