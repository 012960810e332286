//! Exit codes, errors as JSON, and closed pipes.

use super::{Home, binary};
use std::io::Read;
use std::process::{Command, Stdio};

#[test]
fn each_exit_code_has_one_meaning() {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/fixed\"]\ntype = \"filesystem\"\nroot = \".\"\nread_only = true\n");
    home.ok(&["write", "/a", "a"]);
    let table: [(&[&str], i32); 14] = [
        (&["cat", "/a"], 0),
        (&["glob", "*.none"], 1),
        (&["grep", "absent"], 1),
        (&["cat"], 2),
        (&["fly"], 2),
        (&["cat", "relative"], 2),
        (&["cat", "/../a"], 2),
        (&["cat", "/fixed"], 2),
        (&["tree", "/a"], 2),
        (&["cat", "/missing"], 3),
        (&["write", "--new", "/a", "b"], 4),
        (&["edit", "/a", "absent", "b"], 4),
        (&["write", "/fixed/a", "b"], 5),
        (&["--config", "missing.toml", "ls"], 3),
    ];
    for (args, code) in table {
        home.run(args, code);
    }
}

#[test]
fn failing_tier_has_its_own_exit_code() {
    let home = Home::new();
    std::fs::create_dir_all(home.data()).unwrap();
    std::fs::write(home.data().join("treehold.db"), "this is no database, and long enough to be none".repeat(100)).unwrap();
    home.put("a", "still here");
    let error = home.error(&["cat", "/memories/a"], 6);
    assert!(error.contains("the store `default`"), "{error}");
    home.run(&["ls", "/"], 6);
    home.run(&["write", "/a", "never an empty thread"], 6);
    assert_eq!(home.ok(&["cat", "/workspace/a"]), "still here", "a command on another tier needs no store");
}

#[test]
fn errors_are_one_json_object_with_json_output() {
    let home = Home::new();
    home.ok(&["write", "/a", "x x"]);
    for flag in ["--json", "--jsonl"] {
        let record = |args: &[&str], code: i32| -> serde_json::Value {
            let all: Vec<&str> = [flag].iter().chain(args).copied().collect();
            let text = home.error(&all, code);
            assert_eq!(text.lines().count(), 1, "{text}");
            serde_json::from_str(&text).unwrap()
        };
        let missing = record(&["cat", "/missing"], 3);
        assert_eq!((&missing["code"], &missing["path"]), (&"not_found".into(), &"/missing".into()));
        let ambiguous = record(&["edit", "/a", "x", "y"], 4);
        assert_eq!((&ambiguous["code"], &ambiguous["lines"]), (&"ambiguous".into(), &serde_json::json!([1, 1])));
        assert_eq!(record(&["write", "--if-version", "1", "/a", "y"], 4)["code"], "conflict");
        assert_eq!(record(&["cat", "relative"], 2)["code"], "invalid_path");
        assert_eq!(record(&["fly"], 2)["code"], "invalid_argument");
    }
}

#[test]
fn errors_name_the_path_on_standard_error() {
    let home = Home::new();
    assert_eq!(home.error(&["cat", "/memories/a"], 3), "treehold: `/memories/a` does not exist\n");
    assert_eq!(home.error(&["cat", "a"], 2), "treehold: a path of the tree starts with `/`; `treehold ls /` lists what there is\n");
}

#[test]
fn closed_pipe_ends_the_command_quietly() {
    let home = Home::new();
    home.put("large.txt", "a line of some length\n".repeat(500_000));
    for args in [&["cat", "/workspace/large.txt"][..], &["grep", "line", "/workspace"], &["--jsonl", "grep", "line", "/workspace"]] {
        let mut command = Command::new(binary());
        command.args(args).current_dir(home.work()).env("TREEHOLD_DATA", home.data());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut start = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut start).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn change_is_kept_when_standard_output_is_closed() {
    let home = Home::new();
    let mut command = Command::new(binary());
    command.args(["--json", "write", "/a", "one"]).current_dir(home.work()).env("TREEHOLD_DATA", home.data());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    assert_eq!(home.ok(&["cat", "/a"]), "one");
}
