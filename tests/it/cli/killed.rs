//! Killed runs of `treehold run`: every call that was answered is found again.

use super::{Home, binary};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// Starts a run on one thread that reads its calls from standard input.
fn play(home: &Home, thread: &str) -> Child {
    let mut command = Command::new(binary());
    command.args(["--jsonl", "--thread", thread, "run", "-"]).current_dir(home.work());
    command.env("TREEHOLD_DATA", home.data()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn path(number: usize) -> String {
    format!("/d{}/f{}", number % 7, number % 31)
}

fn content(thread: &str, number: usize) -> String {
    format!("{thread} {number}\n").repeat(1 + number % 50)
}

/// Sends calls from `first` on, and kills the run after some answers. Returns how many calls were answered.
fn killed(mut child: Child, thread: &str, first: usize, answers: usize) -> usize {
    let mut stdin = child.stdin.take().unwrap();
    let of_thread = thread.to_owned();
    let writer = std::thread::spawn(move || {
        for number in first.. {
            let arguments = serde_json::json!({"path": path(number), "content": content(&of_thread, number)});
            let call = serde_json::json!({"tool": "write_file", "args": arguments});
            // Writing fails once the run was killed.
            if writeln!(stdin, "{call}").is_err() {
                return;
            }
        }
    });
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut answered = 0;
    let mut count = |line: String| {
        assert!(!line.contains("not saved yet"), "{line}");
        answered += usize::from(serde_json::from_str::<serde_json::Value>(&line).is_ok());
    };
    lines.by_ref().take(answers).for_each(&mut count);
    child.kill().unwrap();
    child.wait().unwrap();
    // Answers written before the kill count too.
    lines.for_each(count);
    writer.join().unwrap();
    answered
}

#[test]
fn answered_calls_of_two_killed_runs_are_kept() {
    let home = Home::new();
    let mut next = [0; 2];
    for round in 0..5_usize {
        let threads = ["one", "two"];
        let children = threads.map(|thread| play(&home, thread));
        let readers: Vec<_> = children
            .into_iter()
            .zip(threads)
            .enumerate()
            .map(|(index, (child, thread))| {
                let first = next[index];
                let answers = 1 + (round * 13 + index * 7) % 23;
                std::thread::spawn(move || killed(child, thread, first, answers))
            })
            .collect();
        for (index, reader) in readers.into_iter().enumerate() {
            let (thread, answered) = (threads[index], reader.join().unwrap());
            assert!(answered > 0);
            let acknowledged = next[index] + answered;
            // Each file has the newest answered write, or the one in progress when the run was killed.
            let newest =
                |end: usize, file: usize| (0..end).rev().find(|number| path(*number) == path(file)).map(|number| content(thread, number));
            for file in acknowledged.saturating_sub(12)..acknowledged {
                let found = home.ok(&["--thread", thread, "cat", &path(file)]);
                let expected = [newest(acknowledged, file), newest(acknowledged + 1, file)];
                assert!(expected.contains(&Some(found)), "{thread}, call {file} of {acknowledged}");
            }
            let listed = home.ok(&["--thread", thread, "glob", "/d*/f*"]);
            let paths: std::collections::BTreeSet<String> = (0..acknowledged).map(path).collect();
            assert!(paths.iter().all(|path| listed.lines().any(|line| line == path)), "{paths:?} of {listed}");
            // A call that was saved but not answered is repeated.
            next[index] = acknowledged;
        }
    }
}
