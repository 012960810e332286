//! The host's directory layout.

use super::support::{SESSION, TENANT, USER, append, calls, reference, result, sessions, user, with_session};
use bytes::Bytes;
use std::sync::Arc;
use treehold_core::ErrorKind;
use treehold_sessions::layout::{SessionFiles, read_directory, write_directory, write_session, write_sessions};
use treehold_sessions::{
    CompactOptions, ConsolidationOptions, ConsolidationReason, Consolidator, Message, OrchestrationPersistence, SessionRef,
    SessionTraceStore, Sessions, SummarizeWith, Usage,
};
use treehold_store::{MemoryStore, Store};

/// The files of a session that a host wrote: two archives, the second of which begins with the summary of the first.
fn host_files() -> SessionFiles {
    let summary = |id: &str| {
        format!(
            r#"{{"role":"user","content":"[Conversation compacted at 2026-01-01T00:00:00.000Z. Full history preserved in messages.compactions/{id}.jsonl.\nArchive ID: {id}\n2 messages (9 tokens estimated) were compressed.\n\nSummary of compressed conversation:\nx\n]","timestamp":1}}"#
        )
    };
    let message = |number: usize| format!(r#"{{"role":"user","content":"{number}","timestamp":{number}.0,"later":{{"z":1,"a":2}}}}"#);
    let lines = |lines: &[String]| Bytes::from(lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    let call =
        r#"{"role":"assistant","content":[{"type":"toolCall","id":"c/1","name":"t","arguments":{}}],"stopReason":"toolUse"}"#.to_owned();
    let answer = r#"{"role":"toolResult","toolCallId":"c/1","toolName":"t","content":[],"isError":false}"#.to_owned();
    let text = |text: &str| Bytes::from(text.to_owned());
    SessionFiles::from([
        (
            "session.jsonl".to_owned(),
            text(concat!(
                r#"{"type":"init","sessionId":"s-1","tenantId":"acme","userId":"ada","agentId":"helper","title":null,"createdAt":1000,"x":1}"#,
                "\n",
                r#"{"type":"turn","turnIndex":0,"inputTokens":7,"outputTokens":3,"cacheReadTokens":0,"cacheWriteTokens":0,"updatedAt":2000}"#,
                "\n",
                r#"{"type":"update","title":"Tea","updatedAt":3000}"#,
                "\n",
                r#"{"type":"turn","turnIndex":1,"inputTokens":1,"outputTokens":1,"cacheReadTokens":0,"cacheWriteTokens":0,"updatedAt":4000}"#,
                "\n",
            )),
        ),
        ("messages.compactions/0001.jsonl".to_owned(), lines(&[message(0), message(1)])),
        ("messages.compactions/0002.jsonl".to_owned(), lines(&[summary("0001"), message(2), call, answer])),
        ("messages.jsonl".to_owned(), lines(&[summary("0002"), message(3), message(4)])),
        ("NOTES.md".to_owned(), text("notes without an end")),
        ("tool-results/c%2F1.txt".to_owned(), text("full text\n")),
        (
            "trace/events.jsonl".to_owned(),
            text("{\"id\":\"h-1-1\",\"timestamp\":\"t\",\"sequence\":1,\"source\":\"host\",\"event\":{\"type\":\"error\",\"b\":1}}\n"),
        ),
        (
            "orchestration/events.jsonl".to_owned(),
            text(
                "{\"eventId\":\"1\",\"occurredAt\":\"t\",\"runId\":\"r\",\"type\":\"run_started\",\"initialTask\":{\"id\":\"k\",\"kind\":\"x\",\"input\":{}}}\n",
            ),
        ),
        ("orchestration/checkpoint.json".to_owned(), text("{\n  \"run\": null,\n  \"tasks\": {},\n  \"lastEventId\": \"1\"\n}")),
        (
            "orchestration/subagents/a%2Fb/mailbox.jsonl".to_owned(),
            text(
                "{\"eventId\":\"m\",\"type\":\"input_enqueued\",\"agentId\":\"a/b\",\"occurredAt\":\"t\",\"inputId\":\"i\",\"payload\":{}}\n",
            ),
        ),
        (
            "orchestration/subagents/a%2Fb/mailbox-state.json".to_owned(),
            text("{\n  \"processedEventCount\": 1,\n  \"closeRequested\": null\n}"),
        ),
        ("orchestration/subagents/a%2Fb/history.json".to_owned(), text("[\n  {\n    \"role\": \"user\"\n  }\n]")),
        ("subagent-logs/skill-x-1.jsonl".to_owned(), text("{\"type\":\"meta\"}\n")),
        ("user-memory.json".to_owned(), text("{ \"summary\": 1 }")),
    ])
}

/// An export returns the bytes that were imported, and the imported session can be continued.
pub(crate) async fn imported_files_are_exported_byte_for_byte(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let files = host_files();
    let report = sessions.import_session(&reference(), &files).await.unwrap();
    assert_eq!((report.messages, report.damaged.len()), (9, 0), "{report:?}");
    let exported = sessions.export_session(&reference()).await.unwrap().unwrap();
    for (path, content) in &files {
        assert_eq!(exported.get(path), Some(content), "{path}");
    }
    assert_eq!(exported.len(), files.len());
    let info = sessions.info(TENANT, SESSION).await.unwrap().unwrap();
    assert_eq!((info.title.as_deref(), info.created_at, info.updated_at), (Some("Tea"), 1_000, 4_000));
    // The summaries expand, the inner one as well.
    let full: Vec<String> = sessions.load_full(TENANT, SESSION).await.unwrap().iter().map(Message::text).collect();
    assert_eq!(full, ["0", "1", "2", "", "", "3", "4"]);
    // Turns and archives continue the imported numbers.
    assert_eq!(sessions.record_turn(TENANT, SESSION, &Usage::of_tokens(1, 1).unwrap()).await.unwrap(), 2);
    append(&sessions, &[user(5), user(6), user(7), calls(&["c/1"]), result("c/1")]).await;
    let summarize = SummarizeWith(|_| async { Ok("native".to_owned()) });
    let done = sessions.compact(TENANT, SESSION, &summarize, &CompactOptions::new()).await.unwrap().unwrap();
    assert_eq!(done.archive_id, "0003");
    assert_eq!(sessions.load_full(TENANT, SESSION).await.unwrap().len(), 7 + 5);
    let again = sessions.import_session(&reference(), &files).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert!(again.message().contains("delete it first") && !again.message().contains("or import"), "{again}");
    // The advice leads to the import.
    let elsewhere = SessionRef::new(TENANT, "elsewhere").unwrap();
    let other = sessions.import_session(&elsewhere, &files).await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidArgument);
    assert!(other.message().contains(&format!("the session `{SESSION}` of the tenant `{TENANT}`")), "{other}");
    assert!(sessions.delete(TENANT, SESSION).await.unwrap());
    sessions.import_session(&reference(), &files).await.unwrap();
}

/// Archives that contain each other's summaries are each expanded once.
pub(crate) async fn archives_in_a_circle_are_expanded_once(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let mut files = host_files();
    let summary = |archive: usize| String::from_utf8(files[&format!("messages.compactions/{archive:04}.jsonl")].to_vec()).unwrap();
    let inner = summary(2).lines().next().unwrap().to_owned();
    let outer = inner.replace("0001", "0002");
    let lines = |lines: [&str; 2]| Bytes::from(format!("{}\n{}\n", lines[0], lines[1]));
    let message = |text: &str| format!(r#"{{"role":"user","content":"{text}"}}"#);
    files.insert("messages.compactions/0001.jsonl".to_owned(), lines([&outer, &message("one")]));
    files.insert("messages.compactions/0002.jsonl".to_owned(), lines([&inner, &message("two")]));
    files.insert("messages.jsonl".to_owned(), lines([&outer, &message("three")]));
    assert!(sessions.import_session(&reference(), &files).await.unwrap().damaged.is_empty());
    let texts: Vec<String> = sessions.load_full(TENANT, SESSION).await.unwrap().iter().map(Message::text).collect();
    assert!(texts[0].contains("Archive ID: 0002"), "{texts:?}");
    assert_eq!(texts[1..], ["one", "two", "three"]);
    let newest: Vec<String> = sessions.load_compacted(TENANT, SESSION, None, None).await.unwrap().iter().map(Message::text).collect();
    assert_eq!((newest.len(), newest[1].as_str(), newest[2].as_str()), (3, "one", "two"));
}

/// An import reports each damaged line with its number and reads the others.
pub(crate) async fn import_reports_damaged_lines_and_keeps_the_rest(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let mut files = host_files();
    let add = |files: &mut SessionFiles, path: &str, text: &str| {
        let mut content = files[path].to_vec();
        content.extend_from_slice(text.as_bytes());
        files.insert(path.to_owned(), content.into());
    };
    add(
        &mut files,
        "messages.jsonl",
        "{\"role\":\"oracle\",\"content\":\"x\"}\n{\"role\":\"user\",\"content\":\"last\"}\n{\"role\":\"user\",\"con",
    );
    add(&mut files, "trace/events.jsonl", "noise\n");
    add(&mut files, "session.jsonl", "\n[\n");
    files.insert("orchestration/checkpoint.json".to_owned(), Bytes::from_static(b"{"));
    let mailbox = "orchestration/subagents/a%2Fb/mailbox.jsonl";
    let state = "orchestration/subagents/a%2Fb/mailbox-state.json";
    add(
        &mut files,
        mailbox,
        "broken\n{\"eventId\":\"n\",\"type\":\"input_enqueued\",\"agentId\":\"a/b\",\"occurredAt\":\"t\",\"inputId\":\"j\"}\n",
    );
    files.insert(state.to_owned(), Bytes::from_static(b"{\"processedEventCount\":2,\"closeRequested\":null}"));
    files.insert("../escape.txt".to_owned(), Bytes::from_static(b"x"));
    let report = sessions.import_session(&reference(), &files).await.unwrap();
    let damaged: Vec<_> = report.damaged.iter().map(|damaged| (damaged.file.as_str(), damaged.line)).collect();
    assert_eq!(
        damaged,
        [
            ("../escape.txt", None),
            ("messages.jsonl", Some(4)),
            ("messages.jsonl", Some(6)),
            ("orchestration/checkpoint.json", None),
            (mailbox, Some(2)),
            ("session.jsonl", Some(6)),
            ("trace/events.jsonl", Some(2)),
        ]
    );
    assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().last().unwrap().text(), "last");
    // The count is lowered by the damaged line before it, so that no input is skipped.
    let orchestration = sessions.orchestration(reference());
    assert_eq!(orchestration.load_mailbox_state("a/b").await.unwrap().processed_event_count, 1);
    for (path, content, kind) in [
        ("session.jsonl", "{\"type\":\"turn\"}\n", ErrorKind::Corrupt),
        (
            "session.jsonl",
            "{\"type\":\"init\",\"sessionId\":\"s-2\",\"tenantId\":\"other\",\"userId\":\"u\",\"agentId\":\"a\",\"createdAt\":1}",
            ErrorKind::InvalidArgument,
        ),
    ] {
        let mut files = host_files();
        files.insert(path.to_owned(), content.into());
        let session = SessionRef::new(TENANT, "s-2").unwrap();
        assert_eq!(sessions.import_session(&session, &files).await.unwrap_err().kind(), kind);
        assert_eq!(sessions.info(TENANT, "s-2").await.unwrap(), None);
    }
}

/// A directory written from one store is read into another without a difference.
pub(crate) async fn sessions_move_between_stores_through_a_directory(store: Arc<dyn Store>) {
    let from = with_session(&store).await;
    append(&from, &(0..9).map(user).collect::<Vec<_>>()).await;
    let summarize = SummarizeWith(|_| async { Ok("short".to_owned()) });
    from.compact(TENANT, SESSION, &summarize, &CompactOptions::new()).await.unwrap().unwrap();
    append(&from, &[calls(&["c"]), result("c")]).await;
    from.write_tool_result(&reference(), "c", "full").await.unwrap();
    from.write_memory_document(TENANT, USER, treehold_sessions::MemoScope::User, "USER.md", "likes tea").await.unwrap();
    from.get_or_create(TENANT, USER, "helper", Some("a/b:c")).await.unwrap();
    Consolidator::new(from.clone(), ConsolidationOptions::default()).request(TENANT, USER).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let written = write_directory(&from, directory.path(), TENANT, USER).await.unwrap();
    assert_eq!((written.sessions.len(), written.failures.len()), (2, 0), "{written:?}");
    std::fs::create_dir_all(directory.path().join("tenants/acme/sessions/broken")).unwrap();
    let onto: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let to = Sessions::new(onto);
    let report = read_directory(&to, directory.path()).await.unwrap();
    assert_eq!((report.sessions.len(), report.failures.len()), (2, 1), "{report:?}");
    assert_eq!(report.failures[0].1.kind(), ErrorKind::Corrupt);
    for session in [reference(), SessionRef::new(TENANT, "a/b:c").unwrap()] {
        assert_eq!(to.export_session(&session).await.unwrap(), from.export_session(&session).await.unwrap());
        let full = |sessions: Sessions| {
            let session = session.clone();
            async move { sessions.load_full(session.tenant(), session.session()).await.unwrap() }
        };
        assert_eq!(full(to.clone()).await, full(from.clone()).await);
    }
    let user = to.read_memory_document(TENANT, USER, treehold_sessions::MemoScope::User, "USER.md").await.unwrap();
    assert_eq!(user.as_deref(), Some("likes tea"));
    assert!(to.trace(reference()).load_envelopes().await.unwrap().is_empty());
    let state = |sessions: &Sessions| Consolidator::new(sessions.clone(), ConsolidationOptions::default());
    assert_eq!(state(&to).state(TENANT, USER).await.unwrap(), state(&from).state(TENANT, USER).await.unwrap());
    assert_eq!(state(&to).state(TENANT, USER).await.unwrap().pending_reason, Some(ConsolidationReason::Manual));
}

/// The state of a user's consolidation is exported byte for byte. One that cannot be read is reported, and the rest is read.
pub(crate) async fn consolidation_state_survives_a_move_byte_for_byte(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let text = "{\n  \"lastCompletedAt\": 5,\n  \"pendingReason\": \"auto\",\n  \"later\": 1.50\n}\n";
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (user, state) in [("ada", text), ("bob", "{\"lastCompletedAt\":\"soon\"}"), ("eve", "{")] {
        let directory = from.path().join("tenants/acme/users").join(user);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(".memory-state.json"), state).unwrap();
        std::fs::write(directory.join("USER.md"), user).unwrap();
    }
    let report = read_directory(&sessions, from.path()).await.unwrap();
    let failed: Vec<_> = report.failures.iter().map(|(path, error)| (path.rsplit('/').nth(1).unwrap(), error.kind())).collect();
    assert_eq!(failed, [("bob", ErrorKind::InvalidArgument), ("eve", ErrorKind::InvalidArgument)]);
    for user in ["ada", "bob", "eve"] {
        let document = sessions.read_memory_document(TENANT, user, treehold_sessions::MemoScope::User, "USER.md").await.unwrap();
        assert_eq!(document.as_deref(), Some(user));
        write_directory(&sessions, to.path(), TENANT, user).await.unwrap();
    }
    let written = |user: &str| std::fs::read_to_string(to.path().join("tenants/acme/users").join(user).join(".memory-state.json")).ok();
    assert_eq!((written("ada").as_deref(), written("bob"), written("eve")), (Some(text), None, None));
    // Later runs keep the fields that this crate does not know.
    let consolidator = Consolidator::new(sessions.clone(), ConsolidationOptions::default());
    consolidator.request(TENANT, "ada").await.unwrap();
    let state = consolidator.state(TENANT, "ada").await.unwrap();
    assert_eq!((state.last_completed_at, state.more["later"].as_f64()), (Some(5), Some(1.5)));
}

fn set(files: &mut SessionFiles, path: &str, text: &str) {
    files.insert(path.to_owned(), Bytes::from(text.to_owned()));
}

/// Numbers that a session cannot continue from are reported, and the rest is read.
pub(crate) async fn numbers_out_of_range_are_reported_and_the_session_continues(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let mut files = host_files();
    for number in ["18446744073709551615", "99999999999999999999", "1000000001"] {
        set(&mut files, &format!("messages.compactions/{number}.jsonl"), "{\"role\":\"user\",\"content\":\"lost\"}\n");
    }
    let mut events = String::from_utf8(files["session.jsonl"].to_vec()).unwrap();
    for event in [
        r#"{"type":"turn","turnIndex":18446744073709551615,"updatedAt":5000}"#,
        r#"{"type":"turn","turnIndex":18446744073709551614,"updatedAt":5000}"#,
        r#"{"type":"turn","turnIndex":2,"updatedAt":9223372036854775807}"#,
        r#"{"type":"update","updatedAt":-9223372036854775808}"#,
        // A time that is possible, but later than now: the session must not stay the first in every list.
        r#"{"type":"update","updatedAt":253402200000000}"#,
    ] {
        events.push_str(&format!("{event}\n"));
    }
    set(&mut files, "session.jsonl", &events);
    let state = "orchestration/subagents/a%2Fb/mailbox-state.json";
    set(&mut files, state, r#"{"processedEventCount":18446744073709551615}"#);
    let report = sessions.import_session(&reference(), &files).await.unwrap();
    let damaged: Vec<_> = report.damaged.iter().map(|damaged| (damaged.file.as_str(), damaged.line)).collect();
    let archive = |number: &str| format!("messages.compactions/{number}.jsonl");
    let archives = ["1000000001", "18446744073709551615", "99999999999999999999"].map(archive);
    let mut expected: Vec<_> = archives.iter().map(|path| (path.as_str(), None)).collect();
    expected.push((state, None));
    expected.extend((5..=8).map(|line| ("session.jsonl", Some(line))));
    assert_eq!(damaged, expected);
    let info = sessions.info(TENANT, SESSION).await.unwrap().unwrap();
    assert!(info.updated_at < 1_900_000_000_000, "{info:?}");
    assert_eq!(sessions.record_turn(TENANT, SESSION, &Usage::of_tokens(1, 1).unwrap()).await.unwrap(), 2);
    append(&sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    let summarize = SummarizeWith(|_| async { Ok("short".to_owned()) });
    let done = sessions.compact(TENANT, SESSION, &summarize, &CompactOptions::new()).await.unwrap().unwrap();
    assert_eq!(done.archive_id, "0003");
    let exported = sessions.export_session(&reference()).await.unwrap().unwrap();
    assert_eq!(exported.keys().filter(|path| path.starts_with("messages.compactions/")).count(), 3);
    // The time of the event `init` is that of the session.
    let init = r#"{"type":"init","sessionId":"s-2","tenantId":"acme","userId":"ada","agentId":"a","createdAt":-9223372036854775808}"#;
    let files = SessionFiles::from([("session.jsonl".to_owned(), Bytes::from(init))]);
    let error = sessions.import_session(&SessionRef::new(TENANT, "s-2").unwrap(), &files).await.unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("createdAt"), "{error}");
}

/// A file that an export would give another name is not a tool result or an agent's file. It is kept as it is.
pub(crate) async fn files_under_other_names_are_kept_and_are_no_tool_results(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let mut files = host_files();
    for path in [
        "tool-results/call%41.txt",
        "tool-results/sub/x.txt",
        "tool-results/x.bin",
        "orchestration/subagents/a%41/history.json",
        "orchestration/subagents/a%41/mailbox.jsonl",
        "messages.compactions/1.jsonl",
    ] {
        set(&mut files, path, "no JSON");
    }
    let report = sessions.import_session(&reference(), &files).await.unwrap();
    assert_eq!(report.damaged, []);
    assert_eq!(sessions.list_tool_result_ids(&reference()).await.unwrap(), ["c/1"]);
    assert_eq!(sessions.export_session(&reference()).await.unwrap().unwrap(), files);
    assert!(sessions.orchestration(reference()).load_agent_history("aA").await.unwrap().is_empty());
}

/// A file that was missing stays missing, and an empty one stays empty until something is written to it.
pub(crate) async fn missing_files_stay_missing_and_empty_files_stay_empty(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let init = host_files()["session.jsonl"].clone();
    let mut files = SessionFiles::from([("session.jsonl".to_owned(), init)]);
    sessions.import_session(&reference(), &files).await.unwrap();
    assert_eq!(sessions.export_session(&reference()).await.unwrap().unwrap(), files);
    sessions.delete(TENANT, SESSION).await.unwrap();
    for path in ["messages.jsonl", "trace/events.jsonl", "orchestration/events.jsonl", "orchestration/subagents/a/mailbox.jsonl"] {
        set(&mut files, path, "");
    }
    for path in ["messages.compactions/0001.jsonl", "NOTES.md", "subagent-logs/x", "other"] {
        set(&mut files, path, "");
    }
    sessions.import_session(&reference(), &files).await.unwrap();
    assert_eq!(sessions.export_session(&reference()).await.unwrap().unwrap(), files);
    append(&sessions, &[user(1)]).await;
    let exported = sessions.export_session(&reference()).await.unwrap().unwrap();
    assert_eq!(exported["messages.jsonl"], Bytes::from(format!("{}\n", user(1).json())));
}

/// A file and a file beneath it cannot both be written to a directory, so the files are refused before the first write.
pub(crate) async fn files_beneath_files_are_refused(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    for bad in ["NOTES.md/x", "other/x/y", "session.jsonl/x", "tool-results", "tool-results/later.txt/x", "trace"] {
        let mut files = host_files();
        for path in ["other", "otherwise/x", bad] {
            set(&mut files, path, "x");
        }
        let error = sessions.import_session(&reference(), &files).await.unwrap_err();
        assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains(bad), "{error}");
        assert_eq!(sessions.info(TENANT, SESSION).await.unwrap(), None, "{bad}");
    }
}

/// A session that cannot be written is reported, and the others are written.
pub(crate) async fn export_continues_after_a_session_that_cannot_be_written(store: Arc<dyn Store>) {
    let sessions = with_session(&store).await;
    sessions.get_or_create(TENANT, USER, "helper", Some("s-2")).await.unwrap();
    sessions.write_memory_document(TENANT, USER, treehold_sessions::MemoScope::User, "USER.md", "likes tea").await.unwrap();
    let (directory, second) = (tempfile::tempdir().unwrap(), SessionRef::new(TENANT, "s-2").unwrap());
    let of_sessions = directory.path().join("tenants/acme/sessions");
    std::fs::create_dir_all(&of_sessions).unwrap();
    std::fs::write(of_sessions.join(SESSION), "in the way").unwrap();
    let report = write_directory(&sessions, directory.path(), TENANT, USER).await.unwrap();
    assert_eq!(report.sessions, std::slice::from_ref(&second));
    assert_eq!(report.failures.len(), 1, "{report:?}");
    assert!(report.failures[0].0.ends_with("sessions/s-1"), "{report:?}");
    assert!(of_sessions.join("s-2/session.jsonl").is_file() && directory.path().join("tenants/acme/users/ada/USER.md").is_file());
    let gone = SessionRef::new(TENANT, "gone").unwrap();
    let report = write_sessions(&sessions, directory.path(), &[reference(), gone, second.clone()]).await.unwrap();
    assert_eq!(report.sessions, [second]);
    assert_eq!(report.failures.iter().map(|(_, error)| error.kind()).collect::<Vec<_>>(), [ErrorKind::Internal, ErrorKind::NotFound]);
    // A directory that an agent made in place of a document is not in the way.
    let tree = treehold_sessions::session_memo(store.clone(), TENANT, USER, SESSION).unwrap();
    use treehold_tree::backend::BackendExt;
    tree.write("/NOTES.md/x", "x").await.unwrap();
    tree.write("/tool-results", "x").await.unwrap();
    assert!(sessions.export_session(&reference()).await.unwrap().is_some());
}

/// An export holds at most what one call may read, whatever part of the session it is. A directory is written part by part.
pub(crate) async fn export_over_the_limit_is_refused_and_written_to_a_directory(store: Arc<dyn Store>) {
    let all = sessions(&store);
    let files = host_files();
    let whole: usize = files.values().map(Bytes::len).sum();
    all.import_session(&reference(), &files).await.unwrap();
    let bounded = |max: usize| all.clone().with_options(all.options().clone().with_read_bytes_max(max));
    assert_eq!(bounded(whole).export_session(&reference()).await.unwrap().unwrap(), files);
    let error = bounded(whole - 1).export_session(&reference()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::TooLarge && error.message().contains("treehold session export s-1 --to DIR"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    assert!(write_session(&bounded(1), directory.path(), &reference()).await.unwrap());
    for (path, content) in &files {
        assert_eq!(std::fs::read(directory.path().join("tenants/acme/sessions/s-1").join(path)).unwrap(), *content, "{path}");
    }
    // Each part counts.
    let large = "x".repeat(whole);
    all.delete(TENANT, SESSION).await.unwrap();
    for (path, text) in [
        ("trace/events.jsonl", format!(r#"{{"id":"{large}","timestamp":"t","sequence":1,"source":"host","event":{{"type":"x"}}}}"#)),
        ("orchestration/events.jsonl", format!(r#"{{"eventId":"{large}","occurredAt":"t","type":"x"}}"#)),
        ("orchestration/subagents/a%2Fb/mailbox.jsonl", format!(r#"{{"eventId":"{large}","occurredAt":"t","agentId":"a","type":"x"}}"#)),
        ("orchestration/subagents/a%2Fb/history.json", format!("[\"{large}\"]")),
        ("orchestration/checkpoint.json", format!("{{\"x\":\"{large}\"}}")),
        ("subagent-logs/skill-x-1.jsonl", large.clone()),
        ("tool-results/c%2F1.txt", large.clone()),
        ("NOTES.md", large.clone()),
        ("other", large.clone()),
    ] {
        let mut files = files.clone();
        files.insert(path.to_owned(), text.into());
        assert_eq!(all.import_session(&reference(), &files).await.unwrap().damaged, []);
        let error = bounded(whole).export_session(&reference()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{path}");
        all.delete(TENANT, SESSION).await.unwrap();
    }
}
