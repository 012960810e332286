//! `import` and `export`: whole directories, resumed after an interrupt, and never over what differs.

use super::Home;
use super::terminal::on_terminal_of;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// A directory of the host with many small files, an empty directory, a hidden file, a binary file and a link.
fn directory(home: &Home, files: usize) {
    for number in 0..files {
        home.put(&format!("notes/{}/{number:05}.md", number % 7), format!("note {number}\n"));
    }
    home.put("notes/.hidden", "hidden\n");
    home.put("notes/.gitignore", "*.log\n");
    home.put("notes/a.log", "ignored\n");
    home.put("notes/binary", b"\xff\0\xfe");
    std::fs::create_dir(home.work().join("notes/empty")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", home.work().join("notes/link")).unwrap();
}

/// A configuration with another name for the directory, so that the tree does not mount it.
fn home() -> Home {
    let home = Home::new();
    home.put("treehold.toml", "[routes.\"/\"]\ntype = \"state\"\n[routes.\"/memories\"]\ntype = \"store\"\nnamespace = \"{user}/m\"\n");
    home
}

#[test]
fn directory_comes_back_as_it_was() {
    for path in ["/notes", "/memories/notes"] {
        let home = home();
        directory(&home, 20);
        let report = home.json(&["import", "notes", path, "--json"]);
        assert_eq!((&report["files"], &report["skipped"], &report["failures_count"]), (&json!(24), &json!(1), &json!(0)), "{report}");
        let report = home.json(&["export", path, "copy", "--json"]);
        assert_eq!(report["files"], json!(24), "{path}: {report}");
        let differ = Command::new("diff").args(["-r", "--no-dereference", "notes", "copy"]).current_dir(home.work()).output().unwrap();
        assert_eq!(String::from_utf8(differ.stdout).unwrap(), "Only in notes: link\n", "{path}");
    }
}

#[test]
fn second_run_changes_nothing_and_files_that_differ_are_conflicts() {
    let home = home();
    directory(&home, 3);
    home.ok(&["import", "notes", "/notes"]);
    let before = home.ok(&["checkpoint", "ls"]);
    let report = home.json(&["import", "notes", "/notes", "--json"]);
    assert_eq!((&report["files"], &report["unchanged"]), (&json!(0), &json!(7)));
    assert_eq!(home.ok(&["checkpoint", "ls"]), before);
    home.ok(&["write", "/notes/.hidden", "mine\n"]);
    home.ok(&["rm", "/notes/binary"]);
    let output = home.run(&["import", "notes", "/notes"], 4).get_output().clone();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("`/notes/.hidden` has other content; `--force` replaces it"), "{told}");
    assert!(told.contains("imported 1 file of 3 bytes, 5 unchanged, 1 skipped as no regular files, 1 in conflict\n"), "{told}");
    assert_eq!(home.ok(&["cat", "/notes/.hidden"]), "mine\n");
    home.ok(&["import", "notes", "/notes", "--force"]);
    assert_eq!(home.ok(&["cat", "/notes/.hidden"]), "hidden\n");
    home.ok(&["export", "/notes", "copy"]);
    home.put("copy/.hidden", "edited\n");
    home.run(&["export", "/notes", "copy"], 4);
    assert_eq!(std::fs::read_to_string(home.work().join("copy/.hidden")).unwrap(), "edited\n");
}

#[test]
fn dry_run_counts_and_changes_nothing() {
    let home = home();
    directory(&home, 3);
    assert_eq!(home.json(&["import", "notes", "/notes", "--dry-run", "--json"])["files"], json!(7));
    assert_eq!(home.json(&["import", "notes", "/notes", "--dry-run", "--skip-ignored", "--json"])["files"], json!(6));
    assert_eq!(home.ok(&["ls", "/"]), "memories/\n");
    home.ok(&["import", "notes", "/notes"]);
    assert_eq!(home.json(&["export", "/notes", "copy", "--dry-run", "--json"])["files"], json!(7));
    assert!(!home.work().join("copy").exists());
}

#[test]
fn what_may_not_be_written_is_refused_and_the_rest_is_copied() {
    let home = home();
    home.ok(&["write", "/out/.envrc", "rm -rf /\n"]);
    home.ok(&["write", "/out/.git/hooks/pre-commit", "#!/bin/sh\n"]);
    home.ok(&["write", "/out/plan.md", "1\n"]);
    let report = home.run(&["export", "/out", "copy", "--json"], 5).get_output().clone();
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["files"], json!(1), "{report}");
    let refused: Vec<&str> = report["failures"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap()).collect();
    assert!(refused.contains(&"/out/.envrc") && refused.contains(&"/out/.git/hooks/pre-commit"), "{refused:?}");
    home.ok(&["write", "/out/.git/config", "[core]\n"]);
    let said = String::from_utf8(home.run(&["export", "/out", "again"], 5).get_output().stderr.clone()).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 3 && lines.iter().any(|line| line.contains(" more beneath `/out/.git`")), "{said}");
    assert!(!home.work().join("copy/.envrc").exists() && home.work().join("copy/plan.md").exists());
    // The data of the program, and what lies in it, is never written.
    let data = home.data().join("inner");
    for directory in [home.data().to_str().unwrap(), home.data().join("treehold.db").to_str().unwrap()] {
        assert!(home.error(&["export", "/out", directory], 2).contains("may not be written"));
    }
    assert!(!data.exists());
    assert!(home.error(&["import", "none", "/x"], 3).contains("`none`"));
    assert!(home.error(&["export", "/none", "copy"], 3).contains("`/none`"));
    assert!(home.error(&["export", "/out/plan.md", "copy"], 2).contains("not a directory"));
}

/// An interrupt ends the command in order after the changes in progress, and running it again does the rest.
#[test]
fn interrupted_import_continues_when_it_is_run_again() {
    let home = home();
    directory(&home, 4_000);
    let mut command = Command::new(super::binary());
    command.args(["import", "notes", "/memories/notes", "--json"]).current_dir(home.work()).env("TREEHOLD_DATA", home.data());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Interrupt it once the first files are there.
    while !home.command(&["ls", "/memories/notes"]).output().unwrap().status.success() {}
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let first: Value = serde_json::from_slice(&output.stdout).unwrap();
    let copied = first["files"].as_u64().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    if first["interrupted"] == json!(true) {
        assert_eq!(output.status.code(), Some(130), "{told}");
        assert!(told.contains("interrupted: run the command again to continue"), "{told}");
        assert!(copied < 4_004, "{first}");
    }
    let found = home.ok(&["find", "/memories/notes", "--kind", "file"]).lines().count() as u64;
    assert_eq!(found, copied, "what is reported is there");
    let second = home.json(&["import", "notes", "/memories/notes", "--json"]);
    assert_eq!((&second["unchanged"], &second["files"]), (&json!(copied), &json!(4_004 - copied)), "{second}");
}

#[test]
fn end_line_has_counts_on_a_terminal() {
    let home = home();
    directory(&home, 3);
    let shown = on_terminal_of(&home, 80, &[("NO_COLOR", "1")], &["import", "notes", "/notes"], b"");
    assert_eq!(String::from_utf8(shown).unwrap(), "treehold: imported 7 files of 45 bytes, 1 skipped as no regular files\n");
}
