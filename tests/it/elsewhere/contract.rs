//! Every case of the contract of a store of traces, over real connections.

use super::Server;
use std::sync::Arc;
use treehold::conformance::Fresh;
use treehold::traces::{CacheOptions, CachedTraces, HybridTraces, RemoteTraces, TraceStore};

async fn on_a_server() -> Fresh<dyn TraceStore> {
    let server = Server::start().await;
    let remote: Arc<dyn TraceStore> = Arc::new(server.remote().await);
    Fresh::new(remote).keeping(server)
}

async fn through_a_cache() -> Fresh<dyn TraceStore> {
    let server = Server::start().await;
    let cached: Arc<dyn TraceStore> = Arc::new(CachedTraces::new(Arc::new(server.remote().await), CacheOptions::new()));
    Fresh::new(cached).keeping(server)
}

/// What is created is created there, and all that follows is routed by its qualified id.
async fn by_qualified_ids() -> Fresh<dyn TraceStore> {
    let server = Server::start().await;
    let elsewhere = CachedTraces::new(Arc::new(RemoteTraces::new(server.peers().await)), CacheOptions::new());
    let hybrid: Arc<dyn TraceStore> = Arc::new(HybridTraces::new(Arc::new(server.remote().await), Arc::new(elsewhere)));
    Fresh::new(hybrid).keeping(server)
}

treehold::traces::trace_store_conformance!(remote, on_a_server);
treehold::traces::trace_store_conformance!(cached, through_a_cache);
treehold::traces::trace_store_conformance!(hybrid, by_qualified_ids);
