//! The hybrid store: local traces as in any store, and never over the network.

use crate::support::{Reply, Scripted, address, far, local, trace_json};
use std::sync::Arc;
use treehold_conformance::Fresh;
use treehold_core::error::ErrorKind;
use treehold_traces::{HybridTraces, Location, NewTrace, RemoteTraces, TraceStore, TracesQuery};

async fn fresh() -> Fresh<dyn TraceStore> {
    let remote = Scripted::unused().traces();
    Fresh::new(Arc::new(HybridTraces::new(Arc::new(local()), Arc::new(remote))))
}

// Every case uses local ids, and the transport of the other store panics.
treehold_traces::trace_store_conformance!(hybrid, fresh);

#[tokio::test]
async fn qualified_id_goes_to_its_owner_and_local_one_stays() {
    let network = Scripted::new(|sent| match sent.path.as_str() {
        "/api/traces" => Reply::Json(201, trace_json("x")),
        _ => Reply::Json(200, trace_json("x")),
    });
    let traces = HybridTraces::new(Arc::new(local()), Arc::new(network.traces()));
    let created = traces.create_trace(NewTrace::new("here")).await.expect("created");
    assert!(created.trace_id.is_local() && network.take().is_empty());
    let there = traces.create_trace(NewTrace::new("there").with_id(address("@far/x"))).await.expect("created");
    assert_eq!((there.trace_id.to_string().as_str(), there.remote), ("@far/x", true));
    assert_eq!(network.take().len(), 1);
    assert!(traces.get_trace(&address("@far/x")).await.expect("readable").is_some_and(|trace| trace.remote));
    assert_eq!(traces.list_traces(&TracesQuery::default()).await.expect("listed").total, 1, "a listing is local");
    assert!(traces.get_trace(&address("x")).await.expect("readable").is_none(), "a local id is not looked for elsewhere");
    assert_eq!(network.take().len(), 1);
}

#[tokio::test]
async fn id_with_the_own_location_is_local() {
    let network = Scripted::unused();
    let remote = RemoteTraces::new(network.peers()).with_own_location(far());
    let traces = HybridTraces::new(Arc::new(local()), Arc::new(remote)).with_own_location(far());
    let created = traces.create_trace(NewTrace::new("here").with_id(address("@far/x"))).await.expect("created");
    assert_eq!(created.trace_id, address("x"));
    assert_eq!(traces.get_trace(&address("@far/x")).await.expect("readable"), Some(created));
}

#[tokio::test]
async fn own_host_is_local_however_it_is_written() {
    let network = Scripted::unused();
    let own = Location::host("cloud.example").expect("a host");
    let remote = RemoteTraces::new(network.peers()).with_own_location(own.clone());
    let traces = HybridTraces::new(Arc::new(local()), Arc::new(remote)).with_own_location(own);
    traces.create_trace(NewTrace::new("here").with_id(address("x"))).await.expect("created");
    for id in ["agent://cloud.example/x", "agent://CLOUD.example./x", "agent://cloud.example:443/x"] {
        assert!(traces.get_trace(&address(id)).await.expect(id).is_some_and(|trace| trace.trace_id.is_local()), "{id}");
    }
    assert_eq!(traces.get_trace(&address("agent://cloud.example:8000/x")).await.expect_err("elsewhere").kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn unknown_agent_is_refused_without_a_request() {
    let network = Scripted::unused();
    let traces = HybridTraces::new(Arc::new(local()), Arc::new(network.traces()));
    for id in ["@fer/x", "agent://far.example/x", "agent://other.example/x", "@/x@/x"] {
        let Ok(id) = id.parse() else { continue };
        let error = traces.get_trace(&id).await.expect_err("not registered");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{id}: {error}");
        assert!(std::error::Error::source(&error).is_some_and(|source| source.is::<treehold_traces::UnknownAgent>()), "{id}: {error}");
    }
}
