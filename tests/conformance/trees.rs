//! Fresh trees of every kind: what the backend cases and the histories run on.

#[path = "small_pages.rs"]
mod small_pages;

pub(crate) use small_pages::SmallPages;
use std::sync::Arc;
use treehold::backend::IndexKind;
use treehold::composite::CompositeBackend;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;
use treehold::conformance::model::ModelBackend;
use treehold::{Backend, BackendExt, MemoryStore, Namespace, OverlayBackend, StateBackend, Store, StoreBackend, Subtree};

pub(crate) async fn model() -> Fresh<Tree> {
    Tree::new(ModelBackend::new()).fresh()
}

pub(crate) async fn state() -> Fresh<Tree> {
    Tree::new(StateBackend::new()).fresh()
}

pub(crate) fn rows(store: impl Store + 'static) -> StoreBackend {
    StoreBackend::new(Arc::new(store), Namespace::new(["acme", "ada", "files"]).unwrap())
}

pub(crate) async fn store_memory() -> Fresh<Tree> {
    Tree::new(rows(MemoryStore::new())).fresh()
}

/// Every walk and listing goes over many pages.
pub(crate) async fn store_small_pages() -> Fresh<Tree> {
    Tree::new(rows(SmallPages::default())).fresh()
}

/// Every file comes into the index, and searches go by it.
pub(crate) async fn store_indexed() -> Fresh<Tree> {
    Tree::new(rows(SmallPages::default()).with_index(IndexKind::Trigram).with_index(IndexKind::Words)).fresh()
}

#[cfg(feature = "sqlite")]
pub(crate) async fn store_sqlite() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SqliteStore::open(directory.path().join("store.db")).unwrap();
    Tree::new(rows(store)).fresh().keeping(directory)
}

#[cfg(feature = "sled")]
pub(crate) async fn store_sled() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let store = treehold::store::SledStore::open(directory.path().join("store.sled")).unwrap();
    Tree::new(rows(store)).fresh().keeping(directory)
}

/// Makes the tree of a store on a server.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn rows_on(store: crate::servers::OnServer) -> Fresh<Tree> {
    let (store, keep) = store;
    Tree::new(rows(store)).fresh().keeping(keep)
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
/// The way of opening that every unix has, without `openat2`.
pub(crate) async fn filesystem_by_component() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let options = treehold::FilesystemOptions::new().with_openat2(false);
    Tree::new(treehold::FilesystemBackend::open(directory.path(), options).unwrap()).fresh().keeping(directory)
}

/// A directory of the default, with mounts beside it.
pub(crate) async fn composite_default() -> Fresh<Tree> {
    let default = StateBackend::new();
    default.create_dir("/w/o").await.unwrap();
    let tree = composite(default, [("/w/other", state_with_noise().await), ("/x", state_with_noise().await)]);
    Tree::new(tree).at("/w/o").fresh()
}

/// A mount of store rows, seen through the composite.
pub(crate) async fn composite_mount() -> Fresh<Tree> {
    let tree = composite(state_with_noise().await, [("/mem", arc(rows(MemoryStore::new()))), ("/mem2", state_with_noise().await)]);
    Tree::new(tree).at("/mem").fresh()
}

/// A mount in a mount in a mount, each in a composite of its own.
pub(crate) async fn composite_nested() -> Fresh<Tree> {
    let inner = composite(state_with_noise().await, [("/c", arc(StateBackend::new()))]);
    let middle = composite(state_with_noise().await, [("/b", arc(inner))]);
    let outer = composite(state_with_noise().await, [("/a", arc(middle))]);
    Tree::new(outer).at("/a/b/c").fresh()
}

/// Mounts at three depths of one composite.
pub(crate) async fn composite_three_deep() -> Fresh<Tree> {
    let routes = [("/a", state_with_noise().await), ("/a/b", state_with_noise().await), ("/a/b/c", arc(rows(MemoryStore::new())))];
    Tree::new(composite(state_with_noise().await, routes)).at("/a/b/c").fresh()
}

/// A composite at its root. What is mounted is a file that is not there, so that every listing and search is a merged one.
pub(crate) async fn composite_merged() -> Fresh<Tree> {
    Tree::new(CompositeBackend::builder(arc(StateBackend::new())).file_route("/absent", absent_file()).unwrap().build().unwrap()).fresh()
}

/// The same in a mount, whose searches know their base.
pub(crate) async fn composite_merged_mount() -> Fresh<Tree> {
    let builder = CompositeBackend::builder(state_with_noise().await).route("/a/b", arc(StateBackend::new())).unwrap();
    Tree::new(builder.file_route("/a/b/absent", absent_file()).unwrap().build().unwrap()).at("/a/b").fresh()
}

/// A directory that is not there until the first write.
pub(crate) async fn subtree() -> Fresh<Tree> {
    Tree::new(Subtree::new(arc(StateBackend::new()), "/deep/base".parse().unwrap())).fresh()
}

/// An overlay over a tree where nothing is.
pub(crate) async fn overlay_empty() -> Fresh<Tree> {
    Tree::new(OverlayBackend::new(arc(StateBackend::new()), arc(StateBackend::new()))).fresh()
}

/// An overlay in rows.
pub(crate) async fn overlay_store() -> Fresh<Tree> {
    Tree::new(OverlayBackend::new(arc(StateBackend::new()), arc(rows(SmallPages::default())))).fresh()
}

/// An overlay over a directory that is seen through it, in a tree with files beside it.
pub(crate) async fn overlay_beside() -> Fresh<Tree> {
    let lower = state_with_noise().await;
    // Ignore files of the tree above count, and this one ignores everything.
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
    let overlay = OverlayBackend::new(arc(lower), arc(rows(MemoryStore::new())));
    let listing = overlay.ls(treehold::VfsPath::ROOT, &treehold::ops::LsOptions::new()).await.unwrap();
    for entry in listing.entries {
        overlay.delete_all(entry.path.as_str()).await.unwrap();
    }
    Tree::new(overlay).fresh()
}

/// An overlay over an overlay.
pub(crate) async fn overlay_nested() -> Fresh<Tree> {
    let inner = OverlayBackend::new(arc(StateBackend::new()), arc(StateBackend::new()));
    Tree::new(OverlayBackend::new(arc(inner), arc(rows(MemoryStore::new())))).fresh()
}

/// An overlay over a directory of the host.
#[cfg(feature = "filesystem")]
pub(crate) async fn overlay_filesystem() -> Fresh<Tree> {
    let directory = tempfile::tempdir().unwrap();
    let lower = treehold::FilesystemBackend::open(directory.path(), treehold::FilesystemOptions::new()).unwrap();
    Tree::new(OverlayBackend::new(arc(lower), arc(rows(MemoryStore::new())))).fresh().keeping(directory)
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

/// A tree with files that a case must never meet: beside, or hidden beneath, the place where it looks.
async fn state_with_noise() -> Arc<dyn Backend> {
    let noise = StateBackend::new();
    for name in ["/noise", "/a", "/c/x", "/b/c/needle", "/mem", "/a/b/c/hidden", "/.gitignore"] {
        // Some of these are in each other's way; what is refused is not noise.
        let _ = noise.write(name, "*\nneedle x\n").await;
    }
    arc(noise)
}

fn arc(backend: impl Backend + 'static) -> Arc<dyn Backend> {
    Arc::new(backend)
}
