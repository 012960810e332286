//! Connections that keep the server waiting are disconnected, none keeps others out, and health checks are answered under any load.

use super::Served;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use treehold::serve::{Access, ConnectionLimits, Rights, ServeOptions};

const SHORT: Duration = Duration::from_millis(200);

/// Longer than any wait that a test depends on.
const LONG: Duration = Duration::from_secs(300);

/// The start of an HTTP/2 connection: the preface and an empty settings frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn limits() -> ConnectionLimits {
    let limits = ConnectionLimits::new().with_head_timeout(LONG).with_idle_timeout(LONG).with_write_timeout(LONG);
    limits.with_body_pace(LONG, 1)
}

fn served(limits: ConnectionLimits) -> Served {
    Served::with(|options| options.with_connections(limits))
}

fn connected(served: &Served, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(served.base.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Reads until the server closes the connection, or fails.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    answer
}

/// Returns an HTTP/2 request that is the first of its connection.
fn request_of_http2(path: &str) -> Vec<u8> {
    // GET and http are in the static table of HPACK; path and authority are literals.
    let mut head = vec![0x82, 0x86, 0x04, path.len() as u8];
    head.extend_from_slice(path.as_bytes());
    head.extend_from_slice(b"\x01\x09localhost");
    let mut frame = vec![0, 0, head.len() as u8, 0x01, 0x05, 0, 0, 0, 1];
    frame.extend_from_slice(&head);
    frame
}

#[test]
fn connection_without_a_request_is_closed() {
    let served = served(limits().with_head_timeout(SHORT));
    for (what, bytes) in [
        ("nothing", &b""[..]),
        ("half a preface of HTTP/2", &PREFACE[..10]),
        ("HTTP/2 without a request", PREFACE),
        ("half a head", b"GET /livez HTTP/1.1\r\nhost: loc"),
    ] {
        let answer = until_closed(connected(&served, bytes));
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{what}");
    }
    // On a busy machine, this request may come too late as well.
    let request = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    super::within(|| until_closed(connected(&served, request)).starts_with(b"HTTP/1.1 200"));
}

#[test]
fn bytes_without_a_request_do_not_keep_a_connection_open() {
    let served = served(limits().with_head_timeout(SHORT));
    let mut stream = connected(&served, PREFACE);
    // Pings are answered but do not count.
    while stream.write_all(b"\0\0\x08\x06\0\0\0\0\0abcdefgh").is_ok() {
        std::thread::yield_now();
    }
}

#[test]
fn idle_http2_connection_is_closed() {
    let served = served(limits().with_idle_timeout(SHORT));
    let stream = connected(&served, &[PREFACE, &request_of_http2("/livez")].concat());
    let answer = until_closed(stream);
    assert!(answer.windows(3).any(|window| window == b"ok\n"), "it was answered before");
}

#[test]
fn body_that_pauses_or_trickles_is_refused() {
    for (pause, trickles) in [(true, false), (false, true)] {
        let timeout = if pause { SHORT } else { Duration::from_millis(500) };
        let served = served(limits().with_body_pace(timeout, 1 << 20));
        let mut stream = connected(&served, b"PUT /v1/fs/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\nx");
        let mut reader = stream.try_clone().unwrap();
        let trickle = std::thread::spawn(move || {
            while trickles && stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut answer = [0; 12];
        reader.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 504", "{}", String::from_utf8_lossy(&answer));
        drop(reader);
        drop(served);
        trickle.join().unwrap();
    }
}

#[test]
fn client_that_reads_no_response_is_disconnected() {
    let served = served(limits().with_write_timeout(SHORT));
    assert_eq!(served.put("/v1/fs/large", &vec![b'x'; 32 << 20]).status, 201);
    let mut stream = connected(&served, b"GET /v1/fs/large HTTP/1.1\r\nhost: localhost\r\n\r\n");
    // The buffers of both sides fill up. The server reads no other request before it has answered, so this fails once it disconnects.
    stream.set_write_timeout(Some(LONG)).unwrap();
    assert!(stream.write_all(&vec![b'x'; 32 << 20]).is_err());
    let mut taken = 0;
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        taken += count;
    }
    assert!(taken < 32 << 20, "the client received the whole answer of {taken} bytes");
}

#[test]
fn client_that_reads_a_response_too_slowly_is_disconnected() {
    let served = served(limits().with_write_timeout(Duration::from_secs(1)).with_answer_bytes_per_second_min(1 << 30));
    assert_eq!(served.put("/v1/fs/large", &vec![b'x'; 32 << 20]).status, 201);
    let mut stream = connected(&served, b"GET /v1/fs/large HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let (mut taken, mut buffer) = (0, vec![0; 128 << 10]);
    // It never pauses for long, but reads only some MiB per second.
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        taken += count;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(taken < 32 << 20, "the client received the whole answer of {taken} bytes");
}

#[test]
fn small_responses_to_a_steady_client_keep_its_connection() {
    let served = served(limits().with_write_timeout(SHORT).with_answer_bytes_per_second_min(1 << 40));
    assert_eq!(served.put("/v1/fs/a", b"text").status, 201);
    let mut stream = connected(&served, b"");
    let begun = std::time::Instant::now();
    while begun.elapsed() < 4 * SHORT {
        stream.write_all(b"GET /v1/fs/a HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        let mut rest = Vec::new();
        let mut byte = [0];
        while !rest.ends_with(b"\r\n\r\ntext") {
            stream.read_exact(&mut byte).unwrap();
            rest.push(byte[0]);
        }
    }
}

/// Starts an HTTP/2 response in a window of `window_bytes`. `take` receives the body. Returns when the server closes the connection.
fn answered_over_http2<F: Future<Output = ()>>(served: &Served, window_bytes: u32, take: impl FnOnce(h2::RecvStream) -> F) {
    let address = served.base.trim_start_matches("http://").to_owned();
    served.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) =
            h2::client::Builder::new().initial_window_size(window_bytes).handshake::<_, &[u8]>(stream).await.unwrap();
        let closed = tokio::spawn(connection);
        let request = ureq::http::Request::get("http://localhost/v1/fs/large").body(()).unwrap();
        let answer = client.ready().await.unwrap().send_request(request, true).unwrap().0.await.unwrap();
        assert_eq!(answer.status(), 200);
        tokio::select! {
            () = take(answer.into_body()) => panic!("the client read the whole answer"),
            closed = tokio::time::timeout(LONG / 3, closed) => drop(closed.expect("the server closes the connection")),
        }
    });
}

#[test]
fn http2_client_that_withholds_its_window_is_disconnected() {
    let served = served(limits().with_write_timeout(SHORT));
    assert_eq!(served.put("/v1/fs/large", &vec![b'x'; 1 << 20]).status, 201);
    // The connection itself is alive: its pings are answered.
    answered_over_http2(&served, 4 << 10, |body| async move {
        std::future::pending::<()>().await;
        drop(body);
    });
    assert_eq!(served.get("/v1/fs/large").bytes().len(), 1 << 20);
}

#[test]
fn http2_client_that_trickles_is_disconnected() {
    let served = served(limits().with_write_timeout(Duration::from_secs(1)).with_answer_bytes_per_second_min(1 << 30));
    assert_eq!(served.put("/v1/fs/large", &vec![b'x'; 1 << 20]).status, 201);
    answered_over_http2(&served, 4 << 10, |mut body| async move {
        while let Some(Ok(part)) = body.data().await {
            body.flow_control().release_capacity(part.len()).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if !body.is_end_stream() {
            std::future::pending::<()>().await;
        }
    });
}

#[test]
fn connections_of_one_address_are_limited() {
    let served = served(limits().with_connections_max(100, 3));
    let mut held: Vec<TcpStream> = (0..3).map(|_| connected(&served, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")).collect();
    for stream in &mut held {
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    assert_eq!(until_closed(connected(&served, b"")), b"");
    drop(held.pop());
    // The slot is free once the server has noticed the end.
    while !until_closed(connected(&served, b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
        .starts_with(b"HTTP/1.1 200")
    {}
}

#[test]
fn health_is_answered_if_all_connections_are_taken() {
    let served = served(limits().with_connections_max(2, 100));
    let asked = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let answer = until_closed(connected(&served, request.as_bytes()));
        String::from_utf8(answer).unwrap()
    };
    // The two connections may not be accepted yet, or a slow machine may have closed them for their silence.
    let held = loop {
        let held: Vec<TcpStream> = (0..2).map(|_| connected(&served, b"")).collect();
        if asked("/v1/ls").starts_with("HTTP/1.1 503") {
            break held;
        }
    };
    for path in ["/livez", "/readyz", "/healthz", "/metrics"] {
        assert!(asked(path).starts_with("HTTP/1.1 200"), "{path}");
    }
    drop(held);
}

#[test]
fn slow_bodies_of_one_user_do_not_affect_health_or_other_users() {
    const SLOW: usize = 40;
    let options = |options: ServeOptions| {
        let options = options.with_tokens(true).with_connections(limits()).with_requests_max(SLOW);
        options.with_requests_per_user_max(SLOW / 2).with_deadline(LONG)
    };
    let served = Served::with(options);
    let slow = served.token("acme", "mallory", Rights::new(Access::Write));
    let other = served.token("other", "bob", Rights::new(Access::Write));
    let head = format!("PUT /v1/fs/a HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {slow}\r\ncontent-length: 9\r\n\r\nx");
    let mut held: Vec<TcpStream> = (0..SLOW).map(|_| connected(&served, head.as_bytes())).collect();
    // As many slow requests as allowed are waiting, and further ones are refused. While a listing runs it takes one of the places, so that all
    // slow requests that come in that moment may be refused; another one takes the place afterwards.
    let [bearer, of_slow] = [&other, &slow].map(|token| format!("Bearer {token}"));
    super::within(|| {
        let is_full = served.send("GET", "/v1/ls", &[("authorization", &of_slow)], b"").status == 503;
        if !is_full {
            held.push(connected(&served, head.as_bytes()));
        }
        is_full
    });
    for path in ["/livez", "/readyz"] {
        assert_eq!(served.get(path).status, 200, "{path}");
    }
    for _ in 0..20 {
        assert_eq!(served.send("GET", "/v1/ls", &[("authorization", &bearer)], b"").status, 200);
    }
    assert_eq!(served.send("GET", "/v1/ls", &[("authorization", &of_slow)], b"").status, 503);
    assert_eq!(served.send("GET", "/metrics", &[("authorization", &of_slow)], b"").status, 200);
    drop(held);
}

#[cfg(all(feature = "cli", target_os = "linux"))]
#[test]
fn serve_raises_open_file_limit_and_keeps_connections_below_it() {
    use super::process::{Process, command};
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("treehold.toml"), "[serve]\nconnections_max = 5_000\nhead_timeout = \"20s\"\n").unwrap();
    let inner = command(home.path(), &["serve", "--listen", "127.0.0.1:0", "--connections-per-address-max", "4000"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -Sn 200; ulimit -Hn 400; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    limited.current_dir(home.path()).env("TREEHOLD_DATA", home.path()).env("HOME", home.path());
    let server = Process::of(limited, home.path());
    let said = server.said();
    assert!(said.contains("up to 236 connections at once, not 5000: this process may open 400 files"), "{said}");
    let held: Vec<TcpStream> = (0..380).filter_map(|_| TcpStream::connect(server.address).ok()).collect();
    let health = super::process::ask(&super::process::agent(), "GET", &format!("{}/readyz", server.base()), &[], b"");
    drop(held);
    // Whether or not this connection was accepted, the server has files left to respond with.
    assert!(health.is_err() || health.unwrap().0 == 200);
    super::within(|| {
        let answer = super::process::ask(&super::process::agent(), "GET", &format!("{}/readyz", server.base()), &[], b"");
        answer.is_ok_and(|(status, _)| status == 200)
    });
    assert_eq!(server.said(), said, "nothing went wrong");
}

#[test]
fn health_is_answered_at_the_request_limit() {
    let served = Served::with(|options| options.with_requests_max(0));
    for path in ["/livez", "/readyz", "/healthz", "/metrics"] {
        assert_eq!(served.get(path).status, 200, "{path}");
    }
    assert_eq!(served.get("/v1/ls").status, 503);
}
