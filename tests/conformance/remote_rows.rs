//! Trees of other servers, each a real server on the loopback device, called and dialling, with and without a cache: one row each.

use std::sync::Arc;
use tokio::sync::oneshot;
use treehold::checkpoint::StoreCheckpointer;
use treehold::conformance::Fresh;
use treehold::conformance::backend::Tree;
use treehold::mcp::McpOptions;
use treehold::remote::{PeerClient, Tunnels};
use treehold::serve::{Access, Dial, HttpServer, Rights, ServeOptions};
use treehold::{
    BackendExt, CacheOptions, CachedBackend, MemoryStore, Namespace, RemoteBackend, RemoteOptions, Scope, StateBackend, StoreBackend,
    VfsPathBuf, Workspace, backend_conformance,
};

backend_conformance!(remote, remote);
backend_conformance!(remote_saved, remote_saved);
backend_conformance!(remote_store, remote_store);
backend_conformance!(remote_beneath, remote_beneath);
backend_conformance!(remote_cached, remote_cached);
backend_conformance!(remote_tunnel, remote_tunnel);
backend_conformance!(cached, cached);

/// Serves a workspace until the first of the two is dropped.
async fn far(workspace: Workspace, base: &str) -> (oneshot::Sender<()>, RemoteBackend) {
    let scope = Scope::new().with_tenant("acme").with_user("ada").with_thread("far");
    let options = ServeOptions::new(([127, 0, 0, 1], 0).into(), scope.clone());
    let server = HttpServer::bind(workspace, McpOptions::new(scope), options).await.unwrap();
    let url = format!("http://{}{base}", server.address().unwrap());
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(server.run(async {
        let _ = stopped.await;
    }));
    let remote = RemoteBackend::new(&url, RemoteOptions::new()).unwrap();
    remote.connect().await.unwrap();
    (stop, remote)
}

/// Serves a workspace that nobody can call: it dials a second server, which reaches it over that connection.
async fn dialling(workspace: Workspace) -> (oneshot::Sender<()>, oneshot::Sender<()>, RemoteBackend) {
    let scope = Scope::new().with_tenant("acme").with_user("ada").with_thread("far");
    let served = async |workspace: Workspace, options: ServeOptions| {
        let server = HttpServer::bind(workspace, McpOptions::new(scope.clone()), options).await.unwrap();
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        (stop, address)
    };
    let options = ServeOptions::new(([127, 0, 0, 1], 0).into(), scope.clone());
    let tunnels = Tunnels::default();
    let (near, address) = served(Workspace::builder().build(), options.clone().with_tunnels(tunnels.clone())).await;
    let dial = Dial::new(format!("http://{}", address.unwrap()), RemoteOptions::new())
        .with_name(Some("laptop".to_owned()))
        .with_rights(Some(Rights::new(Access::Admin)));
    let (far, _) = served(workspace, options.with_listens(false).with_dials(vec![dial])).await;
    while !tunnels.is_connected(Some("acme"), "laptop") {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let client = PeerClient::over(tunnels.transport(Some("acme"), "laptop"), "agent://laptop", RemoteOptions::new()).unwrap();
    let remote = RemoteBackend::over(client, VfsPathBuf::root());
    remote.connect().await.unwrap();
    (near, far, remote)
}

/// The state of a thread, through a tunnel.
async fn remote_tunnel() -> Fresh<Tree> {
    let (near, far, remote) = dialling(Workspace::builder().build()).await;
    Tree::new(remote).fresh().keeping((near, far))
}

/// The state of a thread that is never saved.
async fn remote() -> Fresh<Tree> {
    let (far, remote) = far(Workspace::builder().build(), "/").await;
    Tree::new(remote).fresh().keeping(far)
}

/// The state of a thread that is saved before each answer.
async fn remote_saved() -> Fresh<Tree> {
    let workspace = Workspace::builder().checkpointer(StoreCheckpointer::new(Arc::new(MemoryStore::new()))).build();
    let (far, remote) = far(workspace, "/").await;
    Tree::new(remote).fresh().keeping(far)
}

/// The rows of a store.
async fn remote_store() -> Fresh<Tree> {
    let rows = StoreBackend::new(Arc::new(MemoryStore::new()), Namespace::new(["acme", "files"]).unwrap());
    let (far, remote) = far(Workspace::builder().backend("/", Arc::new(rows)).unwrap().build(), "/").await;
    Tree::new(remote).fresh().keeping(far)
}

/// A directory that does not exist until the first write, with files beside it.
async fn remote_beneath() -> Fresh<Tree> {
    let tree = StateBackend::new();
    tree.write("/beside/a.md", "unseen\n").await.unwrap();
    let (far, remote) = far(Workspace::builder().backend("/", Arc::new(tree)).unwrap().build(), "/deep/w%20x").await;
    Tree::new(remote).fresh().keeping(far)
}

async fn remote_cached() -> Fresh<Tree> {
    let (far, remote) = far(Workspace::builder().build(), "/").await;
    Tree::new(CachedBackend::new(remote, CacheOptions::new().with_bytes_max(100_000))).fresh().keeping(far)
}

/// A silent feed: only the cache changes anything.
async fn cached() -> Fresh<Tree> {
    let live = futures::stream::once(async { treehold::TreeNews::Live });
    let feed = futures::StreamExt::boxed(futures::StreamExt::chain(live, futures::stream::pending()));
    Tree::new(CachedBackend::new(StateBackend::new(), CacheOptions::new()).with_feed(feed)).fresh()
}
