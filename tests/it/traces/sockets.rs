//! Following a trace over a WebSocket, with a client that is not ours.

use super::{BASES, Caller, admin, body, routes};
use crate::serve::{Served, within};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderName, HeaderValue, Response};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};
use treehold::serve::{Access, ConnectionLimits, Rights, TokenBook};

/// How long a test waits for a message.
const PATIENCE: Duration = Duration::from_secs(120);

/// An open socket.
struct Socket<'a> {
    served: &'a Served,
    stream: WebSocketStream<TcpStream>,
}

/// Sends a handshake. Returns the socket, or the answer that refused it.
fn handshake<'a>(served: &'a Served, path: &str, headers: &[(&str, &str)]) -> Result<Socket<'a>, Box<Response<Option<Vec<u8>>>>> {
    let address = served.base.trim_start_matches("http://");
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
    }
    served.block_on(async {
        let stream = TcpStream::connect(address).await.unwrap();
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((stream, _)) => Ok(Socket { served, stream }),
            Err(Error::Http(response)) => Err(response),
            Err(error) => panic!("{path}: {error}"),
        }
    })
}

impl<'a> Socket<'a> {
    fn open(caller: &Caller<'a>, path: &str, headers: &[(&str, &str)]) -> Self {
        let bearer = caller.bearer();
        let headers = [&[("authorization", bearer.as_str())], headers].concat();
        handshake(caller.served, path, &headers).unwrap_or_else(|refused| panic!("{path}: {}", refused.status()))
    }

    /// Returns the next text or close frame; `None` if the connection ended without one.
    fn next(&mut self) -> Option<Message> {
        let next = async {
            loop {
                match self.stream.next().await {
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(message)) => return Some(message),
                    Some(Err(_)) | None => return None,
                }
            }
        };
        self.served.block_on(async { tokio::time::timeout(PATIENCE, next).await }).expect("the server says something")
    }

    fn event(&mut self) -> Value {
        match self.next() {
            Some(Message::Text(text)) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Reads a number of events, and returns their ids and kinds.
    fn take(&mut self, count: usize) -> Vec<(u64, String)> {
        let shown = |event: Value| (event["event_id"].as_u64().unwrap(), event["event"].as_str().unwrap().to_owned());
        (0..count).map(|_| shown(self.event())).collect()
    }

    /// Reads to the end, and returns the code of the close frame and its reason.
    fn end(&mut self) -> Option<(u16, String)> {
        loop {
            match self.next() {
                Some(Message::Close(Some(CloseFrame { code, reason }))) => return Some((code.into(), reason.to_string())),
                Some(Message::Text(_)) => {}
                _ => return None,
            }
        }
    }

    fn send(&mut self, message: Message) -> bool {
        let Self { served, stream } = self;
        served.block_on(async { stream.send(message).await }).is_ok()
    }
}

fn named(events: &[(u64, &str)]) -> Vec<(u64, String)> {
    events.iter().map(|(id, name)| (*id, (*name).to_owned())).collect()
}

#[test]
fn socket_replays_events_and_goes_on_with_new_ones() {
    let served = Served::closed();
    let ada = admin(&served);
    for (number, base) in BASES.into_iter().enumerate() {
        let trace = format!("t{number}");
        ada.create(&trace);
        ada.say(&trace, &["one"]);
        let watch = format!("{base}/{trace}/watch");
        let mut all = Socket::open(&ada, &watch, &[]);
        let mut late = Socket::open(&ada, &format!("{watch}?since_event_id=1"), &[]);
        let mut resumed = Socket::open(&ada, &watch, &[("last-event-id", "2"), ("origin", &served.base)]);
        assert_eq!(all.take(2), named(&[(1, "trace_created"), (2, "message_added")]));
        assert_eq!(late.take(1), named(&[(2, "message_added")]));
        // What clients send is ignored, and pings are answered.
        assert!(all.send(Message::text("ping")) && all.send(Message::binary(vec![7])) && all.send(Message::Ping(vec![1, 2].into())));
        ada.say(&trace, &["two"]);
        ada.ok("POST", &format!("{base}/{trace}/events"), json!({"event": "thinking", "about": "tea\n"}));
        for socket in [&mut all, &mut late, &mut resumed] {
            assert_eq!(socket.take(1), named(&[(3, "message_added")]));
            let event = socket.event();
            assert_eq!((&event["event_id"], &event["event"], &event["about"]), (&json!(4), &json!("thinking"), &json!("tea\n")));
        }
        assert!(late.send(Message::Close(None)));
        assert!(late.end().is_none(), "the server confirms");
        ada.ok("DELETE", &format!("{base}/{trace}"), Value::Null);
        assert_eq!(all.end().map(|(code, _)| code), Some(1000));
        assert_eq!(resumed.end(), Some((1000, "the trace was removed".to_owned())));
    }
}

#[test]
fn handshakes_are_refused_as_other_requests_are() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let bob = Caller::new(&served, "acme", "bob", Rights::new(Access::Admin));
    let other = Caller::new(&served, "other", "ada", Rights::new(Access::Admin));
    let tied = Caller::new(&served, "acme", "ada", Rights::new(Access::Admin).with_threads(["default".to_owned()]));
    let [ada_key, bob_key, other_key, tied_key] = [&ada, &bob, &other, &tied].map(Caller::bearer);
    for base in BASES {
        for (path, headers, status, detail) in [
            ("/t/watch", vec![], 401, "requires a token"),
            ("/t/watch", vec![("authorization", "Bearer nonsense")], 401, "wrong, revoked or expired"),
            ("/t/watch", vec![("authorization", &*bob_key)], 403, "Cannot access other user's trace"),
            ("/t/watch", vec![("authorization", &*tied_key)], 403, "some threads"),
            ("/t/watch", vec![("authorization", &*other_key)], 404, "does not exist"),
            ("/unknown/watch", vec![("authorization", &*ada_key)], 404, "does not exist"),
            ("/%40laptop%2Ft/watch", vec![("authorization", &*ada_key)], 400, "lives elsewhere"),
            ("/t/watch?since_event_id=x", vec![("authorization", &*ada_key)], 400, "the query cannot be used"),
            ("/t/watch", vec![("authorization", &*ada_key), ("sec-websocket-version", "12")], 400, "version 13"),
            ("/t/watch", vec![("authorization", &*ada_key), ("upgrade", "h2c")], 400, "WebSocket"),
            // A page elsewhere could otherwise open a socket on behalf of its visitor.
            ("/t/watch", vec![("authorization", &*ada_key), ("origin", "https://evil.example")], 403, "pages of this origin"),
            ("/t/watch", vec![("authorization", &*ada_key), ("origin", "null")], 403, "pages of this origin"),
            ("/t/watch", vec![("authorization", &*ada_key), ("host", "evil.example")], 403, "does not answer for the host"),
        ] {
            let Err(refused) = handshake(&served, &format!("{base}{path}"), &headers) else { panic!("{base}{path} {headers:?}") };
            let said = String::from_utf8(refused.body().clone().unwrap_or_default()).unwrap();
            assert_eq!(refused.status().as_u16(), status, "{base}{path} {headers:?}: {said}");
            assert_eq!(refused.headers()["content-type"], "application/problem+json", "{base}{path}");
            assert!(said.is_empty() || said.contains(detail), "{base}{path} {headers:?}: {said}");
        }
        // No other route changes its protocol.
        for route in routes(&served).iter().filter(|route| route.id != "watchTrace" && !route.changes()) {
            ada.fill("filled");
            let url = route.url(base, "filled");
            let Err(answer) = handshake(&served, &url, &[("authorization", &ada_key)]) else { panic!("{url}") };
            assert_eq!((answer.status().as_u16(), body(&route.id)), (200, Value::Null), "{url}");
            ada.ok("DELETE", "/api/traces/filled", Value::Null);
        }
    }
    // The server without tokens admits no page of another origin either.
    let open = Served::start();
    open.post("/api/traces", &json!({"trace_id": "t"}));
    assert!(handshake(&open, "/api/traces/t/watch", &[("origin", "https://evil.example")]).is_err());
    assert!(handshake(&open, "/api/traces/t/watch", &[("origin", &open.base)]).is_ok());
}

#[test]
fn socket_ends_when_its_token_is_revoked() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let lent = Caller::new(&served, "acme", "ada", Rights::new(Access::Read));
    let mut socket = Socket::open(&lent, "/api/traces/t/watch?since_event_id=1", &[]);
    served.block_on(TokenBook::new(served.store.clone()).revoke(lent.token.split('_').nth(1).unwrap())).unwrap();
    // Nothing happens in the trace, and the socket ends.
    assert_eq!(socket.end(), Some((1008, "the token is no longer valid".to_owned())));
}

#[test]
fn sockets_say_goodbye_when_the_server_stops() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let address = served.base.trim_start_matches("http://").to_owned();
    let bearer = ada.bearer();
    // A runtime of its own, as that of the server ends.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut request = format!("ws://{address}/api/traces/t/watch").into_client_request().unwrap();
    request.headers_mut().insert("authorization", HeaderValue::from_str(&bearer).unwrap());
    let mut sockets: Vec<WebSocketStream<TcpStream>> = (0..3)
        .map(|_| {
            runtime.block_on(async {
                let stream = TcpStream::connect(&address).await.unwrap();
                let (mut socket, _) = tokio_tungstenite::client_async(request.clone(), stream).await.unwrap();
                assert!(matches!(socket.next().await, Some(Ok(Message::Text(_)))));
                socket
            })
        })
        .collect();
    served.stop().expect("in order");
    for socket in &mut sockets {
        let end = runtime.block_on(async { tokio::time::timeout(PATIENCE, socket.next()).await }).unwrap();
        let Some(Ok(Message::Close(Some(end)))) = end else { panic!("{end:?}") };
        assert_eq!(u16::from(end.code), 1001);
    }
}

/// An idle connection is closed after a millisecond. A socket is no such connection, however long nothing happens in its trace.
#[test]
fn socket_outlives_the_time_limit_of_idle_connections() {
    let writer = Served::closed();
    let ada = admin(&writer);
    ada.create("t");
    let limits = ConnectionLimits::new().with_idle_timeout(Duration::from_millis(1));
    let hurried = Served::on(writer.store.clone(), |options| options.with_tokens(true).with_connections(limits));
    let mut socket = Socket::open(&Caller { served: &hurried, token: ada.token.clone() }, "/api/traces/t/watch?since_event_id=1", &[]);
    for id in 2..5 {
        // The server closes this connection because it is idle, so the socket was idle for at least as long.
        let mut idle = std::net::TcpStream::connect(hurried.base.trim_start_matches("http://")).unwrap();
        std::io::Write::write_all(&mut idle, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        std::io::Read::read_to_end(&mut idle, &mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        ada.say("t", &["one"]);
        assert_eq!(socket.take(1), named(&[(id, "message_added")]));
    }
}

#[test]
fn sockets_are_limited_and_give_their_place_back() {
    let served = Served::with(|options| options.with_tokens(true).with_streams_max(2));
    let ada = admin(&served);
    ada.create("t");
    let (path, bearer) = ("/api/traces/t/watch", ada.bearer());
    let mut first = Socket::open(&ada, path, &[]);
    let second = Socket::open(&ada, path, &[]);
    let Err(refused) = handshake(&served, path, &[("authorization", &bearer)]) else { panic!("too many") };
    assert_eq!(refused.status().as_u16(), 503);
    // One client closes its socket, the other one vanishes. Nothing needs to happen in the trace.
    assert!(first.send(Message::Close(None)));
    drop(second);
    within(|| {
        let opened: Vec<_> = (0..2).map(|_| handshake(&served, path, &[("authorization", &bearer)])).collect();
        opened.iter().all(Result::is_ok)
    });
}

#[test]
fn client_that_reads_nothing_is_disconnected() {
    let limits = ConnectionLimits::new().with_write_timeout(Duration::from_secs(1)).with_answer_bytes_per_second_min(1 << 30);
    let served = Served::with(|options| options.with_tokens(true).with_streams_max(2).with_connections(limits));
    let ada = admin(&served);
    ada.create("t");
    let (path, bearer) = ("/api/traces/t/watch", ada.bearer());
    let large = "x".repeat(60 << 10);
    for _ in 0..400 {
        ada.ok("POST", "/api/traces/t/events", json!({"event": "note", "text": large}));
    }
    // More than the buffers of both sides hold.
    let _unread = [Socket::open(&ada, path, &[]), Socket::open(&ada, path, &[])];
    within(|| handshake(&served, path, &[("authorization", &bearer)]).is_ok());
}

#[test]
fn hostile_frames_end_the_socket() {
    let served = Served::closed();
    let ada = admin(&served);
    ada.create("t");
    let raw = |bytes: &[u8]| {
        let mut socket = Socket::open(&ada, "/api/traces/t/watch?since_event_id=1", &[]);
        let Socket { served, stream } = &mut socket;
        served.block_on(async {
            use tokio::io::AsyncWriteExt;
            let _ = stream.get_mut().write_all(bytes).await;
        });
        // The server closes the connection, with or without a reason.
        socket.end();
    };
    raw(&[0x81, 0x01, b'x']);
    raw(&[0xff; 64]);
    raw(&[0x83, 0x80, 0, 0, 0, 0]);
    raw(&[0x81, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    raw(&[0x89, 0xfe, 0x01, 0x00, 0, 0, 0, 0]);
    let mut socket = Socket::open(&ada, "/api/traces/t/watch?since_event_id=1", &[]);
    socket.send(Message::text("x".repeat(64 << 10)));
    socket.end();
    // A long fragmented message is bounded as a whole.
    let mut fragments = vec![0x01, 0xfe, 0x0f, 0x00, 0, 0, 0, 0];
    fragments.extend([b'x'; 0x0f00]);
    let mut more = vec![0x00, 0xfe, 0x0f, 0x00, 0, 0, 0, 0];
    more.extend([b'x'; 0x0f00]);
    raw(&[fragments, more.repeat(16)].concat());
    assert_eq!(ada.get("/api/traces/t")["trace_id"], "t");
}
