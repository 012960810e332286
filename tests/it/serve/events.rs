//! The event feed: a client that reconnects misses nothing, and nobody receives what they may not see.

use super::{Answer, Served};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::sync::Arc;
use treehold::serve::{Access, Rights, TokenBook};
use treehold::store::{MemoryStore, Store};
use treehold::{Feed, VfsPathBuf};

/// An event stream that is read incrementally.
struct Stream {
    lines: Box<dyn BufRead + Send>,
    last_id: Option<String>,
}

impl Stream {
    fn open(served: &Served, path: &str, headers: &[(&str, &str)]) -> Self {
        let answer = served.send("GET", path, headers, b"");
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type").as_deref(), Some("text/event-stream"));
        let reader = answer.response.into_body().into_with_config().limit(u64::MAX).reader();
        Self { lines: Box::new(BufReader::new(reader)), last_id: None }
    }

    /// Resumes after an event.
    fn resume(served: &Served, path: &str, id: Option<&str>) -> Self {
        let headers: Vec<(&str, &str)> = id.map(|id| ("last-event-id", id)).into_iter().collect();
        let mut stream = Self::open(served, path, &headers);
        assert_eq!(stream.next().expect("the stream begins").0, "open");
        stream
    }

    /// Returns the next event with its data, or `None` at the end.
    fn next(&mut self) -> Option<(String, Value)> {
        let (mut name, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("event", value)) => name = value.to_owned(),
                Some(("data", value)) => data.push_str(value),
                Some(("id", value)) => self.last_id = Some(value.to_owned()),
                _ if line == "\n" && !name.is_empty() => return Some((name, serde_json::from_str(&data).unwrap())),
                _ => {}
            }
        }
    }

    fn change(&mut self) -> Value {
        let (name, data) = self.next().expect("the stream goes on");
        assert_eq!(name, "change", "{data}");
        data
    }
}

fn shown(event: &Value) -> String {
    format!("{} {}", event["operation"].as_str().unwrap(), event["path"].as_str().unwrap())
}

#[test]
fn changes_are_streamed_with_their_author() {
    let served = Served::start();
    let mut stream = Stream::resume(&served, "/v1/events", None);
    let written = served.send("PUT", "/v1/threads/t/fs/memories/a.md", &[("treehold-actor", "coder")], b"one").json();
    let told = stream.change();
    assert_eq!(shown(&told), "write /memories/a.md");
    assert_eq!((&told["version"], &told["thread"], &told["actor"]), (&written["version"], &json!("t"), &json!("coder")));
    served.put("/v1/threads/t/fs/own.md", b"two");
    assert_eq!(shown(&stream.change()), "write /own.md");
    served.post("/v1/move", &json!({"from": "/memories/a.md", "to": "/memories/b.md"}));
    let told = stream.change();
    assert_eq!((shown(&told).as_str(), told["target"].as_str()), ("rename /memories/a.md", Some("/memories/b.md")));
    served.post("/v1/tools/write_file", &json!({"path": "/memories/c.md", "content": "three"}));
    assert_eq!(shown(&stream.change()), "write /memories/c.md");

    let page = served.get("/v1/timeline").json();
    let lines: Vec<String> = page["events"].as_array().unwrap().iter().map(shown).collect();
    assert_eq!(lines, ["write /memories/c.md", "rename /memories/a.md", "write /own.md", "write /memories/a.md"]);
    let one = served.get("/v1/timeline?limit=1").json();
    assert_eq!((one["events"].as_array().unwrap().len(), &one["more"]), (1, &json!(true)));
    let rest = served.get(&format!("/v1/timeline?before={}", one["position"].as_str().unwrap())).json();
    assert_eq!(rest["events"].as_array().unwrap().iter().map(shown).collect::<Vec<_>>(), lines[1..]);
    assert_eq!(served.get("/v1/timeline?prefix=/memories").json()["events"].as_array().unwrap().len(), 3);
    assert_eq!(served.get("/v1/timeline?since=2999-01-01T00:00:00Z").json()["events"], json!([]));
}

#[test]
fn reconnecting_client_misses_nothing_and_sees_nothing_twice() {
    const WRITES: usize = 80;
    let served = Arc::new(Served::start());
    let mut stream = Stream::resume(&served, "/v1/events?prefix=/memories", None);
    let mut last_id = stream.last_id.clone();
    let writer = served.clone();
    let writing = std::thread::spawn(move || {
        for number in 0..WRITES {
            assert_eq!(writer.put(&format!("/v1/threads/t{}/fs/memories/{number}", number % 3), b"x").status, 201);
        }
    });
    let mut seen = Vec::new();
    while seen.len() < WRITES {
        for _ in 0..5.min(WRITES - seen.len()) {
            seen.push(stream.change()["path"].as_str().unwrap().to_owned());
            last_id = stream.last_id.clone().or(last_id);
        }
        // Reconnect, discarding anything sent but not read.
        stream = Stream::resume(&served, "/v1/events?prefix=/memories", last_id.as_deref());
    }
    writing.join().unwrap();
    assert_eq!(seen, (0..WRITES).map(|number| format!("/memories/{number}")).collect::<Vec<_>>());
}

#[test]
fn servers_on_one_store_stream_each_others_changes() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (one, other) = (Served::on(store.clone(), |options| options), Served::on(store, |options| options));
    let mut stream = Stream::resume(&one, "/v1/events", None);
    other.put("/v1/fs/memories/a", b"x");
    assert_eq!(shown(&stream.change()), "write /memories/a");
    other.put("/v1/fs/memories/b", b"x");
    let mut stream = Stream::resume(&other, "/v1/events", stream.last_id.as_deref());
    assert_eq!(shown(&stream.change()), "write /memories/b");
}

fn as_bearer(served: &Served, token: &str, method: &str, path: &str, body: &[u8]) -> Answer {
    served.send(method, path, &[("authorization", &format!("Bearer {token}"))], body)
}

#[test]
fn token_receives_only_events_it_may_see() {
    let served = Served::closed();
    let path = |text: &str| VfsPathBuf::parse(text).unwrap();
    let ada = served.token("acme", "ada", Rights::new(Access::Write));
    let bob = served.token("acme", "bob", Rights::new(Access::Admin));
    let eve = served.token("other", "ada", Rights::new(Access::Admin));
    let part = served.token("acme", "ada", Rights::new(Access::Read).with_paths([path("/memories/open/sub")]));
    let one = served.token("acme", "ada", Rights::new(Access::Write).with_threads(["t1".to_owned()]));
    for (at, body) in [("t1/fs/own", "1"), ("t2/fs/other", "2"), ("t1/fs/memories/secret", "3"), ("t1/fs/memories/open/sub/a", "4")] {
        assert_eq!(as_bearer(&served, &ada, "PUT", &format!("/v1/threads/{at}"), body.as_bytes()).status, 201, "{at}");
    }
    assert_eq!(as_bearer(&served, &ada, "DELETE", "/v1/fs/memories/open?recursive=true", b"").status, 200);
    let told = |token: &str, query: &str| {
        let page = as_bearer(&served, token, "GET", &format!("/v1/timeline{query}"), b"").json();
        let events = page["events"].as_array().unwrap_or_else(|| panic!("{page}")).clone();
        events.iter().map(shown).collect::<BTreeSet<_>>()
    };
    let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<BTreeSet<_>>();
    let all = set(&["write /own", "write /other", "write /memories/secret", "write /memories/open/sub/a", "delete /memories/open"]);
    assert_eq!(told(&ada, ""), all);
    assert_eq!(
        told(&ada, "?thread=t2"),
        set(&["write /other", "write /memories/secret", "write /memories/open/sub/a", "delete /memories/open"])
    );
    for stranger in [&bob, &eve] {
        assert_eq!(told(stranger, ""), set(&[]));
        assert_eq!(told(stranger, "?thread=t1&prefix=/memories"), set(&[]));
    }
    assert_eq!(
        told(&part, ""),
        set(&["write /memories/open/sub/a", "delete /memories/open/sub"]),
        "the token sees the changes of the visible paths"
    );
    assert_eq!(
        told(&one, ""),
        set(&["write /own", "write /memories/secret", "write /memories/open/sub/a", "delete /memories/open"]),
        "no state of another thread"
    );
    let refused = as_bearer(&served, &one, "GET", "/v1/events?thread=t2", b"");
    assert_eq!((refused.status, refused.code().as_str()), (403, "permission_denied"));
    assert_eq!(served.get("/v1/events").status, 401);
}

#[test]
fn expired_id_resets_the_stream_and_malformed_id_is_refused() {
    let served = Served::start();
    served.put("/v1/fs/memories/a", b"x");
    for old in ["1-0", "ffffffff-9999999999"] {
        let mut stream = Stream::open(&served, "/v1/events", &[("last-event-id", old)]);
        assert_eq!(stream.next().unwrap().0, "reset", "{old}");
        served.put(&format!("/v1/fs/memories/{old}"), b"x");
        assert_eq!(stream.change()["path"], json!(format!("/memories/{old}")));
    }
    for none in ["", "x", "5", "-", "1-x"] {
        let answer = served.send("GET", "/v1/events", &[("last-event-id", none)], b"");
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_argument"), "{none:?}");
    }
    for path in
        ["/v1/timeline?limit=0", "/v1/timeline?limit=1001", "/v1/timeline?before=x", "/v1/events?prefix=a/../b", "/v1/events?other=1"]
    {
        assert_eq!(served.get(path).status, 400, "{path}");
    }
}

#[test]
fn streams_are_limited_and_end_with_the_server() {
    let served = Served::with(|options| options.with_streams_max(2));
    let mut first = Stream::resume(&served, "/v1/events", None);
    let second = Stream::resume(&served, "/v1/events", None);
    let refused = served.get("/v1/events");
    assert_eq!((refused.status, refused.code().as_str()), (503, "unavailable"));
    drop(second);
    // The server notices the disconnect when it next sends something.
    let reopened = (0..1_000).find_map(|number| {
        served.put("/v1/fs/memories/a", number.to_string().as_bytes());
        let answer = served.get("/v1/events");
        (answer.status == 200).then_some(answer)
    });
    drop(reopened.expect("there is room again"));
    let ending = std::thread::spawn(move || while first.next().is_some() {});
    served.stop().expect("in order");
    ending.join().unwrap();
}

#[test]
fn server_without_feed_reports_unsupported() {
    let served = Served::made(|builder, _| builder);
    for path in ["/v1/events", "/v1/timeline"] {
        assert_eq!(served.get(path).code(), "unsupported", "{path}");
    }
    let kept = Served::made(|builder, store| builder.feed(Feed::new(store.clone())));
    assert_eq!(kept.get("/v1/timeline").status, 200);
}

#[test]
fn stream_ends_when_its_token_is_revoked() {
    let served = Served::closed();
    let admin = served.token("acme", "ada", Rights::new(Access::Admin));
    let lent = served.token("acme", "ada", Rights::new(Access::Read));
    let mut stream = Stream::open(&served, "/v1/events", &[("authorization", &format!("Bearer {lent}"))]);
    assert_eq!(stream.next().unwrap().0, "open");
    let id = lent.split('_').nth(1).unwrap().to_owned();
    let book = TokenBook::new(served.store.clone());
    served.block_on(book.revoke(&id)).unwrap();
    // A token lookup is cached for at most a second.
    let ended = (0..100_000).any(|number: u32| {
        assert_eq!(as_bearer(&served, &admin, "PUT", "/v1/fs/memories/a", number.to_string().as_bytes()).status / 100, 2);
        stream.next().is_none()
    });
    assert!(ended);
}

#[test]
fn thread_names_outside_the_token_are_hidden_in_events() {
    let served = Served::closed();
    let ada = served.token("acme", "ada", Rights::new(Access::Write));
    let one = served.token("acme", "ada", Rights::new(Access::Write).with_threads(["t1".to_owned()]));
    for thread in ["t1", "secret-thread"] {
        assert_eq!(as_bearer(&served, &ada, "PUT", &format!("/v1/threads/{thread}/fs/memories/{}", thread.len()), b"x").status, 201);
    }
    let text = as_bearer(&served, &one, "GET", "/v1/timeline", b"").text();
    assert!(text.contains("\"thread\":\"t1\"") && !text.contains("secret-thread") && text.contains("/memories/13"), "{text}");
}

#[test]
fn fork_appears_as_event_of_the_new_thread() {
    let served = Served::start();
    served.put("/v1/threads/t/fs/a", b"x");
    assert_eq!(served.post("/v1/threads/t/fork", &json!({"thread": "u"})).status, 201);
    let page = served.get("/v1/timeline?thread=u").json();
    assert_eq!(page["events"].as_array().unwrap().iter().map(shown).collect::<Vec<_>>(), ["fork /"]);
}

/// The source of changes for a cache of a remote tree (`CachedBackend::with_feed`).
#[cfg(feature = "remote")]
#[test]
fn remote_tree_reports_changes_from_the_server_feed() {
    use futures::StreamExt;
    use treehold::{RemoteBackend, RemoteOptions, TreeNews};

    let served = Served::start();
    let far = RemoteBackend::new(&format!("{}/memories", served.base), RemoteOptions::new().with_thread("t")).unwrap();
    let mut news = far.changes();
    assert_eq!(served.block_on(news.next()), Some(TreeNews::Live));
    let path = |text: &str| VfsPathBuf::parse(text).unwrap();
    served.put("/v1/fs/own", b"not beneath it");
    served.put("/v1/fs/memories/d/a", b"one");
    assert_eq!(served.block_on(news.next()), Some(TreeNews::Changed(path("/d/a"))));
    served.post("/v1/move", &json!({"from": "/memories/d", "to": "/memories/e"}));
    assert_eq!(served.block_on(news.next()), Some(TreeNews::Changed(path("/d"))));
    assert_eq!(served.block_on(news.next()), Some(TreeNews::Changed(path("/e"))));
}
