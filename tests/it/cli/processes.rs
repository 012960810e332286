//! Several processes on one data directory at once.

use super::{Home, binary};
use std::io::Write;
use std::process::{Child, Command, Stdio};

fn spawn(home: &Home, args: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(args).current_dir(home.work()).env("TREEHOLD_DATA", home.data());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn concurrent_edits_of_one_memory_are_all_kept() {
    let home = Home::new();
    let slots: String = (0..8).map(|slot| format!("slot {slot}: empty\n")).collect();
    home.ok(&["write", "/memories/board.md", &slots]);
    let children: Vec<Child> = (0..8)
        .map(|slot| {
            let (old, new) = (format!("slot {slot}: empty"), format!("slot {slot}: taken"));
            spawn(&home, &["edit", "/memories/board.md", &old, &new])
        })
        .chain((0..8).map(|index| spawn(&home, &["append", "/memories/log.md", &format!("entry {index}\n")])))
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(home.ok(&["cat", "/memories/board.md"]), slots.replace("empty", "taken"));
    assert_eq!(home.ok(&["cat", "/memories/log.md"]).lines().count(), 8);
}

#[test]
fn parallel_appends_to_one_thread_are_all_kept() {
    let home = Home::new();
    let children: Vec<Child> = (0..10)
        .map(|index| spawn(&home, &["append", "/log", &format!("entry {index}\n")]))
        .chain((0..3).map(|index| spawn(&home, &["rm", "-f", &format!("/none{index}"), "/log/none"])))
        .chain((0..3).map(|index| spawn(&home, &["mkdir", &format!("/d{index}")])))
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let mut lines: Vec<String> = home.ok(&["cat", "/log"]).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, (0..10).map(|index| format!("entry {index}")).collect::<Vec<_>>());
    assert_eq!(home.ok(&["ls"]), "d0/\nd1/\nd2/\nlog\nmemories/\nworkspace/\n");
}

#[test]
fn concurrent_moves_into_one_thread_are_all_kept() {
    let home = Home::new();
    for index in 0..8 {
        home.ok(&["write", &format!("/memories/{index}"), &format!("content {index}")]);
    }
    let children: Vec<Child> = (0..8).map(|index| spawn(&home, &["mv", &format!("/memories/{index}"), &format!("/in/{index}")])).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for index in 0..8 {
        assert_eq!(home.ok(&["cat", &format!("/in/{index}")]), format!("content {index}"));
    }
    assert_eq!(home.ok(&["ls", "/memories"]), "");
}

/// Regression: a merge that lost the race for the head failed instead of merging into the new head.
#[test]
fn concurrent_merges_into_one_thread_all_succeed() {
    let home = Home::new();
    home.ok(&["write", "/start", "x"]);
    let forks: Vec<String> = (0..8).map(|index| format!("fork{index}")).collect();
    for fork in &forks {
        home.ok(&["thread", "fork", fork]);
        home.ok(&["--thread", fork, "write", &format!("/{fork}"), "x"]);
    }
    let children: Vec<Child> = forks.iter().map(|fork| spawn(&home, &["thread", "merge", fork])).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(home.ok(&["ls"]), format!("{}\nmemories/\nstart\nworkspace/\n", forks.join("\n")));
}

/// Starts a `treehold run` that reads the thread and then waits for more calls on standard input.
fn play(home: &Home) -> Child {
    let mut child = spawn(home, &["--jsonl", "run", "-"]);
    let stdin = child.stdin.as_mut().unwrap();
    writeln!(stdin, r#"{{"tool": "write_file", "args": {{"path": "/a.md", "content": "played"}}}}"#).unwrap();
    child
}

#[test]
fn transcript_run_continues_from_a_concurrently_saved_state() {
    let home = Home::new();
    home.ok(&["write", "/start.md", "start"]);
    let mut child = play(&home);
    // Once the run has answered, it has read the thread. Then another command saves the thread.
    let mut answer = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    assert_eq!(home.ok(&["write", "/b.md", "meanwhile"]), "");
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, r#"{{"tool": "move", "args": {{"from": "/a.md", "to": "/c.md"}}}}"#).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(home.ok(&["ls"]), "b.md\nc.md\nmemories/\nstart.md\nworkspace/\n");
    assert_eq!(home.ok(&["cat", "/c.md", "/b.md", "/start.md"]), "playedmeanwhilestart");
    let threads: Vec<serde_json::Value> = serde_json::from_str(&home.ok(&["--json", "thread", "ls"])).unwrap();
    assert_eq!(threads.len(), 1, "no thread is set aside");
}

/// Each call of a run opens the thread as others left it, so a save between two calls is not a conflict.
#[test]
fn transcript_run_that_changes_another_mount_continues_on_a_save_between_its_calls() {
    let home = Home::new();
    home.ok(&["write", "/start.md", "start"]);
    let mut child = play(&home);
    let mut answer = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    assert_eq!(home.ok(&["write", "/b.md", "meanwhile"]), "");
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, r#"{{"tool": "move", "args": {{"from": "/a.md", "to": "/memories/a.md"}}}}"#).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(home.ok(&["cat", "/memories/a.md", "/b.md", "/start.md"]), "playedmeanwhilestart");
    assert_eq!(home.ok(&["ls"]), "b.md\nmemories/\nstart.md\nworkspace/\n");
    let threads: Vec<serde_json::Value> = serde_json::from_str(&home.ok(&["--json", "thread", "ls"])).unwrap();
    assert_eq!(threads.len(), 1, "no thread is set aside");
}

/// Regression: a run whose threads could not be saved ended with "0 failed".
#[test]
fn commands_fail_when_their_thread_cannot_be_saved() {
    let home = Home::new();
    home.ok(&["write", "/a.md", "one"]);
    let refused = "CREATE TRIGGER refused BEFORE INSERT ON items BEGIN SELECT RAISE(ABORT, 'refused'); END";
    rusqlite::Connection::open(home.data().join("treehold.db")).unwrap().execute_batch(refused).unwrap();
    let patch = "*** Begin Patch\n*** Add File: /p.md\n+x\n*** End Patch";
    for (args, stdin) in [
        (&["write", "/b.md", "x"][..], ""),
        (&["append", "/a.md", "x"], ""),
        (&["edit", "/a.md", "one", "two"], ""),
        (&["mkdir", "/d"], ""),
        (&["mv", "/a.md", "/c.md"], ""),
        (&["cp", "/a.md", "/c.md"], ""),
        (&["rm", "/a.md"], ""),
        (&["patch"], patch),
    ] {
        let args = [&["--json"], args].concat();
        let output = home.with_stdin(&args, stdin.as_bytes()).failure().get_output().clone();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let record: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
        assert!(record["message"].as_str().unwrap().contains("not saved") && record["may_have_effect"] == true, "{args:?}: {told}");
    }
    let calls = r#"{"tool": "write_file", "args": {"path": "/b.md", "content": "x"}}"#;
    let output = home.with_stdin(&["--jsonl", "run", "-"], format!("{calls}\n{calls}\n").as_bytes()).failure().get_output().clone();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("2 calls, 2 failed"), "{told}");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let played: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&played["is_error"], &played["error"]["may_have_effect"]), (&true.into(), &true.into()));
        assert_eq!(played["unsaved"]["code"], played["error"]["code"], "{played}");
    }
    assert_eq!(home.ok(&["cat", "/a.md"]), "one");
}

#[test]
fn concurrent_overlay_changes_are_all_kept() {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"repo\"\n[routes.\"/workspace\".overlay]\n");
    let slots: String = (0..6).map(|slot| format!("slot {slot}: empty\n")).collect();
    home.put("repo/board.md", &slots);
    home.put("repo/old/file", "x");
    let children: Vec<Child> = (0..6)
        .map(|slot| {
            let (old, new) = (format!("slot {slot}: empty"), format!("slot {slot}: taken"));
            spawn(&home, &["edit", "/workspace/board.md", &old, &new])
        })
        .chain((0..6).map(|index| spawn(&home, &["append", "/workspace/new/log.md", &format!("entry {index}\n")])))
        .chain([spawn(&home, &["rm", "-r", "/workspace/old"])])
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(home.ok(&["cat", "/workspace/board.md"]), slots.replace("empty", "taken"));
    assert_eq!(home.ok(&["cat", "/workspace/new/log.md"]).lines().count(), 6);
    assert_eq!(std::fs::read_to_string(home.work().join("repo/board.md")).unwrap(), slots);
    home.ok(&["overlay", "apply"]);
    assert_eq!(std::fs::read_to_string(home.work().join("repo/board.md")).unwrap(), slots.replace("empty", "taken"));
    assert!(!home.work().join("repo/old").exists());
}
