//! Tunnels over streams in memory: who reaches whom, what a break does to requests, and machines that misbehave.

#![allow(missing_docs, clippy::unwrap_used)]

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use treehold_core::error::{Error, ErrorKind, Result};
use treehold_remote::{Ask, PeerClient, RemoteOptions, StreamNews, TunnelEnd, TunnelOptions, Tunnels};

type Body = BoxBody<Bytes, Infallible>;

fn text(body: impl Into<Bytes>) -> Response<Body> {
    Response::builder().header("content-type", "application/json").body(Full::new(body.into()).boxed()).unwrap()
}

/// Serves HTTP/2 over a stream, as a machine that dialled.
fn machine(stream: DuplexStream, answer: impl Fn(Request<Incoming>) -> Response<Body> + Send + Sync + 'static) -> JoinHandle<()> {
    let answer = Arc::new(answer);
    let service = service_fn(move |request| {
        let answer = answer.clone();
        async move { Ok::<_, Infallible>(answer(request)) }
    });
    tokio::spawn(async move {
        let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    })
}

/// Connects a stream under a name of a tenant, and waits until the tunnel is open or refused.
async fn connect(tunnels: &Tunnels, tenant: &str, name: &str, stream: DuplexStream) -> Result<JoinHandle<Result<()>>> {
    let reservation = tunnels.reserve(Some(tenant.to_owned()), Some("ada".to_owned()), name).await?;
    let mut running = tokio::spawn(reservation.run(stream, pending()));
    loop {
        tokio::select! {
            ended = &mut running => return Err(ended.unwrap().err().unwrap_or_else(|| Error::new(ErrorKind::Unavailable, "it ended"))),
            () = tokio::task::yield_now() => {}
        }
        if tunnels.is_connected(Some(tenant), name) {
            return Ok(running);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Connects a machine that answers each request with a text.
async fn connected(tunnels: &Tunnels, tenant: &str, name: &str, answer: &'static str) -> JoinHandle<()> {
    let (near, far) = duplex(64 << 10);
    let served = machine(far, move |_| text(answer));
    connect(tunnels, tenant, name, near).await.unwrap();
    served
}

fn client(tunnels: &Tunnels, tenant: &str, name: &str) -> PeerClient {
    let transport = tunnels.transport(Some(tenant), name);
    PeerClient::over(transport, format!("agent://{name}"), RemoteOptions::new().with_token("s3cret-s3cret-s3cret")).unwrap()
}

async fn asked(client: &PeerClient) -> Result<String> {
    let answer = client.ask(&Ask::get("/v1/x")).await?;
    client.json::<String>(&answer)
}

#[tokio::test]
async fn request_reaches_the_machine_of_its_own_tenant_only() {
    let tunnels = Tunnels::default();
    let _acme = connected(&tunnels, "acme", "laptop", "\"of acme\"").await;
    let _other = connected(&tunnels, "other", "laptop", "\"of other\"").await;
    assert_eq!(asked(&client(&tunnels, "acme", "laptop")).await.unwrap(), "of acme");
    assert_eq!(asked(&client(&tunnels, "other", "laptop")).await.unwrap(), "of other");
    for (tenant, name) in [("third", "laptop"), ("acme", "desktop")] {
        let error = asked(&client(&tunnels, tenant, name)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().starts_with(&format!("`{name}` is not connected to this server; run `treehold serve --dial")), "{error}");
    }
    let counts = tunnels.counts();
    assert_eq!((counts.open, counts.opened, counts.requests), (2, 2, 2));
}

#[tokio::test]
async fn headers_and_body_arrive_as_sent() {
    let tunnels = Tunnels::default();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (near, far) = duplex(64 << 10);
    let noted = seen.clone();
    let _served = machine(far, move |request| {
        let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        noted.lock().push(format!("{} {} {} {}", request.method(), request.uri(), header("authorization"), header("idempotency-key")));
        text("{}")
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    let client = client(&tunnels, "acme", "laptop");
    client.ask(&Ask::post("/v1/apply?a=%2F").with_body("{}").with_key("key")).await.unwrap();
    assert_eq!(seen.lock().last().unwrap(), "POST http://localhost/v1/apply?a=%2F Bearer s3cret-s3cret-s3cret key");
    assert!(!format!("{client:?}").contains("s3cret"));
}

#[tokio::test(start_paused = true)]
async fn second_connection_is_refused_while_the_first_answers() {
    let tunnels = Tunnels::default();
    let first = connected(&tunnels, "acme", "laptop", "\"first\"").await;
    let (near, far) = duplex(64 << 10);
    let _second = machine(far, |_| text("\"second\""));
    let error = connect(&tunnels, "acme", "laptop", near).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(asked(&client(&tunnels, "acme", "laptop")).await.unwrap(), "first");
    first.abort();
    let (near, far) = duplex(64 << 10);
    let _second = machine(far, |_| text("\"second\""));
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    assert_eq!(asked(&client(&tunnels, "acme", "laptop")).await.unwrap(), "second");
    assert_eq!((tunnels.counts().open, tunnels.counts().refused), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn machine_that_no_longer_answers_is_replaced_and_found_by_pings() {
    let tunnels = Tunnels::new(TunnelOptions::new().with_keep_alive(Duration::from_secs(600)));
    let (near, far) = duplex(64 << 10);
    let served = machine_that_freezes(far);
    let first = connect(&tunnels, "acme", "laptop", near).await.unwrap();
    served.freeze().await;
    let (near, far) = duplex(64 << 10);
    let _second = machine(far, |_| text("\"second\""));
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    first.await.unwrap().unwrap();
    assert_eq!(asked(&client(&tunnels, "acme", "laptop")).await.unwrap(), "second");

    let tunnels = Tunnels::new(TunnelOptions::new().with_keep_alive(Duration::from_secs(5)));
    let (near, far) = duplex(64 << 10);
    let served = machine_that_freezes(far);
    let first = connect(&tunnels, "acme", "laptop", near).await.unwrap();
    served.freeze().await;
    first.await.unwrap().unwrap();
    assert!(!tunnels.is_connected(Some("acme"), "laptop"));
}

/// A machine whose bytes can be held back, without closing anything.
struct Freezing {
    freeze: oneshot::Sender<()>,
    frozen: oneshot::Receiver<()>,
}

impl Freezing {
    async fn freeze(self) {
        self.freeze.send(()).unwrap();
        self.frozen.await.unwrap();
    }
}

fn machine_that_freezes(mut far: DuplexStream) -> Freezing {
    let (mut outer, inner) = duplex(64 << 10);
    let (freeze, frozen_now) = oneshot::channel();
    let (told, frozen) = oneshot::channel();
    tokio::spawn(async move {
        let served = machine(inner, |_| text("\"once\""));
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut far, &mut outer) => {}
            _ = frozen_now => {
                let _ = told.send(());
                pending::<()>().await;
            }
        }
        drop((far, outer, served));
    });
    Freezing { freeze, frozen }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_http_never_become_a_tunnel() {
    let tunnels = Tunnels::default();
    for garbage in [&b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..], &[0xff; 4_096], b"", b"\0\0\0\x04\0\0\0\0\0"] {
        let (near, mut far) = duplex(64 << 10);
        let sent = tokio::spawn(async move {
            far.write_all(garbage).await.unwrap();
            let mut ignored = vec![0; 1 << 10];
            while far.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
        });
        let error = connect(&tunnels, "acme", "laptop", near).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!tunnels.is_connected(Some("acme"), "laptop"));
        sent.await.unwrap();
    }
    assert_eq!((tunnels.counts().open, tunnels.counts().opened, tunnels.counts().refused), (0, 0, 4));
    let _served = connected(&tunnels, "acme", "laptop", "\"well\"").await;
    assert_eq!(asked(&client(&tunnels, "acme", "laptop")).await.unwrap(), "well", "the name is free again");
}

/// The first answer is lost with the tunnel. The machine comes back, and gets the request again under the same key.
#[tokio::test(start_paused = true)]
async fn change_is_repeated_with_its_key_when_the_tunnel_returns() {
    let tunnels = Tunnels::default();
    let keys: Arc<Mutex<Vec<String>>> = Arc::default();
    let (near, far) = duplex(64 << 10);
    let (cut, is_cut) = oneshot::channel();
    let cut = Mutex::new(Some(cut));
    let of_first = keys.clone();
    let first = machine(far, move |request| {
        note_key(&of_first, &request);
        if request.method() == "POST"
            && let Some(cut) = cut.lock().take()
        {
            let _ = cut.send(());
            let body = StreamBody::new(futures::stream::pending::<std::result::Result<Frame<Bytes>, Infallible>>());
            return Response::new(BodyExt::boxed(body));
        }
        text("{}")
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    let (asking, back, of_second) = (client(&tunnels, "acme", "laptop"), tunnels.clone(), keys.clone());
    #[expect(clippy::async_yields_async, reason = "the machine goes on when the task has ended")]
    let returning = tokio::spawn(async move {
        is_cut.await.unwrap();
        first.abort();
        let _ = first.await;
        while back.is_connected(Some("acme"), "laptop") {
            tokio::task::yield_now().await;
        }
        let (near, far) = duplex(64 << 10);
        let second = machine(far, move |request| {
            note_key(&of_second, &request);
            text("\"made\"")
        });
        connect(&back, "acme", "laptop", near).await.unwrap();
        second
    });
    let answer = asking.ask(&Ask::post("/v1/apply").with_body("{}").with_key("key-1")).await.unwrap();
    assert_eq!(&answer.body[..], b"\"made\"");
    let _second = returning.await.unwrap();
    assert_eq!(*keys.lock(), ["key-1", "key-1"]);
}

fn note_key(keys: &Mutex<Vec<String>>, request: &Request<Incoming>) {
    keys.lock().extend(request.headers().get("idempotency-key").map(|key| key.to_str().unwrap().to_owned()));
}

#[tokio::test(start_paused = true)]
async fn change_whose_tunnel_does_not_return_reports_an_unknown_effect() {
    let tunnels = Tunnels::default();
    let (near, far) = duplex(64 << 10);
    let (cut, is_cut) = oneshot::channel();
    let cut = Mutex::new(Some(cut));
    let served = machine(far, move |request| {
        if request.method() == "POST" {
            cut.lock().take().map(|cut| cut.send(()));
            let body = StreamBody::new(futures::stream::pending::<std::result::Result<Frame<Bytes>, Infallible>>());
            return Response::new(BodyExt::boxed(body));
        }
        text("{}")
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    tokio::spawn(async move {
        is_cut.await.unwrap();
        served.abort();
    });
    let client = client(&tunnels, "acme", "laptop");
    let error = client.ask(&Ask::post("/v1/apply").with_body("{}").with_key("key")).await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unavailable, true), "{error}");
    let error = client.ask(&Ask::post("/v1/apply").with_body("{}").with_key("key")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.may_have_effect()),
        (ErrorKind::Unavailable, false),
        "it was lost long ago, so nothing is sent: {error}"
    );
}

/// A machine stops answering in the middle of requests, and another connection takes its name. What ran fails with the truth about its
/// effect, or is sent again where that is safe; nothing waits for the connection that is gone.
#[tokio::test(start_paused = true)]
async fn requests_in_flight_end_when_their_tunnel_is_replaced() {
    let tunnels = Tunnels::new(TunnelOptions::new().with_keep_alive(Duration::from_secs(600)));
    let (near, far) = duplex(64 << 10);
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = arrived.clone();
    let (mut outer, inner) = duplex(64 << 10);
    let _first = machine(inner, move |request| {
        if request.uri().path() == "/livez" {
            return text("\"ok\"");
        }
        counted.fetch_add(1, Ordering::SeqCst);
        let body = StreamBody::new(futures::stream::pending::<std::result::Result<Frame<Bytes>, Infallible>>());
        Response::builder().header("content-type", "application/json").body(BodyExt::boxed(body)).unwrap()
    });
    let (freeze, frozen) = oneshot::channel::<()>();
    let link = tokio::spawn(async move {
        let mut far = far;
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut far, &mut outer) => {}
            _ = frozen => pending::<()>().await,
        }
    });
    let running = connect(&tunnels, "acme", "laptop", near).await.unwrap();
    let asked_for = |key: Option<&'static str>| {
        let client = client(&tunnels, "acme", "laptop");
        let ask = match key {
            Some(key) => Ask::post("/v1/x").with_body("{}").with_key(key),
            None => Ask::get("/v1/x"),
        };
        tokio::spawn(async move { client.ask(&ask).await.map(|answer| answer.body) })
    };
    let (read, change) = (asked_for(None), asked_for(Some("k")));
    while arrived.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    freeze.send(()).unwrap();
    let (near, far) = duplex(64 << 10);
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = keys.clone();
    let _second = machine(far, move |request| {
        seen.lock().extend(request.headers().get("idempotency-key").map(|key| key.to_str().unwrap().to_owned()));
        text("\"second\"")
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    running.await.unwrap().unwrap();
    // Both are safe to repeat: a read, and a change by its key. So the second connection answers both.
    assert_eq!(read.await.unwrap().unwrap(), "\"second\"");
    assert_eq!(change.await.unwrap().unwrap(), "\"second\"");
    assert_eq!((keys.lock().as_slice(), tunnels.counts().open), (&["k".to_owned()][..], 1));
    link.abort();
}

#[tokio::test]
async fn endless_answer_is_cut_and_the_tunnel_stays_usable() {
    let tunnels = Tunnels::default();
    let (near, far) = duplex(64 << 10);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let _served = machine(far, move |request| {
        if request.uri().path() != "/v1/endless" {
            return text("\"well\"");
        }
        let counted = counted.clone();
        let chunks = futures::stream::repeat_with(move || {
            counted.fetch_add(1 << 10, Ordering::Relaxed);
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b' '; 1 << 10])))
        });
        Response::builder().header("content-type", "application/json").body(BodyExt::boxed(StreamBody::new(chunks))).unwrap()
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    let client = client(&tunnels, "acme", "laptop");
    for _ in 0..100 {
        let error = client.ask(&Ask::get("/v1/endless").with_bytes_max(10_000)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    }
    assert_eq!(asked(&client).await.unwrap(), "well");
    assert!(sent.load(Ordering::Relaxed) < 100 << 20, "the windows bound what is in flight");
}

/// A listener that reads nothing bounds what a machine can send, and others are not held up.
#[tokio::test]
async fn unread_answer_does_not_block_others() {
    let tunnels = Tunnels::new(TunnelOptions::new().with_requests_max(4));
    let (near, far) = duplex(64 << 10);
    let _served = machine(far, |request| {
        if request.uri().path() != "/v1/events" {
            return text("\"well\"");
        }
        let events = Bytes::from(b"event: x\ndata: y\n\n".repeat(500));
        let chunks = futures::stream::repeat_with(move || Ok::<_, Infallible>(Frame::data(events.clone())));
        Response::builder().header("content-type", "text/event-stream").body(BodyExt::boxed(StreamBody::new(chunks))).unwrap()
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    let client = client(&tunnels, "acme", "laptop");
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = client.stream("/v1/events");
        assert!(matches!(stream.next().await, Some(StreamNews::Live)));
        assert!(matches!(stream.next().await, Some(StreamNews::Event(event)) if event.data == "y"));
        streams.push(stream);
    }
    for _ in 0..20 {
        assert_eq!(asked(&client).await.unwrap(), "well");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_limit_of_a_tunnel_wait_for_their_turn() {
    let tunnels = Tunnels::new(TunnelOptions::new().with_requests_max(1));
    let (near, far) = duplex(64 << 10);
    let _served = machine(far, |request| {
        if request.uri().path() != "/v1/events" {
            return text("\"well\"");
        }
        let body = StreamBody::new(futures::stream::pending::<std::result::Result<Frame<Bytes>, Infallible>>());
        Response::builder().header("content-type", "text/event-stream").body(BodyExt::boxed(body)).unwrap()
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    let client = client(&tunnels, "acme", "laptop");
    let mut stream = client.stream("/v1/events");
    assert!(matches!(stream.next().await, Some(StreamNews::Live)));
    let error = asked(&client).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("too many requests are running through this tunnel"), "{error}");
    drop(stream);
    assert_eq!(asked(&client).await.unwrap(), "well");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_idle_tunnels_are_held_and_no_more() {
    let tunnels = Tunnels::new(TunnelOptions::new().with_tunnels_max(1_000, 1_000));
    let mut running = Vec::new();
    let mut served = Vec::new();
    for number in 0..1_000 {
        let (near, far) = duplex(4 << 10);
        served.push(machine(far, |_| text("\"well\"")));
        running.push(connect(&tunnels, "acme", &format!("m{number}"), near).await.unwrap());
    }
    let (near, _far) = duplex(4 << 10);
    let error = connect(&tunnels, "acme", "more", near).await.unwrap_err();
    assert_eq!((error.kind(), tunnels.counts().open), (ErrorKind::Unavailable, 1_000), "{error}");
    assert_eq!(asked(&client(&tunnels, "acme", "m999")).await.unwrap(), "well");
    for machine in served {
        machine.abort();
    }
    for tunnel in running {
        tunnel.await.unwrap().unwrap();
    }
    assert_eq!(tunnels.counts().open, 0);
    let _served = connected(&tunnels, "acme", "more", "\"well\"").await;
}

#[tokio::test]
async fn user_at_the_limit_does_not_exclude_others() {
    let tunnels = Tunnels::new(TunnelOptions::new().with_tunnels_max(10, 1));
    let reserve = |user: &str, name: &'static str| {
        let (tunnels, user) = (tunnels.clone(), user.to_owned());
        async move { tunnels.reserve(Some("acme".to_owned()), Some(user), name).await }
    };
    let held = reserve("ada", "a").await.unwrap();
    assert_eq!(reserve("ada", "b").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(reserve("bob", "a").await.unwrap_err().kind(), ErrorKind::Conflict, "the name is being connected");
    drop(reserve("bob", "b").await.unwrap());
    drop(held);
    drop(reserve("ada", "b").await.unwrap());
    for name in ["", "A", "a.b", "a/b", "-a", &"a".repeat(64), "ä"] {
        let error = tunnels.reserve(None, None, name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn revoked_tunnel_fails_its_running_requests_and_a_stopping_one_lets_them_end() {
    let slow = |far: DuplexStream, go: oneshot::Receiver<()>, began: oneshot::Sender<()>| {
        let (go, began) = (Mutex::new(Some(go)), Mutex::new(Some(began)));
        machine(far, move |request| {
            if request.uri().path() != "/v1/x" {
                return text("{}");
            }
            let go = go.lock().take();
            began.lock().take().map(|began| began.send(()));
            let chunk = futures::stream::once(async move {
                if let Some(go) = go {
                    let _ = go.await;
                }
                Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"\"late\"")))
            });
            Response::builder().header("content-type", "application/json").body(BodyExt::boxed(StreamBody::new(chunk))).unwrap()
        })
    };
    for end in [TunnelEnd::Revoked, TunnelEnd::Stopping] {
        let tunnels = Tunnels::new(TunnelOptions::new().with_return_timeout(Duration::ZERO));
        let (near, far) = duplex(64 << 10);
        let (go, gone) = oneshot::channel();
        let (began, has_begun) = oneshot::channel();
        let _served = slow(far, gone, began);
        let (stop, stopped) = oneshot::channel();
        let reservation = tunnels.reserve(Some("acme".to_owned()), None, "laptop").await.unwrap();
        let running = tokio::spawn(reservation.run(near, async move { stopped.await.unwrap_or(end) }));
        while !tunnels.is_connected(Some("acme"), "laptop") {
            tokio::task::yield_now().await;
        }
        let client = client(&tunnels, "acme", "laptop");
        let asked = tokio::spawn(async move { asked(&client).await });
        has_begun.await.unwrap();
        stop.send(end).unwrap();
        while tunnels.is_connected(Some("acme"), "laptop") {
            tokio::task::yield_now().await;
        }
        match end {
            TunnelEnd::Revoked => {
                assert_eq!(asked.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
                running.await.unwrap().unwrap();
            }
            TunnelEnd::Stopping => {
                go.send(()).unwrap();
                assert_eq!(asked.await.unwrap().unwrap(), "late");
                running.await.unwrap().unwrap();
            }
        }
    }
}

/// A machine that stops in an orderly way answers what is running. What comes meanwhile waits for its return.
#[tokio::test(start_paused = true)]
async fn machine_that_stops_answers_running_requests_and_later_ones_wait_for_its_return() {
    let tunnels = Tunnels::default();
    let (near, far) = duplex(64 << 10);
    let (go, gone) = oneshot::channel::<()>();
    let (began, has_begun) = oneshot::channel();
    let (gone, began) = (Mutex::new(Some(gone)), Mutex::new(Some(began)));
    let service = service_fn(move |request: Request<Incoming>| {
        let gone = (request.uri().path() == "/v1/x").then(|| gone.lock().take()).flatten();
        let began = gone.is_some().then(|| began.lock().take()).flatten();
        async move {
            if let (Some(gone), Some(began)) = (gone, began) {
                let _ = began.send(());
                let _ = gone.await;
            }
            Ok::<_, Infallible>(text("\"first\""))
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(async move {
        let mut connection = std::pin::pin!(Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(far), service));
        tokio::select! {
            _ = &mut connection => return,
            _ = stopped => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    });
    connect(&tunnels, "acme", "laptop", near).await.unwrap();
    let client = client(&tunnels, "acme", "laptop");
    let (early, late) = (client.clone(), client);
    let early = tokio::spawn(async move { asked(&early).await });
    has_begun.await.unwrap();
    stop.send(()).unwrap();
    let late = tokio::spawn(async move {
        loop {
            // The machine also answers what arrives before it has said that it stops.
            match asked(&late).await.as_deref() {
                Ok("first") => {}
                answer => break answer.map(str::to_owned).map_err(|error| error.message().to_owned()),
            }
        }
    });
    while tunnels.is_connected(Some("acme"), "laptop") {
        tokio::task::yield_now().await;
    }
    let _second = connected(&tunnels, "acme", "laptop", "\"second\"").await;
    assert_eq!(late.await.unwrap().unwrap(), "second");
    go.send(()).unwrap();
    assert_eq!(early.await.unwrap().unwrap(), "first");
    served.await.unwrap();
}
