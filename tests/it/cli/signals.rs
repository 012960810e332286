//! Signals that stop a command: what it has not finished is removed, and the exit code says which signal it was.

use super::{Home, binary};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use treehold::store::{Batch, Store};
use treehold::{Namespace, SqliteStore};

/// The signals, with the exit code of a command that each stops. Only Linux says whether a process was started with hangups ignored.
const SIGNALS: &[(Signal, i32)] = &[
    #[cfg(target_os = "linux")]
    (Signal::HUP, 129),
    (Signal::INT, 130),
    (Signal::TERM, 143),
];

/// Starts the command with hangups handled as `--default-signal=HUP` or `--ignore-signal=HUP` says, however they are handled here.
fn start_with(home: &Home, hangups: &str, args: &[&str]) -> Child {
    let mut command = Command::new(if cfg!(target_os = "linux") { Path::new("env") } else { binary() });
    if cfg!(target_os = "linux") {
        command.arg(hangups).arg(binary());
    }
    command.args(args).current_dir(home.work()).env("TREEHOLD_DATA", home.data()).env_remove("TREEHOLD_CONFIG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn start(home: &Home, args: &[&str]) -> Child {
    start_with(home, "--default-signal=HUP", args)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for the end of a command, and returns its exit code.
fn ended(mut child: Child) -> Option<i32> {
    // Waiting would close the input of the command, which could end it as well.
    let input = child.stdin.take();
    let status = child.wait().unwrap();
    drop(input);
    status.code()
}

/// Sends a call to a transcript run, and waits for its answer.
fn call(child: &mut Child, path: &str) {
    let call = serde_json::json!({"tool": "write_file", "args": {"path": path, "content": "played"}});
    writeln!(child.stdin.as_mut().unwrap(), "{call}").unwrap();
    // An answer is one line, and nothing follows it.
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
}

/// Regression: an export left the part of the archive that was written, and after a SIGTERM or SIGHUP so did every command.
#[tokio::test]
async fn stopped_command_removes_its_unfinished_file() {
    let home = Home::new();
    let rows = Namespace::new(["rows"]).unwrap();
    let names = || -> Vec<String> {
        let names = std::fs::read_dir(home.work()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("z.")).collect()
    };
    let mut filled = 0;
    for (args, target) in [
        (&["store", "export", "z.tar", "--store", "sqlite:a.db"][..], "z.tar"),
        (&["store", "snapshot", "z.db", "--store", "sqlite:a.db"], "z.db"),
        (&["shell", "-c", "store export z.tar --store sqlite:a.db"], "z.tar"),
    ] {
        for (signal, code) in SIGNALS {
            // A command may be done before the signal reaches it. Then it is tried again with a larger store.
            let mut sizes = [24_u32, 48, 96, 192].into_iter();
            loop {
                let wanted = sizes.next().unwrap_or_else(|| panic!("{args:?} was always done before {signal:?}"));
                if filled < wanted {
                    let store = SqliteStore::open(home.work().join("a.db")).unwrap();
                    for number in filled..wanted {
                        store.commit(Batch::new().put(&rows, format!("{number}"), vec![b'x'; 4 << 20])).await.unwrap();
                    }
                    filled = wanted;
                }
                let mut child = start(&home, args);
                while names().is_empty() && child.try_wait().unwrap().is_none() {
                    std::thread::yield_now();
                }
                if child.try_wait().unwrap().is_none() {
                    send(&child, *signal);
                }
                let ended = ended(child);
                if ended == Some(*code) {
                    assert_eq!(names(), Vec::<String>::new(), "{args:?} {signal:?}");
                    break;
                }
                assert_eq!((ended, names()), (Some(0), vec![target.to_owned()]), "{args:?} {signal:?}");
                std::fs::remove_file(home.work().join(target)).unwrap();
            }
        }
        home.ok(args);
        assert_eq!(names(), [target], "{args:?}");
        std::fs::remove_file(home.work().join(target)).unwrap();
    }
}

#[test]
fn stopped_transcript_run_saves_no_partial_call() {
    for (signal, code) in SIGNALS {
        let home = Home::new();
        home.ok(&["write", "/start.md", "start"]);
        let mut child = start(&home, &["--jsonl", "run", "-"]);
        call(&mut child, "/a.md");
        send(&child, *signal);
        assert_eq!(ended(child), Some(*code), "{signal:?}");
        assert_eq!(home.ok(&["ls"]), "a.md\nmemories/\nstart.md\nworkspace/\n", "answered calls were saved");
        assert_eq!(home.ok(&["cat", "/a.md"]), "played");
    }
}

#[test]
fn stopped_mirror_removes_its_files() {
    for (signal, _) in SIGNALS {
        let home = Home::new();
        home.ok(&["write", "/memories/a.md", "one\n"]);
        let mut child = start(&home, &["--jsonl", "mirror", "/memories", "../out"]);
        // The first line is printed once the directory is filled.
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        assert!(home.work().join("../out/a.md").exists());
        send(&child, *signal);
        assert_eq!(ended(child), Some(0), "{signal:?}");
        assert!(!home.work().join("../out").exists(), "{signal:?}");
    }
}

/// A handler that was installed for a command must not keep the shell alive.
#[test]
fn shell_that_waits_for_a_line_ends_when_it_is_asked_to() {
    for (signal, code) in SIGNALS.iter().filter(|(signal, _)| *signal != Signal::INT) {
        let home = Home::new();
        let mut child = start(&home, &["shell"]);
        writeln!(child.stdin.as_mut().unwrap(), "write /a one\ncat /a\npwd").unwrap();
        let mut line = String::new();
        while !line.ends_with("/\n") {
            assert!(BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap() > 0, "{line}");
        }
        send(&child, *signal);
        assert_eq!(ended(child), Some(*code), "{signal:?}");
        assert_eq!(home.ok(&["cat", "/a"]), "one");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn hangup_that_nohup_ignores_does_not_stop_a_command() {
    let home = Home::new();
    let mut child = start_with(&home, "--ignore-signal=HUP", &["--jsonl", "run", "-"]);
    call(&mut child, "/a.md");
    send(&child, Signal::HUP);
    call(&mut child, "/b.md");
    send(&child, Signal::TERM);
    assert_eq!(ended(child), Some(143));
    assert_eq!(home.ok(&["cat", "/a.md", "/b.md"]), "playedplayed");
}
