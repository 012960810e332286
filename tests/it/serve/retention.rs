//! What `[retention]` does in the real program: the command, its dry run, the server, and what becomes of the space.

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
use treehold::store::{Batch, SqliteStore, Store};
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
    let swept = || {
        let shown = ask(&agent(), "GET", &format!("{}/metrics", server.base()), &[], b"").unwrap().1;
        let shown = String::from_utf8(shown).unwrap();
        shown.lines().filter(|line| line.starts_with("vfs_swept_total")).map(str::to_owned).collect::<BTreeSet<_>>()
    };
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
    let metrics = || String::from_utf8(ask(&agent(), "GET", &format!("{}/metrics", server.base()), &[], b"").unwrap().1).unwrap();
    within(|| count(&metrics(), "vfs_retention_round_duration_seconds_count") >= 1.0);
    let shown = metrics();
    for kind in ["checkpoints", "calls", "contents", "packs"] {
        let removed = count(&shown, &format!("vfs_retention_removed_total{{kind=\"{kind}\"}}"));
        assert_eq!(removed, would[kind].as_f64().unwrap(), "{kind}: {shown}");
    }
    assert_eq!(count(&shown, "vfs_retention_removed_content_bytes_total"), would["content_bytes"].as_f64().unwrap());
    assert_eq!(count(&shown, "vfs_retention_failures_total"), 0.0);
    assert!(count(&shown, "vfs_retention_removed_total{kind=\"file_pages\"}") > 0.0, "{shown}");
    assert!(server.stop().success());
    assert_eq!(left(&place), [(4, 1); 4]);
    let again = json(home.path(), &["--json", "sweep", "--dry-run"]);
    assert_eq!([&again["checkpoints"], &again["calls"], &again["contents"], &again["packs"]], [0; 4]);
    // Only now: the file shrinks when its log is written into it, which a server that ends may leave to the next process.
    assert!(size(&place) * 2 < full, "{} of {full} bytes: a fifth of the checkpoints is left", size(&place));
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

/// What an interrupted deletion leaves is removed, and what cannot be read is named.
#[test]
fn data_of_deleted_sessions_is_removed() {
    let (home, place) = home("");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let states = "default/ada/_treehold/agent-state/agents/helper";
    let data = Namespace::parse(&format!("{states}/data/d/l")).unwrap();
    let owner = r#"{"tenant":"default","user":"ada","agent":"helper"}"#;
    let sealed = |text: String| format!("{}{text}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
    let put = |namespace: &str, key: &str, value: String| {
        let (namespace, store) = (Namespace::parse(namespace).unwrap(), SqliteStore::open(&place).unwrap());
        runtime.block_on(store.commit(Batch::new().put(&namespace, key, value))).unwrap();
    };
    put(&data.to_string(), "1", "a message".to_owned());
    let due = format!(r#"{{"owner":{owner},"session":"s","data":"d","task":"removeData"}}"#);
    put(&format!("{states}/due"), "00000000000000000000\u{1}s\u{1}d\u{1}data", sealed(due));
    let visit = "00000000000000000000\u{1}default\u{1}uada\u{1}helper";
    put("_treehold/agent-state/_treehold/due", visit, sealed(format!(r#"{{"owner":{owner}}}"#)));
    let (code, out, _) = ended(home.path(), &["sweep"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("\nremoved the data of 1 deleted or expired session or trace\n"), "{out}");
    let store = SqliteStore::open(&place).unwrap();
    assert!(runtime.block_on(store.get(&data, "1")).unwrap().is_none());
    drop(store);
    put("_treehold/agent-state/_treehold/due", visit, "damaged".to_owned());
    let (code, _, said) = ended(home.path(), &["sweep"]);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("states of agents: "), "{said}");
    assert_eq!(json(home.path(), &["--json", "sweep", "--dry-run"])["deleted"], 0);
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
        ("calls = { older_than = \"0d\" }", 2, "`0d` is not how long to keep something"),
        ("calls = { older_than = \"-3d\" }", 2, "`-3d` is not how long to keep something"),
        ("calls = { older_than = \"3d\", keep_labelled = true }", 2, "unknown key `keep_labelled`"),
        ("every = \"0s\"", 2, "`0s` is not a duration between rounds"),
        ("grace = \"-1m\"", 2, "`-1m` is not a duration; write it as `1m`, or as `0s` for none"),
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
