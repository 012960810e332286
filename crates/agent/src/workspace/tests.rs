//! Sessions of one workspace: shared states, mounts and watches.

use super::*;
use jiff::Timestamp;
use treehold_core::ops::Version;
use treehold_store::MemoryStore;
use treehold_tree::backend::{BackendExt, StateNode, StateSnapshot};
use treehold_tree::checkpoint::StoreCheckpointer;

fn scope(thread: &str) -> Scope {
    Scope::new().with_user("ada").with_thread(thread)
}

fn saving(store: &Arc<MemoryStore>) -> Workspace {
    Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).build()
}

#[tokio::test]
async fn sessions_of_one_thread_share_its_state() {
    let workspace = saving(&Arc::default());
    let one = workspace.session(scope("t")).await.expect("opened");
    let two = workspace.session(scope("t").with_agent("coder")).await.expect("opened");
    let other = workspace.session(scope("u")).await.expect("opened");
    let stranger = workspace.session(scope("t").with_user("bob")).await.expect("opened");
    one.backend().write("/a", "one").await.expect("written");
    assert_eq!(two.backend().read_text("/a").await.expect("shared"), "one");
    assert!(!other.backend().exists("/a").await.expect("read"));
    assert!(!stranger.backend().exists("/a").await.expect("read"));
    assert_eq!(workspace.open_threads(), 3);
    drop((one, two, other, stranger));
    assert_eq!(workspace.open_threads(), 0);
}

#[tokio::test]
async fn changes_without_a_log_are_refused_and_reads_go_on() {
    let (store, tree) = (Arc::new(MemoryStore::new()), Arc::new(StateBackend::new()));
    tree.write("/a", "before").await.expect("written");
    let unnamed = |_: &Scope| Err(Error::invalid_argument("the log has no name"));
    let workspace = Workspace::builder().feed(Feed::new(store)).backend("/shared", tree.clone()).expect("a mount");
    let workspace = workspace.with_event_log("/shared", unnamed).expect("a path").build();
    let session = workspace.session(scope("t")).await.expect("opened");
    assert_eq!(session.backend().read_text("/shared/a").await.expect("read"), "before");
    let error = session.backend().write("/shared/a", "after").await.expect_err("nobody could be told");
    assert!(error.is_without_effect(), "{error:?}");
    assert_eq!(tree.read_text("/a").await.expect("read"), "before");
}

#[tokio::test]
async fn reopened_thread_has_its_state_and_saves_only_changes() {
    let store = Arc::default();
    let session = saving(&store).session(scope("t")).await.expect("opened");
    assert!(!session.save().await.expect("nothing was read"));
    assert!(!session.backend().exists("/a").await.expect("read"));
    assert!(!session.save().await.expect("nothing changed"));
    session.backend().write("/a", "one").await.expect("written");
    assert!(session.save().await.expect("saved"));
    assert!(!session.save().await.expect("saved already"));
    let again = saving(&store).session(scope("t")).await.expect("opened");
    assert_eq!(again.backend().read_text("/a").await.expect("the state is unchanged"), "one");
    assert!(!again.save().await.expect("nothing changed"));
}

#[tokio::test]
async fn second_process_to_save_thread_gets_conflict_and_keeps_its_state() {
    let store = Arc::default();
    let (one, two) = (saving(&store).session(scope("t")).await.expect("opened"), saving(&store).session(scope("t")).await.expect("opened"));
    assert!(!two.backend().exists("/a").await.expect("both sessions start empty"));
    one.backend().write("/a", "one").await.expect("written");
    two.backend().write("/a", "two").await.expect("written");
    one.save().await.expect("the first");
    assert_eq!(two.save().await.expect_err("the second").kind(), ErrorKind::Conflict);
    assert_eq!(two.save().await.expect_err("still").kind(), ErrorKind::Conflict);
    assert_eq!(two.backend().read_text("/a").await.expect("kept"), "two");
    assert_eq!(two.save_as("t").await.expect_err("it exists").kind(), ErrorKind::AlreadyExists);
    two.save_as("t-2").await.expect("the state is saved as another thread");
    two.reload().await.expect("read again");
    assert_eq!(two.backend().read_text("/a").await.expect("as saved"), "one");
    two.backend().write("/b", "two").await.expect("written");
    two.save().await.expect("the save follows the first checkpoint");
    let aside = saving(&store).session(scope("t-2")).await.expect("opened");
    assert_eq!(aside.backend().read_text("/a").await.expect("the state is unchanged"), "two");
}

#[tokio::test]
async fn dropped_save_still_completes() {
    let store = Arc::default();
    let session = saving(&store).session(scope("t")).await.expect("opened");
    session.backend().write("/a", "one").await.expect("written");
    let save = session.save();
    drop(futures::future::select(Box::pin(save), Box::pin(tokio::task::yield_now())).await);
    session.backend().write("/a", "two").await.expect("written");
    session.save().await.expect("the dropped save was this session's own");
    let again = saving(&store).session(scope("t")).await.expect("opened");
    assert_eq!(again.backend().read_text("/a").await.expect("as saved"), "two");
}

#[test]
fn mount_of_returns_innermost_mount() {
    let shared: Arc<dyn Backend> = Arc::new(treehold_tree::backend::StateBackend::new());
    let mounted = |builder: WorkspaceBuilder, path: &str| builder.backend(path, shared.clone()).expect("a mount");
    let workspace = mounted(mounted(Workspace::builder(), "/mem"), "/mem/all/here").build();
    for (path, mount) in
        [("/", "/"), ("/a", "/"), ("/memo", "/"), ("/mem", "/mem"), ("/mem/all", "/mem"), ("/mem/all/here/a", "/mem/all/here")]
    {
        let path = VfsPathBuf::parse(path).expect("legal");
        assert_eq!(workspace.mount_of(&path).as_str(), mount, "{path}");
    }
}

#[tokio::test]
async fn watch_follows_changes_of_the_mount() {
    let store: Arc<MemoryStore> = Arc::default();
    let rows = Namespace::new(["rows"]).expect("a namespace");
    let builder = |durability| {
        let (told, rows) = (store.clone(), rows.clone());
        let builder = Workspace::builder().checkpointer(StoreCheckpointer::new(store.clone())).durability(durability);
        let builder = builder.backend("/looked-at", Arc::new(treehold_tree::backend::StateBackend::new())).expect("a mount");
        builder.with_change_source("/rows", move |_| Ok((told.clone() as Arc<dyn Store>, rows.clone()))).expect("a path")
    };
    let tree = Arc::new(treehold_tree::backend::StoreBackend::new(store.clone(), rows.clone()));
    let workspace = builder(ThreadDurability::Step).backend("/rows", tree.clone()).expect("a mount").build();
    let watch = async |workspace: &Workspace, path: &str| {
        workspace.watch(&scope("t"), &VfsPathBuf::parse(path).expect("legal")).await.expect("watched")
    };
    assert!(watch(&workspace, "/looked-at/a").await.is_none());
    let (mut own, mut shared) = (watch(&workspace, "/own.md").await.expect("told"), watch(&workspace, "/rows/a").await.expect("told"));
    tree.write("/a", "x").await.expect("written");
    shared.changed().await.expect("told");
    let session = workspace.session(scope("t")).await.expect("opened");
    session.backend().write("/own.md", "x").await.expect("written");
    session.save().await.expect("saved");
    own.changed().await.expect("told");
    // A state that is not saved after each call reports no changes.
    assert!(watch(&builder(ThreadDurability::Exit).build(), "/own.md").await.is_none());
}

#[tokio::test]
async fn mounts_open_with_the_callers_scope() {
    let workspace = Workspace::builder()
        .mount("/memories", |opening| {
            let user = opening.scope().user.clone().ok_or_else(|| Error::invalid_argument("no user"))?;
            let node = StateNode::file(user, Version::new(1), Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
            let path = VfsPathBuf::parse("/who")?;
            Ok(Arc::new(StateSnapshot::from_nodes([(path, node)], Version::new(1))?))
        })
        .expect("a legal path")
        .build();
    let session = workspace.session(scope("t")).await.expect("opened");
    assert_eq!(session.backend().read_text("/memories/who").await.expect("a file"), "ada");
    assert!(workspace.session(Scope::new().with_thread("t")).await.is_err());
    assert_eq!(workspace.session(Scope::new()).await.expect_err("no thread").kind(), ErrorKind::InvalidArgument);
}
