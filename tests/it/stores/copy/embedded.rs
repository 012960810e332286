//! Copies between the embedded engines.

use super::{assert_same, copied, filled, space};
use std::sync::Arc;
use treehold::store::{Batch, MemoryStore, Store};

#[tokio::test]
async fn every_engine_copies_to_every_engine() {
    let directory = tempfile::tempdir().unwrap();
    let open = |name: String| -> Vec<Arc<dyn Store>> {
        vec![
            Arc::new(MemoryStore::new()),
            Arc::new(treehold::SledStore::open(directory.path().join(format!("{name}.sled"))).unwrap()),
            Arc::new(treehold::SqliteStore::open(directory.path().join(format!("{name}.db"))).unwrap()),
        ]
    };
    let first = filled(50).await;
    let mut digests = Vec::new();
    for (number, source) in open("source".to_owned()).into_iter().enumerate() {
        copied(&first, &*source).await;
        for target in open(format!("target{number}")) {
            let report = copied(&*source, &*target).await;
            assert!(report.settled && !report.resumed && report.sent == report.rows, "{report:?}");
            assert_eq!((report.rows, report.namespaces), (51, 4));
            assert_same(&first, &*target).await;
            digests.push(report.digest.unwrap());
            let version = target.commit(Batch::new().put(&space("a"), "new", "")).await.unwrap()[0];
            assert!(version > first.current_version(&space("a").partition()).await.unwrap());
        }
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}
