//! Several processes on one data directory at once.

use super::{Home, binary};
use std::io::Write;
use std::process::{Child, Command, Stdio};

fn spawn(home: &Home, args: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(args).current_dir(home.work()).env("STRATAFS_DATA", home.data());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn concurrent_edits_of_one_memory_all_arrive() {
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
fn parallel_appends_to_the_state_of_one_thread_all_land() {
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
fn files_moved_into_one_thread_at_once_all_arrive() {
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
fn the_second_to_save_a_thread_is_told_and_loses_nothing() {
    let home = Home::new();
    home.ok(&["write", "/start.md", "start"]);
    let mut child = play(&home);
    // The play has read the thread once its answer is there to read; then another command saves it.
    let mut answer = [0; 1];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    assert_eq!(home.ok(&["write", "/b.md", "meanwhile"]), "");
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, r#"{{"tool": "write_file", "args": {{"path": "/c.md", "content": "too late"}}}}"#).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{told}");
    let record: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(record["code"], "conflict");
    assert!(String::from_utf8_lossy(&output.stdout).contains("is not saved yet"), "the model is told as well");
    assert_eq!(home.ok(&["ls"]), "a.md\nb.md\nmemories/\nstart.md\nworkspace/\n", "each call was saved before its answer, the last not");
    let message = record["message"].as_str().unwrap();
    let aside = message.rsplit('`').nth(1).unwrap();
    assert_eq!(home.ok(&["--thread", aside, "cat", "/a.md", "/c.md", "/start.md"]), "playedtoo latestart", "{message}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_a_play_with_130_and_saves_nothing_half() {
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
    assert_eq!(home.ok(&["ls"]), "a.md\nmemories/\nstart.md\nworkspace/\n", "what was answered was saved");
    assert_eq!(home.ok(&["cat", "/a.md"]), "played");
}

#[test]
fn changes_of_one_overlay_by_several_processes_all_arrive() {
    let home = Home::new();
    home.put("stratafs.toml", "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"repo\"\n[routes.\"/workspace\".overlay]\n");
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
