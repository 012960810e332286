//! Files as resources: bytes, tags, ranges, conditions and searches.

use super::Served;
use serde_json::json;

#[test]
fn file_bytes_round_trip() {
    let served = Served::start();
    for (path, content) in [
        ("/v1/fs/a.bin", &b"\xff\0\r\n"[..]),
        ("/v1/fs/memories/%C3%A9%20%23%3F.md", b"text"),
        ("/v1/fs/empty", b""),
        ("/v1/fs/%5B...slug%5D", b"x"),
    ] {
        let put = served.put(path, content);
        assert_eq!(put.status, 201, "{path}");
        let tag = put.header("etag").unwrap();
        let got = served.get(path);
        assert_eq!((got.status, got.header("etag")), (200, Some(tag.clone())), "{path}");
        assert_eq!(got.header("treehold-size"), Some(content.len().to_string()));
        assert_eq!(got.bytes(), content, "{path}");
        let head = served.send("HEAD", path, &[], b"");
        assert_eq!((head.status, head.header("etag"), head.header("content-length")), (200, Some(tag), Some(content.len().to_string())));
    }
    assert_eq!(served.put("/v1/fs/a.bin", b"again").status, 200, "replaced, not created");
    let listed = served.get("/v1/ls").json();
    let names: Vec<&str> = listed["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["/[...slug]", "/a.bin", "/empty", "/memories"]);
    served.stop().unwrap();
}

#[test]
fn second_writer_with_the_same_tag_gets_412() {
    let served = Served::start();
    let tag = served.put("/v1/fs/memories/a", b"first").header("etag").unwrap();
    assert_eq!(served.send("PUT", "/v1/fs/memories/a", &[("if-match", &tag)], b"one").status, 200);
    let late = served.send("PUT", "/v1/fs/memories/a", &[("if-match", &tag)], b"two");
    assert_eq!(late.status, 412);
    let current = late.header("etag").unwrap();
    assert_eq!(late.code(), "conflict");
    assert_eq!(served.get("/v1/fs/memories/a").text(), "one");
    for (method, body) in [("PATCH", &br#"{"edits": [{"old": "one", "new": "three"}]}"#[..]), ("DELETE", b"")] {
        let headers = [("if-match", tag.as_str()), ("content-type", "application/json")];
        assert_eq!(served.send(method, "/v1/fs/memories/a", &headers, body).status, 412, "{method}");
    }
    assert_eq!(served.send("PUT", "/v1/fs/memories/a", &[("if-none-match", "*")], b"new").status, 412);
    assert_eq!(served.send("PUT", "/v1/fs/memories/none", &[("if-match", "*")], b"new").status, 412);
    assert_eq!(served.send("GET", "/v1/fs/memories/a", &[("if-none-match", &current)], b"").status, 304);
    let many = format!("\"ffff\", {current}");
    assert_eq!(served.send("DELETE", "/v1/fs/memories/a", &[("if-match", &many)], b"").status, 200);
    assert_eq!(served.get("/v1/fs/memories/a").code(), "not_found");
}

#[test]
fn ranges_of_a_file_are_served() {
    let served = Served::start();
    let content: Vec<u8> = (0..20_000_000_u32).map(|number| (number / 7) as u8).collect();
    // A large body is uploaded in parts and downloaded in parts.
    for part in content.chunks(8 << 20) {
        assert!(served.send("POST", "/v1/fs/large", &[], part).status < 300);
    }
    assert!(served.get("/v1/fs/large").bytes() == content);
    for (range, status, part) in [
        ("bytes=0-4", 206, &content[..5]),
        ("bytes=19999990-", 206, &content[19_999_990..]),
        ("bytes=-3", 206, &content[19_999_997..]),
        ("bytes=5-4", 200, &content[..]),
    ] {
        let got = served.send("GET", "/v1/fs/large", &[("range", range)], b"");
        assert_eq!(got.status, status, "{range}");
        assert!(got.bytes() == part, "{range}");
    }
    let beyond = served.send("GET", "/v1/fs/large", &[("range", "bytes=20000000-")], b"");
    assert_eq!((beyond.status, beyond.header("content-range").as_deref()), (416, Some("bytes */20000000")));
    served.put("/v1/fs/lines", b"one\ntwo\nthree\n");
    let window = served.get("/v1/fs/lines?offset=1&limit=1");
    assert_eq!(window.header("treehold-window").as_deref(), Some("1,1,3"));
    assert_eq!(window.text(), "two\n");
    assert_eq!(served.get("/v1/fs/lines?offset=1&byte_offset=1").code(), "invalid_argument");
}

#[test]
fn digests_are_checked_and_returned() {
    let served = Served::start();
    let digest = "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";
    assert_eq!(served.send("PUT", "/v1/fs/a", &[("content-digest", digest)], b"hello").status, 201);
    assert_eq!(served.send("PUT", "/v1/fs/a", &[("content-digest", digest)], b"hullo").code(), "invalid_argument");
    // Regression: the header is a list and may have several lines, but only the first line was read, even if it had a different algorithm.
    let lines = [("content-digest", "md5=:AA==:"), ("content-digest", digest)];
    assert_eq!(served.send("PUT", "/v1/fs/a", &lines, b"hullo").code(), "invalid_argument");
    assert_eq!(served.send("PUT", "/v1/fs/a", &lines, b"hello").status, 200);
    let got = served.send("GET", "/v1/fs/a", &[("want-content-digest", "sha-256=1")], b"");
    assert_eq!(got.header("content-digest").as_deref(), Some(digest));
}

#[test]
fn tag_of_a_compressed_response_works_in_if_match() {
    let served = Served::start();
    served.put("/v1/fs/a.md", "many words ".repeat(1_000).as_bytes());
    let got = served.send("GET", "/v1/fs/a.md", &[("accept-encoding", "zstd")], b"");
    assert_eq!(got.header("content-encoding").as_deref(), Some("zstd"));
    let tag = got.header("etag").unwrap();
    assert!(tag.ends_with("-zstd\""), "{tag}");
    assert_eq!(served.send("PUT", "/v1/fs/a.md", &[("if-match", &tag)], b"few").status, 200);
}

#[test]
fn searches_return_json() {
    let served = Served::start();
    served.put("/v1/fs/memories/notes/a.md", b"the theme colour is blue\n");
    served.put("/v1/fs/memories/notes/b.txt", b"\xffnothing\n");
    let grep = served.get("/v1/grep?pattern=COLOUR&case=insensitive&include=*.md&include=*.rs").json();
    assert_eq!(grep["files"][0]["lines"][0]["ranges"], json!([[10, 16]]), "{grep}");
    let bytes = served.post("/v1/grep", &json!({"pattern": "nothing", "path": "/memories"})).json();
    assert_eq!(bytes["files"][0]["lines"][0]["text_base64"], "/25vdGhpbmc=", "{bytes}");
    let glob = served.get("/v1/glob?pattern=**/*.md").json();
    assert_eq!(glob["entries"][0]["path"], "/memories/notes/a.md");
    let search = served.post("/v1/search", &json!({"query": "colour theme"})).json();
    assert_eq!(search["hits"][0]["path"], "/memories/notes/a.md");
    assert_eq!(served.get("/v1/tree?depth=2").json()["entries"][1]["path"], "/memories/notes");
    assert_eq!(served.get("/v1/stat?path=/memories/notes/a.md").json()["kind"], "file");
    assert_eq!(served.get("/v1/grep?pattern=x&limit=0").code(), "invalid_argument");
    assert_eq!(served.get("/v1/grep?patern=x").code(), "invalid_argument");
    assert_eq!(served.get("/v1/capabilities").json()["mounts"], json!(["/memories"]));
}

#[test]
fn batch_is_atomic_and_applied_once_per_key() {
    let served = Served::start();
    let batch = json!({"changes": [
        {"operation": "append", "path": "/memories/log", "content": "one\n"},
        {"operation": "write", "path": "/memories/b", "content_base64": "/w=="},
    ]});
    let send = |key: &str, body: &serde_json::Value| {
        served.send("POST", "/v1/apply", &[("content-type", "application/json"), ("idempotency-key", key)], body.to_string().as_bytes())
    };
    let first = send("k1", &batch);
    assert_eq!((first.status, first.header("idempotency-replayed")), (200, None));
    let first = first.json();
    let again = send("k1", &batch);
    assert_eq!(again.header("idempotency-replayed").as_deref(), Some("true"));
    assert_eq!(again.json(), first);
    assert_eq!(served.get("/v1/fs/memories/log").text(), "one\n", "once");
    let reused = send("k1", &json!({"changes": []}));
    assert_eq!((reused.status, reused.code().as_str()), (422, "key_reused"));
    assert_eq!(send("k2", &batch).status, 200);
    assert_eq!(served.get("/v1/fs/memories/log").text(), "one\none\n");
    let torn = json!({"changes": [
        {"operation": "write", "path": "/memories/c", "content": "x"},
        {"operation": "edit", "path": "/memories/log", "edits": [{"old": "absent", "new": "x"}]},
    ]});
    let refused = served.post("/v1/apply", &torn);
    assert_eq!(refused.status, 409);
    let problem = refused.json();
    assert_eq!((&problem["code"], &problem["change"], &problem["applied"]), (&json!("no_match"), &json!(1), &json!(0)));
    assert_eq!(served.get("/v1/fs/memories/c").code(), "not_found");
    assert_eq!(served.post("/v1/copy", &json!({"from": "/memories/log", "to": "/copy"})).status, 200);
    assert_eq!(served.post("/v1/move", &json!({"from": "/copy", "to": "/memories/moved"})).status, 200);
    assert_eq!(served.get("/v1/fs/memories/moved").text(), "one\none\n");
}

#[test]
fn items_are_put_conditionally_searched_and_removed() {
    let served = Served::start();
    let put = served.send("PUT", "/v1/store/item?namespace=tasks&key=walk", &[("content-type", "application/json")], br#"{"done": false}"#);
    assert_eq!(put.status, 200);
    let tag = put.header("etag").unwrap();
    assert_eq!(served.get("/v1/store/item?namespace=tasks&key=walk").json()["value"], json!({"done": false}));
    let put_if = |tag: &str| {
        let headers = [("content-type", "application/json"), ("if-match", tag)];
        served.send("PUT", "/v1/store/item?namespace=tasks&key=walk", &headers, br#"{"done": true}"#).status
    };
    assert_eq!((put_if(&tag), put_if(&tag)), (200, 412));
    let found = served.post("/v1/store/search", &json!({"namespace": ["tasks"], "filter": {"done": {"$eq": true}}})).json();
    assert_eq!(found["items"][0]["namespace"], json!(["tasks"]));
    assert_eq!(served.get("/v1/store/namespaces").json()["namespaces"], json!([["tasks"]]));
    assert_eq!(served.send("DELETE", "/v1/store/item?namespace=tasks&key=walk", &[], b"").status, 204);
    assert_eq!(served.get("/v1/store/item?namespace=tasks&key=walk").code(), "not_found");
}

/// The items of a request lie beneath the user's own namespace, whatever namespace it names. No reserved row can be read, listed, found,
/// written or removed over HTTP.
#[test]
fn items_reach_no_reserved_namespace() {
    let served = Served::start();
    let own = treehold::store::RESERVED_NAMESPACES.iter().map(|reserved| reserved.components.join("/"));
    // Those of the program, and those in the caller's own partition and in that of the tenant.
    let places = own.flat_map(|own| [format!("default/default/{own}"), format!("default//{own}"), own]);
    for place in places {
        let namespace = treehold::Namespace::parse(&place).unwrap();
        let components: Vec<String> = namespace.components().map(Into::into).collect();
        let components = &components;
        served.block_on(served.store.commit(treehold::store::Batch::new().put(&namespace, "planted", "{}"))).unwrap();
        let plain = components.iter().map(|component| format!("namespace={component}")).collect::<Vec<_>>().join("&");
        let climbing =
            components.iter().fold("namespace=..&namespace=..&namespace=..".to_owned(), |all, one| format!("{all}&namespace={one}"));
        let joined = format!("namespace=..%2F..%2F..%2F{}", components.join("%2F"));
        for query in [plain, climbing, joined] {
            let at = format!("/v1/store/item?{query}&key=planted");
            assert_ne!(served.get(&at).status, 200, "{at}");
            let put = served.send("PUT", &at, &[("content-type", "application/json")], b"\"theirs\"").status;
            assert!(matches!(put, 200 | 201 | 400 | 422), "{at}: {put}");
            served.send("DELETE", &at, &[], b"");
        }
        let row = served.block_on(served.store.get(&namespace, "planted")).unwrap().expect("it is still there");
        assert_eq!(row.value, "{}", "{components:?}");
        let found = served.post("/v1/store/search", &json!({"namespace": components})).json();
        assert!(!found.to_string().contains("planted"), "{found}");
    }
}
