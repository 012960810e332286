//! Two servers in one process: one that accepts machines, and one that dials it and that nobody calls.

#![allow(missing_docs, clippy::unwrap_used)]

use futures::StreamExt;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use treehold_agent::feed::Feed;
use treehold_agent::workspace::Workspace;
use treehold_core::error::{ErrorKind, Result};
use treehold_core::ops::GrepOptions;
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_core::scope::Scope;
use treehold_mcp::McpOptions;
use treehold_remote::{Ask, PeerClient, RemoteBackend, RemoteOptions, StreamNews, TunnelOptions, Tunnels};
use treehold_serve::{Access, ConnectionLimits, Dial, HttpServer, Rights, ServeOptions, TokenBook};
use treehold_store::{MemoryStore, Store};
use treehold_tree::backend::{BackendExt, TreeNews};

/// How long a test waits for something that takes moments.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in this process. Dropping it ends the server.
struct Served {
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<()>>,
    address: SocketAddr,
    store: Arc<dyn Store>,
}

impl Served {
    async fn start(options: impl FnOnce(ServeOptions) -> ServeOptions) -> Self {
        Self::at(([127, 0, 0, 1], 0).into(), Arc::new(MemoryStore::new()), options).await
    }

    async fn at(address: SocketAddr, store: Arc<dyn Store>, options: impl FnOnce(ServeOptions) -> ServeOptions) -> Self {
        let scope = Scope::new().with_tenant("acme").with_user("ada").with_thread("default");
        let options = options(ServeOptions::new(address, scope.clone()).with_store(store.clone()));
        let listens = options.listens;
        let workspace = Workspace::builder().feed(Feed::new(store.clone())).build();
        let server = HttpServer::bind(workspace, McpOptions::new(scope), options).await.unwrap();
        let address = if listens { server.address().unwrap() } else { address };
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { stop: Some(stop), running, address, store }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes a token to connect as a machine.
    async fn token(&self, tenant: &str, name: &str) -> (String, String) {
        let scope = Scope::new().with_tenant(tenant).with_user("ada");
        let rights = Rights::new(Access::Read).with_connect_as(Some(name.to_owned()));
        let (record, text) = TokenBook::new(self.store.clone()).create(scope, rights, None, None).await.unwrap();
        (record.id, text)
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        self.running.await.unwrap().unwrap();
    }
}

async fn within(mut is_so: impl FnMut() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.expect("it takes moments");
}

fn tunnels() -> Tunnels {
    Tunnels::new(TunnelOptions::new().with_return_timeout(PATIENCE))
}

/// Starts a server with tokens that accepts machines.
async fn cloud(tunnels: &Tunnels) -> Served {
    let tunnels = tunnels.clone();
    Served::start(move |options| options.with_tokens(true).with_tunnels(tunnels)).await
}

fn dial(url: &str, token: &str) -> Dial {
    Dial::new(url, RemoteOptions::new().with_token(token))
}

/// The tree of a machine, as the cloud sees it.
fn tree(tunnels: &Tunnels, tenant: &str, name: &str, token: Option<&str>) -> RemoteBackend {
    let options = token.map_or_else(RemoteOptions::new, |token| RemoteOptions::new().with_token(token));
    let client = PeerClient::over(tunnels.transport(Some(tenant), name), format!("agent://{name}"), options).unwrap();
    RemoteBackend::over(client, VfsPathBuf::root())
}

#[tokio::test(flavor = "multi_thread")]
async fn cloud_works_in_the_tree_of_a_machine_that_dialled() {
    let tunnels = tunnels();
    let cloud = cloud(&tunnels).await;
    let (_, token) = cloud.token("acme", "laptop").await;
    let dialled = dial(&cloud.url(), &token).with_rights(Some(Rights::new(Access::Write)));
    let laptop = Served::start(|options| options.with_dials(vec![dialled])).await;
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    let of_other = tree(&tunnels, "other", "laptop", None);
    let tree = tree(&tunnels, "acme", "laptop", None);
    tree.connect().await.unwrap();
    tree.write("/notes/a.md", "one\nneedle\n").await.unwrap();
    tree.edit("/notes/a.md", "one", "two").await.unwrap();
    assert_eq!(tree.read_text("/notes/a.md").await.unwrap(), "two\nneedle\n");
    let found = treehold_tree::backend::Backend::grep(&tree, VfsPath::ROOT, &GrepOptions::new("needle")).await.unwrap();
    assert_eq!(found.files.len(), 1);
    // What it wrote is there, for the machine's own callers.
    let own = RemoteBackend::new(&laptop.url(), RemoteOptions::new()).unwrap();
    assert_eq!(own.read_text("/notes/a.md").await.unwrap(), "two\nneedle\n");
    // Another tenant's route to the same name finds nobody.
    let error = of_other.read_text("/notes/a.md").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("is not connected to this server"), "{error}");
    laptop.stop().await;
    within(|| !tunnels.is_connected(Some("acme"), "laptop")).await;
    cloud.stop().await;
}

/// A server that is open to its own machine is not open to those that it dials.
#[tokio::test(flavor = "multi_thread")]
async fn requests_through_a_tunnel_need_a_token_or_a_fixed_right() {
    let tunnels = tunnels();
    let cloud = cloud(&tunnels).await;
    let (_, token) = cloud.token("acme", "laptop").await;
    let options = |options: ServeOptions| options.with_dials(vec![dial("http://127.0.0.1:1", "0123456789abcdef")]);
    let scope = Scope::new().with_tenant("acme").with_user("ada");
    let open = options(ServeOptions::new(([127, 0, 0, 1], 0).into(), scope.clone()));
    let refused = HttpServer::bind(Workspace::builder().build(), McpOptions::new(scope), open).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);

    let reading = dial(&cloud.url(), &token).with_rights(Some(Rights::new(Access::Read).with_paths([VfsPathBuf::parse("/open").unwrap()])));
    let laptop = Served::start(|options| options.with_dials(vec![reading])).await;
    let own = RemoteBackend::new(&laptop.url(), RemoteOptions::new()).unwrap();
    own.write("/open/a", "text").await.unwrap();
    own.write("/closed/a", "text").await.unwrap();
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    let seen = tree(&tunnels, "acme", "laptop", None);
    assert_eq!(seen.read_text("/open/a").await.unwrap(), "text");
    assert_eq!(seen.read_text("/closed/a").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(seen.write("/open/a", "x").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    let guessed = tree(&tunnels, "acme", "laptop", Some("0123456789abcdef"));
    assert_eq!(guessed.read_text("/open/a").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    laptop.stop().await;
    within(|| !tunnels.is_connected(Some("acme"), "laptop")).await;

    let laptop = Served::start(|options| options.with_tokens(true).with_dials(vec![dial(&cloud.url(), &token)])).await;
    let scope = Scope::new().with_tenant("home").with_user("ada");
    let book = TokenBook::new(laptop.store.clone());
    let (_, writes) = book.create(scope.clone(), Rights::new(Access::Write), None, None).await.unwrap();
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    assert_eq!(tree(&tunnels, "acme", "laptop", None).read_text("/a").await.unwrap_err().kind(), ErrorKind::PermissionDenied);
    let seen = tree(&tunnels, "acme", "laptop", Some(&writes));
    seen.write("/a", "text").await.unwrap();
    assert_eq!(seen.read_text("/a").await.unwrap(), "text");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_token_to_connect_connects_and_it_allows_nothing_else() {
    let tunnels = tunnels();
    let cloud = cloud(&tunnels).await;
    let (_, token) = cloud.token("acme", "laptop").await;
    let scope = Scope::new().with_tenant("acme").with_user("ada");
    let (_, admin) = TokenBook::new(cloud.store.clone()).create(scope, Rights::new(Access::Admin), None, None).await.unwrap();
    let connect = async |token: &str, name: Option<&str>| {
        let dialled = treehold_remote::dial(&cloud.url(), name, RemoteOptions::new().with_token(token)).await;
        dialled.map(drop).map_err(|error| (error.kind(), error.message().to_owned()))
    };
    let (kind, message) = connect("wrong-wrong-wrong-wrong", None).await.unwrap_err();
    assert_eq!(kind, ErrorKind::PermissionDenied);
    assert!(message.contains("rejects its token"), "{message}");
    let (kind, message) = connect(&admin, Some("laptop")).await.unwrap_err();
    assert_eq!(kind, ErrorKind::PermissionDenied);
    assert!(message.contains("--connect-as"), "{message}");
    assert_eq!(connect(&token, Some("desktop")).await.unwrap_err().0, ErrorKind::PermissionDenied);
    let refused = tunnels.counts().refused;
    connect(&token, Some("laptop")).await.unwrap();
    // The name is free once the server has seen that nobody answers there.
    within(|| tunnels.counts().refused == refused + 1).await;
    connect(&token, None).await.unwrap();

    let client = PeerClient::new(&cloud.url(), RemoteOptions::new().with_token(&token)).unwrap();
    for path in ["/v1/ls?path=%2F", "/v1/capabilities", "/metrics", "/v1/threads", "/v1/store/namespaces", "/mcp"] {
        let error = client.ask(&treehold_remote::Ask::get(path)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path}: {error}");
    }
    // Without an upgrade, the route says what it is for.
    let error = client.ask(&treehold_remote::Ask::get("/v1/connect")).await.unwrap_err();
    assert!(error.message().contains("treehold serve --dial"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_token_closes_its_tunnel_and_keeps_it_closed() {
    let tunnels = tunnels();
    let cloud = cloud(&tunnels).await;
    let (id, token) = cloud.token("acme", "laptop").await;
    let dialled = dial(&cloud.url(), &token).with_rights(Some(Rights::new(Access::Write)));
    let laptop = Served::start(|options| options.with_dials(vec![dialled])).await;
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    TokenBook::new(cloud.store.clone()).revoke(&id).await.unwrap();
    within(|| !tunnels.is_connected(Some("acme"), "laptop")).await;
    assert_eq!(tunnels.counts().open, 0);
    laptop.stop().await;
    assert_eq!(tunnels.counts().opened, 1);
}

/// Writes go on while either side restarts: each is made once, and none is lost.
#[tokio::test(flavor = "multi_thread")]
async fn writes_survive_restarts_of_either_side() {
    let tunnels = tunnels();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let start_cloud = |address: SocketAddr| {
        let (tunnels, store) = (tunnels.clone(), store.clone());
        async move { Served::at(address, store, move |options| options.with_tokens(true).with_tunnels(tunnels)).await }
    };
    let cloud = start_cloud(([127, 0, 0, 1], 0).into()).await;
    let (url, address) = (cloud.url(), cloud.address);
    let (_, token) = cloud.token("acme", "laptop").await;
    let dialled = dial(&url, &token).with_rights(Some(Rights::new(Access::Write)));
    let laptop = Served::start(|options| options.with_dials(vec![dialled])).await;
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    let tree = tree(&tunnels, "acme", "laptop", None);
    tree.write("/log", "").await.unwrap();
    tree.append("/log", "1\n").await.unwrap();
    cloud.stop().await;
    let cloud = start_cloud(address).await;
    // Its tunnel was lost moments ago, so the request waits for it.
    tree.append("/log", "2\n").await.unwrap();
    assert_eq!(tree.read_text("/log").await.unwrap(), "1\n2\n");
    assert_eq!(tunnels.counts().opened, 2);
    laptop.stop().await;
    cloud.stop().await;
}

/// A connection that was upgraded and then sends anything but HTTP/2 is closed, and so is one that reads nothing.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_machine_gets_no_tunnel() {
    let tunnels = Tunnels::new(TunnelOptions::new().with_answer_timeout(Duration::from_millis(300)));
    let cloud = cloud(&tunnels).await;
    let (_, token) = cloud.token("acme", "laptop").await;
    for (number, garbage) in (1..).zip([&b"garbage\r\n\r\n"[..], &[0; 10_000], b""]) {
        let mut stream = TcpStream::connect(cloud.address).await.unwrap();
        let head = format!(
            "GET /v1/connect HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: upgrade\r\nupgrade: \
             treehold-tunnel\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, b"HTTP/1.1 101");
        let _ = stream.write_all(garbage).await;
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the server closes it");
        assert!(!tunnels.is_connected(Some("acme"), "laptop"));
        // The name is free again.
        within(|| tunnels.counts().refused == number).await;
    }
    assert_eq!(tunnels.counts().opened, 0);
}

/// An idle connection is closed after a millisecond. A tunnel is no such connection, however long nothing passes through it.
#[tokio::test(flavor = "multi_thread")]
async fn tunnel_outlives_the_time_limit_of_idle_connections() {
    let tunnels = tunnels();
    let of_cloud = tunnels.clone();
    let limits = ConnectionLimits::new().with_idle_timeout(Duration::from_millis(1));
    let cloud = Served::start(move |options| options.with_tokens(true).with_tunnels(of_cloud).with_connections(limits)).await;
    let (_, token) = cloud.token("acme", "laptop").await;
    let dialled = dial(&cloud.url(), &token).with_rights(Some(Rights::new(Access::Write)));
    let _laptop = Served::start(|options| options.with_listens(false).with_dials(vec![dialled])).await;
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    let tree = tree(&tunnels, "acme", "laptop", None);
    for round in 0..3 {
        // The server closes this connection because it is idle, so the tunnel was idle for at least as long.
        let mut idle = TcpStream::connect(cloud.address).await.unwrap();
        idle.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, idle.read_to_end(&mut answer)).await.expect("it is closed").unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        tree.write("/a", round.to_string()).await.unwrap();
        assert_eq!(tree.read_text("/a").await.unwrap(), round.to_string());
    }
    assert_eq!((tunnels.counts().opened, tunnels.counts().open), (1, 1));
}

/// A machine that listens nowhere is reached all the same, and its changes are seen as they are made.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_machine_that_listens_nowhere_are_watched() {
    let tunnels = tunnels();
    let cloud = cloud(&tunnels).await;
    let (_, token) = cloud.token("acme", "laptop").await;
    let dialled = dial(&cloud.url(), &token).with_rights(Some(Rights::new(Access::Write)));
    let laptop = Served::start(|options| options.with_listens(false).with_dials(vec![dialled])).await;
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    let tree = tree(&tunnels, "acme", "laptop", None);
    let mut news = tree.changes();
    assert!(matches!(news.next().await, Some(TreeNews::Live)));
    tree.write("/a", "text").await.unwrap();
    let changed = tokio::time::timeout(PATIENCE, news.next()).await.expect("it takes moments");
    assert!(matches!(&changed, Some(TreeNews::Changed(path)) if path.as_str() == "/a"), "{changed:?}");
    laptop.stop().await;
    assert!(matches!(tokio::time::timeout(PATIENCE, news.next()).await.expect("it takes moments"), Some(TreeNews::Lost)));
}

/// The cloud follows a trace of the machine. Its tunnel breaks in the middle: no event is lost, and none comes twice.
#[tokio::test(flavor = "multi_thread")]
async fn trace_is_followed_through_a_tunnel_across_a_break() {
    let tunnels = tunnels();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let start_cloud = |address: SocketAddr| {
        let (tunnels, store) = (tunnels.clone(), store.clone());
        async move { Served::at(address, store, move |options| options.with_tokens(true).with_tunnels(tunnels)).await }
    };
    let cloud = start_cloud(([127, 0, 0, 1], 0).into()).await;
    let (address, (_, token)) = (cloud.address, cloud.token("acme", "laptop").await);
    let dialled = dial(&cloud.url(), &token).with_rights(Some(Rights::new(Access::Write)));
    let _laptop = Served::start(|options| options.with_listens(false).with_dials(vec![dialled])).await;
    within(|| tunnels.is_connected(Some("acme"), "laptop")).await;
    let client = PeerClient::over(tunnels.transport(Some("acme"), "laptop"), "agent://laptop", RemoteOptions::new()).unwrap();
    let new = Ask::post("/v1/traces").with_json(&json!({"trace_id": "t-1", "task": "x"})).unwrap().with_key("new");
    assert_eq!(client.ask(&new).await.unwrap().status, 201);
    let append = async |number: usize| {
        let message = json!({"role": "user", "content": format!("message {number}")});
        let ask = Ask::post("/v1/traces/t-1/messages").with_json(&message).unwrap().with_key(format!("message-{number}"));
        client.ask(&ask).await.unwrap();
    };
    for number in 0..5 {
        append(number).await;
    }
    let mut news = client.stream("/v1/traces/t-1/watch");
    let mut ids: Vec<u64> = Vec::new();
    let mut next = async |ids: &mut Vec<u64>| match tokio::time::timeout(PATIENCE, news.next()).await.expect("it takes moments") {
        Some(StreamNews::Event(event)) => ids.extend(event.id.and_then(|id| id.parse::<u64>().ok())),
        Some(StreamNews::Refused(error)) => panic!("{error}"),
        _ => {}
    };
    while ids.len() < 3 {
        next(&mut ids).await;
    }
    cloud.stop().await;
    let _cloud = start_cloud(address).await;
    for number in 5..10 {
        append(number).await;
    }
    let trace: Value = client.json(&client.ask(&Ask::get("/v1/traces/t-1")).await.unwrap()).unwrap();
    assert_eq!(trace["total_messages"], 10, "{trace}");
    let last = trace["last_event_id"].as_u64().unwrap();
    while ids.last() != Some(&last) {
        next(&mut ids).await;
    }
    assert_eq!(ids, (ids[0]..=last).collect::<Vec<_>>());
}
