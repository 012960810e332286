//! The memory documents of sessions as files of the host.

#![cfg(all(feature = "mirror", unix))]
#![allow(missing_docs, clippy::unwrap_used)]

use async_trait::async_trait;
use futures::future::join_all;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::{ErrorKind, Result};
use treehold_sessions::{
    AppendOptions, CompactOptions, Consolidation, ConsolidationOptions, Consolidator, MemoMirrorOptions, MemoMirrors, MemoScope,
    MemorySummarizer, Message, NOTES, SessionRef, Sessions, SummarizeWith, TODO, USER,
};
use treehold_sqlite::SqliteStore;
use treehold_store::{MemoryStore, Store};

const TENANT: &str = "acme";

async fn session(sessions: &Sessions, user: &str, id: &str) -> SessionRef {
    sessions.get_or_create(TENANT, user, "helper", Some(id)).await.unwrap().session_ref
}

async fn write(sessions: &Sessions, owner: &str, scope: MemoScope, name: &str, text: &str) {
    sessions.write_memory_document(TENANT, owner, scope, name, text).await.unwrap();
}

/// Mirrors whose directories are only checked on request. Changes of the store arrive all the same.
fn still() -> MemoMirrorOptions {
    MemoMirrorOptions::new().with_look_every(Duration::from_secs(1 << 20))
}

async fn open(sessions: &Sessions, parent: &Path, options: MemoMirrorOptions) -> MemoMirrors {
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
async fn mirror_holds_documents_and_tool_results_and_leaves_out_empty_ones() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "notes\n").await;
    write(&sessions, "one", MemoScope::Session, TODO, "").await;
    write(&sessions, "ada", MemoScope::User, USER, "likes tea\n").await;
    sessions.write_tool_result(&session, "a/b", "result").await.unwrap();
    let mirrors = open(&sessions, parent.path(), still()).await;
    let directories = join_all((0..8).map(|_| mirrors.mirror(&session))).await;
    let directory = directories[0].as_ref().unwrap();
    assert!(directories.iter().all(|other| other.as_ref().unwrap() == directory), "concurrent calls make one mirror");
    assert_eq!(read(directory, "session/NOTES.md").as_deref(), Some("notes\n"));
    assert_eq!(read(directory, "session/tool-results/a%2Fb.txt").as_deref(), Some("result"));
    assert_eq!(read(directory, "user/USER.md").as_deref(), Some("likes tea\n"));
    assert!(!directory.join("session/TODO.md").exists());
    mirrors.close(&session).await.unwrap();
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    assert!(!mirrors.is_live(&session));
    let unknown = SessionRef::new(TENANT, "unknown").unwrap();
    assert_eq!(mirrors.mirror(&unknown).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn refresh_does_nothing_without_a_live_mirror() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    let mirrors = open(&sessions, parent.path(), still()).await;
    assert!(mirrors.refresh_memo_mirror(&session, "/session/NOTES.md").await.unwrap().is_empty());
    assert_eq!(mirrors.refresh_user_memo_mirror_for_all_sessions(TENANT, "ada", USER).await.unwrap(), 0);
    assert!(mirrors.refresh_user_memo_mirror_for_all_sessions(TENANT, "ada", "OTHER.md").await.is_err());
    assert!(mirrors.close(&session).await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn document_of_a_user_is_refreshed_in_all_sessions_of_that_user() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let mirrors = open(&sessions, parent.path(), still()).await;
    let mut directories = Vec::new();
    for (user, id) in [("ada", "one"), ("ada", "two"), ("bob", "three")] {
        let session = session(&sessions, user, id).await;
        directories.push(mirrors.mirror(&session).await.unwrap());
    }
    write(&sessions, "ada", MemoScope::User, USER, "likes tea\n").await;
    assert_eq!(mirrors.refresh_user_memo_mirror_for_all_sessions(TENANT, "ada", USER).await.unwrap(), 2);
    let texts: Vec<_> = directories.iter().map(|directory| read(directory, "user/USER.md")).collect();
    assert_eq!(texts, [Some("likes tea\n".to_owned()), Some("likes tea\n".to_owned()), None]);
    mirrors.close_all().await.unwrap();
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
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

#[tokio::test]
async fn changes_of_another_process_compaction_and_consolidation_arrive_by_themselves() {
    let (data, parent) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = || -> Arc<dyn Store> { Arc::new(SqliteStore::open(data.path().join("store.db")).unwrap()) };
    let (here, elsewhere) = (Sessions::new(store()), Sessions::new(store()));
    let session = session(&here, "ada", "one").await;
    let mirrors = open(&here, parent.path(), still()).await;
    let directory = mirrors.mirror(&session).await.unwrap();
    elsewhere.append_memory_document(TENANT, "one", MemoScope::Session, NOTES, "from elsewhere\n").await.unwrap();
    until(&directory, "session/NOTES.md", |text| text == "from elsewhere\n").await;
    let messages: Vec<Message> = (0..12).map(|number| Message::user(&format!("message {number}"), number)).collect();
    elsewhere.append(TENANT, "one", &messages, &AppendOptions::new()).await.unwrap();
    let summarizer = SummarizeWith(|_| async { Ok("the summary".to_owned()) });
    elsewhere.compact(TENANT, "one", &summarizer, &CompactOptions::new()).await.unwrap().unwrap();
    until(&directory, "session/NOTES.md", |text| text.contains("the summary")).await;
    let consolidator = Consolidator::new(elsewhere, ConsolidationOptions::default());
    consolidator.request(TENANT, "ada").await.unwrap();
    assert!(matches!(consolidator.run(TENANT, "ada", &Condensed).await.unwrap(), Consolidation::Done { .. }));
    until(&directory, "user/USER.md", |text| text.contains("consolidated")).await;
    mirrors.close_all().await.unwrap();
}

#[tokio::test]
async fn only_documents_and_tool_results_are_written_back() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "1\n2\n3\n").await;
    let mirrors = open(&sessions, parent.path(), still().with_write_back(true)).await;
    let directory = mirrors.mirror(&session).await.unwrap();
    let put = |file: &str, content: &[u8]| std::fs::write(directory.join(file), content).unwrap();
    write(&sessions, "one", MemoScope::Session, NOTES, "host\n2\n3\n").await;
    put("session/NOTES.md", b"1\n2\nsandbox\n");
    put("session/TODO.md", b"- [ ] tea\n");
    std::fs::create_dir(directory.join("session/tool-results")).unwrap();
    put("session/tool-results/call.txt", b"result");
    put("session/tool-results/a%2fb.txt", b"the name of no result");
    put("session/stranger.md", b"stranger");
    put("stranger.md", b"stranger");
    put("user/USER.md", b"\xff not text");
    let report = mirrors.refresh(&session).await.unwrap();
    assert!(report.conflicts.is_empty(), "{report:?}");
    let failed: Vec<_> = report.failures.iter().map(|event| event.path.as_str()).collect();
    for refused in ["/session/stranger.md", "/session/tool-results/a%2fb.txt", "/stranger.md", "/user/USER.md"] {
        assert!(failed.contains(&refused), "{report:?}");
    }
    let document = async |owner: &str, scope, name: &str| sessions.read_memory_document(TENANT, owner, scope, name).await.unwrap();
    assert_eq!(document("one", MemoScope::Session, NOTES).await.as_deref(), Some("host\n2\nsandbox\n"));
    assert_eq!(document("one", MemoScope::Session, TODO).await.as_deref(), Some("- [ ] tea\n"));
    assert_eq!(sessions.read_tool_result(&session, "call").await.unwrap().as_deref(), Some("result"));
    assert_eq!(document("ada", MemoScope::User, USER).await, None);
    assert!(!directory.join("session/stranger.md").exists() && !directory.join("stranger.md").exists());
    put("user/USER.md", "für\n".as_bytes());
    assert!(!mirrors.close(&session).await.unwrap().kept);
    assert_eq!(document("ada", MemoScope::User, USER).await.as_deref(), Some("für\n"));
}

#[tokio::test]
async fn mirror_of_a_live_process_is_no_leftover() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "notes\n").await;
    let mirrors = open(&sessions, parent.path(), still()).await;
    let directory = mirrors.mirror(&session).await.unwrap();
    let others = open(&sessions, parent.path(), still()).await;
    assert_eq!(read(&directory, "session/NOTES.md").as_deref(), Some("notes\n"));
    let other = others.mirror(&session).await.unwrap();
    assert_ne!(other, directory, "each process has its own");
    drop((mirrors, others));
    while std::fs::read_dir(parent.path()).unwrap().count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn mirror_of_a_deleted_session_writes_nothing_into_a_later_one() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let one = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "old\n").await;
    let mirrors = open(&sessions, parent.path(), still().with_write_back(true)).await;
    let old = mirrors.mirror(&one).await.unwrap();
    std::fs::write(old.join("session/NOTES.md"), "edited\n").unwrap();
    std::fs::write(old.join("session/TODO.md"), "edited\n").unwrap();
    sessions.delete(TENANT, "one").await.unwrap();
    assert_eq!(mirrors.mirror(&one).await.unwrap_err().kind(), ErrorKind::NotFound);
    session(&sessions, "ada", "one").await;
    mirrors.refresh(&one).await.unwrap();
    write(&sessions, "one", MemoScope::Session, TODO, "new\n").await;
    let new = mirrors.mirror(&one).await.unwrap();
    assert_ne!(new, old, "each session has its own");
    assert_eq!((read(&new, "session/NOTES.md"), read(&new, "session/TODO.md").as_deref()), (None, Some("new\n")));
    mirrors.close_all().await.unwrap();
    let document = async |name: &str| sessions.read_memory_document(TENANT, "one", MemoScope::Session, name).await.unwrap();
    assert_eq!((document(NOTES).await, document(TODO).await.as_deref()), (None, Some("new\n")));
}

#[tokio::test]
async fn mirrors_of_restricted_sessions_reach_no_other_user() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let one = session(&sessions, "ada", "one").await;
    for restricted in [sessions.for_user(TENANT, "bob"), sessions.for_user("other", "ada"), sessions.for_tenant("other")] {
        let mirrors = open(&restricted.unwrap(), parent.path(), still()).await;
        assert_eq!(mirrors.mirror(&one).await.unwrap_err().kind(), ErrorKind::NotFound);
        let refused = mirrors.refresh_user_memo_mirror_for_all_sessions(TENANT, "ada", USER).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
}

/// Nobody but a person removes them.
#[tokio::test]
async fn directory_with_edits_that_could_not_be_written_back_is_no_leftover() {
    let (sessions, parent) = (Sessions::new(Arc::new(MemoryStore::new())), tempfile::tempdir().unwrap());
    let session = session(&sessions, "ada", "one").await;
    write(&sessions, "one", MemoScope::Session, NOTES, "notes\n").await;
    let mirrors = open(&sessions, parent.path(), still().with_write_back(true)).await;
    let directory = mirrors.mirror(&session).await.unwrap();
    let unnameable = directory.join(std::ffi::OsStr::from_bytes(b"edits\xff"));
    std::fs::write(&unnameable, "edits").unwrap();
    assert!(mirrors.close(&session).await.unwrap().kept);
    let others = open(&sessions, parent.path(), still()).await;
    assert_eq!(std::fs::read_to_string(&unnameable).unwrap(), "edits");
    assert_ne!(mirrors.mirror(&session).await.unwrap(), directory);
    drop((mirrors, others));
}
