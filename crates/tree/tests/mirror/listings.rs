//! How often a mirror lists its tree.

use super::existing::existing;
use super::{Place, still, tree_of, written_back};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use treehold_core::error::Result;
use treehold_core::ops::{Op, OpKind};
use treehold_tree::backend::{Backend, BackendExt};
use treehold_tree::layer::{Layer, LayerName, Layered, Next, Reply};
use treehold_tree::mirror::Mirror;

/// Counts the listings of the root, which each listing of the whole tree begins with.
#[derive(Debug, Default)]
struct Listings(AtomicUsize);

#[async_trait]
impl Layer for Listings {
    fn name(&self) -> LayerName {
        LayerName::new("Listings")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        if op.kind == OpKind::Ls && op.path.is_root() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        next.run().await
    }
}

/// Regression: a mirror listed its tree twice at its start: a new one to find out whether the directory lies in the tree, and a resumed one
/// whether the tree was emptied.
#[tokio::test]
async fn mirror_lists_its_tree_once_when_it_opens() {
    for options in [existing(), written_back().with_keep(true), written_back(), still()] {
        let (place, listings) = (Place::new(), Arc::new(Listings::default()));
        let tree = tree_of(&[("/a", "one\n"), ("/d/b", "two\n")]).await;
        for start in ["new", "again", "again after the tree was emptied"] {
            if start.ends_with("emptied") {
                for path in ["/a", "/d/b"] {
                    tree.delete(path).await.unwrap();
                }
            }
            let inner: Arc<dyn Backend> = tree.clone();
            listings.0.store(0, Ordering::Relaxed);
            let counted = Arc::new(Layered::new(listings.clone(), inner));
            let mirror = Mirror::open(counted, None, place.directory(), options.clone()).await.unwrap();
            assert_eq!(listings.0.load(Ordering::Relaxed), 1, "{start}: {options:?}");
            mirror.close().await.unwrap();
        }
    }
}
