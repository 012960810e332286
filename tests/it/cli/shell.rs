//! `shell`: commands in a current directory of the tree.

use super::Home;

fn run(home: &Home, commands: &str) -> String {
    home.ok(&["shell", "-c", commands])
}

#[test]
fn paths_are_relative_to_the_current_directory() {
    let home = Home::new();
    home.put("src/main.rs", "fn main() {}\n");
    assert_eq!(run(&home, "pwd; cd memories; pwd; cd ..; pwd; cd /workspace/src; cd -; pwd; cd; pwd"), "/\n/memories\n/\n/\n/\n");
    run(&home, "cd /memories; write a.md one; mkdir d; cp a.md d/; mv d/a.md d/b.md; append ./d/../d/b.md two");
    assert_eq!(home.ok(&["cat", "/memories/a.md"]), "one");
    assert_eq!(run(&home, "cd memories/d; cat b.md; ls; ls ..; cat ../a.md"), "onetwob.md\na.md\nd/\none");
    // Without a path, a command works on the current directory.
    assert_eq!(run(&home, "cd /memories/d; ls; grep -l two"), "b.md\n/memories/d/b.md\n");
    assert!(run(&home, "cd /memories; diff a.md d/b.md; pwd").starts_with("--- /memories/a.md\n+++ /memories/d/b.md\n"));
}

/// The exit code is that of the last command, and errors do not end the shell.
#[test]
fn errors_do_not_end_the_shell_unless_asked() {
    let home = Home::new();
    for (commands, args, code, printed) in [
        ("cat none; pwd", &[][..], 0, "/\n"),
        ("pwd; cat none", &[], 3, "/\n"),
        ("cat none; pwd", &["-e"], 3, ""),
        ("ls --nonsense; pwd", &[], 0, "/\n"),
        ("exit; pwd", &[], 0, ""),
        ("cat none; exit", &[], 3, ""),
        ("exit 7; pwd", &[], 7, ""),
        ("pwd; cd none; pwd", &[], 0, "/\n/\n"),
        ("cd none", &[], 3, ""),
        ("write a x; cd a", &[], 2, ""),
        ("pwd > out", &[], 2, ""),
        ("pwd 'a", &[], 2, ""),
        ("shell", &[], 2, ""),
        ("mcp", &[], 2, ""),
        ("serve", &[], 2, ""),
        ("--data x ls", &[], 2, ""),
        ("rm -r ''; pwd", &[], 0, "/\n"),
    ] {
        let output = home.command(&[&["shell", "-c", commands], args].concat()).output().unwrap();
        assert_eq!(
            (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
            (Some(code), printed),
            "{commands}: {output:?}"
        );
    }
    home.command(&["--config", "none.toml", "shell", "-c", "pwd"]).assert().code(3).stdout("");
}

#[test]
fn script_runs_line_by_line() {
    let home = Home::new();
    let script = "# a script\ncd /memories\nwrite a.md 'one\ntwo'\n\n  cat a.md; pwd\ncat none\nls";
    home.with_stdin(&["shell"], script.as_bytes()).code(0).stdout("one\ntwo/memories\na.md\n");
    home.with_stdin(&["shell", "-e"], script.as_bytes()).code(3).stdout("one\ntwo/memories\n");
    home.with_stdin(&["shell"], b"pwd\nls 'a\n").code(2).stdout("/\n");
    home.with_stdin(&["shell"], b"").code(0).stdout("");
    // A command does not take the rest of the script for content.
    for command in ["write a.md", "write a.md -", "append a.md", "run -", "patch", "store import", "store put n k"] {
        let told = home.with_stdin(&["shell", "-e"], format!("{command}\npwd\n").as_bytes()).code(2);
        assert!(String::from_utf8_lossy(&told.get_output().stderr).contains("has the commands of the shell"), "{command}");
    }
}

#[test]
fn options_of_the_shell_hold_for_commands_without_their_own() {
    let home = Home::new();
    let commands = "write a mine; --thread other write b theirs; ls; ls --thread other; --json pwd; ls";
    let printed = home.ok(&["--thread", "monday", "shell", "-c", commands]);
    assert!(
        printed.starts_with("a\nmemories/\nworkspace/\nb\nmemories/\nworkspace/\n") && printed.ends_with("a\nmemories/\nworkspace/\n"),
        "{printed}"
    );
    assert_eq!(home.ok(&["--thread", "monday", "cat", "/a"]), "mine");
    assert_eq!(home.ok(&["--thread", "other", "cat", "/b"]), "theirs");
    assert!(home.ok(&["--json", "shell", "-c", "cat a", "--thread", "monday"]).contains("\"content\": \"mine\""));
}

/// A memory store ends with the process, so its content shows that all commands have one workspace.
#[test]
fn commands_share_one_workspace() {
    let home = Home::new();
    home.put(
        "treehold.toml",
        "[stores.default]\nurl = \"memory:\"\n[routes.\"/\"]\ntype = \"state\"\n[routes.\"/m\"]\ntype = \"store\"\nnamespace = \"n\"\n",
    );
    assert_eq!(home.ok(&["--quiet", "shell", "-c", "write /m/a one; write /b two; cat /m/a /b"]), "onetwo");
    assert_eq!(home.run(&["cat", "/m/a"], 3).get_output().stdout, b"");
}

/// What another process changes is seen by the next command.
#[cfg(target_os = "linux")]
#[test]
fn user_types_commands_on_a_terminal() {
    let home = Home::new();
    home.ok(&["write", "/memories/my notes.md", "a note\n"]);
    let start = || super::pty::Pty::start(&home, &[], &["treehold", "--thread", "monday", "shell"]);
    let mut shell = start();
    shell.until("monday:/> ");
    // Commands and paths are completed.
    shell.send("cd mem\t\n");
    shell.until("monday:/memories> ");
    shell.send("ca\tmy\t\n");
    shell.until("a note");
    shell.until("monday:/memories> ");
    // A line with an open quotation goes on.
    shell.send("write long.md 'it\n");
    shell.send("s'\n");
    // The prompt also appears while the line is drawn. Once it is complete, pasting is off until the next one.
    shell.until("\u{1b}[?2004l");
    shell.until("monday:/memories> ");
    assert_eq!(home.ok(&["cat", "/memories/long.md"]), "it\ns");
    shell.send("cat none\n");
    shell.until("treehold:");
    shell.until("monday:/memories> ");
    home.ok(&["write", "/memories/other.md", "from elsewhere\n"]);
    shell.send("cat other.md\n");
    shell.until("from elsewhere");
    shell.until("monday:/memories> ");
    // Ctrl-C ends the command and not the shell, and drops a line that is being written.
    shell.send("watch / --after 0\n");
    shell.until("other.md");
    shell.send("\u{3}");
    shell.until("monday:/memories> ");
    shell.send("cat nonsense\u{3}");
    shell.until("monday:/memories> ");
    shell.send("cat none\n");
    shell.until("treehold:");
    shell.until("monday:/memories> ");
    shell.send("\u{4}");
    assert_eq!(shell.ended().code(), Some(3));
    // The history is kept.
    let mut shell = start();
    shell.until("monday:/> ");
    shell.send("\u{1b}[A\u{1b}[A");
    shell.until("watch / --after 0");
    shell.send("\u{3}");
    shell.until("monday:/> ");
    shell.send("exit 4\n");
    assert_eq!(shell.ended().code(), Some(4));
}
