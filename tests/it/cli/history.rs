//! `checkpoint` and `thread`: listing, showing, comparing, restoring and pruning a thread's history, and forking it.

use super::Home;
use serde_json::Value;

/// A thread with three checkpoints, the second with a label. Returns their ids, the oldest first.
fn thread() -> (Home, Vec<String>) {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "1. ask\n2. answer\n"]);
    home.ok(&["checkpoint", "create", "--label", "before", "--meta", "who=ada", "--meta", "why=a = b"]);
    home.ok(&["edit", "/plan.md", "2. answer", "2. measure"]);
    let list = home.json(&["--json", "checkpoint", "ls"]);
    let mut ids: Vec<String> = list.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 3);
    ids.reverse();
    (home, ids)
}

#[test]
fn checkpoints_are_listed_and_filtered() {
    let (home, ids) = thread();
    let list = home.ok(&["checkpoint", "ls"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with(&ids[2]) && lines[2].starts_with(&ids[0]), "{list}");
    assert!(lines[1].ends_with("1         17  [before]  who=ada why=a = b"), "{list}");
    let listed = |args: &[&str]| {
        let list = home.json(&[&["--json", "checkpoint", "ls"], args].concat());
        let ids_listed = list.as_array().unwrap().iter().map(|one| ids.iter().position(|id| one["id"] == id.as_str()).unwrap());
        ids_listed.collect::<Vec<_>>()
    };
    assert_eq!(listed(&["--label", "before"]), [1]);
    assert_eq!(listed(&["--meta", "why=a = b", "--meta", "who=ada"]), [1]);
    assert_eq!(listed(&["--since", "1h"]), [2, 1, 0]);
    assert_eq!(listed(&["--since", "2020-01-01", "--limit", "2"]), [2, 1]);
    assert_eq!(listed(&["--start-after", &ids[1]]), [0]);
    assert_eq!(listed(&["--start-after", "before"]), [0]);
    let more = home.run(&["checkpoint", "ls", "--limit", "1"], 0);
    assert!(String::from_utf8_lossy(&more.get_output().stderr).contains(&format!("--start-after {}", ids[2])));
    home.run(&["checkpoint", "ls", "--until", "2020-01-01T00:00:00Z"], 1).stdout("");
    home.run(&["--json", "checkpoint", "ls", "--label", "after"], 1).stdout("[]\n");
    home.run(&["--thread", "other", "checkpoint", "ls"], 1);
    assert_eq!(home.ok(&["--jsonl", "checkpoint", "ls"]).lines().count(), 3);
    for wrong in [["--since", "soon"], ["--meta", "who"], ["--limit", "0"]] {
        home.run(&[&["checkpoint", "ls"][..], &wrong].concat(), 2);
    }
}

#[test]
fn checkpoint_can_be_named_in_every_documented_way() {
    let (home, ids) = thread();
    let shown = |name: &str| home.json(&["--json", "checkpoint", "show", name])["id"].as_str().unwrap().to_owned();
    for (name, index) in [("latest", 2), ("~1", 1), ("latest~2", 0), ("before", 1), (&ids[0][..], 0), (&ids[0][..35], 0)] {
        let is_prefix_of_others = ids.iter().filter(|id| id.starts_with(name)).count() > 1;
        if !is_prefix_of_others {
            assert_eq!(shown(name), ids[index], "{name}");
        }
    }
    assert!(home.error(&["checkpoint", "show", &ids[0][..5]], 4).contains("write more of the id"));
    assert!(home.error(&["checkpoint", "show", "~3"], 3).contains("has no checkpoint `~3`"));
    assert!(home.error(&["checkpoint", "show", "after"], 3).contains("`treehold checkpoint ls`"));
    assert!(home.error(&["checkpoint", "show", "~x"], 2).contains("how far back"));
    assert!(home.error(&["--thread", "other", "checkpoint", "show"], 3).contains("no checkpoint yet"));
    assert!(home.error(&["checkpoint", "create", "--label", "~1"], 2).contains("choose another label"));
}

#[test]
fn show_lists_changes_since_the_parent() {
    let (home, ids) = thread();
    home.ok(&["write", "/new/a.md", "a"]);
    let shown = home.ok(&["checkpoint", "show"]);
    assert!(shown.contains(&format!("parent    {}\n", ids[2])), "{shown}");
    assert!(shown.ends_with("changes   2 added, 0 changed, 0 removed\n\nadded    /new/\nadded    /new/a.md\n"), "{shown}");
    let first = home.ok(&["checkpoint", "show", &ids[0]]);
    assert!(first.contains("parent    none\n") && first.contains("added    /plan.md\n"), "{first}");
    let labelled = home.ok(&["checkpoint", "show", "before"]);
    assert!(labelled.contains("label     before\nnoted     who=ada why=a = b\nentries   1\nsize      17\n"), "{labelled}");
    assert!(labelled.ends_with("changes   0 added, 0 changed, 0 removed\n"), "{labelled}");
    let json = home.json(&["--json", "checkpoint", "show", &ids[2]]);
    assert_eq!((&json["parent"]["id"], &json["changes"]["changed"]), (&ids[1].as_str().into(), &1.into()));
    assert_eq!(json["changes"]["paths"][0]["path"], "/plan.md");
}

#[test]
fn restore_makes_a_new_checkpoint_and_loses_nothing() {
    let (home, ids) = thread();
    let made = home.ok(&["checkpoint", "restore", "before", "--label", "back"]);
    assert_eq!(home.ok(&["cat", "/plan.md"]), "1. ask\n2. answer\n");
    let json = home.json(&["--json", "checkpoint", "show", "back"]);
    assert_eq!(json["id"], made.trim_end());
    assert_eq!((&json["parent"]["id"], &json["parent"]["restored"]), (&ids[2].as_str().into(), &ids[1].as_str().into()));
    assert!(home.ok(&["checkpoint", "show"]).contains(&format!("restored  {}\n", ids[1])));
    home.ok(&["checkpoint", "restore", "~1"]);
    assert_eq!(home.ok(&["cat", "/plan.md"]), "1. ask\n2. measure\n", "the replaced state is still in the history");
    home.run(&["checkpoint", "restore", "018f0000-0000-7000-8000-000000000000"], 3);
}

#[test]
fn checkpoint_diff_lists_changed_files() {
    let (home, ids) = thread();
    assert_eq!(home.ok(&["checkpoint", "diff"]), "changed  /plan.md\n");
    let patch = "--- /plan.md\n+++ /plan.md\n@@ -1,2 +1,2 @@\n 1. ask\n-2. answer\n+2. measure\n";
    assert_eq!(home.ok(&["checkpoint", "diff", "--patch"]), patch);
    assert_eq!(home.ok(&["checkpoint", "diff", "before", "--patch"]), patch);
    assert_eq!(home.ok(&["checkpoint", "diff", "--stat"]), "changed  /plan.md  +1 -1\n0 added, 1 changed, 0 removed\n");
    home.run(&["checkpoint", "diff", &ids[0], "before"], 1).stdout("");
    home.with_stdin(&["write", "/docs/b.bin"], b"\x00\xff\x01").code(0);
    home.ok(&["write", "/docs/a.md", "a\n"]);
    home.ok(&["rm", "/plan.md"]);
    let lines = "added    /docs/\nadded    /docs/a.md\nadded    /docs/b.bin\nremoved  /plan.md\n";
    assert_eq!(home.ok(&["checkpoint", "diff", "before"]), lines);
    assert_eq!(home.ok(&["checkpoint", "diff", "before", "/docs/a.md"]), "added    /docs/a.md\n");
    assert_eq!(home.ok(&["checkpoint", "diff", "before", "~1", "/docs/a.md"]), "added    /docs/a.md\n");
    assert_eq!(home.ok(&["checkpoint", "diff", "/plan.md"]), "removed  /plan.md\n", "a path does not name a checkpoint");
    let patch = home.ok(&["checkpoint", "diff", "before", "--patch"]);
    let expected = "added    /docs/\n--- /dev/null\n+++ /docs/a.md\n@@ -0,0 +1 @@\n+a\nbinary file /docs/b.bin differs (3 bytes)\n\
                    --- /plan.md\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-1. ask\n-2. answer\n";
    assert_eq!(patch, expected);
    let json = home.json(&["--json", "checkpoint", "diff", "before", "--stat"]);
    assert_eq!((&json["old"], &json["added"], &json["removed"]), (&ids[1].as_str().into(), &3.into(), &1.into()));
    let facts = |index: usize| (json["paths"][index]["binary"].clone(), json["paths"][index]["lines_added"].clone());
    assert_eq!((facts(0), facts(1), facts(2)), ((Value::Null, Value::Null), (false.into(), 1.into()), (true.into(), Value::Null)));
    home.run(&["checkpoint", "diff", "before", "after"], 3);
    home.run(&["checkpoint", "diff", "--patch", "--stat"], 2);
    home.run(&["checkpoint", "diff", "before", "latest", "plan.md"], 2);
}

#[test]
fn prune_follows_a_rule_and_sweep_frees_the_contents() {
    let (home, ids) = thread();
    assert!(home.error(&["checkpoint", "prune"], 2).contains("`--all`"));
    home.run(&["checkpoint", "prune", "--all", "--keep-last", "1"], 2);
    home.run(&["checkpoint", "prune", "--older-than", "soon"], 2);
    assert_eq!(home.ok(&["checkpoint", "prune", "--older-than", "30d"]), "removed 0 checkpoints, 3 kept\n");
    assert_eq!(home.ok(&["checkpoint", "prune", "--keep-last", "1", "--dry-run"]), "would remove 2 checkpoints, 1 kept\n");
    let dry = home.json(&["--json", "checkpoint", "prune", "--keep-last", "1", "--keep-labelled", "--dry-run"]);
    assert_eq!(dry, serde_json::json!({"removed": 1, "kept": 2, "dry_run": true}));
    assert_eq!(home.ok(&["checkpoint", "prune", "--keep-labelled"]), "removed 1 checkpoint, 2 kept\n");
    assert_eq!(home.ok(&["cat", "/plan.md"]), "1. ask\n2. measure\n");
    assert_eq!(home.ok(&["checkpoint", "prune", "--all"]), "removed 1 checkpoint, 1 kept\n");
    home.run(&["checkpoint", "show", &ids[1]], 3);
    assert!(home.ok(&["checkpoint", "show"]).contains(" (pruned)\n"));
    assert!(home.error(&["checkpoint", "diff"], 3).contains("was pruned"));
    let would = home.ok(&["checkpoint", "sweep", "--dry-run"]);
    assert!(would.starts_with("would remove 1 content of 17 bytes"), "{would}");
    let swept = home.json(&["--json", "checkpoint", "sweep"]);
    assert_eq!((&swept["bodies"], &swept["bodies_kept"], &swept["dry_run"]), (&1.into(), &1.into(), &false.into()));
    assert!(home.ok(&["checkpoint", "sweep"]).starts_with("removed 0 contents of 0 bytes"));
    assert_eq!(home.ok(&["cat", "/plan.md"]), "1. ask\n2. measure\n");
    home.run(&["--thread", "other", "checkpoint", "prune", "--all"], 3);
}

#[test]
fn thread_is_forked_at_a_checkpoint_or_copied_whole() {
    let (home, ids) = thread();
    let first = home.ok(&["thread", "fork", "other", "--at", "before"]);
    assert_eq!(home.ok(&["--thread", "other", "cat", "/plan.md"]), "1. ask\n2. answer\n");
    let shown = home.ok(&["--thread", "other", "checkpoint", "show"]);
    assert!(shown.contains(&format!("id        {first}parent    {} of thread default\n", ids[1])), "{shown}");
    home.ok(&["--thread", "other", "write", "/plan.md", "mine"]);
    assert_eq!(home.ok(&["cat", "/plan.md"]), "1. ask\n2. measure\n");
    home.run(&["thread", "fork", "other"], 4);
    home.run(&["thread", "fork", "new", "--at", "after"], 3);
    home.run(&["--thread", "none", "thread", "fork", "new"], 3);
    home.ok(&["thread", "copy", "kept"]);
    assert_eq!(home.json(&["--json", "--thread", "kept", "checkpoint", "ls"]).as_array().unwrap().len(), 3);
    assert_eq!(home.json(&["--json", "thread", "copy", "again"]), serde_json::json!({"thread": "again", "checkpoints": 3}));
    home.run(&["thread", "copy", "kept"], 4);
    home.ok(&["thread", "rm", "default"]);
    assert_eq!(home.ok(&["--thread", "kept", "cat", "/plan.md"]), "1. ask\n2. measure\n");
}

#[test]
fn run_records_each_call_with_its_checkpoint() {
    let home = Home::new();
    let calls = concat!(
        r#"{"tool": "write_file", "id": "call-1", "args": {"path": "/a.md", "content": "one\n"}}"#,
        "\n",
        r#"{"tool": "read_file", "id": "call-2", "args": {"path": "/a.md"}}"#,
        "\n",
        r#"{"tool": "edit_file", "id": "call-3", "args": {"path": "/a.md", "old_string": "one", "new_string": "two"}}"#,
        "\n",
    );
    home.with_stdin(&["--agent", "coder", "run", "-"], calls.as_bytes()).code(0);
    let list = home.ok(&["checkpoint", "ls"]);
    let notes: Vec<&str> = list.lines().filter_map(|line| line.split_once("  tool=")).map(|(_, notes)| notes).collect();
    assert_eq!(notes, ["edit_file tool_call_id=call-3 actor=coder", "write_file tool_call_id=call-1 actor=coder"]);
    assert_eq!(home.json(&["--json", "checkpoint", "ls", "--meta", "tool_call_id=call-1"]).as_array().unwrap().len(), 1);
}

#[test]
fn calls_between_checkpoints_are_listed_without_contents() {
    let home = Home::new();
    home.ok(&["write", "/a.md", "zero\n"]);
    home.ok(&["checkpoint", "create", "--label", "before"]);
    let calls = concat!(
        r#"{"tool": "write_file", "id": "call-1", "args": {"path": "/a.md", "content": "secret\n"}}"#,
        "\n",
        r#"{"tool": "read_file", "id": "call-2", "args": {"path": "/missing.md"}}"#,
        "\n",
        r#"{"tool": "edit_file", "id": "call-3", "args": {"path": "/a.md", "old_string": "secret", "new_string": "hidden"}}"#,
        "\n",
    );
    home.with_stdin(&["--agent", "coder", "run", "--allow-errors", "-"], calls.as_bytes()).code(0);
    let shown = home.ok(&["checkpoint", "show", "--calls"]);
    let (_, calls) = shown.split_once("\ncalls     2\n\n").expect(&shown);
    let lines: Vec<&str> = calls.lines().filter_map(|line| line.split_once("  ")).map(|(_, line)| line).collect();
    assert_eq!(lines[0], r#"not_found  read_file {"path":"/missing.md"}  tool_call_id=call-2  actor=coder"#);
    let edit = r#"{"new_string":{"bytes":6},"old_string":{"bytes":6},"path":"/a.md"}"#;
    assert_eq!(lines[1], format!("ok         edit_file {edit}  tool_call_id=call-3  actor=coder"));
    let json = home.json(&["--json", "checkpoint", "diff", "before", "--calls"]);
    let ids: Vec<&str> = json["calls"].as_array().unwrap().iter().map(|call| call["tool_call_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["call-1", "call-2", "call-3"]);
    assert_eq!(json["calls"][2]["checkpoint"], json["new"]);
    assert!(!json.to_string().contains("secret"));
    assert!(home.ok(&["checkpoint", "diff", "before", "~1", "--calls"]).contains("\n\ncalls     1\n\n"));
    assert_eq!(home.ok(&["--jsonl", "checkpoint", "diff", "before", "--calls"]).lines().count(), 4);

    home.ok(&["thread", "fork", "other"]);
    assert!(home.ok(&["--thread", "other", "checkpoint", "show", "--calls"]).ends_with("\ncalls     0\n\n"));
    home.ok(&["thread", "rm", "default"]);
    home.run(&["store", "ls", "default/default/_treehold/threads/audit"], 1);
    home.put("treehold.toml", "[threads]\naudit = false\n");
    assert!(home.error(&["--thread", "other", "checkpoint", "show", "--calls"], 2).contains("`audit = true`"));
}

#[test]
fn workspace_without_saved_threads_refuses_history_commands() {
    let home = Home::new();
    home.put("treehold.toml", "[threads]\nsave = false\n");
    for args in [&["checkpoint", "ls"][..], &["checkpoint", "create"], &["thread", "fork", "a"], &["checkpoint", "sweep"]] {
        assert!(home.error(args, 2).contains("`save = true`"), "{args:?}");
    }
}

#[test]
fn reading_commands_accept_a_past_checkpoint() {
    let (home, _) = thread();
    home.ok(&["write", "/notes/new.md", "measure twice\n"]);
    home.ok(&["write", "/memories/m.md", "measure\n"]);
    home.put("w.md", "measure\n");
    assert_eq!(home.ok(&["cat", "/plan.md", "--at", "before"]), "1. ask\n2. answer\n");
    assert_eq!(home.ok(&["head", "-n", "1", "/plan.md", "--at", "~1"]), "1. ask\n");
    assert_eq!(home.ok(&["ls", "--at", "before"]), "memories/\nplan.md\nworkspace/\n", "the mounts are there");
    home.error(&["cat", "/memories/m.md", "--at", "before"], 3);
    home.run(&["grep", "measure", "/memories", "--at", "before"], 1).stdout("");
    // The host directory has no past, which a search from above reports.
    home.run(&["grep", "answer", "/", "--at", "before"], 2).stdout("/plan.md:2:2. answer\n");
    home.run(&["glob", "*.md", "--at", "before"], 2).stdout("/plan.md\n");
    home.run(&["find", "/", "--name", "*.md", "--kind", "file", "--at", "latest"], 2).stdout("/memories/m.md\n/notes/new.md\n/plan.md\n");
    let tree = home.run(&["tree", "--at", "before"], 2);
    assert!(String::from_utf8_lossy(&tree.get_output().stdout).contains("plan.md"));
    assert_eq!(home.json(&["--json", "stat", "/plan.md", "--at", "before"])[0]["size_bytes"], 17);
    home.run(&["stat", "/notes", "--at", "before"], 3);
    let changed = "--- /plan.md\n+++ /plan.md\n@@ -1,2 +1,2 @@\n 1. ask\n-2. answer\n+2. measure\n";
    home.run(&["diff", "/plan.md", "--at", "before"], 1).stdout(changed);
    home.run(&["diff", "/plan.md", "--at", "latest"], 0);
    home.run(&["diff", "/plan.md"], 2);
    home.run(&["cat", "/plan.md", "--at", "after"], 3);
    home.run(&["write", "/plan.md", "x", "--at", "before"], 2);
    let list = home.json(&["--json", "checkpoint", "ls"]);
    home.ok(&["ls", "--at", "before"]);
    assert_eq!(home.json(&["--json", "checkpoint", "ls"]), list, "reading the past changes nothing");
    home.put("treehold.toml", "[routes.\"/\"]\ntype = \"filesystem\"\nroot = \".\"\n");
    assert!(home.error(&["ls", "--at", "before"], 2).contains("keeps no history"));
}

#[test]
fn checkpoint_can_be_mounted_as_a_route() {
    let (home, ids) = thread();
    let config = |at: &str, thread: &str| {
        let text = format!("[routes.\"/before\"]\ntype = \"history\"\nat = \"{at}\"\n{thread}");
        home.put("treehold.toml", text);
    };
    config("before", "");
    assert_eq!(home.ok(&["ls", "/"]), "before/\nplan.md\n");
    assert_eq!(home.ok(&["cat", "/before/plan.md"]), "1. ask\n2. answer\n");
    assert_eq!(home.ok(&["grep", "2."]), "/before/plan.md:2:2. answer\n/plan.md:2:2. measure\n");
    home.run(&["diff", "/before/plan.md", "/plan.md"], 1);
    for args in [&["write", "/before/plan.md", "x"][..], &["rm", "/before/plan.md"], &["mv", "/before/plan.md", "/x.md"]] {
        home.run(args, 5);
    }
    home.ok(&["cp", "/before/plan.md", "/again.md"]);
    assert_eq!(home.ok(&["cat", "/again.md"]), "1. ask\n2. answer\n");
    assert!(home.ok(&["doctor"]).contains("route /before: history, read-only"));
    assert!(home.ok(&["config", "show"]).contains("thread = \"{thread}\""));

    config(&ids[0], "thread = \"default\"\n");
    assert_eq!(home.ok(&["--thread", "other", "cat", "/before/plan.md"]), "1. ask\n2. answer\n");
    // A route that cannot be opened is listed, and only operations on it fail.
    config("after", "");
    assert_eq!(home.ok(&["ls", "/"]), "again.md\nbefore/\nplan.md\n");
    let failure = home.error(&["cat", "/before/plan.md"], 6);
    assert!(
        failure.contains("the checkpoint of the route `/before` cannot be opened") && failure.contains("no checkpoint `after`"),
        "{failure}"
    );
    home.put("treehold.toml", "[routes.\"/before\"]\ntype = \"history\"\n[routes.\"/before\".overlay]\n");
    assert!(home.error(&["ls"], 2).contains("takes no overlay"));
}

/// The story in `docs/cli.md`, typed as written there.
#[test]
fn fork_story_of_the_docs_works_as_written() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cli.md")).unwrap();
    let (_, story) = docs.split_once("```console\n").unwrap();
    let (story, _) = story.split_once("```").unwrap();
    let home = Home::new();
    let binaries = super::binary().parent().unwrap().to_str().unwrap().to_owned();
    let path = format!("{binaries}:{}", std::env::var("PATH").unwrap());
    let mut checked = 0;
    for step in story.split("$ ").skip(1) {
        let (typed, expected) = step.split_once('\n').unwrap();
        let ran = std::process::Command::new("sh")
            .args(["-c", typed])
            .current_dir(home.work())
            .env_clear()
            .envs([("TREEHOLD_DATA", home.data().into_os_string()), ("HOME", home.work().into_os_string()), ("PATH", path.clone().into())])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{typed}: {ran:?}");
        let printed = String::from_utf8(ran.stdout).unwrap();
        match expected.trim_end() {
            "ID" => assert!(printed.trim_end().parse::<treehold::CheckpointId>().is_ok(), "{typed}: {printed}"),
            _ => assert_eq!(printed, expected, "{typed}"),
        }
        checked += 1;
    }
    assert!(checked > 10, "the story was found in the docs");
}

#[test]
fn checkpoints_by_concurrent_processes_are_all_kept() {
    let (home, _) = thread();
    let made: Vec<String> = std::thread::scope(|scope| {
        let make = |args: &'static [&'static str]| scope.spawn(|| home.ok(args).trim_end().to_owned());
        let making: Vec<_> =
            (0..4).flat_map(|_| [make(&["checkpoint", "create", "--label", "many"]), make(&["checkpoint", "restore", "before"])]).collect();
        making.into_iter().map(|made| made.join().unwrap()).collect()
    });
    let list = home.json(&["--json", "checkpoint", "ls"]);
    let listed: Vec<&str> = list.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(listed.len(), 3 + made.len());
    assert!(made.iter().all(|id| listed.contains(&id.as_str())), "{made:?} {listed:?}");
    assert!(listed.is_sorted_by(|newer, older| newer > older));
}

/// Regression: the first sweep removed the checkpoints newer than `~3`, so the route named none.
#[test]
fn history_route_that_counts_back_shows_the_same_after_every_sweep() {
    let home = Home::new();
    let route = "[routes.\"/before\"]\ntype = \"history\"\nat = \"~3\"\n";
    home.put("treehold.toml", format!("{route}[retention]\ngrace = \"0s\"\ncheckpoints = {{ keep_last = 1 }}\n"));
    for number in 1..=8 {
        home.ok(&["write", "/f", &number.to_string()]);
    }
    for _ in 0..3 {
        assert_eq!(home.ok(&["cat", "/before/f"]), "5");
        home.ok(&["sweep"]);
    }
    assert_eq!(home.json(&["--json", "checkpoint", "ls"]).as_array().unwrap().len(), 4);
    home.ok(&["write", "/f", "9"]);
    home.ok(&["sweep"]);
    assert_eq!(home.ok(&["cat", "/before/f"]), "6", "three steps back from the newest");
}

/// Regression: a command resolved a name to a checkpoint, and reported it as missing when it was pruned before its use.
#[test]
fn command_on_a_checkpoint_by_name_works_beside_prunes() {
    let home = Home::new();
    for number in 0..3 {
        home.ok(&["write", "/plan.md", &number.to_string()]);
    }
    home.ok(&["thread", "fork", "fork"]);
    home.ok(&["--thread", "fork", "write", "/other.md", "of the fork"]);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in ["default", "fork"] {
            let (home, ended) = (&home, &ended);
            scope.spawn(move || {
                let mut number = 0;
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    number += 1;
                    home.ok(&["--thread", thread, "write", &format!("/{thread}"), &number.to_string()]);
                    home.ok(&["--thread", thread, "checkpoint", "prune", "--keep-last", "2"]);
                }
            });
        }
        let ends: Vec<_> = (0..5)
            .flat_map(|_| {
                let commands: [&[&str]; 6] = [
                    &["checkpoint", "show", "~1"],
                    &["checkpoint", "diff", "~1", "latest"],
                    &["checkpoint", "diff", "--with", "fork"],
                    &["cat", "/plan.md", "--at", "~1"],
                    &["diff", "/plan.md", "--at", "~1"],
                    &["checkpoint", "restore", "~1"],
                ];
                commands.map(|args| (args.join(" "), home.command(args).output().unwrap()))
            })
            .collect();
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        for (command, output) in ends {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(matches!(output.status.code(), Some(0 | 1)), "{command}: {:?}: {said}", output.status);
        }
    });
}
