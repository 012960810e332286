//! Unreadable rows of a store: reported by name, never treated as absent, and repaired with the usual commands.

use super::Home;

const NAMESPACE: &str = "default/default/memories";

/// Files in two directories, one of them with an unreadable record.
fn with_a_bad_row() -> Home {
    let home = Home::new();
    for path in ["/memories/a.md", "/memories/d/c.md", "/memories/z.md"] {
        home.ok(&["write", path, "todo: tea\n"]);
    }
    home.ok(&["store", "put", NAMESPACE, "d%01b.md", "todo: lost"]);
    home
}

fn failing(home: &Home, args: &[&str]) -> (String, String) {
    let assert = home.run(args, 6);
    let output = assert.get_output();
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

#[test]
fn damaged_row_does_not_hide_the_others() {
    let home = with_a_bad_row();
    assert_eq!(home.ok(&["ls", "/memories"]), "a.md\nd/\nz.md\n");
    for (args, found) in [
        (&["ls", "/memories/d"][..], "c.md\n"),
        (&["glob", "*.md"], "/memories/a.md\n/memories/d/c.md\n/memories/z.md\n"),
        (&["grep", "-l", "todo"], "/memories/a.md\n/memories/d/c.md\n/memories/z.md\n"),
    ] {
        let (stdout, stderr) = failing(&home, args);
        assert_eq!(stdout, found, "{args:?}");
        assert!(stderr.contains("`/memories/d/b.md`: the stored record of this file cannot be read"), "{args:?}: {stderr}");
    }
    assert!(home.error(&["cat", "/memories/d/b.md"], 6).contains("/memories/d/b.md"));
    assert_eq!(home.ok(&["cat", "/memories/d/c.md"]), "todo: tea\n");
}

#[test]
fn damaged_row_is_never_treated_as_absent() {
    let home = with_a_bad_row();
    home.run(&["write", "--new", "/memories/d/b.md", "x"], 4);
    home.run(&["append", "/memories/d/b.md", "x"], 6);
    home.run(&["edit", "/memories/d/b.md", "todo", "x"], 6);
    home.run(&["mv", "/memories/d/b.md", "/memories/e.md"], 6);
    home.run(&["rm", "/memories/d"], 2);
    for verb in ["cp", "mv"] {
        assert!(home.error(&[verb, "/memories/d", "/workspace/d"], 6).contains("/memories/d/b.md"));
        assert!(!home.work().join("d").exists(), "nothing was transferred");
        home.run(&[verb, "/memories/d", "/memories/e"], 6);
    }
    assert_eq!(home.ok(&["store", "get", NAMESPACE, "d%01b.md"]), "todo: lost");
}

#[test]
fn doctor_names_damaged_rows_and_commands_repair_them() {
    let home = with_a_bad_row();
    home.ok(&["store", "put", NAMESPACE, "not/a/path", "x"]);
    home.ok(&["store", "put", NAMESPACE, "orphan%01file", "x"]);
    let report = failing(&home, &["doctor"]).0;
    for fault in ["`/memories/d/b.md`: the stored record", "the row `not/a/path` is not a file", "files lie beneath `/memories/orphan`"] {
        assert!(report.contains(fault), "{fault}: {report}");
    }
    let (listed, told) = failing(&home, &["ls", "/memories"]);
    assert_eq!(listed, "a.md\nd/\nz.md\n");
    assert!(told.contains("`/memories/orphan`") && told.contains("not/a/path"), "{told}");
    home.ok(&["write", "/memories/d/b.md", "anew"]);
    assert_eq!(home.ok(&["cat", "/memories/d/b.md"]), "anew");
    home.ok(&["mkdir", "/memories/orphan"]);
    home.ok(&["rm", "/memories/orphan/file"]);
    home.ok(&["store", "rm", NAMESPACE, "not/a/path"]);
    assert!(home.ok(&["doctor"]).contains("files /memories: 6 rows can be read"), "{}", home.ok(&["doctor"]));
    home.ok(&["store", "put", NAMESPACE, "d%01e.md", "x"]);
    home.ok(&["rm", "-r", "/memories/d"]);
    home.ok(&["doctor"]);
}

#[test]
fn lost_body_is_reported_with_its_file() {
    let home = with_a_bad_row();
    home.ok(&["rm", "/memories/d/b.md"]);
    let database = rusqlite::Connection::open(home.data().join("treehold.db")).unwrap();
    let lost = database.execute("UPDATE items SET size = size + 1 WHERE key = 'd' || char(1) || 'c.md'", []).unwrap();
    assert_eq!(lost, 1);
    drop(database);
    let (stdout, stderr) = failing(&home, &["grep", "-l", "todo"]);
    assert_eq!(stdout, "/memories/a.md\n/memories/z.md\n");
    assert!(stderr.contains("`/memories/d/c.md`"), "{stderr}");
    assert!(failing(&home, &["doctor"]).0.contains("FAIL  files /memories: `/memories/d/c.md`"));
    home.ok(&["write", "/memories/d/c.md", "todo: anew"]);
    home.ok(&["doctor"]);
}
