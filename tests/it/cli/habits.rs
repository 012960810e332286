//! Habits of other programs are understood, and errors name flags and near paths.

use super::Home;

fn home() -> Home {
    let home = Home::new();
    home.ok(&["write", "/notes/README.md", "1\n2\n3\n4\n5\n6\n"]);
    home.ok(&["write", "/notes/.hidden", "x\n"]);
    home
}

#[test]
fn options_of_other_programs_are_understood() {
    let home = home();
    for (typed, meant) in [
        (&["ls", "-la", "/notes"][..], &["ls", "-l", "/notes"][..]),
        (&["ls", "-A", "-1", "/notes"], &["ls", "/notes"]),
        (&["ls", "-lh", "/notes"], &["ls", "-l", "/notes"]),
        (&["ls", "-l", "-h", "/notes"], &["ls", "-l", "/notes"]),
        (&["ls", "-ld", "/notes"], &["ls", "--long", "--directory", "/notes"]),
        (&["grep", "-E", "3|4", "/notes"], &["grep", "-e", "3|4", "/notes"]),
        (&["grep", "-rnE", "3|4", "/notes"], &["grep", "-e", "3|4", "/notes"]),
        (&["log", "-n", "1", "/notes/README.md"], &["log", "--limit", "1", "/notes/README.md"]),
        (&["tree", "-a", "/notes"], &["tree", "/notes"]),
        (&["head", "-2", "/notes/README.md"], &["head", "-n", "2", "/notes/README.md"]),
        (&["find", "/", "-name", "*.md"], &["find", "/", "--name", "*.md"]),
        (
            &["find", "/", "-iname", "readme*", "-type", "f", "-print"],
            &["find", "/", "--ignore-case", "--name", "readme*", "--kind", "file"],
        ),
        (&["find", "/notes", "-type", "d"], &["find", "/notes", "--kind", "directory"]),
        (&["grep", "-rnH", "3", "/notes"], &["grep", "3", "/notes"]),
        (&["help", "checkpoint", "ls"], &["checkpoint", "ls", "--help"]),
        (&["help"], &["--help"]),
    ] {
        let meant = home.command(meant).output().unwrap();
        let typed = home.command(typed).output().unwrap();
        assert_eq!((typed.status, typed.stdout), (meant.status, meant.stdout));
    }
    home.ok(&["cp", "-r", "/notes", "/copied"]);
    home.ok(&["cp", "-a", "/notes", "/again"]);
    assert_eq!(home.ok(&["ls", "/copied"]), ".hidden\nREADME.md\n");
    home.ok(&["rm", "-rf", "/copied"]);
    home.ok(&["rm", "-R", "/again"]);
    assert_eq!(home.ok(&["find", "/", "-iname", "readme*"]), "/notes/README.md\n");
    assert!(home.error(&["find", "/", "-maxdepth", "1"], 2).contains("tip: `treehold tree --depth N` descends N levels"));
    for (args, tip) in [
        (&["tail", "/notes/README.md"][..], "`treehold cat PATH --offset N`"),
        (&["history"], "`treehold log PATH` lists the versions"),
        (&["thread", "switch", "x"], "`--thread ID` or `TREEHOLD_THREAD=ID`"),
        (&["checkpoint", "create", "-m", "x"], "`--label TEXT` names the checkpoint"),
        (&["restore", "/notes"], "tip: `treehold restore PATH --at MOMENT`"),
        (&["log"], "tip: `treehold log PATH` lists the versions"),
    ] {
        let error = home.error(args, 2);
        assert!(error.contains(tip), "{args:?}: {error}");
    }
}

#[test]
fn files_and_several_directories_are_listed() {
    let home = home();
    home.ok(&["write", "/plan.md", "12"]);
    home.ok(&["mkdir", "/notes/inner"]);
    for (args, expected) in [
        (&["ls", "/plan.md"][..], "/plan.md\n"),
        (&["ls", "-d", "/notes", "/plan.md"], "/notes/\n/plan.md\n"),
        (&["ls", "/notes"], ".hidden\nREADME.md\ninner/\n"),
        (&["ls", "/notes", "/plan.md", "/notes/inner"], "/plan.md\n\n/notes:\n.hidden\nREADME.md\ninner/\n\n/notes/inner:\n"),
    ] {
        assert_eq!(home.ok(args), expected, "{args:?}");
    }
    assert!(home.ok(&["ls", "-l", "/plan.md"]).starts_with("-          2 "));
    let whole = home.json(&["ls", "/notes", "/plan.md", "--json"]);
    let paths: Vec<&str> = whole["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/plan.md", "/notes/.hidden", "/notes/README.md", "/notes/inner"]);
    assert!(home.error(&["ls", "/notes", "/none"], 3).contains("`/none` does not exist"));
}

/// A pattern that finds nothing because it is literal is said to be literal.
#[test]
fn search_for_nothing_says_what_may_be_wrong() {
    let home = home();
    for (args, told) in [
        (&["grep", "Post(gres|greSQL)", "/notes"][..], Some("PATTERN was taken literally; `-e` makes it a regular expression")),
        (&["grep", "^1", "/notes"], Some("PATTERN was taken literally")),
        (&["grep", "-F", "a|b", "/notes"], None),
        (&["grep", "-e", "^x", "/notes"], None),
        (&["grep", "-q", "a|b", "/notes"], None),
        (&["grep", "1.", "/notes"], None),
        (&["glob", "/note/*.md"], Some("`/note` does not exist; did you mean `/notes`?")),
        (&["glob", "/notes/*.rs"], None),
        (&["glob", "**/*.rs"], None),
    ] {
        let output = home.run(args, 1).get_output().clone();
        let said = String::from_utf8(output.stderr).unwrap();
        match told {
            Some(told) => assert!(said.contains(told), "{args:?}: {said}"),
            None => assert_eq!(said, "", "{args:?}"),
        }
    }
}

#[test]
fn host_paths_are_answered_with_the_command_that_takes_them() {
    let home = home();
    home.put("host.txt", "x");
    home.put("host/a.md", "x");
    for (args, code, told) in [
        (&["cp", "host.txt", "/notes/"][..], 2, "`treehold write /notes/host.txt < host.txt`"),
        (&["mv", "host.txt", "/x.txt"], 2, "`treehold write /x.txt < host.txt`"),
        (&["cp", "host", "/notes/"], 2, "`treehold import host /notes/`"),
        (&["cp", "/notes/README.md", "out.md"], 2, "`treehold cat /notes/README.md > out.md`"),
        (&["cp", "none.txt", "/notes/"], 2, "a path of the tree starts with `/`"),
        #[cfg(unix)]
        (&["import", "host.txt", "/x.md"], 2, "`treehold write /x.md < host.txt`"),
        #[cfg(unix)]
        (&["import", "nosuch", "/x"], 3, "`nosuch` does not exist on this machine"),
        #[cfg(unix)]
        (&["export", "/notes/README.md", "out.md"], 2, "`treehold cat /notes/README.md > out.md`"),
    ] {
        let error = home.error(args, code);
        assert!(error.contains(told), "{args:?}: {error}");
    }
}

#[test]
fn unified_diff_is_refused_by_name() {
    let home = home();
    home.put("git.diff", "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n");
    home.put("plain.diff", "\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n");
    home.put("other.diff", "--- a\nno patch\n");
    for file in ["git.diff", "plain.diff"] {
        assert!(home.error(&["patch", file], 2).contains("this is a unified diff"), "{file}");
    }
    assert!(home.error(&["patch", "other.diff"], 2).contains("'*** Begin Patch'"));
}

#[test]
fn errors_speak_of_flags_and_not_of_the_library() {
    let home = home();
    home.ok(&["write", "/twice", "a a"]);
    for (args, code, expected) in [
        (&["edit", "/twice", "a", "b"][..], 4, "or add `--all`"),
        (&["rm", "/notes"], 2, "add `-r` to remove it with its content"),
        (&["write", "--new", "/twice", "x"], 4, "leave `--new` out to replace it"),
        (&["cp", "/twice", "/notes/README.md"], 4, "add `--force` to replace it"),
        (&["mv", "/twice", "/notes/README.md"], 4, "add `--force` to replace it"),
        (&["cat", "/notes"], 2, "`treehold ls` lists it"),
        (&["cat", "notes"], 2, "a path of the tree starts with `/`"),
    ] {
        let error = home.error(args, code);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}

#[test]
fn near_paths_are_suggested_for_a_missing_one() {
    let home = home();
    for (args, near) in [
        (&["cat", "/notes/REDME.md"][..], "`/notes/README.md`"),
        (&["ls", "/note"], "`/notes`"),
        (&["cat", "/README.md"], "`/notes/README.md`"),
        (&["edit", "/notes/readme.md", "1", "2"], "`/notes/README.md`"),
        (&["cp", "/notes/README", "/x"], "`/notes/README.md`"),
    ] {
        let error = home.error(args, 3);
        assert!(error.contains(&format!("did you mean {near}?")), "{args:?}: {error}");
    }
    let error: serde_json::Value = serde_json::from_str(&home.error(&["cat", "/notes/REDME.md", "--json"], 3)).unwrap();
    assert_eq!((error["code"].as_str(), error["path"].as_str()), (Some("not_found"), Some("/notes/REDME.md")));
    // As of a checkpoint, names of that state are suggested.
    home.ok(&["rm", "/notes/README.md"]);
    assert!(home.error(&["cat", "/notes/REDME.md", "--at", "~1"], 3).contains("did you mean `/notes/README.md`?"));
    assert!(!home.error(&["cat", "/notes/REDME.md"], 3).contains("did you mean"));
}

#[test]
fn short_help_goes_where_it_is_expected() {
    let home = Home::new();
    let help = home.ok(&["-h"]);
    assert!(help.lines().count() <= 24 && help.contains("treehold help COMMAND"), "{help}");
    assert_eq!(home.error(&[], 2), help);
    assert!(!home.ok(&["ls", "-h"]).contains("--tenant"));
    assert!(home.ok(&["ls", "--help"]).contains("--tenant"));
}
