//! Idempotency keys: a change is made once, whatever happens to the server, the response or the client.

use super::{Answer, Served, built};
use crate::stores::wrapped::{Wrapped, Wrapper};
use async_trait::async_trait;
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use treehold::layer::{Layer, LayerName, Layered, Next, Reply};
use treehold::ops::{Op, Version};
use treehold::serve::{Access, Rights};
use treehold::store::{Batch, Item, Namespace, ScanEntry, ScanOptions, Store};
use treehold::{MemoryStore, Result, VfsPathBuf};
use ureq::Agent;

const KEY: &str = "idempotency-key";

fn answers(user: &str) -> Namespace {
    Namespace::new(["_treehold", "answers", "acme", user]).unwrap()
}

/// Returns the stored records of a user's keys.
fn kept(served: &Served, user: &str) -> Vec<Item> {
    let (mut items, mut options) = (Vec::new(), ScanOptions::new().with_values(true));
    loop {
        let page = served.block_on(served.store.scan(&answers(user), options.clone())).unwrap();
        items.extend(page.entries.into_iter().filter_map(|entry| if let ScanEntry::Item(item) = entry { Some(item) } else { None }));
        match page.next {
            Some(next) => options.start_after = Some(next),
            None => return items,
        }
    }
}

fn state(answer: &Answer) -> (Option<String>, bool) {
    let left: Option<u64> = answer.header("idempotency-expires-in").map(|seconds| seconds.parse().unwrap());
    (answer.header("idempotency-state"), left.is_some_and(|left| (1..=24 * 60 * 60).contains(&left)))
}

/// Regression: a batch with a response over 256 KiB was applied as often as it was sent.
#[test]
fn oversized_response_is_stored_in_short_form_and_request_runs_once() {
    let served = Served::start();
    let changes: Vec<_> = (0..3_000).map(|_| json!({"operation": "append", "path": "/memories/log", "content": "x"})).collect();
    let body = json!({"changes": changes}).to_string();
    let send = || served.send("POST", "/v1/apply", &[("content-type", "application/json"), (KEY, "large")], body.as_bytes());
    let first = send();
    assert_eq!((first.status, state(&first)), (200, (Some("done".to_owned()), true)));
    assert!(first.bytes().len() > 256 << 10);
    for _ in 0..2 {
        let again = send();
        assert_eq!((again.status, again.header("idempotency-replayed").as_deref()), (200, Some("true")));
        assert_eq!(state(&again), (Some("done".to_owned()), true));
        let short = again.json();
        assert!(short["code"] == "answer_too_large" && short["size_bytes"].as_u64().unwrap() > 256 << 10, "{short}");
    }
    assert_eq!(served.get("/v1/fs/memories/log").text().len(), 3_000);
}

/// A layer in which writing `/memories/hangs` never returns.
#[derive(Debug)]
struct Hangs;

#[async_trait]
impl Layer for Hangs {
    fn name(&self) -> LayerName {
        LayerName::new("Hangs")
    }

    async fn around<T: Reply>(&self, op: Op<'_>, next: Next<'_, T>) -> Result<T> {
        if op.changes.iter().any(|change| change.path().as_str() == "/memories/hangs") {
            std::future::pending::<()>().await;
        }
        next.run().await
    }
}

fn hanging(store: &Arc<dyn Store>) -> Served {
    let hangs = Arc::new(Hangs);
    let workspace = built(|builder, _| builder.layer(move |tree, _| Arc::new(Layered::new(hangs.clone(), tree))), store);
    Served::of(Runtime::new().unwrap(), workspace, store.clone(), |options| options)
}

/// Sends a change that never completes, and waits until it has started.
fn begin(served: &Served, key: &'static str) {
    let url = format!("{}/v1/fs/memories/hangs", served.base);
    std::thread::spawn(move || {
        let agent: Agent = Agent::config_builder().timeout_global(Some(Duration::from_secs(60))).build().new_agent();
        let _ = agent.put(&url).header(KEY, key).send(&b"x"[..]);
    });
    while kept(served, "ada").is_empty() {
        std::thread::yield_now();
    }
}

/// Regression: the mark expired after five minutes although the server was alive, and the request was repeated.
#[test]
fn key_reports_running_request_and_unknown_outcome_of_a_dead_server() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let served = hanging(&store);
    begin(&served, "hangs");
    let again = |served: &Served| served.send("PUT", "/v1/fs/memories/hangs", &[(KEY, "hangs")], b"x");
    let runs = again(&served);
    assert_eq!((runs.status, state(&runs)), (409, (Some("running".to_owned()), true)));
    let problem = runs.json();
    assert_eq!((&problem["code"], &problem["idempotency_key"]["state"]), (&json!("request_running"), &json!("running")));
    assert!(problem["idempotency_key"]["expires_in_seconds"].as_u64().unwrap() > 80_000);
    // The server vanishes as if its process were killed.
    std::mem::forget(served);
    let next = Served::on(store, |options| options);
    assert_eq!(again(&next).code(), "request_running", "the first server may still be running");
    let item = kept(&next, "ada").pop().unwrap();
    let mut mark: Value = serde_json::from_slice(&item.value).unwrap();
    mark["alive_until"] = json!("2020-01-01T00:00:00Z");
    let past = Batch::new().put_for(&answers("ada"), item.key, mark.to_string().into_bytes(), Duration::from_secs(80_000));
    next.block_on(next.store.commit(past)).unwrap();
    for _ in 0..3 {
        let unknown = again(&next);
        assert_eq!((unknown.status, state(&unknown)), (409, (Some("unknown".to_owned()), true)));
        let problem = unknown.json();
        assert_eq!((&problem["code"], &problem["may_have_effect"]), (&json!("outcome_unknown"), &json!(true)));
        assert!(problem["detail"].as_str().unwrap().contains("check what was done"), "{problem}");
    }
    assert_eq!(next.get("/v1/fs/memories/hangs").code(), "not_found", "it is not done again");
}

#[test]
fn mark_without_running_request_on_its_server_is_unknown_at_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let served = hanging(&store);
    begin(&served, "hangs");
    let item = kept(&served, "ada").pop().unwrap();
    // Create a mark of this server for a request that does not run on it.
    let mark: Value = serde_json::from_slice(&item.value).unwrap();
    let made = served.send("PUT", "/v1/fs/memories/a", &[(KEY, "own")], b"x");
    assert_eq!(made.status, 201);
    let own = kept(&served, "ada").into_iter().find(|other| other.key != item.key).unwrap();
    let mut kept_own: Value = serde_json::from_slice(&own.value).unwrap();
    kept_own["answer"] = Value::Null;
    assert_eq!(kept_own["server"], mark["server"]);
    let lost = Batch::new().put_for(&answers("ada"), own.key, kept_own.to_string().into_bytes(), Duration::from_secs(80_000));
    served.block_on(served.store.commit(lost)).unwrap();
    assert_eq!(served.send("PUT", "/v1/fs/memories/a", &[(KEY, "own")], b"x").code(), "outcome_unknown");
    std::mem::forget(served);
}

fn send(served: &Served, token: &str, key: &str, (method, path, media, body): (&str, &str, &str, &[u8])) -> Answer {
    let bearer = format!("Bearer {token}");
    served.send(method, path, &[("authorization", &bearer), ("content-type", media), (KEY, key)], body)
}

const APPEND: (&str, &str, &str, &[u8]) = ("POST", "/v1/fs/memories/log", "text/plain", b"x");

/// Regression: for a day, the writer received the 403 of a read token.
#[test]
fn key_is_specific_to_token_and_rights() {
    let served = Served::closed();
    let reader = served.token("acme", "ada", Rights::new(Access::Read));
    let [writer, other] = [(); 2].map(|()| served.token("acme", "ada", Rights::new(Access::Write)));
    assert_eq!(send(&served, &reader, "k", APPEND).code(), "permission_denied");
    assert!(kept(&served, "ada").is_empty());
    assert_eq!(send(&served, &writer, "k", APPEND).status, 201);
    assert_eq!(send(&served, &reader, "k", APPEND).code(), "permission_denied", "a caller does not see the answer to another caller");
    assert_eq!(send(&served, &writer, "k", APPEND).header("idempotency-replayed").as_deref(), Some("true"));
    assert_eq!(send(&served, &other, "k", APPEND).header("idempotency-replayed"), None);
    assert_eq!(send(&served, &other, "k", APPEND).header("idempotency-replayed").as_deref(), Some("true"));
    let text = send(&served, &reader, "k", ("GET", "/v1/fs/memories/log", "text/plain", b"")).text();
    assert_eq!(text, "xx");
}

#[test]
fn refusal_without_effect_leaves_no_mark() {
    let served = Served::closed();
    let part = Rights::new(Access::Write).with_paths([VfsPathBuf::parse("/memories").unwrap()]);
    let (ada, part) = (served.token("acme", "ada", Rights::new(Access::Write)), served.token("acme", "ada", part));
    let json = "application/json";
    for (token, status, refused) in [
        ("thd_none", 401, APPEND),
        (&*ada, 404, ("POST", "/v1/none", json, &b"{}"[..])),
        (&ada, 404, ("DELETE", "/v1/fs/memories/none", json, b"")),
        (&ada, 404, ("POST", "/v1/tools/none", json, b"{}")),
        (&ada, 405, ("PUT", "/v1/apply", json, b"{}")),
        (&ada, 400, ("POST", "/v1/apply", json, b"{")),
        (&ada, 400, ("POST", "/v1/copy", json, br#"{"from": "a", "to": "/b"}"#)),
        (&ada, 403, ("POST", "/v1/threads/t/prune", json, br#"{"keep_last": 1}"#)),
        (&part, 403, ("POST", "/v1/fs/own", "text/plain", b"x")),
    ] {
        let answer = send(&served, token, "same", refused);
        let told = (answer.status, answer.header("idempotency-state"));
        assert_eq!(told, (status, None), "{refused:?}: {}", answer.text());
        assert!(kept(&served, "ada").is_empty(), "{refused:?}");
    }
    assert_eq!(send(&served, &ada, "same", APPEND).status, 201);
    // A failed condition is an outcome and is kept.
    let late = |tag: &str| {
        let bearer = format!("Bearer {ada}");
        let headers = [("authorization", &*bearer), ("if-match", tag), (KEY, "late")];
        served.send("PUT", "/v1/fs/memories/log", &headers, b"y")
    };
    assert_eq!((late("\"998\"").status, state(&late("\"998\"")).0.as_deref()), (412, Some("done")));
    assert_eq!(late("\"999\"").code(), "key_reused", "another condition is another request");
}

/// A batch over two mounts may fail with a code that does not reflect the part that was applied.
#[test]
fn refusal_after_partial_effect_keeps_its_mark() {
    let served = Served::start();
    let changes = json!([
        {"operation": "append", "path": "/memories/log", "content": "x"},
        {"operation": "delete", "path": "/none"},
    ]);
    let body = json!({"changes": changes, "allow_partial": true}).to_string();
    let send = || served.send("POST", "/v1/apply", &[("content-type", "application/json"), (KEY, "part")], body.as_bytes());
    for replayed in [None, Some("true")] {
        let answer = send();
        assert_eq!((answer.status, answer.header("idempotency-replayed").as_deref()), (404, replayed));
        assert_eq!(answer.json()["applied"], 1);
    }
    assert_eq!(served.get("/v1/fs/memories/log").text(), "x");
}

#[test]
fn read_request_leaves_no_mark() {
    let served = Served::start();
    served.put("/v1/fs/memories/a", b"needle\n");
    served.put("/v1/fs/a", b"needle\n");
    let json = ("content-type", "application/json");
    for (method, path, body) in [
        ("GET", "/v1/fs/memories/a", ""),
        ("HEAD", "/v1/fs/memories/a", ""),
        ("GET", "/v1/ls", ""),
        ("GET", "/v1/threads", ""),
        ("POST", "/v1/stat", r#"{"path": "/a"}"#),
        ("POST", "/v1/ls", r#"{"path": "/"}"#),
        ("POST", "/v1/tree", r#"{"path": "/"}"#),
        ("POST", "/v1/glob", r#"{"pattern": "**"}"#),
        ("POST", "/v1/grep", r#"{"pattern": "needle"}"#),
        ("POST", "/v1/search", r#"{"query": "needle"}"#),
        ("POST", "/v1/store/search", r#"{"namespace": ["tasks"]}"#),
        ("POST", "/v1/tools/read_file", r#"{"path": "/a"}"#),
        ("POST", "/v1/tools/grep", r#"{"pattern": "needle"}"#),
        ("POST", "/v1/threads/default/tools/ls", r#"{"path": "/"}"#),
    ] {
        for _ in 0..2 {
            let answer = served.send(method, path, &[json, (KEY, "read")], body.as_bytes());
            assert_eq!((answer.status, answer.header("idempotency-state")), (200, None), "{method} {path}");
        }
        assert!(kept(&served, "ada").is_empty(), "{method} {path}");
    }
}

#[test]
fn keys_of_a_user_are_limited_in_number_and_bytes() {
    let put = |served: &Served, token: &str, key: &str| send(served, token, key, APPEND);
    for (rows, size) in [(10_000_usize, "100"), (64, "1048576")] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let served = Served::on(store.clone(), |options| options.with_tokens(true));
        let [ada, bob] = ["ada", "bob"].map(|user| served.token("acme", user, Rights::new(Access::Write)));
        assert_eq!(put(&served, &ada, "before").status, 201);
        served.stop().unwrap();
        let served = Served::on(store, |options| options.with_tokens(true));
        let many = (0..rows).fold(Batch::new(), |batch, row| {
            batch.put_item(&answers("ada"), format!("{row}"), size, "{}", Some(Duration::from_secs(80_000)))
        });
        served.block_on(served.store.commit(many)).unwrap();
        let full = put(&served, &ada, "one more");
        assert_eq!(full.status, 507);
        assert_eq!(full.code(), "quota_exceeded");
        assert_eq!(put(&served, &ada, "before").header("idempotency-replayed").as_deref(), Some("true"), "the stored answer is repeated");
        assert_eq!(put(&served, &bob, "one more").status, 201, "another user has room");
        let bearer = format!("Bearer {ada}");
        let plain = served.send("POST", "/v1/fs/memories/log", &[("authorization", &bearer)], b"y");
        assert_eq!((plain.status, kept(&served, "ada").len()), (200, rows + 1));
    }
}

/// Delays the answer to the commit of the first mark.
#[derive(Clone)]
struct SlowMark {
    is_first: Arc<AtomicBool>,
    committed: Arc<Semaphore>,
    answered: Arc<Semaphore>,
}

#[async_trait]
impl Wrapper for SlowMark {
    async fn commit(&self, inner: &dyn Store, batch: Batch) -> Result<Vec<Version>> {
        let is_mark = batch.written().any(|namespace| *namespace == answers("ada"));
        let versions = inner.commit(batch).await?;
        if is_mark && self.is_first.swap(false, Ordering::Relaxed) {
            self.committed.add_permits(1);
            self.answered.acquire().await.expect("the gate stays").forget();
        }
        Ok(versions)
    }
}

/// Regression: the mark stayed without a request, and retries were told that the outcome was unknown.
#[test]
fn request_whose_client_leaves_while_its_mark_is_stored_is_done_once() {
    let slow = SlowMark {
        is_first: Arc::new(AtomicBool::new(true)),
        committed: Arc::new(Semaphore::new(0)),
        answered: Arc::new(Semaphore::new(0)),
    };
    let store: Arc<dyn Store> = Arc::new(Wrapped::new(Arc::new(MemoryStore::new()), slow.clone()));
    let served = Served::on(store, |options| options);
    let address = served.base.trim_start_matches("http://").to_owned();
    let mut client = TcpStream::connect(&address).unwrap();
    write!(client, "POST /v1/fs/memories/log HTTP/1.1\r\nhost: {address}\r\n{KEY}: left\r\ncontent-length: 1\r\n\r\nx").unwrap();
    served.block_on(async { slow.committed.acquire().await.unwrap().forget() });
    drop(client);
    let again = || served.send("POST", "/v1/fs/memories/log", &[(KEY, "left")], b"x");
    for _ in 0..50 {
        assert_eq!(again().code(), "request_running");
    }
    slow.answered.add_permits(1);
    let done = loop {
        let answer = again();
        if answer.status != 409 {
            break answer;
        }
        assert_eq!(answer.code(), "request_running");
    };
    assert_eq!((done.status, done.header("idempotency-replayed").as_deref()), (201, Some("true")));
    assert_eq!(served.get("/v1/fs/memories/log").text(), "x");
}
