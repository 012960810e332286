//! A store that does not answer: what a request waits for before its handler, and what an open stream waits for.

use super::sessions::{begin, request, send};
use super::{Served, within, workspace};
use async_trait::async_trait;
use serde_json::json;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use treehold::ops::Version;
use treehold::serve::{Access, Rights, Token};
use treehold::store::{
    Batch, Item, ItemPart, Namespace, NamespacePage, NamespacesOptions, Partition, RESERVED_ROOT, Scan, ScanOptions, Store,
    StoreCapabilities, StoreExtensions, Watch,
};
use treehold::{MemoryStore, Result};

/// Only a request without a deadline takes this long.
const NEVER: Duration = Duration::from_secs(60);

/// A store that never answers a read of a token while it is silent.
#[derive(Debug)]
struct Silent {
    inner: MemoryStore,
    is_silent: Arc<AtomicBool>,
}

/// Returns a store, and what makes it silent.
fn silent(is_silent: bool) -> (Arc<dyn Store>, Arc<AtomicBool>) {
    let is_silent = Arc::new(AtomicBool::new(is_silent));
    (Arc::new(Silent { inner: MemoryStore::new(), is_silent: is_silent.clone() }), is_silent)
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("silent")
    }
}

#[async_trait]
impl Store for Silent {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    fn extensions(&self) -> StoreExtensions<'_> {
        self.inner.extensions().without_reads()
    }

    async fn get(&self, namespace: &Namespace, key: &str) -> Result<Option<Item>> {
        if self.is_silent.load(Ordering::SeqCst) && *namespace == Namespace::new([RESERVED_ROOT, "tokens"])? {
            std::future::pending::<()>().await;
        }
        self.inner.get(namespace, key).await
    }

    async fn get_part(&self, namespace: &Namespace, key: &str, range: Range<u64>) -> Result<Option<ItemPart>> {
        self.inner.get_part(namespace, key, range).await
    }

    async fn get_many(&self, namespace: &Namespace, keys: &[&str], with_values: bool) -> Result<Vec<Option<Item>>> {
        self.inner.get_many(namespace, keys, with_values).await
    }

    async fn scan(&self, namespace: &Namespace, options: ScanOptions) -> Result<Scan> {
        self.inner.scan(namespace, options).await
    }

    async fn namespaces(&self, options: NamespacesOptions) -> Result<NamespacePage> {
        self.inner.namespaces(options).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Version>> {
        self.inner.commit(batch).await
    }

    async fn current_version(&self, partition: &Partition) -> Result<Version> {
        self.inner.current_version(partition).await
    }

    async fn watch(&self, namespace: &Namespace) -> Result<Watch> {
        self.inner.watch(namespace).await
    }
}

/// Sends a request and returns what is answered.
fn asked(served: &Served, path: &str, token: &str) -> String {
    let host = served.base.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(NEVER)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

/// The deadline began only after the caller was known, and at `/mcp` and `/metrics` there was none.
#[test]
fn request_whose_token_cannot_be_looked_up_ends_at_the_deadline() {
    let (store, _) = silent(true);
    let limited = workspace(&store);
    let served =
        Served::of(Runtime::new().unwrap(), limited, store, |options| options.with_tokens(true).with_deadline(Duration::from_millis(100)));
    let token = served.token("acme", "ada", Rights::new(Access::Admin));
    for path in ["/v1/fs/a", "/v1/sessions", "/mcp", "/mcp/t/one", "/v1/connect", "/metrics"] {
        let answer = asked(&served, path, &token);
        assert!(answer.starts_with("HTTP/1.1 504 "), "{path}: {answer}");
        assert!(answer.contains("\"code\":\"deadline\"") && answer.contains("the token could not be looked up"), "{path}: {answer}");
    }
    // No store is asked.
    assert!(asked(&served, "/v1/fs/a", "thd_none").starts_with("HTTP/1.1 401 "));
}

/// A stream that the server sends over a connection of its own.
struct Open {
    name: &'static str,
    connection: TcpStream,
    received: Vec<u8>,
}

impl Open {
    /// Sends a request, and returns once the answer holds a text.
    fn start(served: &Served, name: &'static str, target: (&str, &str), headers: &[(&str, &str)], body: &str, until: &str) -> Self {
        let host = served.base.trim_start_matches("http://");
        let mut connection = TcpStream::connect(host).unwrap();
        connection.set_read_timeout(Some(NEVER)).unwrap();
        let length = body.len().to_string();
        let of_body = (!body.is_empty()).then_some(("content-length", length.as_str()));
        let headers: String = headers.iter().copied().chain(of_body).map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let (method, path) = target;
        connection.write_all(format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n{body}").as_bytes()).unwrap();
        let mut received = Vec::new();
        while !String::from_utf8_lossy(&received).contains(until) {
            let mut part = [0; 4096];
            let count = connection.read(&mut part).unwrap();
            assert!(count > 0, "{name}: {}", String::from_utf8_lossy(&received));
            received.extend_from_slice(&part[..count]);
        }
        Self { name, connection, received }
    }

    /// Returns all that was sent until the server ended the stream.
    fn end(mut self) -> String {
        if let Err(error) = self.connection.read_to_end(&mut self.received) {
            assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{} does not end", self.name);
        }
        String::from_utf8_lossy(&self.received).into_owned()
    }
}

/// Regression: the check of a token during a stream had no deadline, so the stream, its place and its session stayed for ever.
#[test]
fn streams_whose_token_cannot_be_looked_up_end_without_further_events() {
    const OPERATOR: &str = "0123456789abcdef";
    let (store, is_silent) = silent(false);
    let served = Served::of(Runtime::new().unwrap(), workspace(&store), store, |options| {
        options.with_tokens(true).with_token(Token::new(OPERATOR).ok()).with_deadline(Duration::from_secs(5))
    });
    // No store is asked about this caller.
    let operate = |method: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {OPERATOR}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let answer = served.send(method, path, &headers, body.as_bytes());
        let (status, said) = (answer.status, answer.text());
        assert!(status < 300, "{method} {path}: {status} {said}");
    };
    operate("PUT", "/v1/fs/memories/a", "one");
    operate("POST", "/v1/sessions", r#"{"agent_id": "helper", "session_id": "s"}"#);
    operate("POST", "/v1/traces", r#"{"trace_id": "t", "task": "any"}"#);

    let lent = served.token("acme", "ada", Rights::new(Access::Read));
    let bearer = format!("Bearer {lent}");
    let (session, idle) = (begin(&served, &lent), begin(&served, &lent));
    let subscribe = request(1, "resources/subscribe", json!({"uri": "vfs:///memories/a"}));
    drop(send(&served, &lent, "POST", Some(&session), &[], &subscribe).text());
    let once = [("authorization", bearer.as_str()), ("connection", "close")];
    let of_mcp = [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
    let of_session = [&once[..], &of_mcp, &[("mcp-protocol-version", "2025-11-25"), ("mcp-session-id", session.as_str())]].concat();
    let of_listener = [&once[..], &of_mcp, &[("mcp-protocol-version", "2026-07-28"), ("mcp-method", "subscriptions/listen")]].concat();
    let of_socket = [
        ("authorization", bearer.as_str()),
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let filter = json!({"notifications": {"resourceSubscriptions": ["vfs:///memories/a"]}, "_meta": meta});
    let listen = request(1, "subscriptions/listen", filter).to_string();
    let trace = "/v1/traces/t/watch?since_event_id=1";
    let streams = [
        Open::start(&served, "the feed", ("GET", "/v1/events"), &once, "", "event: open"),
        Open::start(&served, "a session of a host", ("GET", "/v1/sessions/s/events"), &once, "", "event: open"),
        Open::start(&served, "a trace", ("GET", trace), &once, "", ": open"),
        Open::start(&served, "a socket", ("GET", trace), &of_socket, "", "\r\n\r\n"),
        Open::start(&served, "a session of MCP", ("GET", "/mcp"), &of_session, "", "\r\n\r\n"),
        Open::start(&served, "a subscription of MCP", ("POST", "/mcp"), &of_listener, &listen, "acknowledged"),
    ];

    is_silent.store(true, Ordering::SeqCst);
    // A lookup is cached for a second.
    std::thread::sleep(Duration::from_millis(1_100));
    operate("PUT", "/v1/fs/memories/a", "two");
    operate("PATCH", "/v1/sessions/s", r#"{"title": "new"}"#);
    operate("POST", "/v1/traces/t/events", r#"{"event": "unseen"}"#);
    // A change of tokens has those of idle sessions checked.
    served.token("acme", "bob", Rights::new(Access::Read));
    for stream in streams {
        let name = stream.name;
        let told = stream.end();
        assert!(["event: change", "unseen", "resources/updated"].iter().all(|sign| !told.contains(sign)), "{name}: {told}");
        let says_why = told.contains("the token cannot be checked now; connect again with the last event_id");
        assert_eq!(says_why, name == "a socket", "{name}: {told}");
    }
    assert!(asked(&served, "/v1/events", &lent).starts_with("HTTP/1.1 504 "));

    // The token was valid all the time, so its client connects again and goes on.
    is_silent.store(false, Ordering::SeqCst);
    for ended in [&session, &idle] {
        within(|| send(&served, &lent, "POST", Some(ended), &[], &request(2, "tools/list", json!({}))).status == 404);
    }
    let told = Open::start(&served, "a trace", ("GET", trace), &once, "", "unseen").received;
    assert!(String::from_utf8_lossy(&told).starts_with("HTTP/1.1 200 "));
}

/// Regression: the check had no deadline and was never repeated, so the tunnel stayed although its token was revoked meanwhile.
#[cfg(feature = "remote")]
#[test]
fn tunnel_whose_token_cannot_be_looked_up_ends() {
    use treehold::RemoteOptions;
    use treehold::remote::{TunnelOptions, Tunnels};
    use treehold::serve::Dial;
    let (store, is_silent) = silent(false);
    let tunnels = Tunnels::new(TunnelOptions::new());
    let accepted = tunnels.clone();
    let cloud = Served::of(Runtime::new().unwrap(), workspace(&store), store, move |options| {
        options.with_tokens(true).with_deadline(Duration::from_secs(2)).with_tunnels(accepted)
    });
    let token = cloud.token("acme", "ada", Rights::new(Access::Read).with_connect_as(Some("laptop".to_owned())));
    let dial = Dial::new(cloud.base.clone(), RemoteOptions::new().with_token(token)).with_rights(Some(Rights::new(Access::Read)));
    let _laptop = Served::with(move |options| options.with_dials(vec![dial]));
    let is_connected = || tunnels.is_connected(Some("acme"), "laptop");
    within(is_connected);
    is_silent.store(true, Ordering::SeqCst);
    within(|| !is_connected());
    // The machine dials until its token can be looked up.
    is_silent.store(false, Ordering::SeqCst);
    within(is_connected);
}
