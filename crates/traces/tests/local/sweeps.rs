//! Sweeps of more than one page or step. Pages of one row make a small trace a large one.

use crate::cases::removal::HIDES;
use crate::cases::support::{Stage, Staged, TENANT, USER, address, all, begin, fill, rows_of_traces, traces};
use std::sync::Arc;
use treehold_core::error::ErrorKind;
use treehold_core::reserved::TRACES;
use treehold_store::{Batch, MemoryStore, Namespace, Pace, PacedStore, Partition, Store};
use treehold_traces::TraceStore;

/// How many commits a sweep makes at most for each trace that it may remove.
const STEPS: usize = 32;

/// Returns the store with pages of one row, at a rate that does not matter.
fn in_small_pages(store: &Arc<dyn Store>) -> Arc<dyn Store> {
    let mut pace = Pace::new().with_rows_per_second(u32::MAX);
    pace.page_rows = 1;
    Arc::new(PacedStore::new(store.clone(), pace))
}

/// Returns the number of rows beneath the data of all traces.
async fn data_rows(store: &Arc<dyn Store>) -> usize {
    rows_of_traces(store).await.iter().filter(|row| row.contains("/data/")).count()
}

// The clock of the tests advances by itself while every task waits.
#[tokio::test(start_paused = true)]
async fn large_trace_is_removed_in_bounded_calls_or_in_one_call_without_a_bound() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let own = traces(&store);
    begin(&own).await;
    fill(&own, 4 * STEPS).await;
    let dying: Arc<dyn Store> = Staged::new(&store, HIDES + 1, Stage::Dead);
    assert!(traces(&dying).delete_trace(&address()).await.unwrap());
    let (sweeping, mut left) = (all(&in_small_pages(&store)), data_rows(&store).await);
    for traces_max in [1, 2] {
        assert_eq!(sweeping.sweep_some(traces_max).await.unwrap(), 0, "{traces_max}");
        left -= traces_max * STEPS;
        assert_eq!(data_rows(&store).await, left, "{traces_max}");
    }
    assert!(left > STEPS);
    assert_eq!(sweeping.sweep_some(usize::MAX).await.unwrap(), 1);
    assert_eq!(rows_of_traces(&store).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn damaged_record_of_an_import_is_named_and_does_not_stop_the_others() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let insertions = Namespace::new(["_treehold", "traces", "_treehold", "insertions"]).unwrap();
    // This key sorts before the others.
    store.commit(Batch::new().put(&insertions, "a damaged row", "{")).await.unwrap();
    for data in ["d", "e"] {
        let messages = Partition::new([TENANT, USER]).unwrap().namespace(TRACES.into_iter().chain(["data", data, "messages"])).unwrap();
        store.commit(Batch::new().put(&messages, "1", "a message")).await.unwrap();
        let import = format!(r#"{{"removal":{{"tenant":"{TENANT}","user":"{USER}","trace":"t","data":"{data}"}}}}"#);
        store.commit(Batch::new().put(&insertions, format!("{TENANT}\u{1}{USER}\u{1}{data}"), import)).await.unwrap();
    }
    let sweeping = all(&in_small_pages(&store));
    for (traces_max, data_left) in [(1, 1), (usize::MAX, 0)] {
        let error = sweeping.sweep_some(traces_max).await.expect_err("the damaged record is reported");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("`a damaged row` of an import"), "{error}");
        assert_eq!(data_rows(&store).await, data_left, "{traces_max}");
    }
    assert_eq!(rows_of_traces(&store).await, [format!("{insertions} a damaged row")]);
}
