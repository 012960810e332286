//! The trees of other servers, and what is kept of them: one row each.

use crate::far::{FarSide, Fate};
use std::sync::Arc;
use stratafs::conformance::Fresh;
use stratafs::conformance::backend::Tree;
use stratafs::{BackendExt, CacheOptions, CachedBackend, RemoteBackend, RemoteOptions, StateBackend, backend_conformance};

backend_conformance!(remote, remote);
backend_conformance!(remote_beneath, remote_beneath);
backend_conformance!(remote_cached, remote_cached);
backend_conformance!(cached, cached);

/// Serves an empty tree with files beside the directory that is meant, which is not there until the first write.
async fn far(base: &str) -> (FarSide, RemoteBackend) {
    let tree = StateBackend::new();
    if base != "/" {
        tree.write("/beside/a.md", "unseen\n").await.unwrap();
    }
    let far = FarSide::serve(Arc::new(tree), |_| Fate::Served).await;
    let remote = RemoteBackend::new(&format!("{}{base}", far.url()), RemoteOptions::new()).unwrap();
    remote.connect().await.unwrap();
    (far, remote)
}

async fn remote() -> Fresh<Tree> {
    let (far, remote) = far("/").await;
    Tree::new(remote).fresh().keeping(far)
}

async fn remote_beneath() -> Fresh<Tree> {
    let (far, remote) = far("/deep/w x").await;
    Tree::new(remote).fresh().keeping(far)
}

async fn remote_cached() -> Fresh<Tree> {
    let (far, remote) = far("/").await;
    Tree::new(CachedBackend::new(remote, CacheOptions::new().with_bytes_max(100_000))).fresh().keeping(far)
}

/// A feed that says nothing, and nobody but the cache who changes anything.
async fn cached() -> Fresh<Tree> {
    let live = futures::stream::once(async { stratafs::TreeNews::Live });
    let feed = futures::StreamExt::boxed(futures::StreamExt::chain(live, futures::stream::pending()));
    Tree::new(CachedBackend::new(StateBackend::new(), CacheOptions::new()).with_feed(feed)).fresh()
}
