//! Requests that are refused by their heads: what happens to their bodies and to the connection.

use super::Served;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use treehold::mcp::HttpLimits;
use treehold::serve::{Access, Rights};

/// A connection that is kept for further requests.
struct Kept {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

/// The head of a response, and whether it announces the end of the connection.
#[derive(Debug)]
struct Head {
    status: u16,
    closes: bool,
    body: Vec<u8>,
}

impl Kept {
    fn open(served: &Served) -> Self {
        let stream = TcpStream::connect(served.base.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    /// Sends a request. Ignores any part of the body that the server does not accept.
    fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8], framing: Framing) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str("host: localhost\r\n");
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut bytes = match framing {
            Framing::Length(announced) => format!("{head}content-length: {announced}\r\n\r\n").into_bytes(),
            Framing::Chunks => format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes(),
        };
        match framing {
            Framing::Length(_) => bytes.extend_from_slice(body),
            Framing::Chunks => {
                for chunk in body.chunks(7_000) {
                    bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    bytes.extend_from_slice(chunk);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes.extend_from_slice(b"0\r\n\r\n");
            }
        }
        let _ = self.stream.write_all(&bytes);
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn answer(&mut self, method: &str) -> Head {
        let status = self.line();
        let status = status.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: `{status}`")).parse().unwrap();
        let (mut closes, mut length, mut is_chunked) = (false, None, false);
        loop {
            let line = self.line().to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("connection", value)) => closes = value == "close",
                Some(("content-length", value)) => length = Some(value.parse::<usize>().unwrap()),
                Some(("transfer-encoding", _)) => is_chunked = true,
                Some(_) => {}
                None => break,
            }
        }
        let mut body = Vec::new();
        if is_chunked && method != "HEAD" {
            loop {
                let size = usize::from_str_radix(&self.line(), 16).unwrap();
                let mut chunk = vec![0; size + 2];
                self.reader.read_exact(&mut chunk).unwrap();
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&chunk[..size]);
            }
        } else if let Some(length) = length.filter(|_| method != "HEAD" && status != 304) {
            body = vec![0; length];
            self.reader.read_exact(&mut body).unwrap();
        }
        Head { status, closes, body }
    }

    /// Returns whether the server has closed the connection.
    fn is_ended(&mut self) -> bool {
        match self.reader.read(&mut [0; 1]) {
            Ok(count) => count == 0,
            Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Framing {
    /// The declared length.
    Length(usize),
    Chunks,
}

/// Every method and path of the API description, with the parameters filled in, and the interfaces beside the API.
fn routes(served: &Served) -> Vec<(String, String)> {
    let described: Value = served.get("/openapi.json").json();
    let mut routes = Vec::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        let mut path = path.clone();
        while let (Some(start), Some(end)) = (path.find('{'), path.find('}')) {
            path.replace_range(start..=end, "x");
        }
        for method in methods.as_object().unwrap().keys() {
            if ["get", "head", "put", "post", "patch", "delete"].contains(&method.as_str()) {
                routes.push((method.to_uppercase(), path.clone()));
            }
        }
    }
    for path in ["/mcp", "/mcp/t/x", "/no/such/route", "/livez"] {
        routes.extend(["GET", "PUT", "POST", "PATCH", "DELETE"].map(|method| (method.to_owned(), path.to_owned())));
    }
    assert!(routes.len() > 60, "{routes:?}");
    routes
}

/// Sends a request with a body, and checks that the connection behaves as the response announces.
fn refused(served: &Served, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8], framing: Framing, what: &str) -> Head {
    let mut kept = Kept::open(served);
    kept.send(method, path, headers, body, framing);
    let answer = kept.answer(method);
    let what = format!("{what}: {method} {path} {framing:?}: {answer:?}");
    if answer.closes {
        assert!(kept.is_ended(), "{what}");
    } else {
        kept.send("GET", "/livez", &[], b"", Framing::Length(0));
        let next = kept.answer("GET");
        // A server that refuses everything also refuses this, but with a response of its own.
        let is_own = next.status == 503 && answer.status == 503 && next.body != answer.body;
        assert!(is_own || (next.status, &*next.body) == (200, &b"ok\n"[..]), "{what}: {next:?}");
    }
    answer
}

/// A refusal: name, server, request headers, and body size in bytes.
type Refusal<'a> = (&'a str, &'a Served, Vec<(&'a str, &'a str)>, usize);

#[test]
fn refused_request_leaves_connection_usable_or_announces_its_end() {
    let mut limits = HttpLimits::default();
    limits.body_bytes_max = 64 << 10;
    let limited = limits.clone();
    let served = Served::with(|options| options.with_tokens(true).with_limits(limited).with_upload_bytes_max(64 << 10));
    let busy = Served::with(|options| options.with_requests_max(0));
    let bearer = |rights: Rights| format!("Bearer {}", served.token("acme", "ada", rights));
    let (writer, reader) = (bearer(Rights::new(Access::Admin)), bearer(Rights::new(Access::Read)));
    let tied = bearer(Rights::new(Access::Write).with_threads(["own".to_owned()]));
    let (json, accept) = (("content-type", "application/json"), ("accept", "application/json, text/event-stream"));
    let refusals: Vec<Refusal<'_>> = vec![
        ("no token", &served, vec![json], 50_000),
        ("a wrong token", &served, vec![json, ("authorization", "Bearer nonsense")], 50_000),
        ("another host", &served, vec![json, ("host", "evil.example"), ("authorization", &writer)], 50_000),
        ("a page of another origin", &served, vec![json, ("origin", "https://evil.example"), ("authorization", &writer)], 50_000),
        ("a token that may read", &served, vec![json, ("authorization", &reader)], 50_000),
        ("a token for other threads", &served, vec![json, ("authorization", &tied), ("treehold-thread", "other")], 50_000),
        ("an invalid thread", &served, vec![json, ("authorization", &writer), ("treehold-thread", "%00")], 50_000),
        ("a body that is not JSON", &served, vec![json, accept, ("authorization", &writer)], 50_000),
        ("a body of another type", &served, vec![("content-type", "text/plain"), ("authorization", &writer)], 50_000),
        ("a body that is too large", &served, vec![json, accept, ("authorization", &writer)], 200_000),
        ("an invalid key", &served, vec![json, ("authorization", &writer), ("idempotency-key", "")], 50_000),
        ("a key that was used", &served, vec![json, ("authorization", &writer), ("idempotency-key", "k")], 50_000),
        ("an invalid version", &served, vec![json, ("authorization", &writer), ("if-match", "nonsense")], 50_000),
        ("another version", &served, vec![json, ("authorization", &writer), ("if-match", "\"1\"")], 50_000),
        ("an unknown session", &served, vec![json, accept, ("authorization", &writer), ("mcp-session-id", "none")], 50_000),
        ("too many requests", &busy, vec![json], 50_000),
    ];
    let mut statuses = BTreeSet::new();
    let routes = routes(&served);
    for (what, server, headers, size_bytes) in &refusals {
        let body = vec![b'x'; *size_bytes];
        for (number, (method, path)) in routes.iter().enumerate() {
            let framing = if number % 2 == 0 { Framing::Length(body.len()) } else { Framing::Chunks };
            // These streams do not end on their own.
            if path.ends_with("/events") && path.starts_with("/v1/events") {
                continue;
            }
            statuses.insert(refused(server, method, path, headers, &body, framing, what).status);
        }
        // Methods that do not exist.
        for (_, path) in &routes {
            statuses.insert(refused(server, "OPTIONS", path, headers, &body, Framing::Chunks, what).status);
            statuses.insert(refused(server, "REPORT", path, headers, &body, Framing::Length(body.len()), what).status);
        }
    }
    for status in [400, 401, 403, 404, 405, 412, 413, 422, 503] {
        assert!(statuses.contains(&status), "{status} is not among {statuses:?}");
    }
}

#[test]
fn body_of_a_refused_upload_is_drained_up_to_a_limit() {
    let served = Served::closed();
    let large = vec![b'x'; 8 << 20];
    for framing in [Framing::Length(large.len()), Framing::Chunks] {
        let answer = refused(&served, "PUT", "/v1/fs/a", &[], &large, framing, "a large body");
        assert_eq!((answer.status, answer.closes), (401, false));
    }
    // A body that is longer than the server drains, and one that never arrives.
    for announced in [1 << 30, 1 << 20] {
        let answer = refused(&served, "PUT", "/v1/fs/a", &[], b"x", Framing::Length(announced), "a body that does not come");
        assert_eq!((answer.status, answer.closes), (401, true));
    }
}

#[test]
fn client_that_expects_continue_does_not_send_a_refused_body() {
    let served = Served::with(|options| options.with_tokens(true).with_upload_bytes_max(1 << 10));
    let bearer = format!("Bearer {}", served.token("acme", "ada", Rights::new(Access::Write)));
    let own = [("expect", "100-continue"), ("authorization", bearer.as_str())];
    for (headers, status) in [(&own[..1], 401), (&own[..], 413)] {
        let answer = refused(&served, "PUT", "/v1/fs/a", headers, b"", Framing::Length(1 << 20), "kept back");
        assert_eq!((answer.status, answer.closes), (status, true));
    }
    // The client sends the body once it is asked to.
    let mut kept = Kept::open(&served);
    kept.send("PUT", "/v1/fs/a", &own, b"", Framing::Length(4));
    assert_eq!((kept.line().as_str(), kept.line().as_str()), ("HTTP/1.1 100 Continue", ""));
    kept.stream.write_all(b"text").unwrap();
    assert_eq!(kept.answer("PUT").status, 201);
}
