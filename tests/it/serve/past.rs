//! The past of files over HTTP, by the rights of the token.

use super::Served;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::runtime::Runtime;
use treehold::backend::HistoryPolicy;
use treehold::checkpoint::StoreCheckpointer;
use treehold::ops::Moment;
use treehold::serve::{Access, Rights};
use treehold::store::Store;
use treehold::{MemoryStore, NamespaceTemplate, Scope, StoreBackend, VfsPathBuf, Workspace};

/// The name of a thread and of a file that a limited token must not learn.
const HIDDEN: &str = "layoffs";

/// A server with rows of the user at `/memories`, whose past is kept.
fn served() -> Served {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (rows, template) = (store.clone(), NamespaceTemplate::parse("{tenant}/{user}/memories").unwrap());
    let tree = move |scope: &Scope| {
        Ok::<_, treehold::Error>(StoreBackend::new(rows.clone(), template.fill(scope)?).with_history(HistoryPolicy::new()))
    };
    let past = tree.clone();
    let workspace = Workspace::builder()
        .mount("/memories", move |opening| Ok(Arc::new(tree(opening.scope())?)))
        .and_then(|builder| builder.with_history("/memories", past))
        .unwrap()
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .build();
    Served::of(Runtime::new().unwrap(), workspace, store, |options| options.with_tokens(true))
}

struct Client<'s> {
    served: &'s Served,
    bearer: String,
}

impl<'s> Client<'s> {
    fn new(served: &'s Served, rights: Rights) -> Self {
        Self { served, bearer: format!("Bearer {}", served.token("acme", "ada", rights)) }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let headers = [("authorization", &*self.bearer), ("content-type", "application/json")];
        let answer = self.served.send(method, path, &headers, body.as_bytes());
        (answer.status, answer.text())
    }
}

/// Every route of the past, asked by every kind of limited token.
#[test]
fn limited_tokens_neither_learn_of_nor_revert_what_they_may_not_use() {
    let path = |text: &str| VfsPathBuf::parse(text).unwrap();
    let limits = [
        ("paths", Rights::new(Access::Write).with_paths([path("/memories/open")])),
        ("threads", Rights::new(Access::Write).with_threads(["default".to_owned()])),
        ("reads", Rights::new(Access::Read)),
    ];
    for (limit, rights) in limits {
        let served = served();
        let all = Client::new(&served, Rights::new(Access::Admin));
        let file = format!("/memories/{HIDDEN}.md");
        for content in ["one", "two"] {
            for path in ["/memories/open/a.md", &file] {
                assert!(all.ask("PUT", &format!("/v1/threads/{HIDDEN}/fs{path}"), content).0 < 300);
            }
        }
        let limited = Client::new(&served, rights);
        let may_name = limit == "reads";
        let asked = [
            ("GET", "/v1/log?path=/memories/open/a.md".to_owned(), Value::Null, 200),
            ("GET", "/v1/past/~1/fs/memories/open/a.md".to_owned(), Value::Null, 200),
            ("POST", "/v1/undo".to_owned(), json!({"of": "user"}), 403),
            ("POST", "/v1/undo".to_owned(), json!({"of": "thread"}), if limit == "reads" { 403 } else { 404 }),
        ];
        for (method, at, body, expected) in asked {
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let (status, said) = limited.ask(method, &at, &body);
            assert_eq!(status, expected, "{limit}: {method} {at} {body}: {said}");
            assert!(may_name || limit == "paths" && at.starts_with("/v1/log") || !said.contains(HIDDEN), "{limit}: {method} {at}: {said}");
        }
        if limit == "paths" {
            for (method, at, body) in [
                ("GET", format!("/v1/log?path={file}"), String::new()),
                ("GET", format!("/v1/past/~1/fs{file}"), String::new()),
                ("POST", "/v1/restore".to_owned(), json!({"paths": [file], "at": "~1"}).to_string()),
            ] {
                let (status, said) = limited.ask(method, &at, &body);
                assert!((400..500).contains(&status), "{method} {at}: {status} {said}");
            }
        }
        for path in ["/memories/open/a.md", &file] {
            assert_eq!(all.ask("GET", &format!("/v1/fs{path}"), "").1, "two", "{limit}: {path}");
        }
    }
}

/// Regression: the mount was checked by the paths of the thread's state, as `/a.md`.
#[test]
fn token_for_paths_reads_a_mount_of_the_past_only_with_the_live_mount() {
    let path = |text: &str| VfsPathBuf::parse(text).unwrap();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (rows, template) = (store.clone(), NamespaceTemplate::parse("{tenant}/{user}/memories").unwrap());
    let live = move |scope: &Scope| {
        Ok::<_, treehold::Error>(StoreBackend::new(rows.clone(), template.fill(scope)?).with_history(HistoryPolicy::new()))
    };
    let past = live.clone();
    let workspace = Workspace::builder()
        .mount("/memories", move |opening| Ok(Arc::new(live(opening.scope())?)))
        .and_then(|builder| {
            builder.mount("/memories-before", move |opening| Ok(Arc::new(past(opening.scope())?.at(Moment::Time(Timestamp::MAX))?)))
        })
        .and_then(|builder| builder.past("/memories-before", "/memories"))
        .unwrap()
        .checkpointer(StoreCheckpointer::new(store.clone()))
        .build();
    let served = Served::of(Runtime::new().unwrap(), workspace, store, |options| options.with_tokens(true));
    let all = Client::new(&served, Rights::new(Access::Admin));
    for file in ["/memories/x", "/memories/open/a.md", "/x"] {
        assert_eq!(all.ask("PUT", &format!("/v1/fs{file}"), "content").0, 201);
    }
    let read = |paths: &[&str], file: &str| {
        let client = Client::new(&served, Rights::new(Access::Read).with_paths(paths.iter().map(|text| path(text))));
        client.ask("GET", &format!("/v1/fs{file}"), "").0
    };
    for (paths, file, expected) in [
        (&["/memories", "/memories-before"][..], "/memories-before/x", 200),
        (&["/memories/open", "/memories-before"], "/memories-before/open/a.md", 200),
        (&["/memories/open", "/memories-before"], "/memories-before/x", 404),
        (&["/memories-before", "/x"], "/memories-before/x", 404),
        (&["/memories-before"], "/memories-before/x", 404),
        (&["/memories"], "/memories-before/x", 404),
    ] {
        assert_eq!(read(paths, file), expected, "{paths:?} {file}");
    }
}

/// Regression: such a count panicked.
#[test]
fn huge_counts_in_moments_are_not_found() {
    let served = served();
    let all = Client::new(&served, Rights::new(Access::Admin));
    assert_eq!(all.ask("PUT", "/v1/fs/memories/a.md", "one").0, 201);
    assert_eq!(all.ask("PUT", "/v1/fs/a.md", "one").0, 201);
    for moment in ["~18446744073709551615", "v18446744073709551615", "~9223372036854775807", "latest~18446744073709551615"] {
        for file in ["/memories/a.md", "/a.md"] {
            let (status, said) = all.ask("GET", &format!("/v1/past/{moment}/fs{file}"), "");
            assert_eq!(status, 404, "{moment} {file}: {said}");
            let (status, said) = all.ask("POST", "/v1/restore", &json!({"paths": [file], "at": moment}).to_string());
            assert!((400..500).contains(&status), "{moment} {file}: {status} {said}");
            assert_eq!(all.ask("GET", &format!("/v1/fs{file}"), "").1, "one", "{moment} {file}");
        }
    }
}
