//! Completion: what the program offers for the words on a line, and what shells make of it.

use super::Home;
use std::collections::BTreeMap;
use std::path::Path;

/// Runs the completion of words with environment variables. Returns the candidates. It must print no error.
fn offered_with(home: &Home, variables: &[(&str, &str)], words: &[&str]) -> Vec<String> {
    let mut command = home.command(&[&["--", "treehold"], words].concat());
    command.env("TREEHOLD_COMPLETE", "elvish").env("TREEHOLD_COMPLETE_WAIT", "60s").envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn offered(home: &Home, words: &[&str]) -> Vec<String> {
    offered_with(home, &[], words)
}

/// A home with files in two tiers, two threads and a checkpoint.
fn home() -> Home {
    let home = Home::new();
    home.put("src/main.rs", "fn main() {}\n");
    home.ok(&["write", "/plan.md", "old"]);
    home.ok(&["write", "/memories/notes.md", "an older note\n"]);
    home.ok(&["write", "/memories/notes.md", "a note\n"]);
    home.ok(&["write", "/memories/my notes; x.md", "mine\n"]);
    home.ok(&["checkpoint", "create", "--label", "before"]);
    home.ok(&["--thread", "monday", "write", "/tea.md", "tea"]);
    home.ok(&["--user", "ada", "write", "/memories/ada.md", "hers"]);
    home
}

#[test]
fn candidates_follow_the_words_on_the_line() {
    let home = home();
    home.ok(&["rm", "/plan.md"]);
    let config = home.put("two.toml", "[stores.one]\nurl = \"sqlite:one.db\"\n[stores.two]\nurl = \"memory:\"\n[routes.\"/\"]\ntype = \"state\"\n[routes.\"/two\"]\ntype = \"store\"\nstore = \"two\"\nnamespace = \"n\"\n[threads]\nstore = \"one\"\n[events]\nstore = \"one\"\n");
    let config = config.to_str().unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["ca"], &["cat"]),
        (&["help", "ca"], &["cat"]),
        (&["man", "ca"], &["cat"]),
        (&["checkpoint", "sh"], &["show"]),
        (&["cat", "--off"], &["--offset"]),
        // Paths of the tree, not of the host.
        (&["cat", "/me"], &["/memories/"]),
        (&["cat", "sr"], &[]),
        (&["cat", ""], &["/memories/", "/workspace/"]),
        (&["cat", "/memories/"], &["/memories/my notes; x.md", "/memories/notes.md"]),
        (&["cat", "/memories/n"], &["/memories/notes.md"]),
        (&["cat", "/memories/notes.md", "/workspace/s"], &["/workspace/src/"]),
        (&["cat", "/none/"], &[]),
        (&["cat", "/memories/notes.md/"], &[]),
        // Host paths where the argument is one.
        (&["import", "sr"], &["src/"]),
        (&["import", "src", "/me"], &["/memories/"]),
        (&["export", "/me"], &["/memories/"]),
        (&["export", "/memories", "sr"], &["src/"]),
        (&["--config", "tw"], &["two.toml"]),
        // The options on the line hold.
        (&["--thread", "monday", "cat", "/t"], &["/tea.md"]),
        (&["cat", "--thread=monday", "/t"], &["/tea.md"]),
        (&["--user", "ada", "cat", "/memories/"], &["/memories/ada.md"]),
        (&["--config", config, "cat", "/"], &["/two/"]),
        (&["cat", "/pl"], &[]),
        (&["cat", "--at", "before", "/pl"], &["/plan.md"]),
        (&["restore", "--at", "before", "/pl"], &["/plan.md"]),
        // Threads, checkpoints, stores and routes.
        (&["--thread", ""], &["default", "monday"]),
        (&["ls", "--thread", "mon"], &["monday"]),
        (&["ls", "--thread=mon"], &["--thread=monday"]),
        (&["thread", "rm", "m"], &["monday"]),
        (&["checkpoint", "restore", "be"], &["before"]),
        (&["checkpoint", "diff", "be"], &["before"]),
        (&["checkpoint", "diff", "/me"], &["/memories/"]),
        (&["diff", "/memories/notes.md@be"], &["/memories/notes.md@before"]),
        (&["ls", "--at", "be"], &["before"]),
        (&["cat", "/memories/notes.md@be"], &["/memories/notes.md@before"]),
        // An id has no digits; `@v` alone may begin the id of a checkpoint as well.
        (&["cat", "/memories/notes.md@v1"], &["/memories/notes.md@v1"]),
        (&["cat", "/memories/notes.md@v2"], &["/memories/notes.md@v2"]),
        (&["cat", "/memories/notes.md", "--at", "~"], &["~1"]),
        (&["st"], &["status", "stat", "state", "store"]),
        (&["store", "stats", "--store", ""], &["default"]),
        (&["--config", config, "store", "copy", ""], &["default", "one", "two"]),
        (&["--config", config, "store", "index", "/t"], &["/two"]),
    ];
    for (words, expected) in table {
        assert_eq!(offered(&home, words), *expected, "{words:?}");
    }
    let versions = offered(&home, &["cat", "/memories/notes.md@v"]);
    assert_eq!(versions[..2], ["/memories/notes.md@v2", "/memories/notes.md@v1"], "{versions:?}");
    let environment = [("TREEHOLD_THREAD", "monday"), ("TREEHOLD_USER", "default")];
    assert_eq!(offered_with(&home, &environment, &["cat", "/t"]), ["/tea.md"]);
    assert_eq!(offered_with(&home, &[("TREEHOLD_CONFIG", config)], &["store", "stats", "--store", "t"]), ["two"]);
}

#[test]
fn checkpoints_are_offered_by_label_and_by_short_ids_that_name_them() {
    let home = home();
    let found = offered(&home, &["checkpoint", "show", ""]);
    assert_eq!(found[0], "before");
    assert!(found.len() > 2 && found[1..].iter().all(|id| id.len() == 8), "{found:?}");
    for id in &found {
        home.ok(&["checkpoint", "show", id]);
    }
    assert_eq!(offered(&home, &["checkpoint", "show", &found[1][..4]]), [found[1].clone()]);
}

/// Every file beneath a directory with its content.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        match path.is_dir() {
            true => {
                all.extend(files(&path));
                all.insert(name, Vec::new());
            }
            false => drop(all.insert(name, std::fs::read(&path).unwrap())),
        }
    }
    all
}

#[test]
fn completion_creates_nothing() {
    let lines: &[&[&str]] = &[
        &["cat", "/"],
        &["cat", "/made/"],
        &["cat", "/rows/"],
        &["--thread", ""],
        &["checkpoint", "show", ""],
        &["session", "show", ""],
        &["store", "stats", "--store", ""],
    ];
    let config = "[stores.default]\nurl = \"sqlite:{data}/a.db\"\n[stores.rows]\nurl = \"sled:rows\"\n[routes.\"/\"]\ntype = \"state\"\n\
        [routes.\"/rows\"]\ntype = \"store\"\nstore = \"rows\"\nnamespace = \"n\"\n[routes.\"/made\"]\ntype = \"filesystem\"\nroot = \"made\"\n\
        create_root = true\n[layers]\naudit = \"audit.jsonl\"\n[traces.internal]\nurl = \"sqlite:internal.db\"\n";
    let home = Home::new();
    home.put("named.toml", config);
    let before = files(home.work().parent().unwrap());
    for words in lines {
        offered(&home, words);
        offered(&home, &[&["--config", "named.toml"], *words].concat());
    }
    assert_eq!(offered(&home, &["cat", "/w"]), ["/workspace/"], "what exists is offered");
    assert_eq!(files(home.work().parent().unwrap()), before);
    // Neither where there is something already.
    home.ok(&["write", "/memories/a.md", "a"]);
    let before: Vec<String> = files(home.work().parent().unwrap()).into_keys().collect();
    for words in lines {
        offered(&home, words);
    }
    assert_eq!(files(home.work().parent().unwrap()).into_keys().collect::<Vec<_>>(), before);
}

#[test]
fn faults_are_not_told_into_the_line() {
    let home = Home::new();
    home.put("broken.toml", "[routes");
    std::fs::write(home.work().join("treehold.toml"), "[routes.\"/\"]\ntype = \"state\"\n").unwrap();
    for words in [
        &["cat", "/x"][..],
        &["--config", "broken.toml", "cat", "/x"],
        &["--config", "none.toml", "cat", "/x"],
        &["--thread", "a/b\u{1b}", "cat", "/x"],
        &["cat", "--at", "none", "/x"],
        &["cat", "--nonsense", "/x"],
        &["nonsense", "/x"],
        &["cat", "/x\u{1b}"],
    ] {
        assert_eq!(offered(&home, words), Vec::<String>::new(), "{words:?}");
    }
    // A file that is not trusted is not used, and the rest is.
    assert_eq!(offered(&home, &["cat", "/w"]), ["/workspace/"]);
    home.command(&[]).env("TREEHOLD_COMPLETE", "bash").assert().success().stdout("").stderr("");
}

#[test]
fn names_that_control_a_terminal_are_not_offered() {
    let home = Home::new();
    home.ok(&["write", "/a\u{202e}b.md", "x"]);
    home.ok(&["write", "/ac.md", "x"]);
    assert_eq!(offered(&home, &["cat", "/a"]), ["/ac.md"]);
}

/// A configuration that never can be read stands for a store or server that does not answer.
#[cfg(unix)]
#[test]
fn completion_does_not_wait_for_what_hangs() {
    let home = Home::new();
    let pipe = home.work().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let words = ["--config", pipe.to_str().unwrap(), "cat"];
    let hangs = offered_with(&home, &[("TREEHOLD_COMPLETE_WAIT", "10ms")], &[&words[..], &["/"]].concat());
    assert_eq!(hangs, Vec::<String>::new());
    assert_eq!(offered_with(&home, &[("TREEHOLD_COMPLETE_WAIT", "10ms")], &[&words[..], &["--off"]].concat()), ["--offset"]);
}

#[test]
fn large_directory_is_listed_in_part_and_from_the_prefix() {
    let home = Home::new();
    for number in 0..1_200 {
        home.put(&format!("large/f{number:04}"), "");
    }
    assert_eq!(offered(&home, &["cat", "/workspace/large/"]).len(), 500);
    let found = offered(&home, &["cat", "/workspace/large/f119"]);
    assert_eq!(found, (1190..1200).map(|number| format!("/workspace/large/f{number:04}")).collect::<Vec<_>>());
}

/// Starts a shell with the completion of this program.
#[cfg(target_os = "linux")]
fn shell(home: &Home, program: &[&str], load: &str) -> super::pty::Pty {
    let mut shell = super::pty::Pty::start(home, &[("PS1", "READY> ")], program);
    shell.send(load);
    shell.send("echo LOAD''ED\n");
    shell.until("LOADED");
    shell
}

/// Types lines with tabs into a shell. The commands print what the completed names name.
#[cfg(target_os = "linux")]
fn complete_in(mut shell: super::pty::Pty) {
    for (line, printed) in [
        ("treehold cat /mem\tno\t\n", "a note"),
        // The name has a space and a semicolon.
        ("treehold cat /memories/my\t\n", "mine"),
        ("treehold cat --thread mon\t/te\t\n", "tea"),
        ("treehold cat --thread=mon\t /te\t\n", "tea"),
        ("treehold che\tsh\tbef\t\n", "label"),
    ] {
        shell.send(line);
        shell.until(printed);
    }
    shell.send("exit\n");
    shell.ended();
}

#[cfg(target_os = "linux")]
#[test]
fn bash_completes() {
    let home = home();
    let script = home.put("completion.bash", home.ok(&["completions", "bash"]));
    let load = format!("source {}\n", script.display());
    complete_in(shell(&home, &["bash", "--norc", "--noprofile", "-i"], &load));
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs zsh: .ci/run installs it"]
fn zsh_completes() {
    let home = home();
    let script = home.put("completion.zsh", home.ok(&["completions", "zsh"]));
    let load = format!("autoload -U compinit; compinit -u -D; source {}\n", script.display());
    complete_in(shell(&home, &["zsh", "-f", "-i"], &load));
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs fish: .ci/run installs it"]
fn fish_completes() {
    let home = home();
    let script = home.put("completion.fish", home.ok(&["completions", "fish"]));
    let load = format!("source {}\n", script.display());
    complete_in(shell(&home, &["fish", "--no-config", "-i"], &load));
}
