//! The tree of another server: requests, retries, and misbehaving peers.

use crate::far::{FarSide, Fate, Reply, Request, small_tree};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use treehold::ops::{
    ApplyOptions, Change, GlobOptions, GrepOptions, LsOptions, PathGuard, ReadOptions, SearchOptions, StatOptions, WriteMode,
};
use treehold::{
    Backend, BackendExt, CacheOptions, CachedBackend, Error, ErrorKind, RemoteBackend, RemoteOptions, StateBackend, VfsPathBuf,
};

const TOKEN: &str = "s3cret-s3cret-s3cret";

fn path(text: &str) -> VfsPathBuf {
    text.parse().unwrap()
}

fn options() -> RemoteOptions {
    RemoteOptions::new().with_token(TOKEN).with_thread("a b/ü").with_actor("ada").with_attempts_max(3)
}

fn remote(url: &str) -> RemoteBackend {
    RemoteBackend::new(url, options()).unwrap()
}

/// Decides by the number of the request, from 0, not counting those for capabilities.
fn by_number(decide: impl Fn(usize) -> Fate + Send + Sync + 'static) -> impl Fn(&Request) -> Fate + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |request| match request.path.ends_with("/capabilities") {
        true => Fate::Served,
        false => decide(count.fetch_add(1, Ordering::Relaxed)),
    }
}

#[tokio::test]
async fn every_operation_is_one_request_with_its_headers() {
    let far = FarSide::serve(small_tree().await, |_| Fate::Served).await;
    let tree = remote(&format!("{}/w", far.url()));
    tree.connect().await.unwrap();
    assert!(tree.capabilities().atomic_batch);
    assert_eq!(tree.read_text("/a.md").await.unwrap(), "one\ntwo needle\n");
    let window = tree.read(&path("/a.md"), &ReadOptions::lines(1, 5)).await.unwrap();
    assert_eq!((&window.content[..], window.window.unwrap().total_lines), (&b"two needle\n"[..], 2));
    assert_eq!(tree.stat(&path("/d"), &StatOptions::new()).await.unwrap().path, path("/d"));
    assert_eq!(tree.ls(&path("/"), &LsOptions::new()).await.unwrap().entries.len(), 3);
    assert_eq!(tree.glob(&path("/"), &GlobOptions::new("**/*.md")).await.unwrap().entries.len(), 3);
    assert_eq!(tree.grep(&path("/"), &GrepOptions::new("needle")).await.unwrap().files.len(), 3);
    assert_eq!(tree.search(&path("/"), &SearchOptions::new("needle")).await.unwrap().hits.len(), 3);
    let changes = ["/x y/ä%2F", "/x y/b"].map(|name| Change::Write { path: path(name), content: "x".into(), mode: WriteMode::CreateNew });
    assert_eq!(tree.apply(&changes, &ApplyOptions::new()).await.unwrap()[1].path, path("/x y/b"));
    assert_eq!(tree.read_text("/x y/ä%2F").await.unwrap(), "x");
    let requests = far.requests.lock().clone();
    for request in &requests {
        assert_eq!(request.headers["authorization"], format!("Bearer {TOKEN}"));
        assert_eq!((request.headers["treehold-thread"].as_str(), request.headers["treehold-actor"].as_str()), ("a%20b%2F%C3%BC", "ada"));
        assert_eq!(request.headers["traceparent"].len(), 55);
        assert_eq!(request.headers.contains_key("idempotency-key"), request.path == "/v1/apply");
    }
    let all = ["fs/w/a.md", "fs/w/a.md", "stat", "ls", "glob", "grep", "search", "apply", "fs/w/x%20y/%C3%A4%252F"];
    let paths: Vec<&str> =
        requests.iter().filter_map(|request| request.path.strip_prefix("/v1/")).filter(|path| *path != "capabilities").collect();
    assert_eq!(paths, all);
    assert!(!format!("{tree:?} {tree}").contains("s3cret"));
}

#[tokio::test]
async fn errors_of_the_peer_use_the_callers_paths() {
    let far = FarSide::serve(small_tree().await, |_| Fate::Served).await;
    let tree = remote(&format!("{}/w", far.url()));
    let error = tree.read_text("/d/none.md").await.unwrap_err();
    assert_eq!(
        (error.kind(), error.message(), error.path()),
        (ErrorKind::NotFound, "`/d/none.md` does not exist", Some(&*path("/d/none.md")))
    );
    tree.write("/e", "x x").await.unwrap();
    let error = tree.edit("/e", "x", "y").await.unwrap_err();
    assert_eq!((error.kind(), error.lines(), error.change()), (ErrorKind::Ambiguous, &[1, 1][..], Some(0)));
    let version = tree.stat(&path("/e"), &StatOptions::new()).await.unwrap().version;
    let error = tree.write_if("/e", "z", treehold::ops::Version::new(u64::MAX)).await.unwrap_err();
    assert_eq!((error.kind(), error.current_version()), (ErrorKind::Conflict, version));
    assert!(!error.may_have_effect());
    let changes = [Change::CreateDir { path: path("/f") }, Change::CreateDir { path: path("/e/x") }];
    let error = tree.apply(&changes, &ApplyOptions::new()).await.unwrap_err();
    assert_eq!((error.change(), error.applied(), error.path().map(|path| path.as_str().starts_with("/e"))), (Some(1), 0, Some(true)));
}

/// The answer is lost after the effect: the change is made once, and answered.
#[tokio::test]
async fn change_with_lost_answer_is_made_once() {
    let state = Arc::new(StateBackend::new());
    state.write("/log", "").await.unwrap();
    let far = FarSide::serve(state.clone(), by_number(|number| if number < 2 { Fate::AnswerLost } else { Fate::Served })).await;
    let tree = remote(&far.url());
    tree.append("/log", "x\n").await.unwrap();
    assert_eq!(state.read_text("/log").await.unwrap(), "x\n");
    let keys: Vec<String> = far.requests.lock().iter().filter_map(|request| request.headers.get("idempotency-key").cloned()).collect();
    assert!(keys.len() == 3 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    tree.append("/log", "y\n").await.unwrap();
    assert_eq!(state.read_text("/log").await.unwrap(), "x\ny\n", "another change has another key");
}

#[tokio::test]
async fn change_with_unknown_effect_reports_it() {
    let far = FarSide::serve(small_tree().await, |_| Fate::AnswerLost).await;
    let error = remote(&far.url()).append("/log", "x").await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_effect(), error.path()), (ErrorKind::Unavailable, true, Some(&*path("/log"))));
    assert_eq!(error.message(), format!("`{}` closed the connection before it answered (tried 3 times)", far.url()));
    let url = far.url();
    drop(far);
    // Nobody listens there any more, so nothing can have been done.
    let error = remote(&url).append("/log", "x").await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Unavailable, false));
    assert_eq!(error.message(), format!("`{url}` cannot be reached (tried 3 times)"));
    assert_eq!(remote(&url).read_text("/log").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn failed_read_is_retried_but_a_refusal_is_not() {
    let busy = || Fate::Answered(Reply::new(503, "text/html", "busy"));
    let fates = by_number(move |number| match number {
        0 => Fate::Lost,
        1 => busy(),
        _ => Fate::Served,
    });
    let far = FarSide::serve(small_tree().await, fates).await;
    assert_eq!(remote(&far.url()).read_text("/other.md").await.unwrap(), "needle\n");
    assert_eq!(far.take().len(), 3);

    let first_is_running = by_number(|number| match number {
        0 => Fate::AnswerLost,
        1 => Fate::Answered(Reply::request_running()),
        _ => Fate::Served,
    });
    let far = FarSide::serve(small_tree().await, first_is_running).await;
    remote(&far.url()).append("/log", "x").await.unwrap();
    assert_eq!(far.take().len(), 3);

    for (reply, kind) in [
        (Reply::new(401, "text/plain", "no"), ErrorKind::PermissionDenied),
        (Reply::new(404, "text/html", "<html>"), ErrorKind::Unsupported),
        (Reply::new(302, "text/html", "").with("location", "http://127.0.0.1:1/"), ErrorKind::Unsupported),
        (Reply::new(500, "text/html", ""), ErrorKind::Internal),
        (Reply::problem(&Error::new(ErrorKind::QuotaExceeded, "full")), ErrorKind::QuotaExceeded),
    ] {
        let far = FarSide::serve(small_tree().await, move |_| Fate::Answered(reply.clone())).await;
        let error = remote(&far.url()).read_text("/other.md").await.unwrap_err();
        assert_eq!((error.kind(), far.take().len()), (kind, 1), "{error:?}");
        assert!(!format!("{error:?}").contains("s3cret"));
    }
}

#[tokio::test]
async fn silent_peer_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let options = options().with_timeouts(Duration::from_secs(5), Duration::from_millis(50));
    let error = RemoteBackend::new(&url, options).unwrap().append("/log", "x").await.unwrap_err();
    assert_eq!((error.kind(), error.may_have_effect()), (ErrorKind::Deadline, true), "{error:?}");
    assert!(error.message().contains(&url));
}

/// Whatever a peer sends, a call ends with an error, and no tree appears empty.
#[tokio::test]
async fn hostile_peer_cannot_exceed_the_bounds() {
    let json = |body: &str| Reply::new(200, "application/json", body);
    let not_found = serde_json::to_string(&treehold::wire::Problem::new(&Error::not_found(&path("/x")))).unwrap();
    let entry = |name: &str| format!(r#"{{"path": "{name}", "kind": "directory", "size_bytes": 0}}"#);
    let replies = [
        json("{}"),
        json("[]"),
        json("{"),
        json(&"[".repeat(100_000)),
        json(&not_found),
        Reply::new(200, "application/problem+json", not_found.clone()),
        Reply::new(200, "application/problem+json", "{}"),
        Reply::new(200, "text/html", r#"{"entries": []}"#),
        json(&format!(r#"{{"entries": [{}]}}"#, entry("/elsewhere/x"))),
        json(&format!(r#"{{"entries": [{}]}}"#, entry("/w/../../x"))),
        json(&format!(r#"{{"entries": [{}, {}]}}"#, entry("/w/x"), entry("/w/y"))),
        json(r#"{"changed": []}"#),
        json(r#"{"files": [{"path": "/elsewhere", "count": 1}]}"#),
        json(r#"{"files": [], "truncated": {"reason": "limit", "cursor": "nowhere"}}"#),
        Reply::new(200, "application/octet-stream", "content"),
        Reply::new(200, "application/octet-stream", "content").with("etag", "\"zz\"").with("treehold-size", "7"),
        Reply::new(200, "application/octet-stream", "content").with("etag", "\"1\"").with("treehold-size", "8"),
    ];
    for reply in replies {
        let told = format!("{reply:?}");
        let far = FarSide::serve(small_tree().await, move |_| Fate::Answered(reply.clone())).await;
        let tree = remote(&far.url());
        let at = path("/w");
        tree.stat(&at, &StatOptions::new()).await.expect_err(&told);
        tree.read(&at, &ReadOptions::new()).await.expect_err(&told);
        tree.ls(&at, &LsOptions::new().with_limit(1)).await.expect_err(&told);
        let globbed = tree.glob(&at, &GlobOptions::new("*").with_limit(1)).await;
        assert!(globbed.is_err(), "{told}: {globbed:?}");
        tree.grep(&at, &GrepOptions::new("x")).await.expect_err(&told);
        tree.search(&at, &SearchOptions::new("x")).await.expect_err(&told);
        let error = tree.write("/w", "x").await.expect_err(&told);
        assert!(error.may_have_effect() || error.kind() == ErrorKind::NotFound, "{told}: {error:?}");
    }
    for media_type in ["application/json", "application/octet-stream", "application/problem+json"] {
        let reply = Reply::new(200, media_type, vec![b'['; 64 << 10]).with("etag", "\"1\"").with("treehold-size", "1");
        let far = FarSide::serve(small_tree().await, move |_| Fate::Endless(reply.clone())).await;
        let tree = RemoteBackend::new(&far.url(), options().with_answer_bytes_max(1 << 20)).unwrap();
        let error = tree.ls(&path("/"), &LsOptions::new()).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Corrupt), "{error:?}");
        let error = tree.read(&path("/a"), &ReadOptions::new().with_bytes_max(100)).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TooLarge | ErrorKind::Corrupt), "{error:?}");
    }
}

/// A guard is not sent: paths that it hides are filtered out locally, do not count toward a limit, and appear in no cursor.
#[tokio::test]
async fn paths_hidden_by_a_guard_are_omitted() {
    let state = StateBackend::new();
    for number in 0..700 {
        state.write(&format!("/hidden/{number}"), "needle\n").await.unwrap();
    }
    for name in ["/a", "/i/hidden", "/z1", "/z2"] {
        state.write(name, "needle\nneedle\n").await.unwrap();
    }
    let far = FarSide::serve(Arc::new(state), |_| Fate::Served).await;
    let tree = remote(&far.url());
    let guard = PathGuard::new(|path, is_directory| !(is_directory && path.as_str() == "/hidden"));
    let mut glob = GlobOptions::new("**").with_limit(2);
    glob.scope.guard = Some(guard.clone());
    let mut found = Vec::new();
    loop {
        let page = tree.glob(&path("/"), &glob).await.unwrap();
        found.extend(page.entries.iter().map(|entry| entry.path.to_string()));
        let Some(cut) = page.truncated else { break };
        assert_eq!(cut.cursor, *found.last().unwrap());
        glob.start_after = Some(path(&cut.cursor));
    }
    assert_eq!(found, ["/a", "/i/hidden", "/z1", "/z2"]);
    let mut grep = GrepOptions::new("needle").with_matches_max(3);
    grep.scope.guard = Some(guard.clone());
    let mut found = Vec::new();
    loop {
        let page = tree.grep(&path("/"), &grep).await.unwrap();
        found.extend(page.files.iter().flat_map(|file| file.lines.iter().map(|line| format!("{}:{}", file.path, line.line))));
        assert!(page.files_searched <= 4);
        let Some(cut) = page.truncated else { break };
        assert_eq!(cut.cursor, *found.last().unwrap());
        grep.start_after = Some(cut.cursor.parse().unwrap());
    }
    assert_eq!(found, ["/a:1", "/a:2", "/i/hidden:1", "/i/hidden:2", "/z1:1", "/z1:2", "/z2:1", "/z2:2"]);
    let mut search = SearchOptions::new("needle").with_limit(2).with_offset(1);
    search.scope.guard = Some(guard);
    let page = tree.search(&path("/"), &search).await.unwrap();
    assert!(page.hits.len() == 2 && page.hits.iter().all(|hit| !hit.path.starts_with(&path("/hidden"))), "{:?}", page.hits);
    assert_eq!(page.truncated.unwrap().cursor, "3");
}

#[tokio::test]
async fn limit_beyond_one_answer_is_filled_by_several() {
    let far = FarSide::serve(small_tree().await, |_| Fate::Served).await;
    let tree = remote(&far.url());
    for limit in [0, 1, usize::MAX] {
        let whole = small_tree().await;
        let ls = LsOptions::new().with_limit(limit);
        let (mine, theirs) = (tree.ls(&path("/w"), &ls).await.unwrap(), whole.ls(&path("/w"), &ls).await.unwrap());
        assert_eq!((mine.entries.len(), mine.truncated), (theirs.entries.len(), theirs.truncated), "{limit}");
        let glob = GlobOptions::new("**").with_limit(limit);
        let (mine, theirs) = (tree.glob(&path("/"), &glob).await.unwrap(), whole.glob(&path("/"), &glob).await.unwrap());
        assert_eq!((mine.entries.len(), mine.truncated), (theirs.entries.len(), theirs.truncated), "{limit}");
        for output in [treehold::ops::GrepOutput::Content, treehold::ops::GrepOutput::Files] {
            let grep = GrepOptions::new("needle").with_matches_max(limit).with_output(output);
            let (mine, theirs) = (tree.grep(&path("/"), &grep).await.unwrap(), whole.grep(&path("/"), &grep).await.unwrap());
            assert_eq!((mine.files, mine.truncated.is_some()), (theirs.files, theirs.truncated.is_some()), "{limit}");
        }
    }
}

#[tokio::test]
async fn cached_answers_are_dropped_by_the_peers_feed() {
    let state = Arc::new(StateBackend::new());
    state.write("/w/a", "old").await.unwrap();
    let events = "event: change\nid: 41\ndata: {\"position\": 41, \"path\": \"/w/a\", \"operation\": \"write\", \"at\": \"2026-01-01T00:00:00Z\"}\n\n";
    // The first connection reports a change and ends; later ones learn where to continue.
    let connections = AtomicUsize::new(0);
    let decide = move |request: &Request| match request.path.as_str() {
        "/v1/events" => {
            let body = if connections.fetch_add(1, Ordering::Relaxed) == 0 { events } else { "" };
            Fate::Answered(Reply::new(200, "text/event-stream", body))
        }
        _ => Fate::Served,
    };
    let far = FarSide::serve(state.clone(), decide).await;
    let remote = remote(&format!("{}/w", far.url()));
    let feed: Vec<treehold::TreeNews> = futures::StreamExt::collect(futures::StreamExt::take(remote.changes(), 5)).await;
    use treehold::TreeNews::{Changed, Live, Lost};
    assert_eq!(feed, [Live, Changed(path("/a")), Lost, Live, Lost]);
    let requests = far.requests.lock().clone();
    let events: Vec<&Request> = requests.iter().filter(|request| request.path == "/v1/events").collect();
    assert_eq!(events[0].headers.get("last-event-id"), None);
    assert_eq!(events[1].headers["last-event-id"], "41");
    assert!(events[0].query.contains("prefix=%2Fw") && events[0].query.contains("thread=a+b%2F%C3%BC"), "{}", events[0].query);
    let cache = CachedBackend::new(remote.clone(), CacheOptions::new());
    assert_eq!(cache.read_text("/a").await.unwrap(), "old");
    state.write("/w/a", "new").await.unwrap();
    assert_eq!(cache.read_text("/a").await.unwrap(), "new", "without a feed the content is validated");
}

/// Collects every position in a JSON value, as the keys that lead to it.
fn places(value: &serde_json::Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        serde_json::Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| places(item, &format!("{at}/{index}"), found)),
        serde_json::Value::Object(fields) => fields.iter().for_each(|(name, item)| places(item, &format!("{at}/{name}"), found)),
        _ => {}
    }
}

/// Returns corrupted versions of a valid answer, in each of which one position holds one of some invalid values.
fn spoiled(answer: &serde_json::Value) -> Vec<serde_json::Value> {
    use serde_json::{Value, json};
    let mut all = Vec::new();
    let mut found = Vec::new();
    places(answer, "", &mut found);
    for place in found {
        let was = answer.pointer(&place).unwrap();
        let mut values = vec![Value::Null, json!([]), json!({})];
        match was {
            Value::Number(_) => values.extend([
                json!(0),
                json!(1),
                json!(u64::MAX),
                json!(u64::MAX - 1),
                json!(1_u64 << 60),
                json!(-1),
                json!(1e308),
                json!(3),
            ]),
            Value::String(_) => {
                let texts = [
                    "",
                    "/",
                    "/elsewhere",
                    "/w/../x",
                    "/w",
                    "/w/a.md",
                    "/w/\u{1b}[31m",
                    "/w/z",
                    "a.md",
                    "zz",
                    "0",
                    "18446744073709551615",
                    "/w/a.md:0",
                    "/w/a.md:18446744073709551614",
                    "é",
                ];
                values.extend(texts.map(Value::from));
                values.push("x".repeat(100_000).into());
            }
            Value::Array(items) => {
                values.push(items.iter().rev().cloned().collect());
                values.push(items.iter().chain(items).cloned().collect());
                values.extend([
                    json!([[5, 2]]),
                    json!([[0, 1_000_000]]),
                    json!([[u64::MAX, u64::MAX]]),
                    json!([[1, 3], [2, 4]]),
                    json!([[1, 2]]),
                ]);
            }
            Value::Object(_) | Value::Bool(_) | Value::Null => values.extend([json!(true), json!(false)]),
        }
        for value in values.into_iter().filter(|value| value != was) {
            let mut bad = answer.clone();
            *bad.pointer_mut(&place).unwrap() = value;
            all.push(bad);
        }
    }
    // Endless pages.
    for cursor in ["", "a.md", "/w/a.md", "/w/a.md:end", "0", "/w", "zz"] {
        let mut bad = answer.clone();
        if let Value::Object(fields) = &mut bad {
            fields.insert("truncated".to_owned(), json!({"reason": "limit", "cursor": cursor}));
        }
        all.push(bad);
    }
    all
}

/// Whatever an answer contains, following it ends, and accepted values can be relied on.
#[tokio::test]
async fn answers_with_any_invalid_part_yield_only_sound_results() {
    use treehold::ops::GrepCursor;
    let tree = Arc::new(StateBackend::new());
    tree.write("/w/a.md", "füx\nneedle needle\nx\n").await.unwrap();
    tree.write("/w/b.md", "needle\n").await.unwrap();
    tree.write("/w/d/c.md", "needle é needle\n").await.unwrap();
    let at = path("/w");
    let (ls, glob) = (LsOptions::new().with_limit(2), GlobOptions::new("**").with_directories(true).with_limit(2));
    let (grep, search) = (GrepOptions::new("needle").with_matches_max(2), SearchOptions::new("needle").with_limit(2));
    let answers = [
        serde_json::to_value(tree.stat(&at, &StatOptions::new()).await.unwrap()),
        serde_json::to_value(tree.ls(&at, &ls).await.unwrap()),
        serde_json::to_value(tree.glob(&at, &glob).await.unwrap()),
        serde_json::to_value(tree.grep(&at, &grep).await.unwrap()),
        serde_json::to_value(tree.search(&at, &search).await.unwrap()),
    ]
    .map(Result::unwrap);
    let reply = Arc::new(parking_lot::Mutex::new(Reply::new(200, "application/json", "{}")));
    let told = reply.clone();
    let far = FarSide::serve(tree.clone(), move |_| Fate::Answered(told.lock().clone())).await;
    let remote = RemoteBackend::new(&far.url(), options().with_attempts_max(1)).unwrap();
    let named = |error: &Error| assert!(error.kind() == ErrorKind::Corrupt && error.message().contains(&far.url()), "{error:?}");
    let mut passed = 0;
    let mut refused = 0;
    for (operation, answer) in answers.iter().enumerate() {
        for bad in spoiled(answer) {
            *reply.lock() = Reply::json(&bad);
            let done: Result<(), Error> = match operation {
                0 => remote.stat(&at, &StatOptions::new()).await.map(|entry| assert_eq!(entry.path, at)),
                1 => match remote.ls(&at, &ls).await {
                    Err(error) => Err(error),
                    Ok(page) => {
                        assert!(page.entries.iter().all(|entry| entry.path.parent() == Some(&*at)), "{bad}");
                        assert!(page.entries.is_sorted_by(|a, b| a.path < b.path), "{bad}");
                        match page.truncated {
                            None => Ok(()),
                            // The same answer again does not continue after itself.
                            Some(cut) => remote
                                .ls(&at, &ls.clone().with_start_after(cut.cursor))
                                .await
                                .map(|page| assert!(page.truncated.is_none(), "{bad}")),
                        }
                    }
                },
                2 => match remote.glob(&at, &glob).await {
                    Err(error) => Err(error),
                    Ok(page) => {
                        assert!(
                            page.entries.iter().all(|entry| entry.path.starts_with(&at))
                                && page.entries.is_sorted_by(|a, b| a.path < b.path),
                            "{bad}"
                        );
                        match page.truncated {
                            None => Ok(()),
                            Some(cut) => remote
                                .glob(&at, &glob.clone().with_start_after(path(&cut.cursor)))
                                .await
                                .map(|page| assert!(page.truncated.is_none(), "{bad}")),
                        }
                    }
                },
                3 => match remote.grep(&at, &grep).await {
                    Err(error) => Err(error),
                    Ok(page) => {
                        for line in page.files.iter().flat_map(|file| &file.lines) {
                            assert!(line.ranges.iter().all(|range| line.text.get(range.clone()).is_some()), "{bad}");
                        }
                        match page.truncated {
                            None => Ok(()),
                            Some(cut) => remote
                                .grep(&at, &grep.clone().with_start_after(cut.cursor.parse::<GrepCursor>().unwrap()))
                                .await
                                .map(|page| assert!(page.truncated.is_none(), "{bad}")),
                        }
                    }
                },
                _ => remote.search(&at, &search).await.map(|page| {
                    for snippet in page.hits.iter().flat_map(|hit| &hit.snippets) {
                        assert!(snippet.ranges.iter().all(|range| snippet.text.get(range.clone()).is_some()), "{bad}");
                    }
                }),
            };
            match done {
                Ok(()) => passed += 1,
                Err(error) => {
                    named(&error);
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > passed && refused > 500, "{refused} refused, {passed} passed");
}
