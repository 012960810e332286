//! Undo, restores and reads of the past over the state and the store tier, compared with maps of all files.

use super::UndoOf;
use super::undo::UNDO;
use crate::live::Lossy;
use crate::session::{CallNotes, Session, Threads};
use crate::tools::ToolCall;
use crate::workspace::Workspace;
use bytes::Bytes;
use jiff::Timestamp;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::{ApplyOptions, Author, Change, OpKind, ReadOptions, WriteMode};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_store::{MemoryStore, Namespace, Store};
use treehold_tree::backend::{Backend, BackendExt, HistoryPolicy, StoreBackend};
use treehold_tree::checkpoint::{At, PruneOptions, PutOptions, StoreCheckpointer};
use treehold_tree::layer::{Layered, Operations, Permissions, ReadOnly, Rule};

/// All files with their contents.
type Files = BTreeMap<VfsPathBuf, Bytes>;

const PATHS: [&str; 6] = ["/a.md", "/b.md", "/dir/c.md", "/memories/a.md", "/memories/dir/b.md", "/memories/c.md"];

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

fn workspace() -> Workspace {
    workspace_on(Arc::new(MemoryStore::new()))
}

/// A workspace with the state at `/`, a history at `/memories`, and rows without one at `/plain`.
fn workspace_on(store: Arc<dyn Store>) -> Workspace {
    let checkpointer = StoreCheckpointer::new(store.clone());
    let tree = move |scope: &Scope, name: &str| {
        let user = scope.user.clone().unwrap_or_default();
        Ok::<_, Error>(StoreBackend::new(store.clone(), Namespace::new([&*user, name])?))
    };
    let (memories, past, plain) = (tree.clone(), tree.clone(), tree);
    let policy = HistoryPolicy::new().with_keep_last(HistoryPolicy::KEEP_LAST_MAX);
    Workspace::builder()
        .checkpointer(checkpointer)
        .mount("/memories", move |opening| Ok(Arc::new(memories(opening.scope(), "memories")?.with_history(policy))))
        .and_then(|builder| builder.with_history("/memories", move |scope| Ok(past(scope, "memories")?.with_history(policy))))
        .and_then(|builder| builder.mount("/plain", move |opening| Ok(Arc::new(plain(opening.scope(), "plain")?))))
        .expect("two mounts")
        .build()
}

fn scope(thread: &str) -> Scope {
    Scope::new().with_user("ada").with_thread(thread)
}

async fn files(tree: &dyn Backend) -> Files {
    let mut files = Files::new();
    for path in PATHS.map(path) {
        match tree.read(&path, &ReadOptions::new()).await {
            Ok(read) => drop(files.insert(path, read.content)),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory), "{error}"),
        }
    }
    files
}

/// Runs random tool calls and undos on one thread.
async fn run(seed: u8, steps: usize) {
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut below = |end: usize| random.next_u64() as usize % end;
    let session = workspace().session(scope("t")).await.expect("opened");
    let tree = session.backend();
    // The files before each call that is not undone.
    let mut before: Vec<Files> = Vec::new();
    let mut now = Files::new();
    for step in 0..steps {
        let (one, other) = (PATHS[below(PATHS.len())], PATHS[below(PATHS.len())]);
        let call = match below(10) {
            0..5 => Some(("write_file", json!({"path": one, "content": format!("step {step}")}))),
            5 => Some(("delete", json!({"path": one}))),
            6..8 => Some(("move", json!({"from": one, "to": other, "overwrite": true}))),
            _ => None,
        };
        match call {
            Some((tool, arguments)) => {
                let call = ToolCall::from_json(tool, arguments).expect("a legal call");
                let output = session.call_with(call, CallNotes::new().with_tool_call_id(step.to_string())).await;
                let after = files(&*tree).await;
                assert!(!output.is_error || after == now, "{}", output.text);
                if after != now {
                    before.push(std::mem::replace(&mut now, after));
                }
            }
            None => match (session.undo(UndoOf::Thread).await, before.pop()) {
                (Ok(undone), Some(expected)) => {
                    now = files(&*tree).await;
                    assert_eq!(now, expected, "{undone:?}");
                    assert!(undone.author.tool.is_some_and(|tool| tool != UNDO));
                }
                (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotFound),
                (undone, expected) => panic!("{undone:?} {expected:?}"),
            },
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn undos_of_random_calls_over_all_tiers_agree_with_the_model() {
    let runs = (0..4).map(|seed| tokio::spawn(run(seed, 400)));
    for run in futures::future::join_all(runs).await {
        run.expect("agrees with the model");
    }
}

#[tokio::test]
async fn tree_of_the_past_refuses_mounts_without_history() {
    let workspace = workspace();
    let session = workspace.session(scope("t")).await.expect("opened");
    let tree = session.backend();
    for path in ["/a.md", "/memories/a.md", "/plain/a.md"] {
        tree.write(path, "old").await.expect("written");
    }
    let old = session.checkpoint(PutOptions::new().with_label("old")).await.expect("saved");
    let time = Timestamp::now().to_string();
    for path in ["/a.md", "/memories/a.md", "/plain/a.md"] {
        tree.write(path, "new").await.expect("written");
    }
    let id = old.id.to_string();
    for name in ["old", &id, &time] {
        let past = workspace.tree_as_of(&scope("t"), name).await.expect("known");
        for path in ["/a.md", "/memories/a.md"] {
            assert_eq!(past.read_text(path).await.expect("kept"), "old", "{name} {path}");
        }
        let error = past.read_text("/plain/a.md").await.expect_err("no past");
        assert_eq!((error.kind(), error.path().map(|path| path.as_str())), (ErrorKind::Unsupported, Some("/plain/a.md")), "{error}");
        assert_eq!(past.write("/memories/a.md", "x").await.expect_err("the past").kind(), ErrorKind::ReadOnly);
    }
    let error = session.log(&path("/plain/a.md"), 10).await.expect_err("no past");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(workspace.mounts_without_past().map(VfsPath::as_str).collect::<Vec<_>>(), ["/plain"]);
}

#[tokio::test]
async fn author_of_another_user_is_not_shown() {
    let store = Arc::new(MemoryStore::new());
    let shared = move || StoreBackend::new(store.clone(), Namespace::parse("team").expect("legal")).with_history(HistoryPolicy::new());
    let past = shared.clone();
    let workspace = Workspace::builder()
        .mount("/team", move |_| Ok(Arc::new(shared())))
        .and_then(|builder| builder.with_history("/team", move |_| Ok(past())))
        .expect("one mount")
        .build();
    let eve = workspace.session(Scope::new().with_user("eve").with_thread("secret plan")).await.expect("opened");
    eve.backend().write("/team/a.md", "eve's").await.expect("written");
    let ada = workspace.session(scope("t")).await.expect("opened");
    ada.backend().write("/team/a.md", "ada's").await.expect("written");
    let log = ada.log(&path("/team/a.md"), 10).await.expect("readable");
    let threads: Vec<_> = log.revisions.iter().map(|revision| revision.author.thread.as_deref()).collect();
    assert_eq!(threads, [Some("t"), None]);
    assert_eq!(log.revisions[1].author, Author::new());
    assert_eq!(ada.undo(UndoOf::User).await.expect("her own").files.len(), 1);
    assert_eq!(ada.undo(UndoOf::User).await.expect_err("not hers").kind(), ErrorKind::NotFound);
}

/// Writes a file by a tool call of a session.
async fn write(session: &Session, path: &str, content: &str) {
    let call = ToolCall::from_json("write_file", json!({"path": path, "content": content})).expect("a legal call");
    let output = session.call_with(call, CallNotes::new().with_tool_call_id("toolu_1").with_actor("coder")).await;
    assert!(!output.is_error, "{}", output.text);
}

/// Regression: an undo put back what another writer saved meanwhile too, and reported only its own call.
#[tokio::test]
async fn undo_puts_back_no_save_of_another_writer() {
    let store = Arc::new(Lossy::default());
    let (one, other) = (workspace_on(store.clone()), workspace_on(store.clone()));
    for (round, is_repeated) in [false, true].into_iter().enumerate() {
        let name = format!("t{round}");
        let (mine, theirs) = (format!("/mine{round}.md"), format!("/theirs{round}.md"));
        let session = one.session(scope(&name)).await.expect("opened");
        write(&session, "/a.md", "first").await;
        write(&session, &mine, "mine").await;
        let (other, scope_of_other, file) = (other.clone(), scope(&name), theirs.clone());
        store.before_commit(async move {
            let session = other.session(scope_of_other).await.expect("opened");
            write(&session, &file, "theirs").await;
        });
        if is_repeated {
            // The repeated undo finds the other writer's call as the newest, and says so.
            drop(session);
            let undone = Threads::new(one.clone()).undo(&scope(&name), UndoOf::Thread).await.expect("repeated");
            assert!(undone.checkpoint.is_some());
        } else {
            let error = session.undo(UndoOf::Thread).await.expect_err("saved meanwhile");
            assert!(error.kind() == ErrorKind::Conflict && error.path().is_none() && !error.may_have_effect(), "{error}");
        }
        let now = workspace_on(store.clone()).session(scope(&name)).await.expect("opened").backend();
        assert_eq!(now.read_text(&mine).await.expect("not undone"), "mine");
        assert_eq!(now.exists(&theirs).await.expect("read"), !is_repeated);
    }
}

/// Regression: a checkpoint that was made for its label counted as the newest change.
#[tokio::test]
async fn undo_skips_checkpoints_without_a_change() {
    let session = workspace().session(scope("t")).await.expect("opened");
    session.checkpoint(PutOptions::new().with_label("empty")).await.expect("saved");
    write(&session, "/a.md", "one").await;
    write(&session, "/a.md", "two").await;
    for label in ["x", "y"] {
        session.checkpoint(PutOptions::new().with_label(label)).await.expect("saved");
    }
    let tree = session.backend();
    for expected in [Some("one"), None] {
        session.undo(UndoOf::Thread).await.expect("a change");
        assert_eq!(tree.read_text("/a.md").await.ok().as_deref(), expected);
        session.checkpoint(PutOptions::new().with_label("between")).await.expect("saved");
    }
    let error = session.undo(UndoOf::Thread).await.expect_err("nothing");
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("no change that can be undone"), "{error}");
}

#[tokio::test]
async fn undo_in_a_fork_ends_at_its_first_checkpoint() {
    let workspace = workspace();
    let session = workspace.session(scope("t")).await.expect("opened");
    write(&session, "/a.md", "one").await;
    let checkpointer = workspace.checkpointer().expect("one").clone();
    checkpointer.fork(&scope("t"), At::Latest, "fork", &PutOptions::new()).await.expect("forked");
    let fork = workspace.session(scope("fork")).await.expect("opened");
    write(&fork, "/a.md", "two").await;
    fork.undo(UndoOf::Thread).await.expect("a change of the fork");
    assert_eq!(fork.backend().read_text("/a.md").await.expect("readable"), "one");
    let error = fork.undo(UndoOf::Thread).await.expect_err("a change of the other thread");
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("no change that can be undone"), "{error}");
    assert_eq!(fork.backend().read_text("/a.md").await.expect("readable"), "one");
}

/// Regression: the error asked for another checkpoint, although its caller had named none.
#[tokio::test]
async fn undo_whose_earlier_checkpoint_was_removed_says_that_it_reaches_no_further() {
    let workspace = workspace();
    let session = workspace.session(scope("t")).await.expect("opened");
    write(&session, "/a.md", "one").await;
    write(&session, "/a.md", "two").await;
    session.save().await.expect("saved");
    let checkpointer = workspace.checkpointer().expect("one").clone();
    checkpointer.prune(&scope("t"), &PruneOptions::new().with_keep_last(1)).await.expect("pruned");
    let error = session.undo(UndoOf::Thread).await.expect_err("the content before is gone");
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("undo reaches no further"), "{error}");
    assert_eq!(session.backend().read_text("/a.md").await.expect("readable"), "two");
}

/// Regression: the author had neither tenant nor user, so it was removed as that of another user.
#[tokio::test]
async fn log_of_a_state_file_names_who_made_each_version() {
    let session = workspace().session(scope("t").with_tenant("acme")).await.expect("opened");
    for (path, content) in [("/plan.md", "one"), ("/memories/plan.md", "one"), ("/plan.md", "two")] {
        write(&session, path, content).await;
    }
    for file in ["/plan.md", "/memories/plan.md"] {
        let log = session.log(&path(file), 10).await.expect("readable");
        assert!(!log.revisions.is_empty());
        for revision in log.revisions {
            let Author { tenant, user, thread, actor, tool, tool_call_id, .. } = revision.author;
            let told = [tenant, user, thread, actor, tool, tool_call_id].map(Option::unwrap_or_default);
            assert_eq!(told, ["acme", "ada", "t", "coder", "write_file", "toolu_1"], "{file}");
        }
    }
}

/// Regression: each of several mounts of the same rows was changed by itself, so the second found its file changed or read-only.
#[tokio::test]
async fn undo_and_restore_change_rows_once_that_several_mounts_show() {
    let policy = HistoryPolicy::new().with_keep_last(HistoryPolicy::KEEP_LAST_MAX);
    for mounts in [[("/aw", true), ("/ro", false)], [("/ro", false), ("/rw", true)], [("/aw", true), ("/bw", true)]] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let mut builder = Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone()));
        let tree = move || Ok::<_, Error>(StoreBackend::new(store.clone(), Namespace::new(["ada", "handbook"])?).with_history(policy));
        for (mount, is_writable) in mounts {
            let (live, past) = (tree.clone(), tree.clone());
            builder = builder
                .mount(mount, move |_| {
                    let files: Arc<dyn Backend> = Arc::new(live()?);
                    Ok(if is_writable { files } else { Arc::new(Layered::new(ReadOnly::new(), files)) })
                })
                .and_then(|builder| builder.with_history(mount, move |_| past()))
                .expect("two mounts");
        }
        let session = builder.build().session(scope("t")).await.expect("opened");
        let [first, second] = mounts.map(|(mount, _)| path(&format!("{mount}/a.md")));
        let written = if mounts[0].1 { &first } else { &second };
        let read = async |file: &VfsPathBuf| session.backend().read_text(file.as_str()).await.ok();
        for content in ["one", "two"] {
            write(&session, written.as_str(), content).await;
        }
        let undone = session.undo(UndoOf::Thread).await.expect("undone");
        assert_eq!(undone.files.iter().map(|changed| &changed.path).collect::<Vec<_>>(), [written]);
        assert_eq!((read(&first).await.as_deref(), read(&second).await.as_deref()), (Some("one"), Some("one")), "{mounts:?}");
        let restored = session.restore_files(&[first.clone(), second.clone()], "v2").await.expect("restored");
        assert_eq!(restored.iter().map(|changed| &changed.path).collect::<Vec<_>>(), [written]);
        assert_eq!((read(&first).await.as_deref(), read(&second).await.as_deref()), (Some("two"), Some("two")), "{mounts:?}");
    }
}

/// How a mount of rows is restricted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    ReadOnly,
    NoWrite,
    NoWriteOfX,
    NoWriteOfY,
    NoRead,
    Hidden,
}

impl Limit {
    const ALL: [Self; 7] = [Self::None, Self::ReadOnly, Self::NoWrite, Self::NoWriteOfX, Self::NoWriteOfY, Self::NoRead, Self::Hidden];

    /// Returns what the rules deny at a mount.
    fn denied(self, mount: &str) -> Option<(Operations, String)> {
        match self {
            Self::None | Self::ReadOnly => None,
            Self::NoWrite => Some((Operations::WRITE, mount.to_owned())),
            Self::NoWriteOfX => Some((Operations::WRITE, format!("{mount}/x"))),
            Self::NoWriteOfY => Some((Operations::WRITE, format!("{mount}/y"))),
            Self::NoRead => Some((OpKind::Read.into(), mount.to_owned())),
            Self::Hidden => Some((Operations::ALL, mount.to_owned())),
        }
    }

    fn reads(self) -> bool {
        !matches!(self, Self::NoRead | Self::Hidden)
    }

    fn writes(self, file: &str) -> bool {
        match self {
            Self::None | Self::NoRead => true,
            Self::NoWriteOfX => file != "x",
            Self::NoWriteOfY => file != "y",
            Self::ReadOnly | Self::NoWrite | Self::Hidden => false,
        }
    }
}

/// The mounts of the same rows.
const MOUNTS: [&str; 2] = ["/a", "/b"];

/// Two mounts of the same rows with a history, each within its limit.
fn limited(store: &Arc<dyn Store>, limits: [Limit; 2]) -> Workspace {
    let policy = HistoryPolicy::new().with_keep_last(HistoryPolicy::KEEP_LAST_MAX);
    let mut builder = Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone()));
    for (mount, limit) in MOUNTS.into_iter().zip(limits) {
        let store = store.clone();
        let rows = move || Ok::<_, Error>(StoreBackend::new(store.clone(), Namespace::new(["ada", "rows"])?).with_history(policy));
        let past = rows.clone();
        builder = builder
            .mount(mount, move |_| {
                let files: Arc<dyn Backend> = Arc::new(rows()?);
                Ok(if limit != Limit::ReadOnly { files } else { Arc::new(Layered::new(ReadOnly::new(), files)) })
            })
            .and_then(|builder| builder.with_history(mount, move |_| past()))
            .expect("two mounts");
    }
    let denied = MOUNTS.into_iter().zip(limits).filter_map(|(mount, limit)| limit.denied(mount));
    let rules: Vec<Rule> = denied.map(|(operations, at)| Rule::deny(operations, [at]).expect("a legal rule")).collect();
    builder.layer(move |tree, _| Arc::new(Permissions::new(rules.clone(), tree))).build()
}

/// Regression: an undo was refused by a rule about one mount of the rows, though another mount allowed it, and a restore of both paths too.
#[tokio::test]
async fn change_of_rows_that_two_mounts_show_is_made_where_the_rules_allow_it() {
    const FILES: [&str; 2] = ["x", "y"];
    // What is asked: an undo, or a restore of the files at some of the mounts.
    let asked: [Option<&[usize]>; 4] = [None, Some(&[0]), Some(&[1]), Some(&[0, 1])];
    for limits in Limit::ALL.into_iter().flat_map(|one| Limit::ALL.map(|other| [one, other])) {
        for named in asked {
            let case = format!("{limits:?} {named:?}");
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let open = limited(&store, [Limit::None; 2]).session(scope("t")).await.expect("opened");
            for content in ["one", "two"] {
                let write = |file: &str| {
                    let content = Bytes::from_static(content.as_bytes());
                    Change::Write { path: path(&format!("/b/{file}")), content, mode: WriteMode::Overwrite }
                };
                open.backend().apply(&FILES.map(write), &ApplyOptions::new()).await.expect("written");
            }
            let session = limited(&store, limits).session(scope("t")).await.expect("opened");
            let (is_allowed, done) = match named {
                None => {
                    let by_one = |file: &&str| limits.iter().any(|limit| limit.reads() && limit.writes(file));
                    let undone = session.undo(UndoOf::Thread).await;
                    (FILES.iter().all(by_one), undone.map(|undone| undone.files))
                }
                Some(named) => {
                    let by_one = |file: &&str| named.iter().any(|mount| limits[*mount].writes(file));
                    let is_allowed = named.iter().all(|mount| limits[*mount].reads()) && FILES.iter().all(by_one);
                    let paths = named.iter().flat_map(|mount| FILES.map(|file| path(&format!("{}/{file}", MOUNTS[*mount]))));
                    (is_allowed, session.restore_files(&paths.collect::<Vec<_>>(), "v1").await)
                }
            };
            match &done {
                Ok(changed) => assert_eq!(changed.len(), FILES.len(), "{case}: each file is changed once"),
                Err(error) => {
                    let kinds = [ErrorKind::PermissionDenied, ErrorKind::ReadOnly, ErrorKind::NotFound];
                    assert!(kinds.contains(&error.kind()) && !error.may_have_effect(), "{case}: {error}");
                }
            }
            assert_eq!(done.is_ok(), is_allowed, "{case}: {done:?}");
            let expected = if is_allowed { "one" } else { "two" };
            for file in FILES {
                let now = open.backend().read_text(&format!("/a/{file}")).await.expect("it is there");
                assert_eq!(now, expected, "{case} {file}");
            }
        }
    }
}
