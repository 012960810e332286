//! Live mirrors of memory documents: edits in them, files that cannot be mirrored, changes made elsewhere, and mirrors that fail.

#![cfg(all(feature = "mirror", unix))]
#![allow(missing_docs, clippy::unwrap_used)]

use async_trait::async_trait;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_sessions::{
    AppendOptions, Consolidation, ConsolidationOptions, Consolidator, MEMO_FILE_BYTES_MAX, MemoMirrorOptions, MemoMirrors, MemoScope,
    MemorySummarizer, Message, NOTES, SessionRef, Sessions, TODO, USER, user_memo,
};
use treehold_sqlite::SqliteStore;
use treehold_store::{MemoryStore, Partition, Store};
use treehold_tree::backend::{BackendExt, StoreBackend};

const TENANT: &str = "acme";

/// How many rounds of changes a mirror must follow.
const ROUNDS: u32 = 16;

/// How long they may take, two in each round. A mirror compares everything now and then, and with that alone each would take ten seconds.
const PATIENCE: Duration = Duration::from_secs(240);

async fn session(sessions: &Sessions, user: &str, id: &str) -> SessionRef {
    sessions.get_or_create(TENANT, user, "helper", Some(id)).await.unwrap().session_ref
}

async fn write(sessions: &Sessions, owner: &str, scope: MemoScope, name: &str, text: &str) {
    sessions.write_memory_document(TENANT, owner, scope, name, text).await.unwrap();
}

/// The defaults, except that directories are only checked on request. Changes of the store arrive all the same.
async fn open(sessions: &Sessions, parent: &Path) -> MemoMirrors {
    let options = MemoMirrorOptions::new().with_look_every(Duration::from_secs(1 << 20));
    MemoMirrors::open(sessions.clone(), parent, options).await.unwrap()
}

fn read(directory: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(directory.join(file)).ok()
}

/// Waits until a mirror has followed a change of the store by itself.
async fn until(directory: &Path, file: &str, is_there: impl Fn(&str) -> bool) {
    while !read(directory, file).is_some_and(|text| is_there(&text)) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn edits_in_a_mirror_are_overwritten_by_default() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "notes\n").await;
    write(&sessions, "ada", MemoScope::User, USER, "likes tea\n").await;
    sessions.write_tool_result(&session, "call", "result").await.unwrap();
    let mirrors = open(&sessions, parent.path()).await;
    let directory = mirrors.mirror(&session).await.unwrap();
    let files = ["session/NOTES.md", "session/tool-results/call.txt", "user/USER.md"];
    let directories = ["session", "session/tool-results", "user"];
    let is_read_only =
        || files.iter().chain(&directories).all(|path| directory.join(path).metadata().unwrap().permissions().mode() & 0o222 == 0);
    let texts = || files.map(|file| read(&directory, file).unwrap());
    let partition = Partition::new(["acme", "ada"]).unwrap();
    let (before, version) = (texts(), sessions.store().current_version(&partition).await.unwrap());
    assert!(is_read_only());
    for path in files.iter().chain(&directories) {
        std::fs::set_permissions(directory.join(path), Permissions::from_mode(0o755)).unwrap();
    }
    for file in files {
        std::fs::write(directory.join(file), "edited").unwrap();
    }
    std::fs::write(directory.join("session/TODO.md"), "new").unwrap();
    let report = mirrors.refresh(&session).await.unwrap();
    assert_eq!((report.written_back, report.failures.len()), (0, 0), "{report:?}");
    assert_eq!(texts(), before);
    assert!(is_read_only() && !directory.join("session/TODO.md").exists());
    assert_eq!(sessions.store().current_version(&partition).await.unwrap(), version, "nothing was written to the store");
    assert!(!mirrors.close(&session).await.unwrap().kept);
}

#[tokio::test]
async fn document_that_is_too_large_leaves_the_others_mirrored() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (sessions, parent) = (Sessions::new(store.clone()), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "notes\n").await;
    sessions.write_tool_result(&session, "call", "result").await.unwrap();
    // No call of this crate writes such a document, but other programs can.
    let documents = StoreBackend::new(store.clone(), user_memo(store, TENANT, "ada").unwrap().namespace().clone());
    documents.write("/USER.md", vec![b'x'; MEMO_FILE_BYTES_MAX + 1]).await.unwrap();
    let mirrors = open(&sessions, parent.path()).await;
    let directory = mirrors.mirror(&session).await.unwrap();
    assert_eq!(read(&directory, "session/NOTES.md").as_deref(), Some("notes\n"));
    assert_eq!(read(&directory, "session/tool-results/call.txt").as_deref(), Some("result"));
    assert!(!directory.join("user/USER.md").exists());
    let report = mirrors.refresh(&session).await.unwrap();
    let failed: Vec<_> = report.failures.iter().map(|event| event.path.as_str()).collect();
    assert_eq!(failed, ["/user/USER.md"]);
    // The mirror goes on, and takes the document once it is small enough.
    write(&sessions, "one", MemoScope::Session, TODO, "- [ ] tea\n").await;
    until(&directory, "session/TODO.md", |text| text == "- [ ] tea\n").await;
    documents.write("/USER.md", "likes tea\n").await.unwrap();
    until(&directory, "user/USER.md", |text| text == "likes tea\n").await;
    mirrors.close(&session).await.unwrap();
}

/// Only other programs store a document that is not text. It does not keep the text beside it from a sandbox.
#[tokio::test]
async fn document_that_is_not_text_leaves_the_others_mirrored() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (sessions, parent) = (Sessions::new(store.clone()), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "notes\n").await;
    user_memo(store, TENANT, "ada").unwrap().write("/USER.md", &b"\xff\x00"[..]).await.unwrap();
    let error = sessions.read_memory_document(TENANT, "ada", MemoScope::User, USER).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let mirrors = open(&sessions, parent.path()).await;
    let directory = mirrors.mirror(&session).await.unwrap();
    assert_eq!(read(&directory, "session/NOTES.md").as_deref(), Some("notes\n"));
    write(&sessions, "ada", MemoScope::User, USER, "likes tea\n").await;
    until(&directory, "user/USER.md", |text| text == "likes tea\n").await;
    mirrors.close(&session).await.unwrap();
}

struct Condensed;

#[async_trait]
impl MemorySummarizer for Condensed {
    async fn summarize_session(&self, _: &[Message]) -> Result<String> {
        Ok("tea".to_owned())
    }

    async fn consolidate(&self, _: Option<&str>, _: &[String]) -> Result<String> {
        Ok("consolidated".to_owned())
    }
}

/// Nobody refreshes these mirrors: a tool result reaches its session, and what is known of a user reaches all sessions of the user.
#[tokio::test]
async fn changes_of_another_process_reach_every_live_session_they_belong_to() {
    let (data, parent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = || -> Arc<dyn Store> { Arc::new(SqliteStore::open(data.path().join("store.db")).unwrap()) };
    let (here, elsewhere) = (Sessions::new(store()), Sessions::new(store()));
    let mirrors = open(&here, parent.path()).await;
    let mut directories = Vec::new();
    for (user, id) in [("ada", "one"), ("ada", "two"), ("bob", "three")] {
        let session = session(&here, user, id).await;
        directories.push(mirrors.mirror(&session).await.unwrap());
        let messages: Vec<Message> = (0..4).map(|number| Message::user(&format!("message {number}"), number)).collect();
        here.append(TENANT, id, &messages, &AppendOptions::new()).await.unwrap();
    }
    let [one, two, three] = directories.as_slice() else { unreachable!() };
    let of_one = SessionRef::new(TENANT, "one").unwrap();
    let changes = async {
        for round in 0..ROUNDS {
            let text = format!("round {round}");
            elsewhere.write_tool_result(&of_one, "a/b", &text).await.unwrap();
            until(one, "session/tool-results/a%2Fb.txt", |found| found == text).await;
            write(&elsewhere, "ada", MemoScope::User, USER, &text).await;
            until(one, "user/USER.md", |found| found == text).await;
            until(two, "user/USER.md", |found| found == text).await;
        }
    };
    tokio::time::timeout(PATIENCE, changes).await.unwrap();
    let consolidator = Consolidator::new(elsewhere, ConsolidationOptions::default());
    consolidator.request(TENANT, "ada").await.unwrap();
    assert!(matches!(consolidator.run(TENANT, "ada", &Condensed).await.unwrap(), Consolidation::Done { sessions: 2, .. }));
    for directory in [one, two] {
        until(directory, "user/USER.md", |text| text.starts_with("consolidated\n")).await;
    }
    let has_results = |directory: &Path| directory.join("session/tool-results").exists();
    assert!(!has_results(two) && !has_results(three) && !three.join("user/USER.md").exists());
    mirrors.close_all().await.unwrap();
}

#[tokio::test]
async fn mirror_that_fails_leaves_those_of_other_sessions_refreshed() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let mirrors = open(&sessions, parent.path()).await;
    let mut live = Vec::new();
    for number in 0..8 {
        let session = session(&sessions, "ada", &format!("s-{number}")).await;
        live.push((mirrors.mirror(&session).await.unwrap(), session));
    }
    // Somebody replaces the directories of half of them.
    let (broken, whole) = live.split_at(4);
    for (directory, _) in broken {
        std::fs::remove_dir_all(directory).unwrap();
        std::fs::write(directory, "no directory").unwrap();
    }
    write(&sessions, "ada", MemoScope::User, USER, "likes tea\n").await;
    assert_eq!(mirrors.refresh_user_memo_mirror_for_all_sessions(TENANT, "ada", USER).await.unwrap(), 8);
    for (_, session) in broken {
        assert!(!mirrors.refresh(session).await.unwrap().failures.is_empty());
    }
    for (directory, _) in whole {
        assert_eq!(read(directory, "user/USER.md").as_deref(), Some("likes tea\n"));
    }
}
