//! Claims on runs.

use super::support::{Staged, add, address, begin, id, rows_of_traces, text, traces, whole};
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;
use treehold_core::error::ErrorKind;
use treehold_store::{Batch, Namespace, NamespacesOptions, Store};
use treehold_traces::{AddOptions, RUN_LEASE_MAX, RunHeld, TraceStatus, TraceStore, TraceUpdate};

const LEASE: Duration = Duration::from_secs(60);

/// Ends the time of the claim.
async fn expire(store: &Arc<dyn Store>) {
    let namespaces = store.namespaces(NamespacesOptions::new()).await.unwrap().namespaces;
    let is_run = |namespace: &&Namespace| namespace.components().next_back().is_some_and(|last| last == "run");
    let run = namespaces.iter().find(is_run).unwrap();
    store.commit(Batch::new().touch(run, "claim", Some(Duration::ZERO))).await.unwrap();
}

pub(crate) async fn trace_is_claimed_by_one_process_at_a_time(store: Arc<dyn Store>) {
    let (one, other) = (traces(&store), traces(&store));
    begin(&one).await;
    let claim = one.claim_run(&id(), LEASE).await.unwrap();
    for process in [&one, &other] {
        let error = process.claim_run(&id(), LEASE).await.map(drop).expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::Conflict);
        let held = *error.source().and_then(|source| source.downcast_ref::<RunHeld>()).unwrap();
        assert_eq!(held.fence, claim.fence());
        assert!(held.expires_at.is_some());
    }
    claim.renew(LEASE).await.unwrap();
    let fence = claim.fence();
    claim.release().await.unwrap();
    let next = other.claim_run(&id(), LEASE).await.unwrap();
    assert!(next.fence() > fence);
    for lease in [Duration::ZERO, RUN_LEASE_MAX + Duration::from_millis(1)] {
        assert_eq!(next.renew(lease).await.expect_err("a bad lease").kind(), ErrorKind::InvalidArgument);
        assert_eq!(one.claim_run(&id(), lease).await.map(drop).expect_err("a bad lease").kind(), ErrorKind::InvalidArgument);
    }
    let unknown = one.claim_run(&treehold_traces::TraceId::new("other").unwrap(), LEASE).await.map(drop);
    assert_eq!(unknown.expect_err("unknown").kind(), ErrorKind::NotFound);
}

pub(crate) async fn claim_that_expired_is_taken_over(store: Arc<dyn Store>) {
    let (one, other) = (traces(&store), traces(&store));
    begin(&one).await;
    let old = one.claim_run(&id(), LEASE).await.unwrap();
    expire(&store).await;
    let new = other.claim_run(&id(), LEASE).await.unwrap();
    assert!(new.fence() > old.fence());
    assert_eq!(old.renew(LEASE).await.expect_err("it is lost").kind(), ErrorKind::Conflict);
    // Releasing a claim that is lost leaves the new one.
    old.release().await.unwrap();
    assert_eq!(one.claim_run(&id(), LEASE).await.map(drop).expect_err("it is held").kind(), ErrorKind::Conflict);
    new.renew(LEASE).await.unwrap();
}

pub(crate) async fn commit_under_a_lost_claim_writes_nothing(store: Arc<dyn Store>) {
    let (one, other) = (traces(&store), traces(&store));
    begin(&one).await;
    let old = one.claim_run(&id(), LEASE).await.unwrap();
    let run = old.traces();
    add(&run, vec![text("under the claim")]).await;
    // Writers without a claim are not kept out.
    add(&other, vec![text("without a claim")]).await;
    expire(&store).await;
    let _new = other.claim_run(&id(), LEASE).await.unwrap();
    let before = whole(&one).await;
    let refused = run.add_messages(&address(), vec![text("too late")], &AddOptions::new()).await.map(drop);
    assert_eq!(refused.expect_err("the claim is lost").kind(), ErrorKind::Conflict);
    let refused = run.update_trace(&address(), TraceUpdate::new().with_status(TraceStatus::Completed)).await.map(drop);
    assert_eq!(refused.expect_err("the claim is lost").kind(), ErrorKind::Conflict);
    assert_eq!(run.delete_trace(&address()).await.map(drop).expect_err("the claim is lost").kind(), ErrorKind::Conflict);
    assert_eq!(whole(&one).await, before);
    assert_eq!(whole(&run).await, before, "it can still read");
}

pub(crate) async fn claim_of_a_deleted_trace_leaves_no_row(store: Arc<dyn Store>) {
    let own = traces(&store);
    begin(&own).await;
    let deleting = own.clone();
    let staged: Arc<dyn Store> = Staged::before(&store, 0, move || async move {
        assert!(deleting.delete_trace(&address()).await.unwrap());
    });
    let late = traces(&staged).claim_run(&id(), LEASE).await.map(drop);
    assert_eq!(late.expect_err("the trace is gone").kind(), ErrorKind::NotFound);
    assert_eq!(rows_of_traces(&store).await, Vec::<String>::new());
    begin(&own).await;
    let claim = own.claim_run(&id(), LEASE).await.unwrap();
    assert!(own.delete_trace(&address()).await.unwrap());
    assert_eq!(claim.renew(LEASE).await.expect_err("the trace is gone").kind(), ErrorKind::Conflict);
    claim.release().await.unwrap();
    assert_eq!(rows_of_traces(&store).await, Vec::<String>::new());
}
