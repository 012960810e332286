//! Deletions and what remains of them.

use super::kills;
use super::support::{Stage, Staged, TENANT, USER, add, address, all, begin, fill, id, rows, rows_of_traces, text, traces, whole};
use std::sync::Arc;
use std::time::Duration;
use treehold_core::clock::Clock;
use treehold_core::error::ErrorKind;
use treehold_core::reserved::TRACES;
use treehold_store::{Batch, Namespace, Partition, Store};
use treehold_traces::{AddOptions, NewGoal, NewTrace, StoredTraces, TraceStatus, TraceStore, Traces, TracesQuery};

/// Which commit of a deletion hides the trace, from 0.
pub(crate) const HIDES: usize = 2;

async fn populate(traces: &StoredTraces) {
    begin(traces).await;
    traces.add_goal(&address(), NewGoal::new("x")).await.unwrap();
    let own = text("b").with_id("own").with_goal("1").with_usage(1, 0.5);
    traces.add_messages(&address(), vec![text("a"), own], &AddOptions::new().with_idempotency_key("k")).await.unwrap();
}

pub(crate) async fn deleted_trace_leaves_no_rows(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let _claim = own.claim_run(&id(), Duration::from_secs(60)).await.unwrap();
    assert!(own.delete_trace(&address()).await.unwrap());
    assert_eq!(rows_of_traces(&store).await, Vec::<String>::new());
    assert_eq!(own.list_traces(&TracesQuery::new()).await.unwrap().total, 0);
}

pub(crate) async fn interrupted_deletion_is_finished_by_a_sweep(store: Arc<dyn Store>) {
    let own = traces(&store);
    for killed_at in 0.. {
        populate(&own).await;
        let staged = Staged::new(&store, killed_at, Stage::Dead);
        let dying: Arc<dyn Store> = staged.clone();
        let deleted = traces(&dying).delete_trace(&address()).await;
        if !staged.was_reached() {
            assert!(killed_at > HIDES + 3, "{killed_at} commits");
            break;
        }
        if killed_at <= HIDES {
            assert!(deleted.is_err());
            assert_eq!(whole(&own).await.messages.len(), 2);
            assert!(own.delete_trace(&address()).await.unwrap());
        } else {
            assert!(deleted.unwrap(), "the trace is gone");
            assert_eq!(own.get_trace(&address()).await.unwrap(), None);
            assert!(!rows_of_traces(&store).await.is_empty());
            assert_eq!(all(&store).sweep_some(9).await.unwrap(), 1);
        }
        assert_eq!(rows_of_traces(&store).await, Vec::<String>::new(), "killed at commit {killed_at}");
    }
    assert_eq!(all(&store).sweep_some(9).await.unwrap(), 0);
}

/// Opens the traces of all users at a time, in seconds.
fn at(store: &Arc<dyn Store>, second: i64) -> Traces {
    let now = jiff::Timestamp::from_second(1_800_000_000 + second).unwrap();
    Traces::new(store.clone()).with_clock(Clock::from_fn(move || now))
}

fn own_at(store: &Arc<dyn Store>, second: i64) -> StoredTraces {
    at(store, second).for_user(TENANT, USER).unwrap()
}

/// One deletion died before it took effect. Between two commits of the sweep that finds it, another one takes effect and dies.
pub(crate) async fn deletion_beside_a_sweep_of_an_earlier_one_is_finished(store: Arc<dyn Store>) {
    for commit in 0.. {
        begin(&own_at(&store, 0)).await;
        let dead: Arc<dyn Store> = Staged::new(&store, HIDES, Stage::Dead);
        assert!(own_at(&dead, 0).delete_trace(&address()).await.is_err());
        let dying: Arc<dyn Store> = Staged::new(&store, HIDES + 1, Stage::Dead);
        let staged = Staged::before(&store, commit, move || async move {
            assert!(own_at(&dying, 120).delete_trace(&address()).await.unwrap());
        });
        let sweeping: Arc<dyn Store> = staged.clone();
        at(&sweeping, 120).sweep_some(9).await.unwrap();
        if !staged.was_reached() {
            assert!(commit > 1 && own_at(&store, 240).delete_trace(&address()).await.unwrap());
            return;
        }
        at(&store, 240).sweep_some(9).await.unwrap();
        assert_eq!(rows_of_traces(&store).await, Vec::<String>::new(), "commit {commit}");
    }
}

/// Of two creations at once one is late. It leaves nothing that keeps the id from another user after the deletion.
pub(crate) async fn creation_that_lost_a_race_leaves_the_id_free_for_others(store: Arc<dyn Store>) {
    let bob = all(&store).for_user(TENANT, "bob").unwrap();
    for commit in 0.. {
        let faster = traces(&store);
        let staged = Staged::before(&store, commit, move || async move { begin(&faster).await });
        let late: Arc<dyn Store> = staged.clone();
        let created = traces(&late).create_trace(NewTrace::new("make tea").with_id(id())).await;
        assert_eq!(created.is_err(), staged.was_reached(), "commit {commit}");
        assert!(traces(&store).delete_trace(&address()).await.unwrap());
        assert_eq!(rows_of_traces(&store).await, Vec::<String>::new(), "commit {commit}");
        begin(&bob).await;
        assert!(bob.delete_trace(&address()).await.unwrap());
        if !staged.was_reached() {
            assert!(commit > 2);
            return;
        }
    }
}

pub(crate) async fn long_trace_is_removed_in_bounded_steps(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    fill(&own, 3_000).await;
    assert!(own.delete_trace(&address()).await.unwrap());
    while all(&store).sweep_some(9).await.unwrap() > 0 {}
    assert_eq!(rows_of_traces(&store).await, Vec::<String>::new());
}

/// Another process changes the trace while it is being deleted, in every way.
pub(crate) async fn deletion_overtaken_by_a_change_leaves_no_row(store: Arc<dyn Store>) {
    for (name, change) in kills::changes() {
        let own = traces(&store);
        kills::populate(&own).await;
        let faster = own.clone();
        let staged = Staged::before(&store, HIDES, move || async move { change(faster).await.unwrap() });
        let raced: Arc<dyn Store> = staged.clone();
        assert!(traces(&raced).delete_trace(&address()).await.unwrap(), "{name}");
        assert!(staged.was_reached(), "{name}");
        assert_eq!(rows_of_traces(&store).await, [""; 0], "{name}");
        let statuses = [None, Some(TraceStatus::Running), Some(TraceStatus::Completed), Some(TraceStatus::Stopped)];
        for query in statuses.map(|status| status.into_iter().fold(TracesQuery::new(), TracesQuery::with_status)) {
            assert_eq!(own.list_traces(&query).await.unwrap().total, 0, "{name} {query:?}");
        }
    }
}

pub(crate) async fn write_overtaken_by_a_deletion_leaves_no_row(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let deleting = own.clone();
    let staged: Arc<dyn Store> = Staged::before(&store, 0, move || async move {
        assert!(deleting.delete_trace(&address()).await.unwrap());
    });
    let late = traces(&staged).add_messages(&address(), vec![text("late").with_goal("1")], &AddOptions::new()).await.map(drop);
    assert_eq!(late.expect_err("the trace is gone").kind(), ErrorKind::NotFound);
    assert_eq!(rows_of_traces(&store).await, Vec::<String>::new());
}

pub(crate) async fn write_overtaken_by_a_deletion_never_reaches_a_later_trace(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let other = own.clone();
    let staged: Arc<dyn Store> = Staged::before(&store, 0, move || async move {
        assert!(other.delete_trace(&address()).await.unwrap());
        begin(&other).await;
    });
    // The call is planned again, on the new trace, whose head is not the one that the caller saw.
    let options = AddOptions::new().with_expected_head(2);
    let late = traces(&staged).add_messages(&address(), vec![text("late")], &options).await.map(drop);
    assert_eq!(late.expect_err("another trace").kind(), ErrorKind::Conflict);
    assert_eq!(whole(&own).await.messages.len(), 0);
    add(&own, vec![text("first")]).await;
    assert_eq!(whole(&own).await.messages.len(), 1);
}

/// As an archive brings them that was written while the trace was deleted and created again.
pub(crate) async fn live_trace_survives_an_old_row_that_says_to_remove_it(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let staged = Staged::new(&store, HIDES + 1, Stage::Dead);
    let dying: Arc<dyn Store> = staged.clone();
    let before = rows(&store).await;
    assert!(traces(&dying).delete_trace(&address()).await.unwrap());
    let batch = before.iter().fold(Batch::new(), |batch, (namespace, item)| {
        batch.put_with_meta(namespace, item.key.as_str(), item.meta.clone(), item.value.clone())
    });
    for (_, batch) in Batch::by_partition(batch.writes) {
        store.commit(batch).await.unwrap();
    }
    let expected = whole(&own).await;
    all(&store).sweep_some(9).await.unwrap();
    assert_eq!(whole(&own).await, expected);
    assert_eq!(rows_of_traces(&store).await.len(), before.len() - 1, "all rows but that of the counts");
}

/// The list names a trace that was deleted between the reads of a page.
pub(crate) async fn page_of_traces_passes_over_those_deleted_meanwhile(store: Arc<dyn Store>) {
    let traces = traces(&store);
    begin(&traces).await;
    let recent = Partition::new([TENANT, USER]).unwrap().namespace(TRACES.into_iter().chain(["recent"])).unwrap();
    for number in 0..3 {
        // Newer than every trace.
        let key = format!("* *\u{1}{number:020}deleted");
        store.commit(Batch::new().put(&recent, key, "")).await.unwrap();
    }
    for limit in 1..5 {
        let page = traces.list_traces(&TracesQuery::new().with_limit(limit)).await.unwrap();
        let ids: Vec<_> = page.traces.iter().map(|trace| trace.trace_id.clone()).collect();
        assert_eq!((ids, page.next), (vec![address()], None), "{limit}");
    }
}

/// A row that cannot be read stays, and the sweep reports it and goes on.
pub(crate) async fn damaged_removal_does_not_stop_the_others(store: Arc<dyn Store>) {
    let own = traces(&store);
    populate(&own).await;
    let dying: Arc<dyn Store> = Staged::new(&store, HIDES + 1, Stage::Dead);
    assert!(traces(&dying).delete_trace(&address()).await.unwrap());
    let removals = Namespace::new(["_treehold", "traces", "_treehold", "removals"]).unwrap();
    store.commit(Batch::new().put(&removals, "a damaged row", "{")).await.unwrap();
    assert_eq!(all(&store).sweep_some(1).await.expect_err("reported").kind(), ErrorKind::Corrupt);
    assert_eq!(rows_of_traces(&store).await, [format!("{removals} a damaged row")]);
}
