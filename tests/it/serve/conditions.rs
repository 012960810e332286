//! Conditional changes: a route either checks `If-Match` and `If-None-Match`, or refuses them. The tables take their routes from the API
//! description. A route that declares a condition fails here until [`target`] says what it changes.

use super::{Answer, Served};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use treehold::ops::Version;
use treehold::store::{Namespace, NamespacesOptions, Partition};

/// A change and the conditions that the description declares.
struct Route {
    id: String,
    method: String,
    path: String,
    declared: Vec<String>,
}

/// Returns the routes that make changes: those that take idempotency keys.
fn routes(served: &Served) -> Vec<Route> {
    let document = served.get("/openapi.json").json();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let headers = operation["parameters"].as_array().unwrap().iter().filter(|parameter| parameter["in"] == "header");
            let declared: Vec<String> = headers.map(|header| header["name"].as_str().unwrap().to_lowercase()).collect();
            if declared.iter().any(|name| name == "idempotency-key") {
                let id = operation["operationId"].as_str().unwrap().to_owned();
                routes.push(Route { id, method: method.to_uppercase(), path: path.clone(), declared });
            }
        }
    }
    assert!(routes.len() > 40, "{}", routes.len());
    routes
}

/// Returns the version of each partition with rows.
fn versions(served: &Served) -> Vec<(Partition, Version)> {
    served.block_on(async {
        let namespaces = served.store.namespaces(NamespacesOptions::new().with_limit(usize::MAX)).await.unwrap().namespaces;
        let partitions: BTreeSet<Partition> = namespaces.iter().map(Namespace::partition).collect();
        let mut versions = Vec::new();
        for partition in partitions {
            let version = served.store.current_version(&partition).await.unwrap();
            versions.push((partition, version));
        }
        versions
    })
}

/// Regression: most changes ignored the condition, so they replaced what the client had not seen.
#[test]
fn change_that_does_not_check_a_condition_refuses_it() {
    let served = Served::start();
    let (mut refused, mut checked) = (0, 0);
    for route in routes(&served) {
        let mut path = route.path.clone();
        for (name, value) in [("path", "memories/a"), ("thread", "t"), ("name", "NOTES.md"), ("session", "s"), ("agent", "a"), ("id", "x")]
        {
            path = path.replace(&format!("{{{name}}}"), value);
        }
        let path = path.replace("{trace}", "t").replace("{message}", "m").replace("{goal}", "1");
        let path = path.replace("{tool_call}", "c").replace("{checkpoint}", "latest").replace("{user}", "ada").replace("{key}", "k");
        let before = versions(&served);
        for (header, value) in [("if-match", "\"1\""), ("if-none-match", "*"), ("if-unmodified-since", "Thu, 01 Jan 1970 00:00:00 GMT")] {
            if route.declared.iter().any(|declared| declared == header) {
                checked += 1;
                continue;
            }
            for keys in [&[][..], &[("idempotency-key", "k")]] {
                let headers = [&[("content-type", "application/json"), (header, value)], keys].concat();
                let answer = served.send(&route.method, &path, &headers, b"{}");
                let (status, problem) = (answer.status, answer.json());
                assert_eq!((status, &problem["code"]), (400, &json!("invalid_argument")), "{} {header}: {problem}", route.id);
                assert!(problem["detail"].as_str().unwrap().contains(&format!("`{header}` is not supported")), "{}: {problem}", route.id);
                refused += 1;
            }
        }
        assert_eq!(versions(&served), before, "{}", route.id);
    }
    assert!(refused > 150 && checked >= 18, "{refused} {checked}");
    // A directory has no version.
    for header in [("if-match", "*"), ("if-none-match", "*")] {
        assert_eq!(served.send("PUT", "/v1/fs/memories/d?directory=true", &[header], b"").code(), "invalid_argument");
    }
    // Reads take conditions of a cache, and ignore others.
    assert_eq!(served.send("GET", "/v1/ls", &[("if-match", "\"1\"")], b"").status, 200);
}

/// What a route changes.
struct Target {
    /// The resource.
    path: &'static str,
    /// Another one that does not exist, if there can be one.
    fresh: Option<&'static str>,
    /// A change that creates the resource or gives it a new version.
    setup: (&'static str, &'static [u8]),
    /// The body of the change.
    body: &'static [u8],
}

fn target(id: &str) -> Target {
    const JSON: &[u8] = br#"{"old": 1}"#;
    let edit: &[u8] = br#"{"edits": [{"old": "old", "new": "new"}]}"#;
    let target = |path, fresh, setup, body| Target { path, fresh, setup, body };
    match id {
        "writeFile" => target("/v1/fs/memories/a", Some("/v1/fs/memories/new"), ("PUT", b"old"), b"new"),
        "editFile" => target("/v1/fs/memories/a", None, ("PUT", b"old"), edit),
        "deleteFile" => target("/v1/fs/memories/a", Some("/v1/fs/memories/none"), ("PUT", b"old"), b""),
        "writeThreadFile" => target("/v1/threads/t/fs/a", Some("/v1/threads/t/fs/new"), ("PUT", b"old"), b"new"),
        "editThreadFile" => target("/v1/threads/t/fs/a", None, ("PUT", b"old"), edit),
        "deleteThreadFile" => target("/v1/threads/t/fs/a", Some("/v1/threads/t/fs/none"), ("PUT", b"old"), b""),
        "putItem" => target("/v1/store/item?namespace=n&key=a", Some("/v1/store/item?namespace=n&key=new"), ("PUT", JSON), b"2"),
        "deleteItem" => target("/v1/store/item?namespace=n&key=a", Some("/v1/store/item?namespace=n&key=none"), ("PUT", JSON), b""),
        "writeMemo" => target("/v1/sessions/s/memo/NOTES.md", Some("/v1/sessions/s/memo/TODO.md"), ("POST", b"old"), b"new"),
        "writeUserMemo" => target("/v1/user-memo/USER.md", None, ("POST", b"old"), b"new"),
        "writeToolResult" => target("/v1/sessions/s/tool-results/a", Some("/v1/sessions/s/tool-results/new"), ("PUT", b"old"), b"new"),
        "changeSession" => target("/v1/sessions/s", None, ("PATCH", br#"{"title": "old"}"#), br#"{"title": "new"}"#),
        "putState" => target("/v1/state/ada/s/a", Some("/v1/state/ada/s/new"), ("PUT", JSON), b"2"),
        "deleteState" => target("/v1/state/ada/s/a", Some("/v1/state/ada/s/none"), ("PUT", JSON), b""),
        other => panic!("say here what `{other}` changes"),
    }
}

/// A condition that does not hold is 412 and changes nothing. One that holds lets the change through.
#[test]
fn change_that_declares_a_condition_checks_it() {
    let served = Served::start();
    let json = ("content-type", "application/json");
    assert_eq!(served.send("POST", "/v1/sessions", &[json], br#"{"agent_id": "helper", "session_id": "s"}"#).status, 201);
    let mut checked = 0;
    for route in routes(&served) {
        let declares = |name: &str| route.declared.iter().any(|declared| declared == name);
        if !declares("if-match") && !declares("if-none-match") {
            continue;
        }
        assert!(declares("if-match"), "{}: clients that create only also update", route.id);
        let Target { path, fresh, setup, body } = target(&route.id);
        let tag = || served.get(path).header("etag").unwrap();
        let send = |path: &str, header: &str, value: &str| served.send(&route.method, path, &[json, (header, value)], body);
        let made = |answer: Answer| assert!(answer.status < 300, "{}: {}", route.id, answer.text());
        made(served.send(setup.0, path, &[json], setup.1));
        let stale = tag();
        made(served.send(setup.0, path, &[json], setup.1));
        let (present, content) = (tag(), served.get(path).bytes());
        assert_ne!(stale, present, "{}", route.id);
        let before = versions(&served);
        for tags in [stale.as_str(), "\"other\"", &format!("W/{present}")] {
            let answer = send(path, "if-match", tags);
            assert_eq!((answer.status, answer.code().as_str()), (412, "conflict"), "{} {tags}", route.id);
        }
        for bad in ["", "nonsense", "\"1"] {
            assert_eq!(send(path, "if-match", bad).code(), "invalid_argument", "{} {bad}", route.id);
        }
        if declares("if-none-match") {
            assert_eq!(send(path, "if-none-match", "*").status, 412, "{}", route.id);
            assert_eq!(send(path, "if-none-match", &stale).code(), "invalid_argument", "{}", route.id);
            let both = served.send(&route.method, path, &[json, ("if-match", &present), ("if-none-match", "*")], body);
            assert_eq!(both.code(), "invalid_argument", "{}", route.id);
        }
        if let Some(fresh) = fresh {
            for tags in ["*", &present] {
                assert_eq!(send(fresh, "if-match", tags).status, 412, "{} {tags}", route.id);
            }
        }
        assert_eq!((tag(), served.get(path).bytes()), (present.clone(), content), "{}", route.id);
        assert_eq!(versions(&served), before, "{}", route.id);
        made(send(path, "if-match", &present));
        let after = served.get(path);
        assert!(after.status == 404 || after.header("etag").unwrap() != present, "{}", route.id);
        assert_eq!(send(path, "if-match", &present).status, 412, "{}: of two changes with one tag, one is made", route.id);
        made(served.send(setup.0, path, &[json], setup.1));
        made(send(path, "if-match", "*"));
        if let Some(fresh) = fresh.filter(|_| declares("if-none-match")) {
            made(send(fresh, "if-none-match", "*"));
            assert_eq!(send(fresh, "if-none-match", "*").status, 412, "{}", route.id);
        }
        checked += 1;
    }
    assert_eq!(checked, 14);
}

/// The names of conditions in the description are those that a client sends.
#[test]
fn reads_with_tags_declare_the_condition_of_a_cache() {
    let served = Served::start();
    let document = served.get("/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let Some(read) = methods.get("get") else { continue };
        let gives_tag = read["responses"]["200"]["headers"]["ETag"].is_object();
        let takes_tag = read["parameters"].as_array().unwrap().iter().any(|parameter: &Value| parameter["name"] == "If-None-Match");
        assert_eq!(gives_tag, takes_tag, "{path}");
    }
}
