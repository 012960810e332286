//! Fresh trees of every kind, for the backend cases and the histories.

#[path = "small_pages.rs"]
mod small_pages;

pub(crate) use small_pages::SmallPages;
use std::sync::Arc;
use treehold::backend::{HistoryPolicy, IndexKind};
use treehold::composite::CompositeBackend;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;
use treehold::conformance::model::ModelBackend;
use treehold::store::Partition;
use treehold::{Backend, BackendExt, MemoryStore, OverlayBackend, StateBackend, Store, StoreBackend, Subtree};

pub(crate) async fn model() -> Fresh<Tree> {
    Tree::new(ModelBackend::new()).fresh()
}

pub(crate) async fn state() -> Fresh<Tree> {
    Tree::new(StateBackend::new()).fresh()
}

/// Returns the rows of a store as a tree that commits to it.
pub(crate) fn rows_tree(store: impl Store + 'static) -> Tree {
    let store: Arc<dyn Store> = Arc::new(store);
    Tree::new(rows_in(&store)).with_store(store, partition())
}

pub(crate) fn rows_in(store: &Arc<dyn Store>) -> StoreBackend {
    StoreBackend::new(store.clone(), partition().namespace(["files"]).unwrap())
}

/// Returns the partition of the rows of trees.
pub(crate) fn partition() -> Partition {
    Partition::new(["acme", "ada"]).unwrap()
}

pub(crate) async fn store_memory() -> Fresh<Tree> {
    rows_tree(MemoryStore::new()).fresh()
}

/// Every walk and listing takes many pages.
pub(crate) async fn store_small_pages() -> Fresh<Tree> {
    rows_tree(SmallPages::default()).fresh()
}

/// Every change keeps the content that it replaces.
pub(crate) async fn store_with_history() -> Fresh<Tree> {
    let store: Arc<dyn Store> = Arc::new(SmallPages::default());
    Tree::new(rows_in(&store).with_history(HistoryPolicy::new())).with_store(store, partition()).fresh()
}

/// Every file is indexed, and searches use the index.
pub(crate) async fn store_indexed() -> Fresh<Tree> {
    let store: Arc<dyn Store> = Arc::new(SmallPages::default());
    Tree::new(rows_in(&store).with_index(IndexKind::Trigram).with_index(IndexKind::Words)).with_store(store, partition()).fresh()
}

#[cfg(feature = "sqlite")]
pub(crate) async fn store_sqlite() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteStore::open(directory.path().join("store.db")).unwrap();
    rows_tree(store).fresh().keeping(directory)
}

#[cfg(feature = "sled")]
pub(crate) async fn store_sled() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SledStore::open(directory.path().join("store.sled")).unwrap();
    rows_tree(store).fresh().keeping(directory)
}

/// Makes the tree of a store on a server.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn rows_on(store: crate::servers::OnServer) -> Fresh<Tree> {
    let (store, keep) = store;
    rows_tree(store).fresh().keeping(keep)
}

#[cfg(feature = "mysql")]
pub(crate) async fn store_mysql() -> Fresh<Tree> {
    rows_on(crate::servers::mysql::fresh().await)
}

#[cfg(feature = "postgres")]
pub(crate) async fn store_postgres() -> Fresh<Tree> {
    rows_on(crate::servers::postgres::fresh().await)
}

#[cfg(feature = "redis")]
pub(crate) async fn store_redis() -> Fresh<Tree> {
    rows_on(crate::servers::redis::fresh().await)
}

#[cfg(feature = "filesystem")]
pub(crate) async fn filesystem() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    Tree::new(treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap()).fresh().keeping(directory)
}

#[cfg(feature = "filesystem")]
/// Opens paths without `openat2`, as on any Unix system.
pub(crate) async fn filesystem_by_component() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let options = treehold::FilesystemOptions::new().with_openat2(false);
    Tree::new(treehold::FilesystemBackend::open(directory.path(), options).unwrap()).fresh().keeping(directory)
}

/// A directory of the default backend, with mounts beside it.
pub(crate) async fn composite_default() -> Fresh<Tree> {
    let default = StateBackend::new();
    default.create_dir("/w/o").await.unwrap();
    let tree = composite(default, [("/w/other", state_with_noise().await), ("/x", state_with_noise().await)]);
    Tree::new(tree).at("/w/o").fresh()
}

/// A mount of store rows, seen through the composite.
pub(crate) async fn composite_mount() -> Fresh<Tree> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let tree = composite(state_with_noise().await, [("/mem", arc(rows_in(&store))), ("/mem2", state_with_noise().await)]);
    Tree::new(tree).at("/mem").with_store(store, partition()).fresh()
}

/// A mount in a mount in a mount, each in its own composite.
pub(crate) async fn composite_nested() -> Fresh<Tree> {
    let inner = composite(state_with_noise().await, [("/c", arc(StateBackend::new()))]);
    let middle = composite(state_with_noise().await, [("/b", arc(inner))]);
    let outer = composite(state_with_noise().await, [("/a", arc(middle))]);
    Tree::new(outer).at("/a/b/c").fresh()
}

/// Mounts at three depths of one composite.
pub(crate) async fn composite_three_deep() -> Fresh<Tree> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let routes = [("/a", state_with_noise().await), ("/a/b", state_with_noise().await), ("/a/b/c", arc(rows_in(&store)))];
    Tree::new(composite(state_with_noise().await, routes)).at("/a/b/c").with_store(store, partition()).fresh()
}

/// The root of a composite. It mounts an absent file, so that every listing and search is merged.
pub(crate) async fn composite_merged() -> Fresh<Tree> {
    Tree::new(CompositeBackend::builder(arc(StateBackend::new())).file_route("/absent", absent_file()).unwrap().build().unwrap()).fresh()
}

/// The same within a mount, whose searches have a base.
pub(crate) async fn composite_merged_mount() -> Fresh<Tree> {
    let builder = CompositeBackend::builder(state_with_noise().await).route("/a/b", arc(StateBackend::new())).unwrap();
    Tree::new(builder.file_route("/a/b/absent", absent_file()).unwrap().build().unwrap()).at("/a/b").fresh()
}

/// A directory that does not exist until the first write.
pub(crate) async fn subtree() -> Fresh<Tree> {
    Tree::new(Subtree::new(arc(StateBackend::new()), "/deep/base".parse().unwrap())).fresh()
}

/// An overlay over an empty tree.
pub(crate) async fn overlay_empty() -> Fresh<Tree> {
    Tree::new(OverlayBackend::new(arc(StateBackend::new()), arc(StateBackend::new()))).fresh()
}

/// An overlay whose upper tree is in rows of a store.
pub(crate) async fn overlay_store() -> Fresh<Tree> {
    let store: Arc<dyn Store> = Arc::new(SmallPages::default());
    Tree::new(OverlayBackend::new(arc(StateBackend::new()), arc(rows_in(&store)))).with_store(store, partition()).fresh()
}

/// An overlay over a directory of a tree with other files.
pub(crate) async fn overlay_beside() -> Fresh<Tree> {
    let lower = state_with_noise().await;
    // Ignore files of the tree above apply, and this one would ignore everything.
    lower.delete("/.gitignore").await.unwrap();
    lower.create_dir("/w/o").await.unwrap();
    Tree::new(OverlayBackend::new(lower, arc(StateBackend::new()))).at("/w/o").fresh()
}

/// An overlay that hides files at the names that cases use: each was deleted through it.
pub(crate) async fn overlay_hiding() -> Fresh<Tree> {
    let lower = StateBackend::new();
    for name in ["/a/b/c", "/d/x.md", "/a.md", "/n.md/x", "/.gitignore", "/f", "/b", "/dir/file", "/src/main.rs", "/x/y/z"] {
        lower.write(name, "*\nneedle x\n").await.unwrap();
    }
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let overlay = OverlayBackend::new(arc(lower), arc(rows_in(&store)));
    let listing = overlay.ls(treehold::VfsPath::ROOT, &treehold::ops::LsOptions::new()).await.unwrap();
    for entry in listing.entries {
        overlay.delete_all(entry.path.as_str()).await.unwrap();
    }
    Tree::new(overlay).with_store(store, partition()).fresh()
}

/// An overlay over an overlay.
pub(crate) async fn overlay_nested() -> Fresh<Tree> {
    let inner = OverlayBackend::new(arc(StateBackend::new()), arc(StateBackend::new()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    Tree::new(OverlayBackend::new(arc(inner), arc(rows_in(&store)))).with_store(store, partition()).fresh()
}

/// An overlay over a directory of the host.
#[cfg(feature = "filesystem")]
pub(crate) async fn overlay_filesystem() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let lower = treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    Tree::new(OverlayBackend::new(arc(lower), arc(rows_in(&store)))).with_store(store, partition()).fresh().keeping(directory)
}

fn absent_file() -> Arc<dyn Backend> {
    arc(Subtree::file(arc(StateBackend::new()), "/file".parse().unwrap()))
}

fn composite<const N: usize>(default: impl Backend + 'static, routes: [(&str, Arc<dyn Backend>); N]) -> CompositeBackend {
    let mut builder = CompositeBackend::builder(arc(default));
    for (prefix, backend) in routes {
        builder = builder.route(prefix, backend).unwrap();
    }
    builder.build().unwrap()
}

/// A tree with files that a case must never see: outside, or hidden beneath, the tree under test.
async fn state_with_noise() -> Arc<dyn Backend> {
    let noise = StateBackend::new();
    for name in ["/noise", "/a", "/c/x", "/b/c/needle", "/mem", "/a/b/c/hidden", "/.gitignore"] {
        // Some of these paths exclude each other; refused ones are simply absent.
        let _ = noise.write(name, "*\nneedle x\n").await;
    }
    arc(noise)
}

fn arc(backend: impl Backend + 'static) -> Arc<dyn Backend> {
    Arc::new(backend)
}
