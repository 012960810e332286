//! Whole stores: copied to another engine, interrupted by a kill, and resumed.

use super::{Home, binary};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use treehold::store::{Batch, COPY_NAMESPACE, ScanOptions, Store, StoreExt};
use treehold::{Namespace, SqliteStore};

/// A home with files, a thread with checkpoints, and overlay changes.
fn lived_in() -> Home {
    let home = Home::new();
    home.put("treehold.toml", configuration("sqlite:{data}/treehold.db"));
    home.put("below/kept.md", "below\n");
    home.ok(&["write", "/plan.md", "one\n"]);
    home.ok(&["checkpoint", "create", "--label", "first"]);
    home.ok(&["write", "/plan.md", "two\n"]);
    home.ok(&["write", "/memories/a/b.md", "a memory\n"]);
    home.with_stdin(&["write", "/memories/large", "-"], &vec![7; 1 << 20]).code(0);
    home.ok(&["write", "/over/new.md", "above\n"]);
    home.ok(&["rm", "/over/kept.md"]);
    home.ok(&["thread", "fork", "other"]);
    home
}

fn configuration(url: &str) -> String {
    format!(
        "[stores.default]\nurl = \"{url}\"\n[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{{tenant}}/{{user}}/memories\"\n\
         [routes.\"/over\"]\ntype = \"filesystem\"\nroot = \"below\"\n[routes.\"/over\".overlay]\n"
    )
}

#[test]
fn copied_store_works_on_another_engine() {
    let home = lived_in();
    for (name, url) in [("sled.toml", "sled:{data}/copy.sled"), ("sqlite.toml", "sqlite:{data}/copy.db")] {
        home.put(name, configuration(url));
        let target = url.replace("{data}", home.data().to_str().unwrap());
        let told = home.ok(&["store", "copy", "default", &target]);
        assert!(told.contains("digest      ") && !told.contains("rows        0"), "{told}");
        let there = |args: &[&str]| home.ok(&[&["--config", name], args].concat());
        for args in [
            &["ls", "/"][..],
            &["ls", "/memories/a"],
            &["cat", "/plan.md"],
            &["cat", "/plan.md", "--at", "first"],
            &["cat", "/memories/a/b.md"],
            &["cat", "/over/new.md"],
            &["ls", "/over"],
            &["stat", "/memories/a/b.md"],
            &["checkpoint", "ls"],
            &["thread", "ls"],
            &["overlay", "diff"],
            &["--json", "store", "ls", "default/default/memories"],
        ] {
            assert_eq!(there(args), home.ok(args), "{args:?} on {name}");
        }
        let large = home.run(&["--config", name, "cat", "/memories/large"], 0);
        assert!(large.get_output().stdout == vec![7; 1 << 20]);
        there(&["checkpoint", "restore", "first"]);
        assert_eq!(there(&["cat", "/plan.md"]), "one\n");
        there(&["write", "/memories/a/b.md", "anew\n"]);
        assert_eq!(there(&["--thread", "other", "cat", "/plan.md"]), "two\n");
        assert_eq!(home.ok(&["cat", "/memories/a/b.md"]), "a memory\n", "the source is unchanged");
        there(&["doctor"]);
    }
}

#[test]
fn invalid_copy_is_refused_with_a_reason() {
    let home = lived_in();
    assert!(home.error(&["store", "copy", "default", "none"], 3).contains("no store is named `none`"));
    assert!(home.error(&["store", "copy", "sqlite:typo.db", "sqlite:b.db"], 3).contains("there is no store"));
    assert!(!home.work().join("typo.db").exists() && !home.work().join("b.db").exists());
    assert!(home.error(&["store", "copy", "default", "sqlit:b.db"], 2).contains("no store engine is named `sqlit`"));
    home.ok(&["store", "copy", "default", "sqlite:b.db"]);
    let told = home.error(&["store", "copy", "default", "sqlite:b.db"], 4);
    assert!(told.contains("is not empty") && told.contains("--onto"), "{told}");
    let report = home.json(&["--json", "store", "copy", "default", "sqlite:b.db", "--onto"]);
    assert_eq!((&report["settled"], &report["left"], &report["resumed"]), (&true.into(), &0.into(), &false.into()));
    let again = home.json(&["--json", "store", "copy", "sqlite:b.db", "sqlite:c.db"]);
    assert_eq!((&again["digest"], &again["rows"]), (&report["digest"], &report["rows"]));
    home.run(&["store", "copy", "default", "default", "--onto"], 2);
}

#[test]
fn store_is_not_copied_onto_itself_by_another_spelling() {
    for engine in ["sled", "sqlite"] {
        let home = Home::new();
        let place = home.work().join("real/store");
        std::fs::create_dir(home.work().join("real")).unwrap();
        home.put("treehold.toml", configuration(&format!("{engine}:{}", place.display())));
        home.ok(&["write", "/memories/a", "kept\n"]);
        let mut spellings = vec!["default".to_owned()];
        let mut add = |path: &str| spellings.push(format!("{engine}:{path}"));
        add(place.to_str().unwrap());
        add("real/store");
        add("./real/../real/./store");
        if engine == "sled" {
            add("real/store/");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("real", home.work().join("directory")).unwrap();
            std::os::unix::fs::symlink("real/store", home.work().join("link")).unwrap();
            add("directory/store");
            add("link");
        }
        for from in &spellings {
            for to in &spellings {
                for onto in [&["--onto"][..], &[]] {
                    let told = home.error(&[&["store", "copy", from, to], onto].concat(), 2);
                    assert!(told.contains("are the same store"), "{from} to {to} {onto:?}: {told}");
                }
            }
        }
        assert_eq!(home.ok(&["cat", "/memories/a"]), "kept\n", "{engine}");
        home.ok(&["store", "verify"]);
    }
}

/// A trigger stops the writer forever within a batch, and it is killed there.
#[tokio::test]
async fn killed_copy_resumes_where_it_stopped() {
    const ROWS: usize = 2_500;
    let home = Home::new();
    let rows = Namespace::new(["rows"]).unwrap();
    let (from, to) = (home.work().join("from.db"), home.work().join("to.db"));
    let source = SqliteStore::open(&from).unwrap();
    let batch = (0..ROWS).fold(Batch::new(), |batch, number| batch.put(&rows, format!("{number:05}"), format!("body {number}")));
    source.commit(batch).await.unwrap();
    let target = SqliteStore::open(&to).unwrap();
    let endless = "CREATE TRIGGER endless BEFORE INSERT ON items WHEN NEW.key = '01700' BEGIN
                   SELECT count(*) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n); END";
    rusqlite::Connection::open(&to).unwrap().execute_batch(endless).unwrap();
    let copying = Namespace::new(COPY_NAMESPACE).unwrap();
    let mut watch = target.watch(&copying).await.unwrap();
    let args = ["store", "copy", "sqlite:from.db", "sqlite:to.db"];
    let mut command = Command::new(binary());
    command.args(args).current_dir(home.work()).env("TREEHOLD_DATA", home.data()).env_remove("TREEHOLD_CONFIG");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let there = async || target.scan(&rows, ScanOptions::new().with_limit(ROWS)).await.unwrap().entries.len();
    // Rows count as sent once that is noted, in a commit of its own.
    let noted = async || {
        let note = target.get(&copying, "note").await.unwrap();
        note.map_or(json!(0), |note| serde_json::from_slice::<Value>(&note.value).unwrap()["rows"].clone())
    };
    while noted().await == json!(0) {
        watch.changed().await.unwrap();
    }
    assert_eq!(child.try_wait().unwrap(), None, "the copy waits");
    child.kill().unwrap();
    child.wait().unwrap();
    let sent = there().await;
    assert!((1..1_700).contains(&sent), "{sent}");
    assert!(target.get(&copying, "note").await.unwrap().is_some());
    rusqlite::Connection::open(&to).unwrap().execute_batch("DROP TRIGGER endless").unwrap();
    // Another source is not mixed in, and a partial copy is not a source.
    home.ok(&["store", "put", "own", "k", "v"]);
    assert!(home.error(&["store", "copy", "default", "sqlite:to.db"], 4).contains("holds an unfinished copy of `sqlite:from.db`"));
    home.run(&["store", "copy", "sqlite:to.db", "sqlite:third.db"], 2);
    let report = home.json(&[&["--json"], &args[..]].concat());
    assert_eq!((&report["resumed"], &report["settled"], &report["rows"]), (&true.into(), &true.into(), &ROWS.into()));
    assert_eq!(report["sent"], ROWS - sent, "existing rows are not sent again");
    assert_eq!(
        target.scan(&rows, ScanOptions::new().with_limit(ROWS).with_values(true)).await.unwrap(),
        source.scan(&rows, ScanOptions::new().with_limit(ROWS).with_values(true)).await.unwrap()
    );
    assert_eq!(target.get(&copying, "note").await.unwrap(), None);
}

#[test]
fn snapshot_opens_as_a_store() {
    let home = lived_in();
    home.ok(&["store", "snapshot", "monday.db"]);
    home.ok(&["write", "/memories/a/b.md", "later\n"]);
    home.put("monday.toml", configuration("sqlite:monday.db"));
    assert_eq!(home.ok(&["--config", "monday.toml", "cat", "/memories/a/b.md"]), "a memory\n");
    assert_eq!(home.ok(&["--config", "monday.toml", "cat", "/plan.md", "--at", "first"]), "one\n");
    assert!(home.error(&["store", "snapshot", "monday.db"], 4).contains("--force"));
    let taken = home.json(&["--json", "store", "snapshot", "monday.db", "--force"]);
    assert_eq!(taken["bytes"], std::fs::metadata(home.work().join("monday.db")).unwrap().len());
    assert_eq!(home.ok(&["--config", "monday.toml", "cat", "/memories/a/b.md"]), "later\n");
    home.put("tree.toml", "[stores.default]\nurl = \"sled:tree\"\n");
    let told = home.error(&["--config", "tree.toml", "store", "snapshot", "x.db"], 2);
    assert!(told.contains("`treehold store copy default sqlite:x.db`"), "{told}");
    home.run(&["store", "snapshot", "x.db", "--store", "sqlite:typo.db"], 3);
    assert!(!home.work().join("typo.db").exists() && !home.work().join("x.db").exists());
}

/// Regression: an empty file or directory became a store, and the copy of it succeeded with no rows.
#[test]
fn empty_file_or_directory_is_no_store() {
    let home = Home::new();
    home.put("empty.db", "");
    std::fs::create_dir(home.work().join("parts")).unwrap();
    std::fs::create_dir(home.work().join("sled")).unwrap();
    for url in ["sqlite:empty.db", "sqlite:parts/", "sqlite:absent/", "sled:sled", "sled:absent"] {
        for args in [
            &["store", "copy", url, "sqlite:to.db"][..],
            &["store", "export", "to.tar", "--store", url],
            &["store", "ls", "--store", url],
            &["store", "stats", "--store", url],
        ] {
            assert!(home.error(args, 3).contains("there is no store"), "{args:?}");
        }
    }
    assert!(home.error(&["store", "snapshot", "to.db", "--store", "sqlite:empty.db"], 3).contains("there is no store"));
    assert_eq!(std::fs::metadata(home.work().join("empty.db")).unwrap().len(), 0);
    for directory in ["parts", "sled"] {
        assert_eq!(std::fs::read_dir(home.work().join(directory)).unwrap().count(), 0, "{directory}");
    }
    for absent in ["to.db", "to.tar", "absent"] {
        assert!(!home.work().join(absent).exists(), "{absent}");
    }
    home.ok(&["store", "export", "none.tar"]);
    home.ok(&["store", "import", "none.tar", "--store", "sqlite:parts/"]);
    home.ok(&["store", "stats", "--store", "sqlite:parts/"]);
}

#[tokio::test]
async fn expired_rows_are_counted_and_swept() {
    let home = Home::new();
    let rows = Namespace::new(["rows"]).unwrap();
    let store = SqliteStore::open(home.work().join("a.db")).unwrap();
    let batch = (0..7).fold(Batch::new(), |batch, number| batch.put_for(&rows, format!("{number}"), "v", std::time::Duration::ZERO));
    store.commit(batch.put_with_meta(&rows, "kept", "meta", "body")).await.unwrap();
    let stats = home.json(&["--json", "store", "stats", "--by-namespace", "--store", "sqlite:a.db"]);
    assert_eq!((&stats["rows"], &stats["expired"], &stats["bytes"], &stats["schema"]), (&1.into(), &7.into(), &8.into(), &6.into()));
    assert_eq!(stats["by_namespace"], serde_json::json!([{"namespace": "rows", "rows": 1, "meta_bytes": 4}]));
    let told = home.ok(&["store", "stats", "--by-namespace", "--store", "sqlite:a.db"]);
    assert!(told.contains("engine      SQLite 3.") && told.ends_with("         1  rows\n"), "{told}");
    assert_eq!(home.ok(&["store", "sweep", "--limit", "5", "--store", "sqlite:a.db"]), "5 rows removed\n");
    assert_eq!(home.json(&["--json", "store", "sweep", "--store", "sqlite:a.db"])["removed"], 2);
    assert_eq!(store.stats().await.unwrap().expired, 0);
}

#[test]
fn exported_store_is_imported_elsewhere() {
    let home = lived_in();
    let told = home.ok(&["store", "export", "all.tar"]);
    assert!(home.error(&["store", "export", "all.tar"], 4).contains("exists already"));
    for (name, url) in [("sled.toml", "sled:{data}/copy.sled"), ("sqlite.toml", "sqlite:{data}/copy.db")] {
        home.put(name, configuration(url));
        let imported = home.ok(&["--config", name, "store", "import", "all.tar"]);
        assert_eq!(imported.replace("imported", "exported"), told);
        for args in [&["cat", "/plan.md", "--at", "first"][..], &["cat", "/over/new.md"], &["checkpoint", "ls"], &["ls", "/memories/a"]] {
            assert_eq!(home.ok(&[&["--config", name], args].concat()), home.ok(args), "{args:?}");
        }
        assert!(home.error(&["--config", name, "store", "import", "all.tar"], 4).contains("--onto"));
        home.ok(&["--config", name, "store", "import", "all.tar", "--onto"]);
    }
    let piped = home.run(&["store", "export"], 0).get_output().stdout.clone();
    let report = home.with_stdin(&["--json", "store", "import", "-", "--store", "sqlite:piped.db"], &piped).code(0);
    let report: serde_json::Value = serde_json::from_slice(&report.get_output().stdout).unwrap();
    assert!(told.contains(report["digest"].as_str().unwrap()), "{report}");
    let cut = home.with_stdin(&["store", "import", "--store", "sqlite:cut.db"], &piped[..piped.len() / 2]).code(6);
    let told = String::from_utf8(cut.get_output().stderr.clone()).unwrap();
    assert!(told.contains("is cut off"), "{told}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(home.work().join("all.tar")).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// Regression: a migration said that the disk cannot be read, and a copy did not say how to name the directory.
#[test]
fn directory_named_as_a_file_is_refused_with_its_form() {
    let home = Home::new();
    home.ok(&["store", "copy", "default", "sqlite:parts/"]);
    for args in [
        &["store", "copy", "default", "sqlite:parts"][..],
        &["store", "copy", "sqlite:parts", "memory:"],
        &["store", "migrate", "sqlite:parts"],
        &["store", "stats", "--store", "sqlite:parts"],
    ] {
        assert!(home.error(args, 2).contains("`sqlite:DIRECTORY/`"), "{args:?}");
    }
}

#[test]
fn verify_reports_each_damage_on_a_line() {
    let home = lived_in();
    home.ok(&["--user", "bob", "write", "/memories/own.md", "bob's"]);
    assert!(home.ok(&["store", "verify"]).ends_with("rows can be read\n"));
    home.ok(&["store", "export", "all.tar"]);
    let database = rusqlite::Connection::open(home.data().join("treehold.db")).unwrap();
    let damage = |sql: &str| assert_eq!(database.execute(sql, []).unwrap(), 1, "{sql}");
    damage(
        "UPDATE items SET body = x'00000000' WHERE id = (SELECT MIN(id) FROM items WHERE namespace LIKE '%treehold/threads/bodies/%' AND size = 4)",
    );
    damage("UPDATE items SET body = NULL WHERE namespace = 'default/bob/memories/'");
    damage("UPDATE items SET version = 1000000 WHERE key = 'large'");
    damage("UPDATE items SET body = x'00' WHERE id = (SELECT MIN(id) FROM items WHERE namespace LIKE '%treehold/threads/heads/%')");
    damage("UPDATE items SET size = 1 WHERE id = (SELECT MIN(id) FROM items WHERE namespace LIKE '%treehold/threads/heads/%')");
    let told = String::from_utf8(home.run(&["store", "verify"], 6).get_output().stdout.clone()).unwrap();
    for fault in [
        "the row `own.md` in `default/bob/memories` cannot be read",
        "is damaged: the content of a thread does not match its hash",
        "and the counter of the partition is",
        "in `default/default/_treehold/threads/heads` is damaged: ",
        "there are rows whose own body is missing or has the wrong length",
    ] {
        assert_eq!(told.matches(fault).count(), 1, "{fault}: {told}");
    }
    let report = home.run(&["--json", "store", "verify"], 6);
    let report: serde_json::Value = serde_json::from_slice(&report.get_output().stdout).unwrap();
    assert_eq!(report["faults_count"], told.lines().count());
    assert!(report["faults"].as_array().unwrap().iter().all(|fault| fault["code"] == "corrupt"));
    drop(database);
    home.ok(&["store", "import", "all.tar", "--store", "sqlite:sound.db"]);
    home.ok(&["store", "verify", "--store", "sqlite:sound.db"]);
}
