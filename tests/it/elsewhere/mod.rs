//! Traces on another server, over real connections: the contract of a store of traces, lost answers, and owners that come and go.

mod connections;
mod contract;
mod organizations;
pub(crate) mod proxy;

use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use treehold::mcp::McpOptions;
use treehold::serve::{Access, HttpServer, Rights, ServeOptions, TokenBook};
use treehold::store::Store;
use treehold::traces::{ApiKey, Location, Peer, Peers, PeersOptions, RemoteTraces, StoredTraces, Traces};
use treehold::{MemoryStore, RemoteOptions, Scope};

/// A server of traces that requires tokens.
struct Server {
    store: Arc<dyn Store>,
    url: String,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let scope = Scope::new().with_tenant("acme").with_user("ada").with_thread("default");
        let options = ServeOptions::new(([127, 0, 0, 1], 0).into(), scope.clone()).with_store(store.clone()).with_tokens(true);
        let server = HttpServer::bind(crate::serve::workspace(&store), McpOptions::new(scope), options).await.unwrap();
        let url = format!("http://{}", server.address().unwrap());
        let task = tokio::spawn(async move { server.run(std::future::pending()).await.unwrap() });
        Self { store, url, task }
    }

    async fn token(&self, user: &str) -> String {
        let scope = Scope::new().with_tenant("acme").with_user(user);
        TokenBook::new(self.store.clone()).create(scope, Rights::new(Access::Admin), None, None).await.unwrap().1
    }

    /// Returns the traces of a user as the server has them.
    fn traces(&self, user: &str) -> StoredTraces {
        Traces::new(self.store.clone()).for_user("acme", user).unwrap()
    }

    /// Returns a registry in which `far` is this server, with a token of `ada`.
    async fn peers(&self) -> Peers {
        registry(&self.url, &self.token("ada").await)
    }

    async fn remote(&self) -> RemoteTraces {
        RemoteTraces::at(self.peers().await, far()).unwrap()
    }
}

fn registry(url: &str, token: &str) -> Peers {
    let peer = Peer::new("far", url, false).unwrap().with_key(ApiKey::text(token));
    let minute = Duration::from_secs(60);
    let options = PeersOptions::new().with_remote(RemoteOptions::new().with_timeouts(minute, minute));
    Peers::new([peer], options).unwrap()
}

fn far() -> Location {
    Location::agent("far").unwrap()
}
