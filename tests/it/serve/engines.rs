//! Every engine behind every entry point of the real program, from one table, so that no combination is missed.

#![allow(clippy::print_stdout, reason = "a failure names its engine")]

use super::process::{Process, agent, ask, command, ended};
use serde_json::{Value, json};
use std::any::Any;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;

/// A fresh store of an engine.
struct Fresh {
    url: String,
    /// Whether another process finds the data of an earlier one.
    is_kept: bool,
    _keep: Option<Box<dyn Any>>,
}

/// An engine by the scheme of its URL, with the factory of its stores.
type Row = (&'static str, Kind, fn() -> Fresh);

/// Where an engine runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    #[cfg_attr(
        not(any(feature = "mysql", feature = "postgres", feature = "redis")),
        expect(dead_code, reason = "no such engine is compiled in")
    )]
    Server,
}

/// Every engine of this program.
const ROWS: &[Row] = &[
    ("memory", Kind::Embedded, || Fresh { url: "memory:".into(), is_kept: false, _keep: None }),
    #[cfg(feature = "sled")]
    ("sled", Kind::Embedded, || Fresh { url: "sled:store.sled".into(), is_kept: true, _keep: None }),
    #[cfg(feature = "sqlite")]
    ("sqlite", Kind::Embedded, || Fresh { url: "sqlite:store.db".into(), is_kept: true, _keep: None }),
    #[cfg(feature = "postgres")]
    ("postgres", Kind::Server, || {
        let schema = runtime().block_on(crate::servers::postgres::schema());
        let joined = if schema.url.contains('?') { '&' } else { '?' };
        let url = format!("{}{joined}schema={}", schema.url, schema.name.replace(' ', "%20"));
        Fresh { url, is_kept: true, _keep: Some(Box::new(schema)) }
    }),
    #[cfg(feature = "mysql")]
    ("mysql", Kind::Server, || {
        let database = runtime().block_on(crate::servers::mysql::database());
        Fresh { url: database.url.clone(), is_kept: true, _keep: Some(Box::new(database)) }
    }),
    #[cfg(feature = "redis")]
    ("redis", Kind::Server, || {
        let prefix = runtime().block_on(crate::servers::redis::prefix());
        let joined = if prefix.url.contains('?') { '&' } else { '?' };
        Fresh { url: format!("{}{joined}prefix={}", prefix.url, prefix.name), is_kept: true, _keep: Some(Box::new(prefix)) }
    }),
];

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().unwrap()
}

/// A directory with the configuration of a store and a mount of each tier that depends on it.
fn home(url: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let config = format!(
        "[stores.default]\nurl = {}\n[routes.\"/memories\"]\ntype = \"store\"\nstore = \"default\"\nnamespace = \"{{tenant}}/{{user}}/memories\"\n\
         [routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"files\"\ncreate_root = true\n[routes.\"/workspace\".overlay]\n",
        json!(url)
    );
    std::fs::write(home.path().join("treehold.toml"), config).unwrap();
    home
}

/// Runs `test` with each engine of a kind, printing the engine's name.
fn on_each(kind: Kind, test: impl Fn(&Fresh, &Path)) {
    for (engine, _, fresh) in ROWS.iter().filter(|row| row.1 == kind) {
        let fresh = fresh();
        let home = home(&fresh.url);
        println!("{engine}");
        test(&fresh, home.path());
    }
}

fn problem(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}

#[test]
fn every_engine_that_a_url_can_name_is_in_the_table() {
    let home = home("nothing:x");
    let (_, _, said) = ended(home.path(), &["store", "ls", "default"]);
    // `use `sqlite:FILE`, …, `env:VARIABLE` or `memory:``
    let named = said.split_once("use ").map(|(_, named)| named).unwrap_or_default();
    let schemes = named.split('`').skip(1).step_by(2).filter_map(|word| word.split_once(':')).map(|(scheme, _)| scheme);
    let mut engines: Vec<&str> = schemes.filter(|scheme| *scheme != "env").collect();
    // An engine may have several forms.
    engines.dedup();
    assert_eq!(engines.len(), 6, "{said}");
    #[cfg(all(feature = "sled", feature = "sqlite", feature = "postgres", feature = "mysql", feature = "redis"))]
    for engine in engines {
        assert!(ROWS.iter().any(|(row, ..)| *row == engine), "`{engine}` is no row");
    }
}

#[test]
fn serve_answers_and_keeps_what_it_acknowledged_on_every_embedded_engine() {
    serve_answers_and_keeps_what_it_acknowledged(Kind::Embedded);
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
#[test]
#[ignore = "needs PostgreSQL, MySQL or MariaDB, and Redis: run scripts/servers.sh"]
fn serve_answers_and_keeps_what_it_acknowledged_on_every_server_engine() {
    serve_answers_and_keeps_what_it_acknowledged(Kind::Server);
}

fn serve_answers_and_keeps_what_it_acknowledged(kind: Kind) {
    on_each(kind, |fresh, home| {
        let token = match fresh.is_kept {
            true => {
                let (code, token, said) = ended(home, &["token", "create", "--access", "write"]);
                assert_eq!(code, Some(0), "{said}");
                token.trim().to_owned()
            }
            // No other process can reach the rows of an in-memory store.
            false => {
                std::fs::write(home.join("token"), "a-token-of-thirty-two-characters").unwrap();
                "a-token-of-thirty-two-characters".to_owned()
            }
        };
        let args: &[&str] = if fresh.is_kept { &["--tokens"] } else { &["--token-file", "token"] };
        let bearer = format!("Bearer {token}");
        let agent = agent();
        let mut server = Process::start_with(home, args);
        for round in 0..2 {
            let base = server.base();
            let send = |method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]| {
                let headers = [&[("authorization", bearer.as_str())], headers].concat();
                ask(&agent, method, &format!("{base}{path}"), &headers, body).unwrap()
            };
            let (status, body) = ask(&agent, "GET", &format!("{base}/readyz"), &[], b"").unwrap();
            assert_eq!(status, 200, "{}", problem(&body));
            let (status, _) = ask(&agent, "GET", &format!("{base}/v1/fs/note"), &[], b"").unwrap();
            assert_eq!(status, 401, "no token");
            for (path, content) in
                [("/v1/fs/note", "of the thread"), ("/v1/fs/memories/note", "a row"), ("/v1/fs/workspace/note", "overlaid")]
            {
                if round == 0 {
                    let (status, body) = send("PUT", path, &[("idempotency-key", path)], content.as_bytes());
                    assert_eq!(status, 201, "{path}: {}", problem(&body));
                }
                if round == 0 || fresh.is_kept {
                    let (status, body) = send("GET", path, &[], b"");
                    assert_eq!((status, problem(&body).as_str()), (200, content), "{path} in round {round}");
                }
            }
            let batch = json!({"changes": [{"operation": "append", "path": "/log", "content": "line\n"}]}).to_string();
            let (status, body) = send("POST", "/v1/apply", &[("content-type", "application/json")], batch.as_bytes());
            assert_eq!(status, 200, "{}", problem(&body));
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
                "name": "read_file", "arguments": {"path": "/log"}, "_meta": {"io.modelcontextprotocol/protocolVersion": "2025-11-25"}}});
            let headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
            let (status, body) = send("POST", "/mcp", &headers, call.to_string().as_bytes());
            assert_ne!(status, 503, "{}", problem(&body));
            if round == 0 {
                assert!(server.stop().success());
                server = Process::start_with(home, args);
            }
        }
        let said = server.said();
        assert!(!said.contains("cannot be opened"), "{said}");
    });
}

/// Commands that use the rows of a store in more than one way. Each runs in its own process.
const COMMANDS: &[&[&str]] = &[
    &["write", "/note", "of the thread"],
    &["write", "/memories/note", "a row"],
    &["write", "/workspace/note", "overlaid"],
    &["cat", "/note", "/memories/note", "/workspace/note"],
    &["grep", "row", "/"],
    &["search", "row"],
    &["timeline"],
    &["checkpoint", "ls"],
    &["checkpoint", "show"],
    &["thread", "ls"],
    &["thread", "fork", "other"],
    &["thread", "merge", "other"],
    &["memory", "show"],
    &["overlay", "diff"],
    &["overlay", "apply"],
    &["token", "create"],
    &["token", "ls"],
    &["store", "ls", "default"],
    &["store", "stats"],
    &["store", "verify"],
    &["store", "sweep"],
    &["store", "compact"],
    &["sweep"],
    &["store", "export", "default.tar"],
    &["store", "index", "/memories"],
    &["doctor"],
    &["doctor", "--repair"],
];

#[test]
fn every_command_opens_its_store_once_on_every_embedded_engine() {
    every_command_opens_its_store_once(Kind::Embedded);
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
#[test]
#[ignore = "needs PostgreSQL, MySQL or MariaDB, and Redis: run scripts/servers.sh"]
fn every_command_opens_its_store_once_on_every_server_engine() {
    every_command_opens_its_store_once(Kind::Server);
}

fn every_command_opens_its_store_once(kind: Kind) {
    on_each(kind, |fresh, home| {
        for args in COMMANDS {
            let (code, _, said) = ended(home, args);
            assert!(!said.contains("cannot be opened") && !said.contains("has the store open"), "{args:?}: {said}");
            // An in-memory store is empty for each command.
            if fresh.is_kept {
                assert!(matches!(code, Some(0 | 1)), "{args:?} ended with {code:?}: {said}");
            }
        }
    });
}

#[test]
fn missing_store_is_not_found_and_not_created_on_every_embedded_engine() {
    missing_store_is_not_found_and_not_created(Kind::Embedded);
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
#[test]
#[ignore = "needs PostgreSQL, MySQL or MariaDB, and Redis: run scripts/servers.sh"]
fn missing_store_is_not_found_and_not_created_on_every_server_engine() {
    missing_store_is_not_found_and_not_created(Kind::Server);
}

/// Regression: with a mistyped schema or prefix they made the tables of another store, and reported that it is empty.
fn missing_store_is_not_found_and_not_created(kind: Kind) {
    on_each(kind, |fresh, home| {
        // A store in memory is there for each command.
        if !fresh.is_kept {
            return;
        }
        let url = fresh.url.as_str();
        // No command makes it for the next one.
        for args in [
            &["store", "copy", url, "memory:"][..],
            &["store", "ls", "--store", url],
            &["store", "get", "a", "k", "--store", url],
            &["store", "put", "a", "k", "v", "--store", url],
            &["store", "rm", "a", "--all", "--store", url],
            &["store", "search", "a", "--store", url],
            &["store", "stats", "--store", url],
            &["store", "verify", "--store", url],
            &["store", "sweep", "--store", url],
            &["store", "compact", "--store", url],
            &["store", "export", "absent.tar", "--store", url],
        ] {
            let (code, _, said) = ended(home, args);
            assert_eq!(code, Some(3), "{args:?}: {said}");
            assert!(said.contains("there is no store"), "{args:?}: {said}");
        }
        let (code, _, said) = ended(home, &["write", "/memories/note", "a row"]);
        assert_eq!(code, Some(0), "{said}");
        for args in [&["store", "copy", url, "memory:"][..], &["store", "stats", "--store", url]] {
            let (code, _, said) = ended(home, args);
            assert_eq!(code, Some(0), "{args:?}: {said}");
        }
    });
}

/// Regression: it printed the URL with its password on standard output.
#[cfg(feature = "postgres")]
#[test]
#[ignore = "needs PostgreSQL: run scripts/servers.sh"]
fn migration_of_a_store_of_the_present_layout_prints_no_password() {
    let schema = runtime().block_on(crate::servers::postgres::schema());
    let (user, rest) = schema.url.split_once("://").and_then(|(_, rest)| rest.split_once('@')).expect("the URL names a user");
    // A server that trusts its users accepts every password.
    let (user, password) = user.split_once(':').unwrap_or((user, "hunter2"));
    let joined = if rest.contains('?') { '&' } else { '?' };
    let url = format!("postgres://{user}:{password}@{rest}{joined}schema={}", schema.name.replace(' ', "%20"));
    let home = home(&url);
    let (code, _, said) = ended(home.path(), &["write", "/memories/note", "a row"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, printed, said) = ended(home.path(), &["store", "migrate", &url]);
    assert_eq!(code, Some(0), "{said}");
    assert!(printed.contains("has the current layout"), "{printed}");
    assert!(!format!("{printed}{said}").contains(&format!(":{password}@")), "{printed}{said}");
}

#[test]
fn run_and_mcp_write_and_read_on_every_embedded_engine() {
    run_and_mcp_write_and_read(Kind::Embedded);
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
#[test]
#[ignore = "needs PostgreSQL, MySQL or MariaDB, and Redis: run scripts/servers.sh"]
fn run_and_mcp_write_and_read_on_every_server_engine() {
    run_and_mcp_write_and_read(Kind::Server);
}

fn run_and_mcp_write_and_read(kind: Kind) {
    on_each(kind, |fresh, home| {
        let talk = |args: &[&str], lines: &[Value]| -> Vec<Value> {
            let mut child = command(home, args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            lines.iter().for_each(|line| writeln!(stdin, "{line}").unwrap());
            drop(stdin);
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{args:?}: {said}");
            String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let write = json!({"path": "/by-run", "content": "1"});
        let read = json!({"path": "/by-run"});
        let answers =
            talk(&["--jsonl", "run", "-"], &[json!({"tool": "write_file", "args": write}), json!({"tool": "read_file", "args": read})]);
        assert!(answers.len() == 2 && answers.iter().all(|answer| answer["is_error"] == false), "{answers:?}");
        let client = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let call = |id: u64, name: &str, arguments: Value| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": name, "arguments": arguments}});
        let asked = [
            json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": client}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            call(1, "write_file", json!({"path": "/by-mcp", "content": "1"})),
            // Calls run concurrently, and an in-memory store holds nothing from before.
            call(2, if fresh.is_kept { "read_file" } else { "ls" }, json!({"path": if fresh.is_kept { "/by-run" } else { "/" }})),
        ];
        let answers = talk(&["--thread", "default", "mcp"], &asked);
        for id in [1, 2] {
            let answer = answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{answers:?}"));
            assert_ne!(answer["result"]["isError"], true, "{answer}");
            assert!(answer["result"].is_object(), "{answer}");
        }
    });
}

/// Regression: the second name met the lock of the first, and `serve` reported that the store cannot be opened.
#[test]
fn names_of_one_embedded_store_open_it_once_in_serve_and_in_commands() {
    for url in ["sled:real/store.sled", "sqlite:real/store.db"] {
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        std::fs::create_dir(home.join("real")).unwrap();
        std::os::unix::fs::symlink("real", home.join("link")).unwrap();
        let config = format!(
            "[stores.default]\nurl = \"{url}\"\n[stores.same]\nurl = \"{url}\"\n[stores.linked]\nurl = \"{}\"\n\
             [routes.\"/memories\"]\ntype = \"store\"\nstore = \"same\"\nnamespace = \"memories\"\n\
             [routes.\"/notes\"]\ntype = \"store\"\nstore = \"linked\"\nnamespace = \"notes\"\n",
            url.replace("real", "link")
        );
        std::fs::write(home.join("treehold.toml"), config).unwrap();
        std::fs::write(
            home.join("list.jsonl"),
            PATHS.map(|path| json!({"tool": "write_file", "args": {"path": path, "content": path}}).to_string() + "\n").concat(),
        )
        .unwrap();
        let (code, _, said) = ended(home, &["run", "list.jsonl"]);
        assert_eq!(code, Some(0), "{url}: {said}");
        for args in [&["cat"][..], &["grep", "-l", "/", "/"], &["store", "stats"], &["store", "verify"], &["doctor"]] {
            let args: Vec<&str> = args.iter().copied().chain(PATHS.into_iter().filter(|_| args == ["cat"])).collect();
            let (code, _, said) = ended(home, &args);
            assert!(matches!(code, Some(0)) && !said.contains("cannot be opened"), "{url}: {args:?} ended with {code:?}: {said}");
        }
        let server = Process::start_with(home, &[]);
        let (base, agent) = (server.base(), agent());
        for path in PATHS {
            let (status, body) = ask(&agent, "GET", &format!("{base}/v1/fs{path}"), &[], b"").unwrap();
            assert_eq!((status, problem(&body).as_str()), (200, path), "{url}");
            let (status, body) = ask(&agent, "PUT", &format!("{base}/v1/fs{path}"), &[], b"again").unwrap();
            assert_eq!(status, 200, "{url} {path}: {}", problem(&body));
        }
        let said = server.said();
        assert!(!said.contains("cannot be opened"), "{url}: {said}");
        assert!(server.stop().success());
    }
}

/// A file of the thread and one of each mount.
const PATHS: [&str; 3] = ["/note", "/memories/note", "/notes/note"];
