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
    assert!(home.error(&["tail", "/notes/README.md"], 2).contains("`treehold cat PATH --offset N`"));
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
