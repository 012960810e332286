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

/// Starts a play that reads the thread, and waits for more on standard input.
fn play(home: &Home) -> Child {
    let mut child = spawn(home, &["--jsonl", "run", "-"]);
    let stdin = child.stdin.as_mut().unwrap();
    writeln!(stdin, r#"{{"tool": "write_file", "args": {{"path": "/a.md", "content": "played"}}}}"#).unwrap();
    child
}

#[test]
fn play_continues_from_a_concurrently_saved_state() {
    let home = Home::new();
    home.ok(&["write", "/start.md", "start"]);
    let mut child = play(&home);
    // Once the play's answer can be read, it has read the thread; then another command saves it.
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

#[test]
fn play_that_changed_another_mount_is_set_aside_after_a_concurrent_save() {
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
    assert_eq!(output.status.code(), Some(4), "{told}");
    let record: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!((&record["code"], &record["may_have_effect"]), (&"conflict".into(), &true.into()));
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned();
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!((&last["is_error"], &last["unsaved"]), (&true.into(), &true.into()), "the model sees the failure too");
    assert_eq!((&last["error"]["code"], &last["error"]["may_have_effect"]), (&"conflict".into(), &true.into()));
    assert_eq!(home.ok(&["cat", "/memories/a.md", "/a.md", "/b.md"]), "playedplayedmeanwhile");
    let message = record["message"].as_str().unwrap();
    let aside = message.rsplit('`').nth(1).unwrap();
    assert_eq!(home.ok(&["--thread", aside, "ls"]), "memories/\nstart.md\nworkspace/\n", "{message}");
}

/// Regression: a play whose threads could not be saved ended with "0 failed".
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
        assert_eq!(
            (&played["is_error"], &played["unsaved"], &played["error"]["may_have_effect"]),
            (&true.into(), &true.into(), &true.into())
        );
    }
    assert_eq!(home.ok(&["cat", "/a.md"]), "one");
}

#[cfg(unix)]
#[test]
fn interrupted_play_exits_with_130_and_saves_no_partial_call() {
    let home = Home::new();
    home.ok(&["write", "/start.md", "start"]);
    let mut child = play(&home);
    let mut answer = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    // Waiting closes the play's input, which would end it as well.
    let stdin = child.stdin.take();
    let status = child.wait().unwrap();
    drop(stdin);
    assert_eq!(status.code(), Some(130));
    assert_eq!(home.ok(&["ls"]), "a.md\nmemories/\nstart.md\nworkspace/\n", "answered calls were saved");
    assert_eq!(home.ok(&["cat", "/a.md"]), "played");
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
