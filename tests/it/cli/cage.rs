//! Containment of an agent: the files that govern its tree, and files that run as code, cannot be changed through the
//! tree.

use super::Home;
use std::path::Path;

const HOST: &str = "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"/\"\n";

/// Regression: a configuration file that lay in the working directory could mount the whole host.
#[test]
fn untrusted_configuration_is_reported_and_not_used() {
    let home = Home::new();
    std::fs::write(home.work().join("treehold.toml"), HOST).unwrap();
    std::fs::write(home.work().join("here"), "x").unwrap();
    let output = home.command(&["ls", "/workspace"]).assert().code(0).get_output().clone();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "here\ntreehold.toml\n");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("`treehold.toml` is not trusted and not used; it mounts the directory `/` at `/workspace`"), "{told}");
    assert!(told.contains("run `treehold config trust`") && told.lines().count() == 1, "{told}");
    home.run(&["--quiet", "ls", "/workspace"], 0).stderr("");
    assert!(home.run(&["config", "trust", "--show"], 1).get_output().stdout.starts_with(b"treehold.toml is not trusted; it mounts"));
    assert_eq!(home.json(&["--json", "config", "trust"])["state"], "trusted");
    home.run(&["ls", "/workspace/tmp"], 0).stderr("");
    assert!(home.ok(&["config", "trust", "--list"]).ends_with("work/treehold.toml\n"));

    std::fs::write(home.work().join("treehold.toml"), format!("{HOST}read_only = true\n")).unwrap();
    let changed = home.error(&["ls", "/"], 5);
    assert!(changed.contains("changed since it was trusted") && changed.contains("at `/workspace`, read-only"), "{changed}");
    home.ok(&["config", "check"]);
    home.ok(&["config", "trust", "--revoke"]);
    assert_eq!(home.ok(&["--quiet", "ls", "/workspace"]), "here\ntreehold.toml\n");
    home.run(&["config", "trust", "--revoke"], 1);

    // The same text in another directory is another file. A file that is named explicitly is trusted.
    home.ok(&["config", "trust"]);
    let other = home.put("other/treehold.toml", HOST);
    let told = home.command(&["ls", "/workspace"]).current_dir(other.parent().unwrap()).assert().code(0).get_output().clone();
    assert_eq!(String::from_utf8(told.stdout).unwrap(), "treehold.toml\n");
    assert!(String::from_utf8(told.stderr).unwrap().contains("is not trusted"));
    home.run(&["ls", "/workspace/tmp", "--config", other.to_str().unwrap()], 0);
    home.command(&["ls", "/workspace/tmp"]).env("TREEHOLD_CONFIG", &other).assert().code(0);
    std::fs::write(home.work().join("treehold.toml"), "[routs]\n").unwrap();
    assert!(home.error(&["config", "trust"], 2).contains("did you mean `routes`"));
}

#[test]
fn configuration_above_the_current_directory_is_used() {
    let home = Home::new();
    home.put("sub/deep/file", "x");
    let inner = home.work().join("sub/deep");
    let inside = |args: &[&str], code: i32| home.command(args).current_dir(&inner).assert().code(code).get_output().clone();
    assert_eq!(inside(&["ls", "/workspace"], 0).stdout, b"file\n");
    home.put("treehold.toml", "[routes.\"/repo\"]\ntype = \"filesystem\"\nroot = \".\"\n");
    assert_eq!(inside(&["ls", "/repo"], 0).stdout, b"sub/\ntreehold.toml\n", "its paths start where it lies");
    assert!(inside(&["config", "check"], 0).stdout.ends_with(b"work/treehold.toml is valid\n"));
    inside(&["config", "trust", "--revoke"], 0);
    let told = inside(&["ls", "/workspace"], 0);
    assert!(
        told.stdout == b"file\n" && String::from_utf8(told.stderr).unwrap().contains("work/treehold.toml` is not trusted and not used")
    );
    inside(&["config", "trust"], 0);
    assert_eq!(inside(&["ls", "/repo/sub"], 0).stdout, b"deep/\n");
    // A nearer one counts, and a directory of that name is none.
    std::fs::create_dir(home.work().join("sub/treehold.toml")).unwrap();
    assert_eq!(inside(&["ls", "/repo/sub"], 0).stdout, b"deep/\ntreehold.toml/\n");
    home.put("sub/deep/treehold.toml", "[routes.\"/here\"]\ntype = \"filesystem\"\nroot = \".\"\n");
    inside(&["config", "trust"], 0);
    assert_eq!(inside(&["ls", "/here"], 0).stdout, b"file\ntreehold.toml\n");
}

#[test]
fn several_stores_without_a_default_are_warned_of() {
    let home = Home::new();
    home.put("treehold.toml", "[stores.a]\nurl = \"sqlite:none/a.db\"\n");
    let told = |home: &Home| String::from_utf8(home.run(&["config", "check"], 0).get_output().stderr.clone()).unwrap();
    assert!(told(&home).contains("the directory of the store `a`") && !told(&home).contains("none is `default`"), "{}", told(&home));
    home.put("treehold.toml", "[stores.a]\nurl = \"sqlite:a.db\"\n[stores.b]\nurl = \"sqlite:b.db\"\n");
    assert!(told(&home).contains("several stores are named and none is `default`"), "{}", told(&home));
    home.put("treehold.toml", "[stores.a]\nurl = \"sqlite:a.db\"\n[stores.default]\nurl = \"sqlite:b.db\"\n");
    assert_eq!(told(&home), "");
}

#[test]
fn new_configuration_is_trusted_until_it_changes() {
    let home = Home::new();
    home.ok(&["config", "init"]);
    home.run(&["ls", "/"], 0).stderr("");
    let mut text = std::fs::read_to_string(home.work().join("treehold.toml")).unwrap();
    text.push_str("# mine\n");
    std::fs::write(home.work().join("treehold.toml"), text).unwrap();
    assert!(home.error(&["ls", "/"], 5).contains("config trust"));
    home.ok(&["config", "trust"]);
    home.ok(&["ls", "/"]);
}

/// Returns everything below a directory: names, and contents except those of store files.
fn held(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut held = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            if path.is_dir() && !path.is_symlink() {
                waiting.push(path);
            } else if !name.contains("treehold.db") && !name.contains("audit") {
                held.push((name, std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    held.sort();
    held
}

/// Every command and tool that changes something, asked to change everything that governs the tree.
#[test]
fn no_command_or_tool_changes_files_that_govern_the_tree() {
    let home = Home::new();
    let config = "data = \"data\"\n[layers]\naudit = \"logs/audit.jsonl\"\n[peers.ada]\nurl = \"https://ada.invalid\"\ntoken = \
                  \"file:keys/ada\"\n[stores.default]\nurl = \"sqlite:db/treehold.db\"\n[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \".\"\n[protected]\nexcept = [\"/workspace\"]\n";
    home.put("keys/ada", "0123456789abcdef");
    home.put("logs/keep", "");
    home.put("db/keep", "");
    home.put(
        "conf/own.toml",
        config
            .replace("\"data\"", "\"../data\"")
            .replace("= \".\"", "= \"..\"")
            .replace("logs/", "../logs/")
            .replace("db/", "../db/")
            .replace("file:keys", "file:../keys"),
    );
    home.put("plain", "x");
    std::os::unix::fs::symlink("conf", home.work().join("link")).unwrap();
    let trusted = home.work().join("treehold.toml");
    std::fs::write(&trusted, config).unwrap();
    // The data directory of this command lies in the tree too.
    let data = home.work().join("data");
    let command = |args: &[&str]| {
        let mut command = home.command(args);
        command.env("TREEHOLD_DATA", &data);
        command
    };
    command(&["config", "trust"]).assert().code(0);
    command(&["write", "/a", "x"]).assert().code(0);
    let own = home.work().join("conf/own.toml");
    for (args, targets) in [
        (&[][..], &["treehold.toml", "data", "data/trusted/x", "db/treehold.db", "db/treehold.db-wal", "logs/audit.jsonl", "keys/ada"][..]),
        (
            &["--config", own.to_str().unwrap()],
            &["conf/own.toml", "link/own.toml", "treehold.toml", "TREEHOLD.toml", "data/trusted/x", "keys/ada"],
        ),
    ] {
        let before = held(&home.work());
        for target in targets {
            let path = format!("/workspace/{target}");
            // The link itself governs nothing.
            let above = if target.starts_with("link") { target } else { target.split('/').next().unwrap() };
            let above = format!("/workspace/{above}");
            let patch = format!("*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch\n");
            let calls = [
                ("write_file", serde_json::json!({"path": path, "content": "x"})),
                ("edit_file", serde_json::json!({"path": path, "old_string": "a", "new_string": "b"})),
                ("delete", serde_json::json!({"path": path, "recursive": true})),
                ("delete", serde_json::json!({"path": above, "recursive": true})),
                ("move", serde_json::json!({"from": "/workspace/plain", "to": path, "overwrite": true})),
                ("move", serde_json::json!({"from": above, "to": "/workspace/moved"})),
                ("move", serde_json::json!({"from": "/a", "to": path, "overwrite": true})),
                ("apply_patch", serde_json::json!({"patch": patch})),
            ];
            let lines: String = calls.iter().map(|(tool, args)| format!("{}\n", serde_json::json!({"tool": tool, "args": args}))).collect();
            let played = command(args).args(["--jsonl", "run", "-"]).write_stdin(lines).output().unwrap();
            let answers: Vec<serde_json::Value> =
                String::from_utf8(played.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(answers.len(), calls.len(), "{}", String::from_utf8_lossy(&played.stderr));
            for (answer, call) in answers.iter().zip(&calls) {
                assert_eq!(answer["is_error"], true, "{call:?}: {answer}");
            }
            for change in [
                &["write", &path, "x"][..],
                &["append", &path, "x"],
                &["edit", &path, "a", "b"],
                &["rm", "-r", &path],
                &["rm", "-r", &above],
                &["mkdir", &path],
                &["mv", &above, "/workspace/moved"],
                &["mv", "/workspace/plain", &path],
                &["cp", "/workspace/plain", &path],
                &["cp", "/a", &path],
            ] {
                let output = command(args).args(change).write_stdin("").output().unwrap();
                assert!(!output.status.success(), "{change:?}: {output:?}");
            }
            let output = command(args).args(["patch", "-"]).write_stdin(patch).output().unwrap();
            assert!(!output.status.success(), "{path}: {output:?}");
        }
        assert_eq!(held(&home.work()), before);
        command(args).args(["cat", "/workspace/treehold.toml"]).assert().code(0);
        command(args).args(["write", "/workspace/plain", "x"]).assert().code(0);
    }
}

/// Changes to files that run as code wait in an overlay, and are applied only when they are named.
#[test]
fn overlay_applies_executable_files_only_when_named() {
    let home = Home::new();
    std::fs::create_dir_all(home.work().join("repo/.git/hooks")).unwrap();
    home.put("treehold.toml", "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"repo\"\n[routes.\"/workspace\".overlay]\n");
    home.ok(&["write", "/workspace/a.md", "x"]);
    home.ok(&["write", "/workspace/.git/hooks/pre-commit", "#!/bin/sh\n"]);
    for args in [&["overlay", "apply"][..], &["overlay", "apply", "/workspace"], &["overlay", "apply", "--dry-run"]] {
        let refused = home.error(args, 5);
        assert!(refused.contains("`/workspace/.git/hooks/pre-commit`") && refused.contains("git runs hooks"), "{refused}");
    }
    assert!(!home.work().join("repo/a.md").exists(), "nothing was applied");
    home.ok(&["overlay", "apply", "/workspace/a.md"]);
    home.ok(&["overlay", "apply", "/workspace/.git/hooks/pre-commit"]);
    assert_eq!(std::fs::read(home.work().join("repo/.git/hooks/pre-commit")).unwrap(), b"#!/bin/sh\n");
    home.run(&["overlay", "diff"], 1);
}

#[test]
fn executable_files_are_refused_with_a_reason_unless_configured() {
    let home = Home::new();
    home.put(".git/config", "[core]\n");
    for path in ["/workspace/.git/config", "/workspace/.GIT/config", "/workspace/sub/.envrc", "/workspace/git~1/config"] {
        let refused = home.error(&["write", path, "x"], 5);
        assert!(refused.contains(path) && refused.contains("`except` under `[protected]`"), "{refused}");
    }
    assert_eq!(home.ok(&["cat", "/workspace/.git/config"]), "[core]\n");
    home.ok(&["write", "/.git/config", "rows and threads run nothing"]);
    home.put("treehold.toml", "[protected]\nalso = [\"Justfile\"]\nexcept = [\".envrc\", \"/workspace/fixtures\"]\n");
    home.ok(&["write", "/workspace/sub/.envrc", "x"]);
    home.ok(&["write", "/workspace/fixtures/.git/config", "x"]);
    home.run(&["write", "/workspace/justfile", "x"], 5);
    std::fs::write(home.work().join("treehold.toml"), "[protected]\nalso = [\"a//b\"]\n").unwrap();
    assert!(home.error(&["config", "check"], 2).contains("treehold.toml:2:"));
}

/// Regression: the example in the help created a token that could read every thread.
#[test]
fn token_examples_create_the_tokens_they_describe() {
    let home = Home::new();
    let help = home.ok(&["token", "--help"]);
    let examples: Vec<Vec<&str>> = help
        .lines()
        .filter_map(|line| line.trim().strip_prefix("treehold token create "))
        .map(|rest| ["token", "create"].into_iter().chain(rest.split_whitespace()).collect())
        .collect();
    assert_eq!(examples.len(), 3, "{help}");
    for example in &examples {
        home.ok(example);
    }
    let listed = home.ok(&["token", "ls"]);
    assert!(
        listed.lines().any(|line| line.contains("read   default/bob  paths /memories  threads monday  ends never  used never")),
        "{listed}"
    );
    assert!(listed.lines().any(|line| line.contains("write  default/ada  paths all  threads all") && line.ends_with("laptop")), "{listed}");
    let refused = home.error(&["token", "create", "--user", "bob", "--thread", "monday"], 2);
    assert!(refused.contains("the command `token create` does not use --thread; --for-thread names"), "{refused}");
    home.command(&["token", "ls"]).env("TREEHOLD_THREAD", "monday").assert().code(0);
}
