//! Undo, restores and reads of the past over the state and the store tier, compared with maps of all files.

use super::*;
use crate::session::CallNotes;
use crate::tools::ToolCall;
use crate::workspace::Workspace;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use serde_json::json;
use treehold_store::{MemoryStore, Namespace};
use treehold_tree::backend::{BackendExt, HistoryPolicy};
use treehold_tree::checkpoint::StoreCheckpointer;

/// All files with their contents.
type Files = BTreeMap<VfsPathBuf, Bytes>;

const PATHS: [&str; 6] = ["/a.md", "/b.md", "/dir/c.md", "/memories/a.md", "/memories/dir/b.md", "/memories/c.md"];

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).expect("a legal path")
}

/// A workspace with the state at `/`, a history at `/memories`, and rows without one at `/plain`.
fn workspace() -> Workspace {
    let store = Arc::new(MemoryStore::new());
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
