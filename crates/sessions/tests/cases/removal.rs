//! What deletions and imports leave for a later session with the same id: nothing, whatever runs between their steps.

use super::support::{SESSION, Staged, TENANT, USER, append, reference, sessions, sessions_with_rows, user, version};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::{ErrorKind, Result};
use treehold_sessions::layout::{self, SessionFiles};
use treehold_sessions::{
    CompactOptions, Consolidation, ConsolidationOptions, Consolidator, Ids, MemoMount, MemoScope, MemorySummarizer, Message, NOTES,
    Sessions, SummarizeWith, TODO, USER as USER_DOCUMENT,
};
use treehold_store::Store;
use treehold_tree::backend::BackendExt;

/// A session of several commits, with notes and a tool result.
fn files() -> SessionFiles {
    let init = format!(
        r#"{{"type":"init","sessionId":"{SESSION}","tenantId":"{TENANT}","userId":"{USER}","agentId":"helper","title":null,"createdAt":1}}"#
    );
    let messages: String = (0..700).map(|number| format!("{}\n", user(number).json().as_str())).collect();
    SessionFiles::from([
        ("session.jsonl".to_owned(), format!("{init}\n").into()),
        ("messages.jsonl".to_owned(), messages.into()),
        (NOTES.to_owned(), "imported".into()),
        ("tool-results/imported.txt".to_owned(), "imported".into()),
    ])
}

/// Which commit of a deletion hides the session, from 0.
const HIDES: usize = 2;

/// Opens sessions with random ids, for several of them over one store.
fn opened(store: Arc<dyn Store>) -> Sessions {
    Sessions::new(store)
}

async fn create(sessions: &Sessions) {
    sessions.get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
}

async fn notes(sessions: &Sessions) -> Option<String> {
    sessions.read_memory_document(TENANT, SESSION, MemoScope::Session, NOTES).await.unwrap()
}

/// Asserts that a session has no files.
async fn assert_no_files(store: &Arc<dyn Store>, context: &str) {
    let tree = MemoMount::of_session(store.clone(), TENANT, USER, SESSION).unwrap().tree;
    let listing = tree.ls(treehold_core::path::VfsPath::ROOT, &treehold_core::ops::LsOptions::new()).await.unwrap();
    assert!(listing.entries.is_empty(), "{context}: {:?}", listing.entries);
}

/// A session that is created during an import keeps its notes, and the import removes its own rows.
pub(crate) async fn session_created_during_an_import_keeps_its_notes(store: Arc<dyn Store>) {
    let mut is_imported = false;
    for commit in 0.. {
        let other = opened(store.clone());
        let staged = Staged::before(&store, commit, move || async move {
            create(&other).await;
            other.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "live").await.unwrap();
        });
        let imported = opened(staged.clone()).import_session(&reference(), &files()).await;
        let sessions = opened(store.clone());
        if !staged.has_run() {
            imported.unwrap();
            assert!(commit > 3, "the import has several commits");
            assert_eq!(notes(&sessions).await.as_deref(), Some("imported"));
            return;
        }
        if imported.is_ok() {
            // Only the record of the import was left to remove, so the session was there already.
            assert_eq!((notes(&sessions).await.as_deref(), is_imported), (Some("live"), false), "commit {commit}");
            is_imported = true;
            assert!(sessions.delete(TENANT, SESSION).await.unwrap());
            continue;
        }
        assert!(sessions_with_rows(&store).await <= 1, "commit {commit}: {imported:?}");
        assert_eq!(imported.unwrap_err().kind(), ErrorKind::AlreadyExists, "commit {commit}");
        assert_eq!(notes(&sessions).await.as_deref(), Some("live"), "commit {commit}");
        assert!(sessions.list_tool_result_ids(&reference()).await.unwrap().is_empty(), "commit {commit}");
        assert!(sessions.delete(TENANT, SESSION).await.unwrap());
        assert_eq!((sessions_with_rows(&store).await, sessions.sweep(TENANT, USER).await.unwrap()), (0, 0));
    }
}

/// An import that fails at any of its commits leaves nothing that a session with this id would show. A sweep removes its rows.
pub(crate) async fn failed_import_leaves_nothing_to_a_later_session(store: Arc<dyn Store>) {
    let mut is_imported = false;
    for commit in 0.. {
        let staged = Staged::failing_from(&store, commit);
        let failed = at(staged.clone(), 0).import_session(&reference(), &files()).await;
        let sessions = at(store.clone(), 0);
        if !staged.has_run() {
            failed.unwrap();
            assert!(is_imported);
            return;
        }
        if failed.is_ok() {
            // Only its record was left to remove.
            assert!(!is_imported, "commit {commit}");
            is_imported = true;
            assert_eq!(sessions.sweep(TENANT, USER).await.unwrap(), 0);
            sessions.delete(TENANT, SESSION).await.unwrap();
            continue;
        }
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
        create(&sessions).await;
        assert_no_files(&store, &format!("commit {commit}")).await;
        // The store was away, so that the import could not remove its rows. It may still be running.
        assert_eq!(sessions.sweep(TENANT, USER).await.unwrap(), 0, "commit {commit}");
        let later = at(store.clone(), 60 * 60);
        // The row of the import comes first, and the record by which a sweep finds it second.
        assert_eq!(later.sweep(TENANT, USER).await.unwrap(), usize::from(commit > 1), "commit {commit}");
        assert_eq!(sessions_with_rows(&store).await, 1, "commit {commit}");
        sessions.delete(TENANT, SESSION).await.unwrap();
    }
}

/// Opens sessions at a time, in seconds.
fn at(store: Arc<dyn Store>, second: i64) -> Sessions {
    let second = 1_800_000_000 + second;
    Sessions::new(store).with_clock(Clock::from_fn(move || jiff::Timestamp::from_second(second).unwrap()))
}

/// A sweep leaves an import in progress alone.
pub(crate) async fn sweep_during_an_import_leaves_it_alone(store: Arc<dyn Store>) {
    for commit in 0.. {
        let sweeper = opened(store.clone());
        let staged = Staged::before(&store, commit, move || async move {
            assert_eq!(sweeper.sweep(TENANT, USER).await.unwrap(), 0);
            assert_eq!(sweeper.sweep_some(9).await.unwrap(), 0);
        });
        let sessions = opened(store.clone());
        opened(staged.clone()).import_session(&reference(), &files()).await.unwrap();
        assert_eq!(sessions.load_all(TENANT, SESSION).await.unwrap().len(), 700, "commit {commit}");
        assert_eq!(notes(&sessions).await.as_deref(), Some("imported"), "commit {commit}");
        sessions.delete(TENANT, SESSION).await.unwrap();
        if !staged.has_run() {
            return;
        }
    }
}

/// An import that pauses for an hour is swept. It then fails and leaves no row.
pub(crate) async fn import_that_was_swept_fails_and_leaves_no_row(store: Arc<dyn Store>) {
    let mut is_imported = false;
    // A sweep finds an import by its record, which the second commit puts.
    for commit in 2.. {
        let now = Arc::new(AtomicI64::new(1_800_000_000));
        let clock = {
            let now = now.clone();
            Clock::from_fn(move || jiff::Timestamp::from_second(now.load(Ordering::SeqCst)).unwrap())
        };
        let sweeper = Sessions::new(store.clone()).with_clock(clock.clone());
        let swept = Arc::new(AtomicUsize::new(0));
        let count = swept.clone();
        let staged = Staged::before(&store, commit, move || async move {
            now.fetch_add(60 * 60, Ordering::SeqCst);
            count.store(sweeper.sweep_some(9).await.unwrap(), Ordering::SeqCst);
        });
        let imported = Sessions::new(staged.clone()).with_clock(clock).import_session(&reference(), &files()).await;
        if !staged.has_run() {
            assert!(imported.is_ok() && is_imported && commit > 5);
            return;
        }
        assert_eq!(swept.load(Ordering::SeqCst), usize::from(imported.is_err()), "commit {commit}");
        if imported.is_ok() {
            // Only its record was left to remove.
            assert!(!is_imported, "commit {commit}");
            is_imported = true;
            opened(store.clone()).delete(TENANT, SESSION).await.unwrap();
            continue;
        }
        let error = imported.unwrap_err();
        assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Conflict, false), "commit {commit}: {error}");
        assert_eq!(sessions_with_rows(&store).await, 0, "commit {commit}");
        assert_eq!(opened(store.clone()).info(TENANT, SESSION).await.unwrap(), None);
    }
}

/// Paths and sizes that cannot be stored are refused before the first write.
pub(crate) async fn import_with_a_path_beneath_a_file_writes_nothing(store: Arc<dyn Store>) {
    let sessions = sessions(&store);
    let before = version(&store).await;
    for (path, kind) in [
        ("tool-results/imported.txt/more.txt", ErrorKind::InvalidArgument),
        ("NOTES.md/more.md", ErrorKind::InvalidArgument),
        ("TODO.md/more.md", ErrorKind::InvalidArgument),
        ("messages.jsonl/x", ErrorKind::InvalidArgument),
        ("TODO.md", ErrorKind::TooLarge),
    ] {
        let mut files = files();
        let content = if kind == ErrorKind::TooLarge { "x".repeat((64 << 20) + 1) } else { "x".to_owned() };
        files.insert(path.to_owned(), content.into());
        let error = sessions.import_session(&reference(), &files).await.unwrap_err();
        assert_eq!((error.kind(), version(&store).await), (kind, before), "{path}: {error}");
    }
    // Names that no tool result has are files of their own.
    let mut files = files();
    for other in ["tool-results/a%2fb.txt", "tool-results/more/x.txt"] {
        files.insert(other.to_owned(), "other".into());
    }
    sessions.import_session(&reference(), &files).await.unwrap();
    let exported = sessions.export_session(&reference()).await.unwrap().unwrap();
    assert!(files.iter().all(|(path, content)| exported.get(path) == Some(content)), "{:?}", exported.keys());
}

type Writer = fn(Sessions) -> BoxFuture<'static, Result<()>>;

/// Every way to write a file of a session.
const WRITERS: &[(&str, Writer)] = &[
    ("write", |sessions| async move { sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "old").await }.boxed()),
    ("write on a condition", |sessions| {
        let mode = treehold_core::ops::WriteMode::CreateNew;
        async move { sessions.write_memory_file(TENANT, SESSION, MemoScope::Session, TODO, "old".to_owned(), mode).await.map(drop) }.boxed()
    }),
    ("append", |sessions| async move { sessions.append_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "old").await }.boxed()),
    ("tool result", |sessions| async move { sessions.write_tool_result(&reference(), "old", "old").await }.boxed()),
    ("mount", |sessions| {
        async move {
            let mount = MemoMount::of_session(sessions.store().clone(), TENANT, USER, SESSION)?;
            mount.tree.write("/some/file.md", "old").await.map(drop)
        }
        .boxed()
    }),
    ("compaction", |sessions| {
        async move {
            let summarizer = SummarizeWith(|_| async { Ok("old".to_owned()) });
            sessions.compact(TENANT, SESSION, &summarizer, &CompactOptions::new()).await.map(drop)
        }
        .boxed()
    }),
];

/// A session with notes and enough messages to compact.
async fn create_with_files(sessions: &Sessions) {
    create(sessions).await;
    append(sessions, &(0..8).map(user).collect::<Vec<_>>()).await;
    sessions.write_memory_document(TENANT, SESSION, MemoScope::Session, NOTES, "first").await.unwrap();
}

/// A write that began before the deletion of its session never reaches a later session with the same id.
pub(crate) async fn write_overtaken_by_a_deletion_never_reaches_a_later_session(store: Arc<dyn Store>) {
    let sessions = opened(store.clone());
    for (name, write) in WRITERS {
        for commit in 0.. {
            create_with_files(&sessions).await;
            let other = sessions.clone();
            let staged = Staged::before(&store, commit, move || async move {
                assert!(other.delete(TENANT, SESSION).await.unwrap());
                create(&other).await;
            });
            let written = write(opened(staged.clone())).await;
            if !staged.has_run() {
                assert!(commit > 0, "{name}");
                written.unwrap();
                sessions.delete(TENANT, SESSION).await.unwrap();
                break;
            }
            if let Err(error) = written {
                assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::NotFound, false), "{name} {commit}: {error}");
            } else {
                assert_eq!(*name, "compaction", "the session of the call is gone");
            }
            assert_no_files(&store, &format!("{name} {commit}")).await;
            sessions.delete(TENANT, SESSION).await.unwrap();
            assert_eq!(sessions_with_rows(&store).await, 0, "{name} {commit}");
        }
    }
}

/// A write between two steps of a deletion never reaches a later session with the same id.
pub(crate) async fn write_during_a_deletion_never_reaches_a_later_session(store: Arc<dyn Store>) {
    let sessions = opened(store.clone());
    for (name, write) in WRITERS {
        for commit in 0.. {
            create_with_files(&sessions).await;
            let writing = write(sessions.clone());
            let staged = Staged::before(&store, commit, move || async move {
                if let Err(error) = writing.await {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                }
            });
            assert!(opened(staged.clone()).delete(TENANT, SESSION).await.unwrap(), "{name} {commit}");
            assert_eq!(sessions_with_rows(&store).await, 0, "{name} {commit}");
            create(&sessions).await;
            assert_no_files(&store, &format!("{name} {commit}")).await;
            sessions.delete(TENANT, SESSION).await.unwrap();
            if !staged.has_run() {
                break;
            }
        }
    }
}

/// A deletion that is killed leaves a whole session or none.
pub(crate) async fn deletion_that_is_killed_leaves_all_files_or_none(store: Arc<dyn Store>) {
    let sessions = opened(store.clone());
    for commit in 0.. {
        create_with_files(&sessions).await;
        let staged = Staged::failing_from(&store, commit);
        let deleted = opened(staged.clone()).delete(TENANT, SESSION).await;
        if !staged.has_run() {
            assert!(deleted.unwrap() && commit > HIDES + 1);
            return;
        }
        // Once the session is gone, the deletion has succeeded.
        assert_eq!(deleted.map_err(|error| error.kind()), if commit <= HIDES { Err(ErrorKind::Unavailable) } else { Ok(true) });
        if commit <= HIDES {
            assert_eq!(notes(&sessions).await.as_deref(), Some("first"));
            continue;
        }
        assert_eq!(sessions.info(TENANT, SESSION).await.unwrap(), None);
        create(&sessions).await;
        assert_no_files(&store, &format!("commit {commit}")).await;
        assert_eq!(sessions.sweep_some(1).await.unwrap(), 1);
        assert_eq!(sessions_with_rows(&store).await, 1);
        sessions.delete(TENANT, SESSION).await.unwrap();
    }
}

/// One deletion died before it took effect. Between two commits of the sweep that finds it, another one takes effect and dies.
pub(crate) async fn deletion_beside_a_sweep_of_an_earlier_one_is_finished(store: Arc<dyn Store>) {
    for commit in 0.. {
        at(store.clone(), 0).get_or_create(TENANT, USER, "helper", Some(SESSION)).await.unwrap();
        assert!(at(Staged::failing_from(&store, HIDES), 0).delete(TENANT, SESSION).await.is_err());
        let dying = at(Staged::failing_from(&store, HIDES + 1), 120);
        let staged = Staged::before(&store, commit, move || async move {
            assert!(dying.delete(TENANT, SESSION).await.unwrap());
        });
        at(staged.clone(), 120).sweep_some(9).await.unwrap();
        let later = at(store.clone(), 240);
        if !staged.has_run() {
            assert!(commit > 1 && later.delete(TENANT, SESSION).await.unwrap());
            return;
        }
        later.sweep_some(9).await.unwrap();
        assert_eq!(sessions_with_rows(&store).await, 0, "commit {commit}");
        assert!(later.get_or_create(TENANT, "bob", "helper", Some(SESSION)).await.unwrap().created, "the id is free");
        assert!(later.delete(TENANT, SESSION).await.unwrap());
    }
}

/// Of two creations at once one is late. It leaves nothing that keeps the id from another user after the deletion.
pub(crate) async fn creation_that_lost_a_race_leaves_the_id_free_for_others(store: Arc<dyn Store>) {
    let sessions = opened(store.clone());
    for commit in 0.. {
        let faster = sessions.clone();
        let staged = Staged::before(&store, commit, move || async move { create(&faster).await });
        create(&opened(staged.clone())).await;
        assert!(sessions.delete(TENANT, SESSION).await.unwrap());
        let of_another = sessions.get_or_create(TENANT, "bob", "helper", Some(SESSION)).await;
        assert!(of_another.is_ok_and(|handle| handle.created), "commit {commit}");
        assert!(sessions.delete(TENANT, SESSION).await.unwrap());
        if !staged.has_run() {
            assert!(commit > 2);
            return;
        }
    }
}

/// A sweep removes as many sessions as it may, of accessible users only.
pub(crate) async fn sweep_removes_a_bounded_number_of_accessible_sessions(store: Arc<dyn Store>) {
    let all = opened(store.clone());
    let killed = async |tenant: &str, user: &str, session: &str| {
        all.get_or_create(tenant, user, "helper", Some(session)).await.unwrap();
        assert!(opened(Staged::failing_from(&store, HIDES + 1)).delete(tenant, session).await.unwrap());
    };
    for session in ["1", "2", "3"] {
        killed(TENANT, USER, session).await;
    }
    killed(TENANT, "bob", "4").await;
    killed("other", USER, "5").await;
    assert_eq!(all.for_user("other", "bob").unwrap().sweep_some(9).await.unwrap(), 0);
    assert_eq!(all.for_user(TENANT, "bob").unwrap().sweep_some(9).await.unwrap(), 1);
    assert_eq!(all.for_tenant("other").unwrap().sweep_some(9).await.unwrap(), 1);
    assert_eq!(all.for_user(TENANT, "bob").unwrap().sweep(TENANT, USER).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    for expected in [2, 1, 0] {
        assert_eq!(all.sweep_some(2).await.unwrap(), expected);
    }
    assert_eq!(sessions_with_rows(&store).await, 0);
}

/// Equal data ids of different users, such as numbers, are removed each.
pub(crate) async fn removals_of_equal_data_ids_are_kept_apart(store: Arc<dyn Store>) {
    let numbered = |store: Arc<dyn Store>| Sessions::new(store).with_ids(Ids::from_fn(|| "1".to_owned()));
    for user in ["ada", "bob"] {
        numbered(store.clone()).get_or_create(TENANT, user, "helper", Some(user)).await.unwrap();
    }
    for user in ["ada", "bob"] {
        assert!(numbered(Staged::failing_from(&store, HIDES + 1)).delete(TENANT, user).await.unwrap());
    }
    assert_eq!(numbered(store.clone()).sweep_some(9).await.unwrap(), 2);
    assert_eq!(sessions_with_rows(&store).await, 0);
}

/// Answers with the text of the first message.
struct First;

#[async_trait]
impl MemorySummarizer for First {
    async fn summarize_session(&self, messages: &[Message]) -> Result<String> {
        Ok(messages[0].text())
    }

    async fn consolidate(&self, _: Option<&str>, summaries: &[String]) -> Result<String> {
        Ok(summaries.join(","))
    }
}

/// The cached summary of a deleted session is not that of a later one with the same id, even if the later one is of an earlier time.
pub(crate) async fn summary_of_a_deleted_session_is_not_reused(store: Arc<dyn Store>) {
    let sessions = opened(store.clone());
    let run = async |sessions: Sessions| {
        let mut options = ConsolidationOptions::default();
        (options.idle, options.messages_min) = (Duration::ZERO, 1);
        let done = Consolidator::new(sessions, options).run(TENANT, USER, &First).await.unwrap();
        assert!(matches!(done, Consolidation::Done { .. }), "{done:?}");
    };
    let user_document = async || sessions.read_memory_document(TENANT, USER, MemoScope::User, USER_DOCUMENT).await.unwrap().unwrap();
    create(&sessions).await;
    append(&sessions, &[Message::user("secret", 1)]).await;
    run(sessions.clone()).await;
    assert!(user_document().await.contains("secret"));
    sessions.delete(TENANT, SESSION).await.unwrap();
    sessions.import_session(&reference(), &files()).await.unwrap();
    // The state of a host makes the next run due without reading every session again.
    let state = r#"{"pendingReason":"auto"}"#;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tenants").join(TENANT).join("users").join(USER);
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join(".memory-state.json"), state).unwrap();
    layout::read_directory(&sessions, directory.path()).await.unwrap();
    run(sessions.clone()).await;
    let text = user_document().await;
    assert!(!text.contains("secret") && text.contains(&user(0).text()), "{text}");
}
