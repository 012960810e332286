//! An agent's cage: what governs its tree, and what would run its code, is not changed through the tree.

use super::Home;
use std::path::Path;

const HOST: &str = "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"/\"\n";

/// The file that was found mounted the host for the next command.
#[test]
fn a_configuration_that_was_not_trusted_is_told_of_and_not_used() {
    let home = Home::new();
    std::fs::write(home.work().join("stratafs.toml"), HOST).unwrap();
    std::fs::write(home.work().join("here"), "x").unwrap();
    let output = home.command(&["ls", "/workspace"]).assert().code(0).get_output().clone();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "here\nstratafs.toml\n");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("`stratafs.toml` is not trusted and not used; it mounts the directory `/` at `/workspace`"), "{told}");
    assert!(told.contains("run `stratafs config trust`") && told.lines().count() == 1, "{told}");
    home.run(&["--quiet", "ls", "/workspace"], 0).stderr("");
    assert!(home.run(&["config", "trust", "--show"], 1).get_output().stdout.starts_with(b"stratafs.toml is not trusted; it mounts"));
    assert_eq!(home.json(&["--json", "config", "trust"])["state"], "trusted");
    home.run(&["ls", "/workspace/tmp"], 0).stderr("");
    assert!(home.ok(&["config", "trust", "--list"]).ends_with("work/stratafs.toml\n"));

    std::fs::write(home.work().join("stratafs.toml"), format!("{HOST}read_only = true\n")).unwrap();
    let changed = home.error(&["ls", "/"], 5);
    assert!(changed.contains("changed since it was trusted") && changed.contains("at `/workspace`, read-only"), "{changed}");
    home.ok(&["config", "check"]);
    home.ok(&["config", "trust", "--revoke"]);
    assert_eq!(home.ok(&["--quiet", "ls", "/workspace"]), "here\nstratafs.toml\n");
    home.run(&["config", "trust", "--revoke"], 1);

    // Another directory with the same text is another file, and one that is named is trusted by that.
    home.ok(&["config", "trust"]);
    let other = home.put("other/stratafs.toml", HOST);
    let told = home.command(&["ls", "/workspace"]).current_dir(other.parent().unwrap()).assert().code(0).get_output().clone();
    assert_eq!(String::from_utf8(told.stdout).unwrap(), "stratafs.toml\n");
    assert!(String::from_utf8(told.stderr).unwrap().contains("is not trusted"));
    home.run(&["ls", "/workspace/tmp", "--config", other.to_str().unwrap()], 0);
    home.command(&["ls", "/workspace/tmp"]).env("STRATAFS_CONFIG", &other).assert().code(0);
    std::fs::write(home.work().join("stratafs.toml"), "[routs]\n").unwrap();
    assert!(home.error(&["config", "trust"], 2).contains("did you mean `routes`"));
}

#[test]
fn a_configuration_that_was_just_made_is_trusted_until_it_changes() {
    let home = Home::new();
    home.ok(&["config", "init"]);
    home.run(&["ls", "/"], 0).stderr("");
    let mut text = std::fs::read_to_string(home.work().join("stratafs.toml")).unwrap();
    text.push_str("# mine\n");
    std::fs::write(home.work().join("stratafs.toml"), text).unwrap();
    assert!(home.error(&["ls", "/"], 5).contains("config trust"));
    home.ok(&["config", "trust"]);
    home.ok(&["ls", "/"]);
}

/// Returns what lies beneath a directory: names, and contents of files that are not those of a store.
fn held(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut held = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            if path.is_dir() && !path.is_symlink() {
                waiting.push(path);
            } else if !name.contains("stratafs.db") && !name.contains("audit") {
                held.push((name, std::fs::read(&path).unwrap_or_default()));
            }
        }
    }
    held.sort();
    held
}

/// Every command and tool that changes something, asked to change everything that governs the tree.
#[test]
fn no_door_changes_what_governs_the_tree() {
    let home = Home::new();
    let config = "data = \"data\"\n[layers]\naudit = \"logs/audit.jsonl\"\n[peers.ada]\nurl = \"https://ada.invalid\"\ntoken = \
                  \"file:keys/ada\"\n[stores.default]\nurl = \"sqlite:db/stratafs.db\"\n[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \".\"\n[protected]\nexcept = [\"/workspace\"]\n";
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
    let trusted = home.work().join("stratafs.toml");
    std::fs::write(&trusted, config).unwrap();
    // The data directory of this command lies in the tree too.
    let data = home.work().join("data");
    let command = |args: &[&str]| {
        let mut command = home.command(args);
        command.env("STRATAFS_DATA", &data);
        command
    };
    command(&["config", "trust"]).assert().code(0);
    command(&["write", "/a", "x"]).assert().code(0);
    let own = home.work().join("conf/own.toml");
    for (args, targets) in [
        (&[][..], &["stratafs.toml", "data", "data/trusted/x", "db/stratafs.db", "db/stratafs.db-wal", "logs/audit.jsonl", "keys/ada"][..]),
        (
            &["--config", own.to_str().unwrap()],
            &["conf/own.toml", "link/own.toml", "stratafs.toml", "STRATAFS.toml", "data/trusted/x", "keys/ada"],
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
        command(args).args(["cat", "/workspace/stratafs.toml"]).assert().code(0);
        command(args).args(["write", "/workspace/plain", "x"]).assert().code(0);
    }
}

/// Changes that run code wait in an overlay, and are applied where somebody names them.
#[test]
fn an_overlay_applies_what_runs_code_only_where_it_is_named() {
    let home = Home::new();
    std::fs::create_dir_all(home.work().join("repo/.git/hooks")).unwrap();
    home.put("stratafs.toml", "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"repo\"\n[routes.\"/workspace\".overlay]\n");
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
fn what_runs_code_is_refused_with_its_reason_and_allowed_by_the_configuration() {
    let home = Home::new();
    home.put(".git/config", "[core]\n");
    for path in ["/workspace/.git/config", "/workspace/.GIT/config", "/workspace/sub/.envrc", "/workspace/git~1/config"] {
        let refused = home.error(&["write", path, "x"], 5);
        assert!(refused.contains(path) && refused.contains("`except` under `[protected]`"), "{refused}");
    }
    assert_eq!(home.ok(&["cat", "/workspace/.git/config"]), "[core]\n");
    home.ok(&["write", "/.git/config", "rows and threads run nothing"]);
    home.put("stratafs.toml", "[protected]\nalso = [\"Justfile\"]\nexcept = [\".envrc\", \"/workspace/fixtures\"]\n");
    home.ok(&["write", "/workspace/sub/.envrc", "x"]);
    home.ok(&["write", "/workspace/fixtures/.git/config", "x"]);
    home.run(&["write", "/workspace/justfile", "x"], 5);
    std::fs::write(home.work().join("stratafs.toml"), "[protected]\nalso = [\"a//b\"]\n").unwrap();
    assert!(home.error(&["config", "check"], 2).contains("stratafs.toml:2:"));
}

/// The example of the help made a token that reads every thread.
#[test]
fn the_examples_of_token_make_the_tokens_that_they_show() {
    let home = Home::new();
    let help = home.ok(&["token", "--help"]);
    let examples: Vec<Vec<&str>> = help
        .lines()
        .filter_map(|line| line.trim().strip_prefix("stratafs token create "))
        .map(|rest| ["token", "create"].into_iter().chain(rest.split_whitespace()).collect())
        .collect();
    assert_eq!(examples.len(), 2, "{help}");
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
    home.command(&["token", "ls"]).env("STRATAFS_THREAD", "monday").assert().code(0);
}
