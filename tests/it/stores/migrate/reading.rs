//! Migrated stores, read through the command and the server.

use super::{Layout, fixture, put_sled, put_sqlite};
use crate::serve::process::{Process, command, ended};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use tempfile::TempDir;

fn facts(layout: Layout) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(layout, "facts.json")).unwrap()).unwrap()
}

/// A home with a fixture's configuration, and the store at a URL.
fn home(layout: Layout, url: &str) -> TempDir {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("workspace")).unwrap();
    std::fs::write(home.path().join("workspace/beneath.txt"), "the file beneath\n").unwrap();
    let history = "history = { keep_last = 20, older_than = \"30000d\" }\n";
    let (history, shared) = match layout {
        Layout::First => ("", String::new()),
        Layout::Second => {
            (history, format!("[routes.\"/shared\"]\ntype = \"store\"\nnamespace = \"shared\"\nindex = [\"trigram\"]\n{history}"))
        }
    };
    let config = format!(
        "[events]\nkeep = \"30000d\"\n[stores.default]\nurl = \"{url}\"\n[routes.\"/memories\"]\ntype = \"store\"\n\
         namespace = \"{{tenant}}/{{user}}/memories\"\nindex = [\"trigram\", \"words\"]\n{history}{shared}\
         [routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"workspace\"\n[routes.\"/workspace\".overlay]\n"
    );
    std::fs::write(home.path().join("treehold.toml"), config).unwrap();
    home
}

fn run(home: &Path, args: &[&str]) -> String {
    let (code, output, said) = ended(home, args);
    assert_eq!(code, Some(0), "{args:?}: {said}");
    output
}

/// Reads everything in a fixture, through the command and a server.
fn reads_everything(layout: Layout, home: &Path) {
    let facts = facts(layout);
    let json = |args: &[&str]| serde_json::from_str::<Value>(&run(home, &[&["--json"], args].concat())).unwrap();
    // Threads, by every checkpoint and label.
    assert_eq!(json(&["checkpoint", "ls"]), facts["checkpoints"]);
    assert_eq!(run(home, &["cat", "/plan.md"]).trim_end(), "third draft");
    assert_eq!(run(home, &["cat", "--at", "start", "/plan.md"]).trim_end(), "first draft");
    assert_eq!(run(home, &["cat", "--at", "review", "/plan.md"]).trim_end(), "second draft");
    assert_eq!(run(home, &["cat", "/called.md"]).trim_end(), "written by a tool call");
    assert_eq!(run(home, &["cat", "/long.txt"]).lines().count(), 2_000);
    assert_eq!(run(home, &["--thread", "side", "cat", "/only-here.md"]).trim_end(), "of the fork");
    // Memories, by path, index and recall.
    assert_eq!(run(home, &["cat", "/memories/AGENTS.md"]).trim_end(), "remember the walrus");
    assert_eq!(run(home, &["--user", "bob", "cat", "/memories/own.md"]).trim_end(), "of bob");
    assert!(run(home, &["grep", "walrus", "/memories"]).contains("deep/er/note.md"));
    assert!(run(home, &["search", "sleeping walrus", "/memories"]).contains("note.md"));
    run(home, &["store", "verify"]);
    if layout == Layout::Second {
        reads_what_the_second_layout_added(&facts, home);
    }
    // The overlay.
    let diff = run(home, &["overlay", "diff", "/workspace"]);
    assert!(diff.contains("new.txt") && diff.contains("beneath.txt"), "{diff}");
    // Events keep their numbers.
    assert_eq!(json(&["timeline", "/"]), facts["timeline"]);
    // The token, items, and the stored answer.
    let server = Process::of(command(home, &["serve", "--listen", "127.0.0.1:0", "--tokens"]), home);
    let bearer = format!("Bearer {}", facts["token"].as_str().unwrap());
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let get = |path: &str| {
        let mut answer = agent.get(format!("{}{path}", server.base())).header("authorization", &bearer).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_json::<Value>().unwrap())
    };
    let (status, item) = get("/v1/store/item?namespace=tasks&key=one");
    assert_eq!((status, &item["value"]), (200, &json!({"title": "walk", "done": false})));
    assert_eq!(get("/v1/store/item?namespace=tasks&namespace=done&key=two").1["value"]["title"], "sleep");
    let repeated = || {
        let request = agent.post(format!("{}/v1/fs/memories/once.md", server.base()));
        // As curl sent it: the content type is part of what the key identifies.
        let request = request.header("authorization", &bearer).header("content-type", "application/x-www-form-urlencoded");
        let mut answer = request.header("idempotency-key", "\"fixture-key\"").send(&b"written once"[..]).unwrap();
        answer.body_mut().read_json::<Value>().unwrap()
    };
    assert_eq!(repeated(), facts["answer"], "the stored answer is repeated and the request does not run again");
    assert_eq!(run(home, &["cat", "/memories/once.md"]), "written once");
    assert_eq!(agent.get(format!("{}/v1/stat?path=/", server.base())).call().unwrap().status(), 401, "without the token");
    assert!(server.stop().success());
}

/// Reads the past of files, a namespace of one component, and what agents and their hosts keep.
fn reads_what_the_second_layout_added(facts: &Value, home: &Path) {
    let json = |args: &[&str]| serde_json::from_str::<Value>(&run(home, &[&["--json"], args].concat())).unwrap();
    assert_eq!(json(&["log", "/memories/AGENTS.md"]), facts["log"]);
    assert_eq!(run(home, &["cat", "--at", "~1", "/memories/AGENTS.md"]).trim_end(), "remember the tiger");
    assert_eq!(run(home, &["cat", "--at", "v1", "/memories/gone.md"]).trim_end(), "removed later");
    assert_eq!(run(home, &["--user", "bob", "cat", "--at", "~1", "/memories/own.md"]).trim_end(), "from bob");
    assert_eq!(run(home, &["cat", "/shared/board.md"]).trim_end(), "everybody sees a walrus");
    assert_eq!(json(&["log", "/shared/board.md"]), facts["shared_log"]);
    assert_eq!(run(home, &["cat", "--at", "v1", "/shared/board.md"]).trim_end(), "everybody sees a heron");
    assert!(run(home, &["grep", "walrus", "/shared"]).contains("board.md"));
    assert_eq!(json(&["state", "get", "tea"])["value"]["context"][0]["content"], "Tea?");
    assert_eq!(json(&["state", "get", "tea", "notes", "--list"])["value"], json!(["milk", "sugar"]));
    assert_eq!(run(home, &["--json", "session", "messages", "tea"]), facts["messages"].as_str().unwrap());
    assert_eq!(run(home, &["--session", "tea", "cat", "/memo/session/NOTES.md"]).trim_end(), "- likes oolong");
    assert_eq!(run(home, &["--json", "trace", "show", "brewing"]), facts["trace"].as_str().unwrap());
}

#[test]
fn migrated_sqlite_store_is_read_through_command_and_server() {
    for layout in Layout::ALL {
        let home = home(layout, "sqlite:old.db");
        put_sqlite(layout, &home.path().join("old.db"));
        let (code, output, said) = ended(home.path(), &["cat", "/plan.md"]);
        assert!(code != Some(0) && output.is_empty() && said.contains("run `treehold store migrate default`"), "{said}");
        let planned: Value = serde_json::from_str(&run(home.path(), &["--json", "store", "migrate", "--dry-run"])).unwrap();
        assert_eq!(planned["outcome"], "planned");
        let done = run(home.path(), &["store", "migrate"]);
        assert!(done.contains("threads") && done.contains("rows") && done.contains("moved"), "{done}");
        assert!(run(home.path(), &["store", "migrate"]).contains("nothing to do"));
        reads_everything(layout, home.path());
    }
}

#[test]
fn migrated_sled_store_is_read_through_command() {
    for layout in Layout::ALL {
        let home = home(layout, "sled:old");
        put_sled(layout, &home.path().join("old"));
        run(home.path(), &["store", "migrate", "default"]);
        assert_eq!(run(home.path(), &["cat", "--at", "review", "/plan.md"]).trim_end(), "second draft");
        run(home.path(), &["store", "verify"]);
    }
}

/// A takeover by the last version may have been killed after the file was migrated to the second layout.
#[test]
fn default_file_of_the_former_name_is_taken_over() {
    for (layout, former) in [
        (Layout::First, "treehold/stratafs.db"),
        (Layout::First, "stratafs/stratafs.db"),
        (Layout::Second, "treehold/stratafs.db"),
        (Layout::Second, "stratafs/stratafs.db"),
    ] {
        let home = home(layout, "sqlite:{data}/treehold.db");
        let data = home.path().join("share/treehold");
        std::fs::create_dir_all(home.path().join("share/treehold")).unwrap();
        std::fs::create_dir_all(home.path().join("share/stratafs")).unwrap();
        let former = home.path().join("share").join(former);
        put_sqlite(layout, &former);
        let run_there = |args: &[&str]| {
            let output = command(home.path(), args).env("TREEHOLD_DATA", &data).stdin(Stdio::null()).output().unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
        };
        let (code, _, said) = run_there(&["cat", "/plan.md"]);
        assert!(code != Some(0) && said.contains("`stratafs.db`") && said.contains("treehold store migrate"), "{said}");
        assert!(!data.join("treehold.db").exists(), "no empty store is made beside it");
        let (code, planned, said) = run_there(&["store", "migrate", "--dry-run"]);
        assert!(code == Some(0) && planned.contains("would be renamed") && former.exists(), "{said}");
        let (code, done, said) = run_there(&["store", "migrate"]);
        assert!(code == Some(0) && done.contains("renamed from"), "{said}");
        assert!(!former.exists() && data.join("treehold.db").exists());
        assert_eq!(run_there(&["cat", "/plan.md"]).1.trim_end(), "third draft");
    }
}
