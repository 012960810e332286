//! `overlay`: an agent works on a host directory, and the user decides what to apply.

use super::Home;

/// A directory with files, and an overlay over it.
fn project() -> Home {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"repo\"\n[routes.\"/workspace\".overlay]\n");
    home.put("repo/README.md", "a project\n");
    home.put("repo/src/main.rs", "fn main() {}\n");
    home.put("repo/src/old.rs", "old\n");
    home
}

/// The work of an agent, as tool calls.
fn work(home: &Home) {
    let calls = [
        r#"{"id": "1", "tool": "edit_file", "args": {"path": "/workspace/src/main.rs", "old_string": "{}", "new_string": "{ run() }"}}"#,
        r#"{"id": "1", "tool": "write_file", "args": {"path": "/workspace/src/run.rs", "content": "pub fn run() {}\n"}}"#,
        r#"{"id": "1", "tool": "delete", "args": {"path": "/workspace/src/old.rs"}}"#,
    ];
    let transcript = home.put("calls.jsonl", calls.join("\n"));
    home.ok(&["run", transcript.to_str().unwrap()]);
}

/// Returns the files of the host with their contents.
fn files(home: &Home) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for name in ["README.md", "src/main.rs", "src/old.rs", "src/run.rs"] {
        if let Ok(content) = std::fs::read_to_string(home.work().join("repo").join(name)) {
            files.push((name.to_owned(), content));
        }
    }
    files
}

#[test]
fn overlay_changes_reach_the_host_only_by_apply() {
    let home = project();
    let before = files(&home);
    home.run(&["overlay", "diff"], 1).stdout("");
    assert!(String::from_utf8_lossy(&home.run(&["overlay", "apply"], 1).get_output().stderr).contains("there is nothing to apply"));
    work(&home);
    assert_eq!(files(&home), before, "the directory is untouched");
    assert_eq!(home.ok(&["cat", "/workspace/src/main.rs"]), "fn main() { run() }\n", "another process sees the changes");
    let changes = "removed  /workspace/src/old.rs\nadded    /workspace/src/run.rs\n";
    assert_eq!(home.ok(&["overlay", "diff"]), format!("changed  /workspace/src/main.rs\n{changes}"));
    assert_eq!(home.ok(&["overlay", "diff", "/workspace/src/run.rs"]), "added    /workspace/src/run.rs\n");
    let missing = home.run(&["overlay", "diff", "/workspace/src/rum.rs"], 1).get_output().clone();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("`/workspace/src/rum.rs` does not exist; did you mean"));
    let error = home.error(&["diff", "/workspace/src/main.rs"], 2);
    assert!(error.contains("`treehold overlay diff /workspace/src/main.rs --patch`"), "{error}");
    let patch = home.ok(&["overlay", "diff", "--patch", "/workspace/src/main.rs"]);
    assert!(patch.contains("-fn main() {}\n+fn main() { run() }\n") && patch.starts_with("--- /workspace/src/main.rs\n"), "{patch}");
    assert!(
        home.ok(&["overlay", "diff", "--patch"]).contains("--- /dev/null\n+++ /workspace/src/run.rs\n@@ -0,0 +1 @@\n+pub fn run() {}\n")
    );
    let json = home.json(&["--json", "overlay", "diff", "--patch"]);
    assert_eq!((&json[0]["path"], &json[0]["kind"]), (&"/workspace/src/main.rs".into(), &"changed".into()));
    assert_eq!(json[0]["based_on"], json[0]["before"]["version"]);
    assert_eq!(json[2]["patch"].as_str().map(|patch| patch.contains("+pub fn run()")), Some(true));

    assert_eq!(home.ok(&["overlay", "apply", "--dry-run"]), home.ok(&["overlay", "diff"]));
    assert_eq!(files(&home), before);
    home.ok(&["overlay", "apply"]);
    let expected = [("README.md", "a project\n"), ("src/main.rs", "fn main() { run() }\n"), ("src/run.rs", "pub fn run() {}\n")];
    assert_eq!(files(&home), expected.map(|(name, content)| (name.to_owned(), content.to_owned())));
    home.run(&["overlay", "diff"], 1).stdout("");
    home.run(&["overlay", "apply"], 1);
}

#[test]
fn conflicting_user_change_stops_apply_before_any_write() {
    let home = project();
    work(&home);
    home.put("repo/src/main.rs", "fn main() { user() }\n");
    home.put("repo/src/run.rs", "the user's\n");
    let before = files(&home);
    let conflicts = "changed  /workspace/src/main.rs  (conflict: changed beneath)\n\
                     changed  /workspace/src/run.rs  (conflict: added beneath)\n";
    let refused = home.run(&["overlay", "apply"], 4);
    assert_eq!(String::from_utf8_lossy(&refused.get_output().stdout), conflicts);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("nothing was applied"));
    assert_eq!(files(&home), before, "nothing was written");
    let refused = home.run(&["--json", "overlay", "apply"], 4);
    let told: serde_json::Value = serde_json::from_slice(&refused.get_output().stdout).unwrap();
    assert_eq!((told["conflicts"].as_array().map(Vec::len), told["applied"].as_array().map(Vec::len)), (Some(2), Some(0)));
    assert_eq!(told["conflicts"][0]["path"], "/workspace/src/main.rs");
    let error: serde_json::Value = serde_json::from_slice(&refused.get_output().stderr).unwrap();
    assert_eq!(error["code"], "conflict");

    // Paths without conflict can be applied, and each conflict can be decided.
    home.ok(&["overlay", "apply", "/workspace/src/old.rs"]);
    home.ok(&["overlay", "apply", "--strategy", "theirs", "/workspace/src/main.rs"]);
    home.ok(&["overlay", "apply", "--strategy", "ours"]);
    let expected = [("README.md", "a project\n"), ("src/main.rs", "fn main() { user() }\n"), ("src/run.rs", "pub fn run() {}\n")];
    assert_eq!(files(&home), expected.map(|(name, content)| (name.to_owned(), content.to_owned())));
    home.run(&["overlay", "diff"], 1);
}

#[test]
fn discard_asks_before_dropping_everything() {
    let home = project();
    let before = files(&home);
    work(&home);
    assert!(home.error(&["overlay", "discard"], 2).contains("this discards 3 changes permanently; add `--yes`, or name paths"));
    assert!(home.error(&["overlay", "discard", "/workspace"], 2).contains("`--yes`"));
    home.ok(&["overlay", "discard", "/workspace/src/old.rs"]);
    assert_eq!(home.ok(&["cat", "/workspace/src/old.rs"]), "old\n");
    assert_eq!(home.ok(&["overlay", "diff"]), "changed  /workspace/src/main.rs\nadded    /workspace/src/run.rs\n");
    home.ok(&["overlay", "discard", "--yes"]);
    assert_eq!(home.ok(&["cat", "/workspace/src/main.rs"]), "fn main() {}\n");
    home.run(&["overlay", "discard", "--yes"], 1);
    assert_eq!(files(&home), before);
}

#[test]
fn overlay_is_private_to_a_thread_unless_shared() {
    let home = project();
    home.ok(&["write", "/workspace/mine.md", "default's"]);
    home.run(&["--thread", "other", "cat", "/workspace/mine.md"], 3);
    home.run(&["--thread", "other", "overlay", "diff"], 1);
    home.put("treehold.toml", "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"repo\"\noverlay = { namespace = \"{user}\" }\n");
    home.ok(&["write", "/workspace/ours.md", "the user's"]);
    assert_eq!(home.ok(&["--thread", "other", "cat", "/workspace/ours.md"]), "the user's");
    home.run(&["--user", "bob", "cat", "/workspace/ours.md"], 3);
}

#[test]
fn paths_outside_every_overlay_are_refused() {
    let home = Home::new();
    assert!(home.error(&["overlay", "diff"], 2).contains("no route is an overlay"));
    let home = project();
    home.ok(&["write", "/plain.md", "x"]);
    assert!(home.error(&["overlay", "diff", "/plain.md"], 2).contains("is not in an overlay; there is one at `/workspace`"));
    home.run(&["overlay", "diff", "/"], 1);
}

#[test]
fn configuration_selects_the_store_of_an_overlay() {
    let home = project();
    home.ok(&["config", "check"]);
    let shown = home.ok(&["config", "show"]);
    assert!(shown.contains("[routes.\"/workspace\".overlay]\nnamespace = \"{tenant}/{user}/{thread}\"\nstore = \"default\"\n"), "{shown}");
    let again = home.put("again.toml", &shown);
    home.ok(&["config", "check", again.to_str().unwrap()]);
    work(&home);
    assert!(home.ok(&["store", "ls"]).contains("default/default/_treehold/overlays/default/%2Fworkspace\n"));
    let faults = [
        ("[routes.\"/\"]\ntype = \"state\"\n[routes.\"/\".overlay]\n", "needs no overlay"),
        ("[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\n[routes.\"/w\".overlay]\nstore = \"defualt\"\n", "did you mean `default`?"),
        ("[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\n[routes.\"/w\".overlay]\nnamespace = \"{usr}\"\n", "usr"),
        ("[routes.\"/w\"]\ntype = \"filesystem\"\nroot = \".\"\n[routes.\"/w\".overlay]\nstor = \"default\"\n", "did you mean `store`?"),
    ];
    for (text, told) in faults {
        home.put("treehold.toml", text);
        assert!(home.error(&["config", "check"], 2).contains(told), "{text}");
    }
    home.put("treehold.toml", "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"_treehold/overlays/{user}\"\n");
    assert!(home.error(&["config", "check"], 2).contains("names `_treehold`, which is reserved"));
}

#[test]
fn doctor_checks_the_rows_of_an_overlay() {
    let home = project();
    work(&home);
    let told = home.ok(&["doctor"]);
    assert!(told.contains("route /workspace: filesystem, an overlay\n"), "{told}");
    assert!(told.lines().any(|line| line.contains("changes /workspace: ") && line.ends_with("rows can be read")), "{told}");
}

/// Regression: the changes were counted twice against the quota of the route, so an overlay that was over half full could not be applied.
#[test]
fn overlay_within_its_quota_can_be_applied() {
    for quota in ["files_max = 5", "bytes_max = 20"] {
        let home = Home::new();
        let route = "[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"{tenant}//m\"\n[routes.\"/m\".overlay]\n";
        home.put("treehold.toml", format!("{route}[routes.\"/m\".quota]\n{quota}\n"));
        for name in ["a", "b", "c"] {
            home.ok(&["write", &format!("/m/{name}"), "12345"]);
        }
        home.ok(&["overlay", "apply", "--dry-run"]);
        home.ok(&["overlay", "apply"]);
        home.run(&["overlay", "diff"], 1);
        assert_eq!(home.ok(&["cat", "/m/a", "/m/b", "/m/c"]), "123451234512345");
        for name in ["d", "e", "f"] {
            home.command(&["write", &format!("/m/{name}"), "12345"]).output().unwrap();
        }
        home.error(&["cat", "/m/f"], 3);
    }
}
