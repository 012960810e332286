//! `run`: executing transcripts and printing the answers as a model sees them.

use super::Home;
use std::path::{Path, PathBuf};

#[test]
fn run_prints_each_call_and_its_answer() {
    let home = Home::new();
    let calls = concat!(
        r#"{"tool": "write_file", "args": {"path": "/a.md", "content": "one\ntwo\n"}}"#,
        "\n",
        r#"{"tool": "read_file", "id": "call-2", "args": {"path": "/a.md", "limit": 1}}"#,
        "\n",
    );
    let played = home.with_stdin(&["run", "-"], calls.as_bytes()).code(0);
    insta::assert_snapshot!("run_text", String::from_utf8_lossy(&played.get_output().stdout));
    assert_eq!(String::from_utf8_lossy(&played.get_output().stderr), "treehold: 2 calls, 0 failed\n");
    assert_eq!(home.ok(&["cat", "/a.md"]), "one\ntwo\n", "the thread is saved");
    let lines = home.with_stdin(&["--jsonl", "run", "-"], calls.as_bytes()).code(0);
    let last: serde_json::Value = serde_json::from_slice(lines.get_output().stdout.split(|byte| *byte == b'\n').nth(1).unwrap()).unwrap();
    assert_eq!((&last["tool"], &last["id"], &last["line"]), (&"read_file".into(), &"call-2".into(), &2.into()));
    let all = home.with_stdin(&["--json", "run", "-"], calls.as_bytes()).code(0);
    let all: serde_json::Value = serde_json::from_slice(&all.get_output().stdout).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 2);
}

#[test]
fn run_continues_after_a_failed_call_and_exits_nonzero() {
    let home = Home::new();
    let calls = concat!(
        r#"{"tool": "read_file", "args": {"path": "/missing.md"}}"#,
        "\nno json\n",
        r#"{"tool": "fly", "args": {}}"#,
        "\n",
        r#"{"tool": "write_file", "args": {"path": "/a.md", "content": "one"}}"#,
        "\n",
    );
    let played = home.with_stdin(&["run", "-"], calls.as_bytes()).code(3);
    assert!(String::from_utf8_lossy(&played.get_output().stdout).contains("error [not_found]"));
    let told = String::from_utf8_lossy(&played.get_output().stderr).into_owned();
    assert!(told.contains("line 2") && told.contains("3 calls, 3 failed"), "{told}");
    assert_eq!(home.ok(&["cat", "/a.md"]), "one");
    home.with_stdin(&["run", "--allow-errors", "-"], calls.as_bytes()).code(0);
    home.run(&["run", "missing.jsonl"], 3);
}

#[test]
fn invalid_lines_are_reported_and_fail_the_run() {
    let home = Home::new();
    for (line, told) in [
        (r#"{"tool": "ls", "arguments": {}}"#, "line 2: unknown key `arguments` beside `tool`"),
        (r#"{"thread": 7}"#, "line 2: `thread` is a number"),
        (r#"{"note": "no call"}"#, "line 2: neither a call nor a recorded message; it has `note`"),
    ] {
        let calls = format!("{{\"role\": \"user\", \"content\": \"hello\"}}\n{line}\n");
        let played = home.with_stdin(&["run", "-"], calls.as_bytes()).code(2).stdout("");
        let stderr = String::from_utf8_lossy(&played.get_output().stderr).into_owned();
        assert!(stderr.contains(told) && stderr.contains("0 calls, 1 failed"), "{stderr}");
    }
}

#[test]
fn run_switches_threads() {
    let home = Home::new();
    let calls = concat!(
        r#"{"tool": "write_file", "args": {"path": "/a.md", "content": "default"}}"#,
        "\n",
        r#"{"thread": "t2"}"#,
        "\n",
        r#"{"tool": "read_file", "args": {"path": "/a.md"}}"#,
        "\n",
        r#"{"tool": "write_file", "args": {"path": "/a.md", "content": "t2"}}"#,
        "\n",
        r#"{"thread": "default"}"#,
        "\n",
        r#"{"tool": "read_file", "args": {"path": "/a.md"}}"#,
        "\n",
    );
    let played = home.with_stdin(&["--json", "run", "-"], calls.as_bytes()).code(3);
    let played: serde_json::Value = serde_json::from_slice(&played.get_output().stdout).unwrap();
    let threads: Vec<&str> = played.as_array().unwrap().iter().map(|call| call["thread"].as_str().unwrap()).collect();
    assert_eq!(threads, ["default", "t2", "t2", "default"]);
    assert!(played[3]["text"].as_str().unwrap().contains("default"));
    assert_eq!(home.ok(&["--thread", "t2", "cat", "/a.md"]), "t2");
    assert_eq!(home.ok(&["cat", "/a.md"]), "default");
}

#[test]
fn shipped_transcripts_match_their_documented_answers() {
    let home = Home::new();
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let memory = examples.join("transcripts/memory.jsonl");
    let first = home.run(&["run", memory.to_str().unwrap()], 0);
    insta::assert_snapshot!("run_memory", String::from_utf8_lossy(&first.get_output().stdout));
    home.run(&["run", memory.to_str().unwrap()], 0);
    let review = home.run(&["run", examples.join("transcripts/review.json").to_str().unwrap()], 0);
    insta::assert_snapshot!("run_review", String::from_utf8_lossy(&review.get_output().stdout));
}

#[test]
fn shipped_coding_transcript_changes_a_copy() {
    let home = Home::new();
    let examples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let config = home.put("examples/coding.toml", std::fs::read(examples.join("coding.toml")).unwrap());
    copy(&examples.join("fixtures/greeter"), &home.work().join("target/greeter"));
    let story = examples.join("transcripts/coding.jsonl");
    let played = home.run(&["--config", config.to_str().unwrap(), "run", "--allow-errors", story.to_str().unwrap()], 0);
    insta::assert_snapshot!("run_coding", String::from_utf8_lossy(&played.get_output().stdout));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn tools_are_exported_in_every_format() {
    let home = Home::new();
    for (format, name) in [("anthropic", "/0/name"), ("openai", "/0/function/name"), ("mcp", "/0/name")] {
        let tools = home.json(&["tools", "--format", format]);
        assert_eq!(tools.pointer(name).unwrap(), "ls", "{format}");
    }
    assert_eq!(home.ok(&["--jsonl", "tools"]).lines().count(), home.json(&["tools"]).as_array().unwrap().len());
    home.run(&["tools", "--format", "other"], 2);
}
