//! The notice that a command waits for a lock of another process.
//!
//! Each test holds a lock, waits until a command reports it, and releases the lock.

use super::{Home, binary};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStderr, Command, Stdio};

fn spawn(home: &Home, args: &[&str]) -> Child {
    let mut command = Command::new(binary());
    command.args(args).current_dir(home.work()).env("TREEHOLD_DATA", home.data());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Reads what a command reports up to the notice. A command that gives up before closes the pipe.
fn notice(child: &mut Child) -> (String, BufReader<ChildStderr>) {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.starts_with("treehold: waiting for the lock of "), "{line}");
    (line, stderr)
}

/// Holds the lock of the writers of a database.
fn held(home: &Home) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(home.data().join("treehold.db")).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    connection
}

#[test]
fn wait_for_a_writer_of_the_store_is_reported_once() {
    let home = Home::new();
    home.ok(&["write", "/memories/a", "x"]);
    let lock = held(&home);
    // Two stores' worth of work: the file, and the checkpoint.
    let mut child = spawn(&home, &["-v", "write", "/plan.md", "y"]);
    // What may not print a notice waits for the same lock.
    let silent: Vec<(Child, &[&str])> = [
        &["--json", "write", "/memories/json", "y"][..],
        &["--jsonl", "--verbose", "write", "/memories/lines", "y"],
        &["--quiet", "write", "/memories/quiet", "y"],
        &["write", "/memories/piped", "y"],
    ]
    .into_iter()
    .map(|args| (spawn(&home, args), args))
    .collect();
    let (line, mut rest) = notice(&mut child);
    let store = home.data().join("treehold.db");
    assert_eq!(line, format!("treehold: waiting for the lock of sqlite:{}, which another process holds…\n", store.display()));
    lock.execute_batch("ROLLBACK").unwrap();
    let mut more = String::new();
    rest.read_to_string(&mut more).unwrap();
    assert!(child.wait().unwrap().success() && !more.contains("waiting") && more.contains("write `/plan.md`"), "{more}");
    for (child, args) in silent {
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && !told.contains("waiting"), "{args:?}: {told}");
    }
    assert_eq!(home.ok(&["cat", "/plan.md"]), "y");
}

#[test]
fn several_waits_of_one_command_are_reported_once() {
    let home = Home::new();
    home.ok(&["write", "/memories/a", "x"]);
    let lock = held(&home);
    let mut run = spawn(&home, &["-v", "run", "-"]);
    let (mut calls, mut answers) = (run.stdin.take().unwrap(), BufReader::new(run.stdout.take().unwrap()));
    let mut call = |path: &str| {
        writeln!(calls, "{{\"tool\": \"write_file\", \"args\": {{\"path\": \"{path}\", \"content\": \"x\"}}}}").unwrap();
    };
    call("/memories/first");
    let (_, mut rest) = notice(&mut run);
    lock.execute_batch("ROLLBACK").unwrap();
    // Once the first call is answered, the second one waits as well, and so does a command that reports it.
    let mut answer = String::new();
    while !answer.contains("/memories/first") {
        assert!(answers.read_line(&mut answer).unwrap() > 0, "{answer}");
    }
    let lock = held(&home);
    call("/memories/second");
    let mut other = spawn(&home, &["-v", "write", "/memories/other", "x"]);
    let (_, _rest) = notice(&mut other);
    lock.execute_batch("ROLLBACK").unwrap();
    drop(calls);
    let mut more = String::new();
    rest.read_to_string(&mut more).unwrap();
    assert!(run.wait().unwrap().success() && !more.contains("waiting"), "{more}");
    assert!(other.wait().unwrap().success());
    assert_eq!(home.ok(&["cat", "/memories/second"]), "x");
}

#[cfg(feature = "sled")]
#[test]
fn wait_for_a_sled_store_is_reported() {
    let home = Home::new();
    home.put("treehold.toml", "[stores.default]\nurl = \"sled:rows\"\n[routes.\"/\"]\ntype = \"state\"\n");
    let held = treehold::SledStore::open(home.work().join("rows")).unwrap();
    let mut child = spawn(&home, &["-v", "ls", "/"]);
    let (line, _rest) = notice(&mut child);
    assert!(line.contains("sled:") && line.contains("rows, which another process holds"), "{line}");
    drop(held);
    assert!(child.wait().unwrap().success());
}

#[cfg(unix)]
#[test]
fn wait_for_a_directory_of_the_host_is_reported() {
    use rustix::fs::{FlockOperation, flock};
    let home = Home::new();
    let directory = std::fs::File::open(home.work()).unwrap();
    flock(&directory, FlockOperation::LockExclusive).unwrap();
    let mut child = spawn(&home, &["-v", "write", "/workspace/a.txt", "x"]);
    let (line, _rest) = notice(&mut child);
    assert_eq!(line, "treehold: waiting for the lock of the directory of `a.txt`, which another process holds…\n");
    flock(&directory, FlockOperation::Unlock).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(home.ok(&["cat", "/workspace/a.txt"]), "x");
}

#[cfg(unix)]
#[test]
fn wait_is_reported_on_a_terminal_without_being_asked_for() {
    use super::terminal::at_terminal_watched;
    let home = Home::new();
    home.ok(&["write", "/memories/a", "x"]);
    let mut lock = Some(held(&home));
    let release = move |shown: &str| {
        if shown.contains("waiting for the lock of sqlite:") {
            // Dropping the connection rolls back.
            lock.take();
        }
    };
    let (shown, code) = at_terminal_watched(&home, &[], &["write", "/memories/b", "y"], release);
    assert!(code == 0 && shown.matches("waiting").count() == 1, "{shown}");
    assert_eq!(home.ok(&["cat", "/memories/b"]), "y");
}
