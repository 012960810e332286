//! Hostile requests: each gets a typed error, and the server keeps running.

use super::Served;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use treehold::mcp::HttpLimits;

/// Sends raw bytes and returns the status line of the response.
pub(super) fn raw(served: &Served, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(served.base.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The server may disconnect before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn malformed_paths_are_refused() {
    let served = Served::start();
    for path in ["/v1/fs/..%2f..%2fetc%2fpasswd", "/v1/fs/a%00b", "/v1/fs/%2e%2e/x", "/v1/fs/a%0ab", "/v1/fs/%ff"] {
        assert_eq!(served.get(path).code(), "invalid_path", "{path}");
    }
    let long = format!("/v1/fs/{}", "a".repeat(300));
    assert_eq!(served.get(&long).code(), "invalid_path");
    assert_eq!(served.send("GET", "/v1/ls?path=../x", &[], b"").code(), "invalid_path");
    for thread in ["%00", "%0a"] {
        assert_eq!(served.get(&format!("/v1/threads/{thread}/fs/a")).code(), "invalid_argument");
    }
    assert_eq!(served.get("/v1/fs/memories").code(), "is_directory");
    for root in ["/v1/fs/memories?recursive=true", "/v1/fs?recursive=true"] {
        assert_eq!(served.send("DELETE", root, &[], b"").code(), "invalid_argument", "{root}");
    }
}

#[test]
fn malformed_bodies_are_refused() {
    let limits = |bytes| {
        let mut limits = HttpLimits::default();
        limits.body_bytes_max = bytes;
        limits
    };
    let served = Served::with(|options| options.with_limits(limits(1 << 20)).with_upload_bytes_max(1 << 20));
    assert_eq!(served.put("/v1/fs/large", &vec![b'x'; (1 << 20) + 1]).code(), "too_large");
    assert_eq!(served.put("/v1/fs/just", &vec![b'x'; 1 << 20]).status, 201);
    let deep = format!("{{\"changes\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [&b"\xff\xfe"[..], b"{", b"[]", deep.as_bytes(), br#"{"changes": [{"operation": "write", "path": "/a"}]}"#] {
        let answer = served.send("POST", "/v1/apply", &[("content-type", "application/json")], body);
        assert_eq!(answer.code(), "invalid_argument");
    }
    let answer = served.send("POST", "/v1/apply", &[("content-type", "text/plain")], br#"{"changes": []}"#);
    assert_eq!(answer.code(), "invalid_argument");
    assert_eq!(served.get("/livez").status, 200);
}

#[test]
fn malformed_heads_are_refused() {
    let served = Served::start();
    let host = served.base.trim_start_matches("http://").to_owned();
    let many = (0..2_000).map(|number| format!("x-{number}: {}\r\n", "y".repeat(60))).collect::<String>();
    let line = raw(&served, format!("GET /v1/ls HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{many}\r\n").as_bytes());
    assert!(line.contains("431"), "{line}");
    let line = raw(&served, b"GET /v1/ls HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert!(line.contains("403"), "a request for another host is refused: {line}");
    let line = raw(
        &served,
        format!("GET /v1/ls HTTP/1.1\r\nhost: {host}\r\norigin: https://evil.example\r\nconnection: close\r\n\r\n").as_bytes(),
    );
    assert!(line.contains("403"), "{line}");
    for path in ["/v1/ls", "/mcp", "/livez"] {
        for second in [&*host, "evil.example"] {
            let head = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nhost: {second}\r\nconnection: close\r\n\r\n");
            assert!(raw(&served, head.as_bytes()).contains("400"), "two hosts at {path}");
        }
        let head = format!("GET http://evil.example{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert!(raw(&served, head.as_bytes()).contains("400"), "another host in the target at {path}");
    }
    let line = raw(&served, format!("BREW /v1/ls HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes());
    assert!(line.contains("405"), "{line}");
    assert_eq!(served.get("/v1/nothing").code(), "no_such_route");
}

/// Regression: of two `Authorization` headers the first took effect, while a proxy may use the last.
#[test]
fn repeated_header_is_refused_unless_it_is_a_list() {
    const LISTS: [&str; 2] = ["if-match", "if-none-match"];
    let served = Served::start();
    let host = served.base.trim_start_matches("http://").to_owned();
    let described: Value = served.get("/openapi.json").json();
    let operations = described["paths"].as_object().unwrap().values().flat_map(|methods| methods.as_object().unwrap().values());
    let parameters = operations.flat_map(|operation| operation["parameters"].as_array().into_iter().flatten());
    let named = parameters.filter(|parameter| parameter["in"] == "header").map(|header| header["name"].as_str().unwrap().to_lowercase());
    let beside = ["authorization", "content-length", "content-type", "host", "if-range", "mcp-method", "mcp-name", "mcp-protocol-version"];
    let beside = beside.into_iter().chain(["mcp-session-id", "origin"]).map(str::to_owned);
    let headers: BTreeSet<String> = named.chain(beside).collect();
    for known in ["idempotency-key", "if-match", "last-event-id", "range", "treehold-thread"] {
        assert!(headers.contains(known), "{headers:?}");
    }
    let head = |path: &str, lines: &str| {
        let host = if lines.contains("host: ") { String::new() } else { format!("host: {host}\r\n") };
        raw(&served, format!("GET {path} HTTP/1.1\r\n{host}connection: close\r\n{lines}\r\n").as_bytes())
    };
    for name in &headers {
        let values = match &**name {
            "authorization" => ["Bearer 0123456789abcdef", "Bearer fedcba9876543210"],
            "content-length" => ["0", "1"],
            "content-type" => ["application/json", "text/plain"],
            "host" => [&*host, "evil.example"],
            "if-match" | "if-none-match" | "if-range" => ["\"1\"", "\"2\""],
            "range" => ["bytes=0-1", "bytes=2-3"],
            _ => ["a", "b"],
        };
        for path in ["/v1/ls", "/v1/fs/none", "/mcp", "/metrics", "/livez", "/openapi.json", "/nowhere"] {
            for values in [values, [values[0], values[0]]] {
                // A repeated equal length is merged before the server sees it (RFC 9112, section 6.3).
                if name == "content-length" && values[0] == values[1] {
                    continue;
                }
                let lines = values.map(|value| format!("{name}: {value}\r\n")).concat();
                let line = head(path, &lines);
                assert_eq!(line.contains(" 400 "), !LISTS.contains(&&**name), "{name}: {values:?} at {path}: {line}");
            }
        }
    }
}

#[test]
fn requests_beyond_the_limit_are_refused() {
    let served = Served::with(|options| options.with_requests_max(0));
    let answer = served.get("/v1/ls");
    assert_eq!((answer.status, answer.header("retry-after").as_deref()), (503, Some("1")));
    assert_eq!(answer.code(), "unavailable");
}

#[test]
fn errors_are_problems_as_described_in_openapi() {
    let served = Served::start();
    let document: Value = served.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    for coding in ["identity", "gzip"] {
        let tag = served.send("GET", "/openapi.json", &[("accept-encoding", coding)], b"").header("etag").unwrap();
        let again = served.send("GET", "/openapi.json", &[("accept-encoding", coding), ("if-none-match", &tag)], b"");
        assert_eq!((again.status, again.bytes().len()), (304, 0), "{tag}");
    }
    let nowhere = served.get("/v1/nowhere").json();
    assert_eq!((&nowhere["status"], &nowhere["type"]), (&json!(404), &json!("urn:treehold:error:no_such_route")));
    assert!(nowhere["detail"].as_str().unwrap().contains("/openapi.json"));
    let problem = served.get("/v1/fs/none").json();
    assert_eq!(problem["type"], "urn:treehold:error:not_found");
    for field in document["components"]["schemas"]["Problem"]["required"].as_array().unwrap() {
        assert!(problem.get(field.as_str().unwrap()).is_some(), "{field}");
    }
    assert_eq!(problem["path"], json!("/none"));
}

/// Each argument is refused for its depth or size, or takes a bounded amount of work.
#[test]
fn deep_and_multiplying_arguments_are_refused() {
    let served = Served::start();
    let deep = format!("{}1{}", "[".repeat(50_000), "]".repeat(50_000));
    let objects = format!("{}1{}", "{\"a\":".repeat(50_000), "}".repeat(50_000));
    let headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    for deep in [&deep, &objects] {
        for (path, body) in [
            ("/v1/glob", format!("{{\"path\": \"/\", \"pattern\": {deep}}}")),
            ("/v1/tools/read_file", format!("{{\"path\": {deep}}}")),
            ("/v1/store/search", format!("{{\"namespace\": [\"a\"], \"filter\": {{\"a\": {{\"$eq\": {deep}}}}}}}")),
        ] {
            assert_eq!(served.send("POST", path, &headers, body.as_bytes()).code(), "invalid_argument", "{path}");
        }
        let params = format!("{{\"name\": \"ls\", \"arguments\": {{\"path\": {deep}}}}}");
        let call = format!("{{\"jsonrpc\": \"2.0\", \"id\": 1, \"method\": \"tools/call\", \"params\": {params}}}");
        for body in [call.as_bytes(), deep.as_bytes()] {
            let answer = served.send("POST", "/mcp", &headers, body);
            assert!((400..500).contains(&answer.status), "{}", answer.status);
        }
    }
    let filter: serde_json::Map<String, Value> = (0..1_000).map(|number| (number.to_string(), json!({"$ne": 1}))).collect();
    assert_eq!(served.post("/v1/store/search", &json!({"namespace": ["a"], "filter": filter})).code(), "invalid_argument");
    for (pattern, status) in [
        ("{a/,b/}".repeat(11), 400),
        ("{a,b}".repeat(9), 200),
        ("{a,b}".repeat(800), 400),
        (format!("{}a{}", "{".repeat(17), "}".repeat(17)), 400),
        ("*/".repeat(61), 400),
        ("*".repeat(5_000), 400),
        ("{".repeat(4_000), 400),
    ] {
        assert_eq!(served.post("/v1/glob", &json!({"path": "/", "pattern": pattern})).status, status, "{pattern}");
    }
    for pattern in ["(?:a{1000}){1000}", "(((((a{9}){9}){9}){9}){9}){99}", &"(".repeat(1_000)] {
        let grep = json!({"path": "/", "pattern": pattern, "regex": true, "multiline": true});
        assert_eq!(served.post("/v1/grep", &grep).code(), "invalid_argument", "{pattern}");
    }
    assert_eq!(served.get("/livez").status, 200);
}
