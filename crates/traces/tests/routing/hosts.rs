//! Which locations make a connection: a table of ids against listeners that count.

use crate::support::address;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use treehold_core::error::ErrorKind;
use treehold_remote::RemoteOptions;
use treehold_traces::{ApiKey, Peer, Peers, PeersOptions, RemoteTraces, TraceStore, UnknownAgent};

/// A server that counts connections, and answers each request with the same bytes.
struct Counting {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<parking_lot::Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Counting {
    async fn start(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::<parking_lot::Mutex<Vec<String>>>::default());
        let (counted, recorded) = (connections.clone(), requests.clone());
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
                recorded.lock().push(String::from_utf8_lossy(&head).into_owned());
                if stream.write_all(answer.as_bytes()).await.is_ok() {
                    stream.shutdown().await.ok();
                }
            }
        });
        Self { address, connections, requests, task }
    }

    fn count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn trace() -> String {
    answer("200 OK", "content-type: application/json\r\n", r#"{"trace_id": "x"}"#)
}

fn options() -> PeersOptions {
    let timeout = Duration::from_secs(60);
    PeersOptions::new().with_remote(RemoteOptions::new().with_timeouts(timeout, timeout).with_attempts_max(1))
}

fn key() -> ApiKey {
    ApiKey::text("s3cret-s3cret")
}

/// Every way to write loopback and private hosts at a port, and other hosts that no registry of the tests names.
fn unregistered_hosts(port: u16) -> Vec<String> {
    let names = [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.2",
        "0.0.0.0",
        "0",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::]",
        "[fe80::1]",
        "[fd00::1]",
        "[64:ff9b::7f00:1]",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "10.0.0.1",
        "192.168.0.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
    ];
    names.iter().map(|name| format!("{name}:{port}")).collect()
}

#[tokio::test]
async fn host_that_is_not_registered_makes_no_connection() {
    let victim = Counting::start(trace()).await;
    let port = victim.address.port();
    let other = Peer::new("other", "https://other.example:8000", false).expect("a legal URL");
    let closed = Peers::new([other.clone()], options()).expect("one name");
    let open = Peers::new([other], options().with_unregistered_hosts(true)).expect("one name");
    for host in unregistered_hosts(port) {
        let id = format!("agent://{host}/x");
        let Ok(id) = id.parse() else { panic!("{id} is a legal id") };
        let error = RemoteTraces::new(closed.clone()).get_trace(&id).await.expect_err("not registered");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{host}: {error}");
        assert!(std::error::Error::source(&error).is_some_and(|source| source.is::<UnknownAgent>()), "{host}: {error}");
        // Even where other hosts are allowed, these are not: directly, or by what their name resolves to.
        let error = RemoteTraces::new(open.clone()).get_trace(&id).await.expect_err("not public");
        assert!(
            matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unavailable | ErrorKind::InvalidArgument),
            "{host}: {error}"
        );
    }
    assert_eq!(victim.count(), 0, "{:?}", victim.requests.lock());
}

#[tokio::test]
async fn malformed_id_makes_no_connection() {
    let victim = Counting::start(trace()).await;
    let at = victim.address;
    for id in [
        format!("agent://{at}"),
        format!("agent://{at}/"),
        format!("agent://user@{at}/x"),
        format!("agent://{at}@other.example/x"),
        format!("agent://other.example#{at}/x"),
        format!("agent://other.example?{at}/x"),
        format!("agent://{at}\\@other.example/x"),
        format!("agent://{at}%2f/x"),
        format!("http://{at}/x"),
        format!("//{at}/x"),
        format!("agent://{at}/../x"),
        format!("agent://{at} /x"),
        format!("agent://{at}\r\nhost: x/x"),
        "@/x".to_owned(),
        "@a/".to_owned(),
    ] {
        assert!(id.parse::<treehold_traces::TraceAddress>().is_err(), "{id:?}");
    }
    assert_eq!(victim.count(), 0);
}

#[tokio::test]
async fn key_goes_to_the_host_that_it_was_registered_for_only() {
    let (one, two) = (Counting::start(trace()).await, Counting::start(trace()).await);
    let peers = [
        Peer::new("one", format!("http://{}", one.address), false).expect("loopback").with_key(key()),
        Peer::new("two", format!("http://{}/", two.address), false).expect("loopback"),
    ];
    let traces = RemoteTraces::new(Peers::new(peers, options()).expect("two names"));
    for id in ["@one/x".to_owned(), format!("agent://{}/x", one.address), "@two/x".to_owned(), format!("agent://{}/x", two.address)] {
        let found = traces.get_trace(&address(&id)).await.expect(&id).expect("it exists");
        assert_eq!(found.trace_id, address(&id));
    }
    let has_key = |server: &Counting| server.requests.lock().iter().map(|head| head.contains("s3cret")).collect::<Vec<_>>();
    assert_eq!((has_key(&one), has_key(&two)), (vec![true, true], vec![false, false]));
    assert!(!format!("{traces:?}").contains("s3cret"), "{traces:?}");
}

#[tokio::test]
async fn redirect_is_not_followed() {
    for status in ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let victim = Counting::start(trace()).await;
        let location = format!("location: http://{}/api/traces/x\r\n", victim.address);
        let server = Counting::start(answer(status, &location, "")).await;
        let peer = Peer::new("one", format!("http://{}", server.address), false).expect("loopback").with_key(key());
        let traces = RemoteTraces::new(Peers::new([peer], options()).expect("one name"));
        let error = traces.get_trace(&address("@one/x")).await.expect_err("a redirect");
        assert_eq!((error.kind(), server.count(), victim.count()), (ErrorKind::Unsupported, 1, 0), "{error}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}

#[tokio::test]
async fn client_of_a_location_is_made_by_any_operation_and_kept() {
    let server = Counting::start(answer("404 Not Found", "", "")).await;
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("key"), "s3cret-s3cret").expect("written");
    let key = ApiKey::parse("file:key", directory.path());
    let peer = Peer::new("one", format!("http://{}", server.address), false).expect("loopback").with_key(key);
    let peers = Peers::new([peer], options()).expect("one name");
    let traces = RemoteTraces::new(peers);
    // The first operation after a start is an append, as in the original's trap.
    let add =
        async || traces.add_messages(&address("@one/x"), vec![treehold_traces::NewMessage::text("user", "hi")], &Default::default()).await;
    assert_eq!(add().await.expect_err("absent").kind(), ErrorKind::NotFound);
    // The key was read once: its client is kept.
    std::fs::remove_file(directory.path().join("key")).expect("removed");
    assert_eq!(add().await.expect_err("absent").kind(), ErrorKind::NotFound);
    assert!(server.requests.lock().iter().all(|head| head.contains("s3cret")));
}

#[tokio::test]
async fn unreadable_key_is_an_error_without_a_connection() {
    let server = Counting::start(trace()).await;
    let key = ApiKey::parse("file:/nonexistent/s3cret-path", Path::new("/"));
    let peer = Peer::new("one", format!("http://{}", server.address), false).expect("loopback").with_key(key);
    let traces = RemoteTraces::new(Peers::new([peer], options()).expect("one name"));
    let error = traces.get_trace(&address("@one/x")).await.expect_err("no key");
    assert_eq!((error.kind(), server.count()), (ErrorKind::Unavailable, 0));
    assert!(!error.message().contains("s3cret"), "{error}");
}

#[test]
fn host_of_several_agents_is_ambiguous_and_a_name_is_registered_once() {
    let peer = |name: &str| Peer::new(name, "https://h.example", false).expect("a legal URL");
    let peers = Peers::new([peer("one"), peer("two")], options()).expect("two names");
    let error = peers.check(&treehold_traces::Location::host("h.example").expect("a host")).expect_err("two keys");
    assert_eq!(error.message(), "the agents `one` and `two` both have the host `h.example`; write `@AGENT/ID`");
    let error = Peers::new([peer("one"), peer("one")], options()).expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
}

#[test]
fn unknown_agent_is_named_with_the_nearest_known_one() {
    let peer = Peer::new("laptop", "https://laptop.example:8000", false).expect("a legal URL").with_key(key());
    let peers = Peers::new([peer], options()).expect("one name");
    let message = |id: &str| peers.check(address(id).location().expect("qualified")).expect_err(id).message().to_owned();
    assert_eq!(message("@labtop/x"), "no agent is named `labtop`; did you mean `laptop`?");
    assert_eq!(message("agent://laptop.example/x"), "no agent has the host `laptop.example`; did you mean `laptop.example:8000`?");
    assert_eq!(message("@zed/x"), "no agent is named `zed`; register it in `[peers]` or in the file of agents");
    assert!(!format!("{peers:?}").contains("s3cret"), "{peers:?}");
}
