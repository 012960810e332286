//! `timeline` and `watch`: changes by this process and others.

use super::{Home, binary};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

fn lines(home: &Home, args: &[&str]) -> Vec<String> {
    let text = home.ok(&[&["--jsonl", "timeline"], args].concat());
    let shown = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        format!("{} {}", event["operation"].as_str().unwrap(), event["path"].as_str().unwrap())
    };
    text.lines().map(shown).collect()
}

#[test]
fn timeline_lists_changes_newest_first() {
    let home = Home::new();
    assert_eq!(home.run(&["timeline"], 1).get_output().stdout, b"");
    home.ok(&["write", "/memories/a.md", "one"]);
    home.ok(&["--agent", "coder", "append", "/memories/a.md", "two"]);
    home.ok(&["write", "/plan.md", "1. ask"]);
    home.ok(&["--thread", "other", "write", "/other.md", "x"]);
    home.ok(&["write", "/workspace/host.md", "x"]);
    home.ok(&["mv", "/memories/a.md", "/memories/b.md"]);
    let mine = ["rename /memories/a.md", "write /workspace/host.md", "write /plan.md", "append /memories/a.md", "write /memories/a.md"];
    assert_eq!(lines(&home, &[]), mine);
    assert_eq!(lines(&home, &["--all-threads"]).len(), 6);
    assert_eq!(lines(&home, &["/memories", "--limit", "2"]), ["rename /memories/a.md", "append /memories/a.md"]);
    assert_eq!(lines(&home, &["--since", "1d", "/plan.md"]), ["write /plan.md"]);
    let text = home.ok(&["timeline", "/memories"]);
    let append = text.lines().find(|line| line.contains("append")).unwrap();
    assert!(append.contains("  append      /memories/a.md") && append.contains("thread=default  actor=coder"), "{append}");
    let rename = text.lines().next().unwrap();
    assert!(rename.contains("/memories/a.md -> /memories/b.md"), "{rename}");
    // A page ends where the next one begins.
    let page = home.run(&["timeline", "--limit", "2"], 0);
    let notice = String::from_utf8(page.get_output().stderr.clone()).unwrap();
    let before = notice.split("--before ").nth(1).unwrap().split('`').next().unwrap().to_owned();
    assert_eq!(lines(&home, &["--before", &before]), mine[2..]);
}

#[test]
fn timeline_without_saved_events_says_how_to_save_them() {
    let home = Home::new();
    home.put("treehold.toml", "[events]\nsave = false\n[stores.default]\nurl = \"sqlite:{data}/s.db\"\n[routes.\"/\"]\ntype = \"state\"\n");
    home.ok(&["write", "/a", "x"]);
    assert!(home.error(&["timeline"], 2).contains("set `save = true` under `[events]`"));
    home.put("treehold.toml", "[events]\nkeep = \"soon\"\n");
    assert!(home.error(&["timeline"], 2).contains("`soon` is not a duration to keep events for"));
}

#[test]
fn timeline_omits_paths_hidden_by_rules() {
    let home = Home::new();
    let rule = "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"all\"]\npaths = [\"/secret/**\"]\n";
    home.ok(&["write", "/secret/a", "x"]);
    home.ok(&["write", "/open", "x"]);
    assert_eq!(lines(&home, &[]), ["write /open", "write /secret/a"]);
    home.put("treehold.toml", rule);
    assert_eq!(lines(&home, &[]), ["write /open"]);
}

/// A running `watch`, killed on drop.
struct Watching {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(home: &Home, args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.current_dir(home.work()).env("TREEHOLD_DATA", home.data()).env("HOME", home.data());
        let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn watch_reports_changes_by_other_processes() {
    let home = Home::new();
    home.ok(&["write", "/memories/first", "x"]);
    let text = home.ok(&["--jsonl", "timeline", "--limit", "1"]);
    let event: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
    let position = event["position"].as_str().unwrap();
    // Start from a position, so that it does not matter when the watch is ready.
    let mut watching = Watching::start(&home, &["--jsonl", "watch", "/memories", "--after", position, "--limit", "3"]);
    let mut resume = Vec::new();
    for name in ["a", "b", "c"] {
        home.ok(&["write", &format!("/memories/{name}"), "x"]);
        home.ok(&["write", &format!("/{name}"), "x"]);
        let line = watching.lines.next().unwrap().unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["path"], format!("/memories/{name}"));
        resume.push(event["resume"].as_str().unwrap().to_owned());
    }
    assert!(watching.child.wait().unwrap().success());
    let rest = home.ok(&["--jsonl", "watch", "/memories", "--after", &resume[1], "--limit", "1"]);
    let event: serde_json::Value = serde_json::from_str(rest.trim()).unwrap();
    assert_eq!(event["path"], "/memories/c");
}
