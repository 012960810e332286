//! The composite where a tree can stand in it, and the subtree: each a row of the backend cases.

use std::sync::Arc;
use stratafs::backend_conformance;
use stratafs::composite::CompositeBuilder;
use stratafs::conformance::Fresh;
use stratafs::conformance::backend::Tree;
use stratafs::{Backend, CompositeBackend, StateBackend, Subtree, VfsPathBuf};

async fn fresh_subtree() -> Fresh<Tree> {
    Tree::new(Subtree::new(Arc::new(StateBackend::new()), path("/deep/base"))).fresh()
}

backend_conformance!(subtree, fresh_subtree);

/// A composite at its root. What is mounted is a file that is not there, so that every listing and search is a merged one.
async fn fresh_at_root() -> Fresh<Tree> {
    Tree::new(with_absent_file(CompositeBackend::builder(state()), "/absent").build().unwrap()).fresh()
}

backend_conformance!(at_root, fresh_at_root);

async fn fresh_mount() -> Fresh<Tree> {
    Tree::new(composite()).at("/memories").fresh()
}

backend_conformance!(mount, fresh_mount);

/// A mount within a mount, with one in it.
async fn fresh_nested() -> Fresh<Tree> {
    Tree::new(composite()).at("/a/b").fresh()
}

backend_conformance!(nested, fresh_nested);

async fn fresh_of_composites() -> Fresh<Tree> {
    let outer = CompositeBackend::builder(state()).route("/outer", Arc::new(composite())).unwrap().build().unwrap();
    Tree::new(outer).at("/outer/a/b").fresh()
}

backend_conformance!(of_composites, fresh_of_composites);

fn composite() -> CompositeBackend {
    let builder = CompositeBackend::builder(state()).routes([("/memories", state()), ("/a", state()), ("/a/b", state())]).unwrap();
    with_absent_file(builder, "/a/b/absent").build().unwrap()
}

fn with_absent_file(builder: CompositeBuilder, prefix: &str) -> CompositeBuilder {
    builder.file_route(prefix, Arc::new(Subtree::file(state(), path("/file")))).unwrap()
}

fn state() -> Arc<dyn Backend> {
    Arc::new(StateBackend::new())
}

fn path(text: &str) -> VfsPathBuf {
    VfsPathBuf::parse(text).unwrap()
}
