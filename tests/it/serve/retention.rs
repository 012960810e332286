//! What `[retention]` does in the real program: the command, its dry run, the server, and what becomes of the space. Also without rules.

use super::process::{Process, agent, ask, ended};
use super::within;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use treehold::audit::{AuditLog, AuditRow};
use treehold::checkpoint::{CheckpointId, Checkpointer, ListOptions, PutOptions, StoreCheckpointer};
use treehold::clock::Clock;
use treehold::store::{Batch, SqliteDirectory, SqliteStore, Store};
use treehold::{BackendExt, Namespace, Scope, StateBackend};

const STORE: &str = "[stores.default]\nurl = \"sqlite:{data}/treehold.db\"\nsweep_every = \"never\"\n";
const RULES: &str = "checkpoints = { keep_last = 3 }\ncalls = { older_than = \"1d\" }\n";

/// Returns a home with threads of two users that were saved two days ago: 20 checkpoints each of 20 KB of content that no other has, and as
/// many recorded calls. The fifth has a label. Also returns the place of the store.
fn home(retention: &str) -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("treehold.toml"), format!("{STORE}[retention]\n{retention}")).unwrap();
    let place = home.path().join("treehold.db");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&place).unwrap());
        for user in ["default", "eve"] {
            for thread in ["default", "other"] {
                fill(&store, user, thread).await;
            }
        }
        let rows = Namespace::parse("rows").unwrap();
        let batch = (0..7).fold(Batch::new(), |batch, number| batch.put_for(&rows, number.to_string(), "x", std::time::Duration::ZERO));
        store.commit(batch).await.unwrap();
    });
    (home, place)
}

async fn fill(store: &Arc<dyn Store>, user: &str, thread: &str) {
    let past = Timestamp::now() - SignedDuration::from_hours(48);
    let checkpointer = StoreCheckpointer::new(store.clone()).with_clock(Clock::from_fn(move || past));
    let log = AuditLog::new(store.clone());
    let scope = Scope::new().with_tenant("default").with_user(user).with_thread(thread);
    let state = StateBackend::new();
    let mut head = None;
    for number in 0..20 {
        state.write("/a", format!("{user} {thread} {number} ").repeat(1_000)).await.unwrap();
        let mut options = PutOptions::new().with_head(head);
        options.label = (number == 4).then(|| "mine".to_owned());
        let saved = checkpointer.put(&scope, &state.snapshot(), &options).await.unwrap();
        head = saved.head;
        let row = AuditRow::new(CheckpointId::new(past, Some(saved.checkpoint.id)), past, "write_file", Value::Null);
        log.append(&scope, &row).await.unwrap();
    }
}

/// Returns the numbers of checkpoints and calls that each thread has, and requires that the newest state can be read.
fn left(place: &Path) -> Vec<(usize, usize)> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(place).unwrap());
        let (checkpointer, log) = (StoreCheckpointer::new(store.clone()), AuditLog::new(store));
        let mut left = Vec::new();
        for user in ["default", "eve"] {
            for thread in ["default", "other"] {
                let scope = Scope::new().with_tenant("default").with_user(user).with_thread(thread);
                let all = checkpointer.list(&scope, &ListOptions::new()).await.unwrap().checkpoints;
                assert!(all.iter().any(|checkpoint| checkpoint.label.as_deref() == Some("mine")));
                for checkpoint in &all {
                    let opened = checkpointer.open(&scope, checkpoint.id.into()).await.unwrap().unwrap();
                    StateBackend::from_snapshot(&opened.state).read_text("/a").await.unwrap();
                }
                left.push((all.len(), log.calls(&scope, None, None, 100).await.unwrap().calls.len()));
            }
        }
        left
    })
}

fn json(home: &Path, args: &[&str]) -> Value {
    let (code, out, said) = ended(home, args);
    assert_eq!(code, Some(0), "{args:?}: {said}");
    serde_json::from_str(&out).unwrap()
}

fn size(place: &Path) -> u64 {
    std::fs::metadata(place).unwrap().len()
}

/// Returns the metrics of a server.
fn metrics(server: &Process) -> String {
    let (_, shown) = ask(&agent(), "GET", &format!("{}/metrics", server.base()), &[], b"").unwrap();
    String::from_utf8(shown).unwrap()
}

fn count(metrics: &str, series: &str) -> f64 {
    metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap_or_default()
}

#[test]
fn server_counts_the_expired_rows_that_it_removes() {
    let (home, _) = home(RULES);
    let config = home.path().join("treehold.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(config, text.replace("\"never\"", "\"100ms\"")).unwrap();
    let server = Process::start(home.path());
    let swept = || metrics(&server).lines().filter(|line| line.starts_with("vfs_swept_total")).map(str::to_owned).collect::<BTreeSet<_>>();
    let expected = [("rows", 7), ("sessions", 0), ("states", 0), ("traces", 0)];
    let expected = expected.map(|(kind, count)| format!("vfs_swept_total{{kind=\"{kind}\"}} {count}")).into();
    within(|| swept() == expected);
    assert!(server.stop().success());
}

#[test]
fn server_with_a_policy_removes_what_the_dry_run_counts_and_gives_the_space_back() {
    let (home, place) = home(&format!("every = \"100ms\"\n{RULES}"));
    let full = size(&place);
    let would = json(home.path(), &["--json", "sweep", "--dry-run"]);
    // Three are kept, and the one with a label; the newest call always stays.
    assert_eq!([&would["checkpoints"], &would["calls"], &would["contents"]], [4 * 16, 4 * 19, 4 * 16]);
    let server = Process::start(home.path());
    within(|| count(&metrics(&server), "vfs_retention_round_duration_seconds_count") >= 1.0);
    let shown = metrics(&server);
    for kind in ["checkpoints", "calls", "contents", "packs"] {
        let removed = count(&shown, &format!("vfs_retention_removed_total{{kind=\"{kind}\"}}"));
        assert_eq!(removed, would[kind].as_f64().unwrap(), "{kind}: {shown}");
    }
    assert_eq!(count(&shown, "vfs_retention_removed_content_bytes_total"), would["content_bytes"].as_f64().unwrap());
    assert_eq!(count(&shown, "vfs_retention_failures_total"), 0.0);
    let pages = count(&shown, "vfs_retention_removed_total{kind=\"file_pages\"}");
    assert!(pages > 0.0, "{shown}");
    assert_eq!(pages, count(&shown, "vfs_store_pages_given_back_total"), "no sweeper runs: {shown}");
    assert!(server.stop().success());
    assert_eq!(left(&place), [(4, 1); 4]);
    let again = json(home.path(), &["--json", "sweep", "--dry-run"]);
    assert_eq!([&again["checkpoints"], &again["calls"], &again["contents"], &again["packs"]], [0; 4]);
    // Only now: the file shrinks when its log is written into it, which a server that ends may leave to the next process.
    assert!(size(&place) * 2 < full, "{} of {full} bytes: a fifth of the checkpoints is left", size(&place));
}

#[test]
fn server_without_rules_gives_the_space_of_expired_rows_back_in_every_store() {
    let home = tempfile::tempdir().unwrap();
    let names = ["default", "notes"];
    let stores = names.map(|name| format!("[stores.{name}]\nurl = \"sqlite:{{data}}/{name}.db\"\nsweep_every = \"100ms\"\n"));
    let route = "[routes.\"/memories\"]\ntype = \"store\"\nstore = \"notes\"\nnamespace = \"{tenant}/{user}/memories\"\n";
    std::fs::write(home.path().join("treehold.toml"), stores.concat() + route).unwrap();
    let (rows, runtime) = (Namespace::parse("rows").unwrap(), tokio::runtime::Runtime::new().unwrap());
    let filled = names.map(|name| {
        let place = home.path().join(format!("{name}.db"));
        let batch = (0..200).fold(Batch::new().put(&rows, "kept", "x"), |batch, number| {
            batch.put_for(&rows, number.to_string(), vec![b'x'; 16 << 10], std::time::Duration::ZERO)
        });
        let store = SqliteStore::open(&place).unwrap();
        runtime.block_on(store.commit(batch)).unwrap();
        drop(store);
        (size(&place), place)
    });
    let server = Process::start(home.path());
    // The first request for a route opens its store.
    let (status, _) = ask(&agent(), "PUT", &format!("{}/v1/fs/memories/a", server.base()), &[], b"x").unwrap();
    assert_eq!(status, 201);
    // The rows of one store had 827 pages, of which the server may use a few again.
    within(|| {
        let shown = metrics(&server);
        count(&shown, "vfs_swept_total{kind=\"rows\"}") >= 400.0 && count(&shown, "vfs_store_pages_given_back_total") >= 1_500.0
    });
    assert!(server.stop().success());
    for (full, place) in filled {
        let store = SqliteStore::open(&place).unwrap();
        assert!(runtime.block_on(store.get(&rows, "kept")).unwrap().is_some());
        // The file shrinks when its log is written into it, which a server that ends may leave to the next process.
        drop(store);
        assert!(size(&place) * 2 < full, "{}: {} of {full} bytes", place.display(), size(&place));
    }
}

#[test]
fn command_removes_what_its_dry_run_counts_from_every_user_and_store() {
    let (home, place) = home(&format!("{RULES}[[retention.classes]]\nusers = [\"e*\"]\nthreads = [\"other\"]\n"));
    let full = size(&place);
    let (mut would, mut done) = (json(home.path(), &["--json", "sweep", "--dry-run"]), json(home.path(), &["--json", "sweep"]));
    assert_eq!((size(&place) < full, &would["expired"], &would["pages"]), (true, &7.into(), &0.into()));
    for value in [&mut would, &mut done] {
        value.as_object_mut().unwrap().retain(|name, _| name != "dry_run" && name != "pages");
    }
    assert_eq!(would, done);
    assert_eq!(left(&place), [(4, 1), (4, 1), (4, 1), (20, 20)], "the class keeps everything");
    let (code, out, _) = ended(home.path(), &["sweep"]);
    assert_eq!((code, out.as_str()), (Some(0), "removed 0 checkpoints, 0 calls, 0 contents of 0 bytes, 0 expired rows\n"));
}

#[test]
fn nothing_but_expired_rows_is_removed_without_a_policy() {
    let (home, place) = home("");
    let server = Process::start(home.path());
    let (status, _) = ask(&agent(), "GET", &format!("{}/livez", server.base()), &[], b"").unwrap();
    assert!(status == 200 && server.stop().success());
    let (code, out, said) = ended(home.path(), &["sweep"]);
    assert_eq!((code, out.lines().next()), (Some(0), Some("removed 0 checkpoints, 0 calls, 0 contents of 0 bytes, 7 expired rows")));
    assert!(said.contains("`[retention]` has no rules"), "{said}");
    assert_eq!(left(&place), [(20, 20); 4]);
}

/// The namespaces of the records that say what to remove: of sessions, states and traces.
const RECORDS: [&str; 3] =
    ["_treehold/sessions/_treehold/removals", "_treehold/agent-state/_treehold/due", "_treehold/traces/_treehold/removals"];

/// The namespaces of the data that the records of [`interrupted`] name.
const DATA: [&str; 3] = [
    "default/ada/_treehold/sessions/data/d/messages",
    "default/ada/_treehold/agent-state/agents/helper/data/d/l",
    "default/ada/_treehold/traces/data/d/messages",
];

fn put(place: &Path, namespace: &str, key: &str, value: String) {
    let (runtime, store) = (tokio::runtime::Runtime::new().unwrap(), SqliteStore::open(place).unwrap());
    runtime.block_on(store.commit(Batch::new().put(&Namespace::parse(namespace).unwrap(), key, value))).unwrap();
}

/// Returns a home with what interrupted deletions of a session, a state and a trace leave, and the place of the store.
fn interrupted() -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("treehold.toml"), STORE).unwrap();
    let place = home.path().join("treehold.db");
    for data in DATA {
        put(&place, data, "1", "a message".to_owned());
    }
    let owner = r#"{"tenant":"default","user":"ada","agent":"helper"}"#;
    let sealed = |text: String| format!("{}{text}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
    let session = r#"{"tenantId":"default","userId":"ada","sessionId":"s","data":"d","importAt":null}"#;
    put(&place, RECORDS[0], "default\u{1}ada\u{1}removal\u{1}d", session.to_owned());
    let due = format!(r#"{{"owner":{owner},"session":"s","data":"d","task":"removeData"}}"#);
    let owner_due = "default/ada/_treehold/agent-state/agents/helper/due";
    put(&place, owner_due, "00000000000000000000\u{1}s\u{1}d\u{1}data", sealed(due));
    let visit = "00000000000000000000\u{1}default\u{1}uada\u{1}helper";
    put(&place, RECORDS[1], visit, sealed(format!(r#"{{"owner":{owner}}}"#)));
    let trace = r#"{"tenant":"default","user":"ada","trace":"t","data":"d"}"#;
    put(&place, RECORDS[2], "default\u{1}ada\u{1}d", trace.to_owned());
    (home, place)
}

/// Returns for each kind whether its data is left.
fn has_data(place: &Path) -> [bool; 3] {
    let (runtime, store) = (tokio::runtime::Runtime::new().unwrap(), SqliteStore::open(place).unwrap());
    DATA.map(|data| runtime.block_on(store.get(&Namespace::parse(data).unwrap(), "1")).unwrap().is_some())
}

#[test]
fn data_that_interrupted_deletions_left_is_removed() {
    let (home, place) = interrupted();
    assert_eq!(json(home.path(), &["--json", "sweep", "--dry-run"])["deleted"], 0);
    assert_eq!(has_data(&place), [true; 3]);
    let (code, out, said) = ended(home.path(), &["sweep"]);
    assert_eq!(code, Some(0), "{out}{said}");
    assert!(out.contains("\nremoved the data of 3 deleted or expired sessions and traces\n"), "{out}");
    assert_eq!(has_data(&place), [false; 3]);
}

/// The command reads pages of 100 rows. It once removed only 32 of them of each trace.
#[test]
fn data_of_a_large_deleted_trace_is_removed_by_one_sweep() {
    let (home, place) = interrupted();
    std::fs::write(home.path().join("treehold.toml"), format!("{STORE}[retention]\nrows_per_second = 1000000\n")).unwrap();
    let (runtime, store) = (tokio::runtime::Runtime::new().unwrap(), SqliteStore::open(&place).unwrap());
    let data = Namespace::parse(DATA[2]).unwrap();
    // These keys sort before the one that `interrupted` puts.
    let batch = (0..3_300).fold(Batch::new(), |batch, number| batch.put(&data, format!("{number:05}"), "a message"));
    runtime.block_on(store.commit(batch)).unwrap();
    drop(store);
    let value = json(home.path(), &["--json", "sweep"]);
    assert_eq!([&value["deleted"], &value["failed"]], [3, 0], "{value}");
    assert_eq!(has_data(&place), [false; 3]);
}

#[test]
fn damaged_records_are_named_and_the_data_of_the_others_is_removed_and_counted() {
    let (home, place) = interrupted();
    for records in RECORDS {
        // This key sorts before the others.
        put(&place, records, "0\u{1}damaged", "damaged".to_owned());
    }
    let (code, out, said) = ended(home.path(), &["--json", "sweep"]);
    assert_eq!(code, Some(6), "{out}{said}");
    assert_eq!(has_data(&place), [false; 3]);
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!([&value["deleted"], &value["failed"]], [3, 3], "{out}");
    let faults: Vec<_> = value["faults"].as_array().unwrap().iter().map(|fault| fault.as_str().unwrap()).collect();
    for (fault, what) in faults.iter().zip(["sessions of agent hosts: ", "states of agents: ", "traces: "]) {
        assert!(fault.starts_with(what) && fault.contains(r"`0\u{1}damaged`"), "{fault}");
    }
    let (code, out, said) = ended(home.path(), &["sweep"]);
    assert!(code == Some(6) && !out.contains("removed the data"), "{out}{said}");
    assert!(faults.iter().all(|fault| said.contains(fault)), "{said}");
}

#[test]
fn recent_checkpoints_stay_for_the_grace_and_the_command_says_so() {
    let home = tempfile::tempdir().unwrap();
    let write = |grace: &str| {
        let rules = format!("{STORE}[retention]\ngrace = \"{grace}\"\ncheckpoints = {{ keep_last = 2 }}\n");
        std::fs::write(home.path().join("treehold.toml"), rules).unwrap();
    };
    write("1h");
    for number in 0..6 {
        assert_eq!(ended(home.path(), &["write", "/a", &number.to_string()]).0, Some(0));
    }
    let (_, out, said) = ended(home.path(), &["sweep", "--dry-run"]);
    assert!(out.starts_with("would remove 0 checkpoints, ") && said.contains("4 checkpoints more may go after the `grace`"), "{out}{said}");
    write("0s");
    let (_, out, _) = ended(home.path(), &["sweep"]);
    assert!(out.starts_with("removed 4 checkpoints, 0 calls, 4 contents of 4 bytes, "), "{out}");
    assert_eq!(ended(home.path(), &["undo"]).0, Some(0));
    assert_eq!(ended(home.path(), &["cat", "/a"]).1, "4", "what undo needs is kept");
}

#[test]
fn damaged_threads_are_named_and_the_rest_is_handled() {
    let (home, place) = home(RULES);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(&place).unwrap();
        let scope = Scope::new().with_tenant("default").with_user("eve");
        let namespace = treehold::checkpoint::namespace_of(&scope, "checkpoints").unwrap();
        let scan = treehold::store::ScanOptions::new().with_prefix("other\u{1}");
        let last = store.scan(&namespace, scan).await.unwrap().entries.last().unwrap().key().to_owned();
        store.commit(Batch::new().put_with_meta(&namespace, last, "damaged", "")).await.unwrap();
        let scope = Scope::new().with_tenant("default").with_user("default");
        let heads = treehold::checkpoint::namespace_of(&scope, "heads").unwrap();
        store.commit(Batch::new().put_with_meta(&heads, "other", "damaged", "damaged")).await.unwrap();
    });
    let (code, out, said) = ended(home.path(), &["sweep"]);
    assert_eq!(code, Some(6), "{out}{said}");
    assert!(out.starts_with("removed 32 checkpoints, "), "{out}");
    for user in ["eve", "default"] {
        assert!(said.contains(&format!("thread `other` of user `{user}` of tenant `default`: ")), "{said}");
    }
}

#[test]
fn policy_that_keeps_nothing_is_reported_with_its_line() {
    let home = tempfile::tempdir().unwrap();
    for (rules, line, told) in [
        ("checkpoints = { keep_last = 0 }", 2, "`keep_last` is 0"),
        ("checkpoints = { keep_last = -1 }", 2, "the value is integer `-1`; write a whole number that is not negative"),
        ("checkpoints = {}", 2, "a rule without `keep_last` and `older_than` keeps nothing"),
        ("checkpoints = { keep_labelled = true }", 2, "a rule without `keep_last` and `older_than` keeps nothing"),
        ("checkpoints = { keep_lsat = 3 }", 2, "unknown key `keep_lsat`; did you mean `keep_last`?"),
        ("calls = { older_than = \"0d\" }", 2, "`0d` is too short: it must be longer than `0s`"),
        ("calls = { older_than = \"-3d\" }", 2, "`-3d` is too short: it must be longer than `0s`"),
        ("calls = { older_than = \"3d\", keep_labelled = true }", 2, "unknown key `keep_labelled`"),
        ("every = \"0s\"", 2, "`0s` is too short: it must be longer than `0s`; write it as `1h` or `10m`"),
        ("grace = \"-1m\"", 2, "`-1m` is too short: the shortest is `0s`; write it as `1m`, or as `0s` for none"),
        ("rows_per_second = 0", 2, "`rows_per_second` is 0"),
        ("[[retention.classes]]\ncheckpoints = { keep_last = 1 }", 2, "a class without `threads` and `users` is every thread"),
        ("[[retention.classes]]\nthreads = [\"a\"]\ncalls = { keep_last = 0 }", 4, "`keep_last` is 0"),
        ("[[retention.classes]]\nthreads = [\"[\"]", 3, "`[`"),
    ] {
        std::fs::write(home.path().join("treehold.toml"), format!("[retention]\n{rules}\n")).unwrap();
        let (code, _, said) = ended(home.path(), &["config", "check"]);
        assert_eq!(code, Some(2), "{rules}: {said}");
        assert!(said.contains(told) && said.contains(&format!("treehold.toml:{line}:")), "{rules}: {said}");
    }
}

#[test]
fn effective_configuration_says_what_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let class = "[[retention.classes]]\nthreads = [\"scratch-*\"]\nusers = [\"ci\"]\ncalls = { keep_last = 9 }\n[[retention.classes]]\nusers = [\"x\"]\n";
    let rules = format!("[retention]\ncheckpoints = {{ keep_last = 50, older_than = \"30d\" }}\n{class}");
    std::fs::write(home.path().join("treehold.toml"), rules).unwrap();
    let routes = json(home.path(), &["--json", "config", "show", "--effective"]);
    let of = |path: &str| routes.as_array().unwrap().iter().find(|route| route["path"] == path).unwrap()["retention"].clone();
    let expected = [
        "threads scratch-* of users ci: calls: the last 9",
        "users x: everything",
        "checkpoints: the last 50, those of the last 30d, those with a label",
    ];
    assert_eq!((of("/"), of("/memories")), (expected.to_vec().into(), Value::Null));
    let (_, out, _) = ended(home.path(), &["config", "show", "--effective"]);
    assert!(expected.iter().all(|line| out.contains(line)), "{out}");
}

#[test]
fn compacted_store_gives_space_back() {
    let (home, place) = home(RULES);
    // As a file that an earlier version created.
    let connection = rusqlite::Connection::open(&place).unwrap();
    connection.execute_batch("PRAGMA auto_vacuum = NONE; VACUUM").unwrap();
    drop(connection);
    let full = size(&place);
    assert_eq!(json(home.path(), &["--json", "sweep"])["pages"], 0);
    assert_eq!(size(&place), full, "its space is reused, not given back");
    let (code, out, _) = ended(home.path(), &["store", "compact"]);
    assert_eq!((code, out.as_str()), (Some(0), "sqlite:treehold.db was rewritten\n"));
    assert!(size(&place) * 2 < full, "{} of {full} bytes", size(&place));
    assert_eq!(left(&place), [(4, 1); 4]);
}

const USERS: [&str; 3] = ["ada", "eve", "zoe"];

/// Returns a home whose store has a file for each user. That of one user is damaged.
fn home_with_a_damaged_file(retention: &str, damaged: &str) -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let store = STORE.replace("treehold.db", "s/");
    std::fs::write(home.path().join("treehold.toml"), format!("{store}[retention]\n{retention}")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store: Arc<dyn Store> = Arc::new(SqliteDirectory::open(home.path().join("s")).unwrap());
        for user in USERS {
            fill(&store, user, "default").await;
        }
    });
    let file = home.path().join("s/default").join(format!("{damaged}.db"));
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    std::fs::write(file, [7_u8; 8192]).unwrap();
    home
}

/// Puts a row that has expired for each user except one.
fn expire_rows(home: &Path, damaged: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let store = SqliteDirectory::open(home.join("s")).unwrap();
        for user in USERS.into_iter().filter(|user| *user != damaged) {
            let rows = Namespace::new(["default", user, "rows"]).unwrap();
            store.commit(Batch::new().put_for(&rows, "k", "x", std::time::Duration::ZERO)).await.unwrap();
        }
    });
}

/// Regression: these commands stopped at the first damaged file. The first file, one in the middle and the last one.
#[test]
fn damaged_file_of_a_user_is_named_and_the_others_are_counted_listed_and_copied() {
    for damaged in USERS {
        let home = home_with_a_damaged_file(RULES, damaged);
        expire_rows(home.path(), damaged);
        let named = format!("`default/{damaged}`");
        let failing = |args: &[&str]| -> Value {
            let (code, out, said) = ended(home.path(), args);
            assert_eq!(code, Some(6), "{damaged}: {args:?}: {out}{said}");
            assert!(said.contains(&named), "{damaged}: {args:?}: {out}{said}");
            serde_json::from_str(&out).unwrap()
        };
        let expected: BTreeSet<_> = USERS.into_iter().filter(|user| *user != damaged).map(str::to_owned).collect();
        let users = |namespaces: &Value, name: fn(&Value) -> &Value| -> BTreeSet<String> {
            let listed = namespaces.as_array().unwrap().iter().map(|one| name(one).as_str().unwrap());
            let users = listed.filter_map(|namespace| namespace.strip_prefix("default/")?.split('/').next());
            users.filter(|user| !user.is_empty()).map(str::to_owned).collect()
        };
        let is_named = |value: &Value| {
            let fault = &value["faults"][0];
            assert_eq!((&value["faults_count"], &fault["code"]), (&1_u64.into(), &"corrupt".into()), "{damaged}: {value}");
            assert!(fault["message"].as_str().unwrap().contains(&named), "{damaged}: {value}");
        };
        assert_eq!(failing(&["--json", "sweep", "--dry-run"])["expired"], 2);
        let stats = failing(&["--json", "store", "stats", "--by-namespace"]);
        is_named(&stats);
        assert_eq!(stats["expired"], 2, "{stats}");
        assert_eq!(users(&stats["by_namespace"], |held| &held["namespace"]), expected);
        assert_eq!(users(&failing(&["--json", "store", "ls"]), |namespace| namespace), expected);
        let migrated = failing(&["--json", "store", "migrate"]);
        is_named(&migrated);
        assert_eq!(migrated["outcome"], "up_to_date");
        let (code, out, _) = ended(home.path(), &["store", "migrate"]);
        assert!(code == Some(6) && out.contains("the rest of `default` has the current layout"), "{out}");

        let target = format!("sqlite:{}", home.path().join("copy.db").display());
        let copy = ["--json", "store", "copy", "default", &target];
        let copied = failing(&copy);
        is_named(&copied);
        assert_eq!([&copied["settled"], &copied["digest"]], [&false.into(), &Value::Null], "{copied}");
        assert_eq!(copied["rows"], stats["rows"], "{copied}");
        let (_, out, _) = ended(home.path(), &["store", "copy", "default", &target]);
        assert!(out.contains("rows ") && !out.contains("digest"), "a copy that is not whole has none: {out}");
        // Whoever has no backup of the file removes it, and the copy is whole.
        std::fs::remove_file(home.path().join("s/default").join(format!("{damaged}.db"))).unwrap();
        let (code, out, said) = ended(home.path(), &copy);
        let copied: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &copied["settled"], &copied["resumed"]), (Some(0), &true.into(), &true.into()), "{out}{said}");
        assert_eq!(copied["rows"], stats["rows"], "{copied}");
    }
}

/// Regression: one damaged file stopped the retention of every user and ended `store verify`, and `store sweep` did not report it. The first
/// file, one in the middle and the last one.
#[test]
fn damaged_file_of_a_user_is_named_and_the_other_users_are_handled() {
    for damaged in USERS {
        let home = home_with_a_damaged_file(RULES, damaged);
        let named = format!("`default/{damaged}`");
        let expire = || expire_rows(home.path(), damaged);
        let failing = |args: &[&str]| -> (Value, String) {
            let (code, out, said) = ended(home.path(), args);
            assert_eq!(code, Some(6), "{damaged}: {args:?}: {out}{said}");
            assert!(out.contains(&named) || said.contains(&named), "{damaged}: {args:?}: {out}{said}");
            (serde_json::from_str(&out).unwrap(), said)
        };
        expire();
        assert_eq!(failing(&["--json", "store", "sweep"]).0["removed"], 2);
        let (found, said) = failing(&["--json", "store", "verify"]);
        assert_eq!(found["faults_count"], 1, "{found}{said}");
        assert!(found["rows"].as_u64().unwrap() > 2 * 20, "{found}");
        expire();
        let (swept, said) = failing(&["--json", "sweep"]);
        assert_eq!([&swept["checkpoints"], &swept["calls"], &swept["expired"]], [2 * 16, 2 * 19, 2], "{swept}{said}");
    }
}

#[test]
fn server_applies_the_policy_to_the_users_beside_a_damaged_file() {
    let home = home_with_a_damaged_file(&format!("every = \"100ms\"\n{RULES}"), USERS[0]);
    let server = Process::start(home.path());
    within(|| {
        let shown = metrics(&server);
        let removed = count(&shown, "vfs_retention_removed_total{kind=\"checkpoints\"}");
        removed >= 2.0 * 16.0 && count(&shown, "vfs_retention_failures_total") >= 1.0
    });
    assert!(server.stop().success());
}
