//! `show`: a checkpoint with its changes, and a version of a file with its content.

use super::Home;
use super::terminal::{at_terminal, on_terminal_of};
use serde_json::{Value, json};

fn home() -> Home {
    let home = Home::new();
    home.ok(&["write", "/plan.md", "1. measure\n2. cut\n"]);
    home.ok(&["checkpoint", "create", "--label", "before", "--meta", "why=review"]);
    let patch =
        "*** Begin Patch\n*** Add File: /oil.md\n+linseed\n*** Update File: /plan.md\n@@\n 1. measure\n-2. cut\n+2. saw\n*** End Patch\n";
    home.put("patch", patch);
    home.ok(&["patch", "patch"]);
    home
}

/// The id of a checkpoint.
fn id(home: &Home, name: &str) -> String {
    home.json(&["checkpoint", "show", name, "--json"])["id"].as_str().unwrap().to_owned()
}

const PATCH: &str =
    "--- /dev/null\n+++ /oil.md\n@@ -0,0 +1 @@\n+linseed\n--- /plan.md\n+++ /plan.md\n@@ -1,2 +1,2 @@\n 1. measure\n-2. cut\n+2. saw\n";

#[test]
fn checkpoint_is_shown_with_the_patch_of_its_changes() {
    let home = home();
    let shown = home.ok(&["show"]);
    let (header, patch) = shown.split_once("\n\n").unwrap();
    assert_eq!(patch, PATCH);
    let lines: Vec<&str> = header.lines().collect();
    assert_eq!((lines[0], lines[1]), (&*format!("id        {}", id(&home, "latest")), &*format!("parent    {}", id(&home, "before"))));
    assert!(header.ends_with("changes   1 added, 1 changed, 0 removed"), "{header}");
    for name in ["latest", "~0", &id(&home, "latest"), &id(&home, "latest")[..36]] {
        assert_eq!(home.ok(&["show", name]), shown, "{name}");
    }
    assert!(home.ok(&["show", "before"]).contains("label     before\nnoted     why=review\n"));
    assert!(home.ok(&["show", "-U", "0"]).contains("@@ -2 +2 @@\n-2. cut\n+2. saw\n"));
    let stat = home.ok(&["show", "--stat"]);
    assert_eq!(stat.split_once("\n\n").unwrap().1, "added    /oil.md  +1 -0\nchanged  /plan.md  +1 -1\n");
    // The first one has no parent.
    assert!(home.ok(&["show", "~2"]).ends_with("--- /dev/null\n+++ /plan.md\n@@ -0,0 +1,2 @@\n+1. measure\n+2. cut\n"));
    home.error(&["show", "none"], 3);
    home.error(&["show", "--stat", "-U", "1"], 2);
    home.error(&["--thread", "new", "show"], 3);
    home.ok(&["checkpoint", "prune", "--all"]);
    assert!(home.ok(&["show"]).contains("(pruned)"));
    assert_eq!(home.json(&["show", "--json"])["changes"], Value::Null);
}

#[test]
fn binary_files_and_directories_of_a_checkpoint_are_named() {
    let home = home();
    home.with_stdin(&["write", "/bin", "-"], b"a\0b").success();
    assert!(home.ok(&["show"]).ends_with("\n\nbinary file /bin differs (3 bytes)\n"));
    assert!(home.ok(&["show", "--stat"]).ends_with("\n\nadded    /bin  binary, 3 bytes\n"));
    home.ok(&["mkdir", "/empty"]);
    assert!(home.ok(&["show"]).ends_with("\n\nadded    /empty/\n"));
}

#[test]
fn checkpoint_as_json_has_its_changes_with_patches() {
    let home = home();
    let shown = home.json(&["show", "--json"]);
    assert_eq!(shown["id"], id(&home, "latest"));
    let changes = &shown["changes"];
    assert_eq!((&changes["added"], &changes["changed"], &changes["removed"]), (&json!(1), &json!(1), &json!(0)));
    let patches: String = changes["paths"].as_array().unwrap().iter().map(|path| path["patch"].as_str().unwrap()).collect();
    assert_eq!(patches, PATCH);
    let stat = home.json(&["show", "--json", "--stat"]);
    let of = |path: &Value| (path["path"].clone(), path["lines_added"].clone(), path["lines_removed"].clone());
    let paths: Vec<_> = stat["changes"]["paths"].as_array().unwrap().iter().map(of).collect();
    assert_eq!(paths, [(json!("/oil.md"), json!(1), json!(0)), (json!("/plan.md"), json!(1), json!(1))]);
    assert_eq!(home.ok(&["show", "--jsonl"]).lines().count(), 1);
}

#[test]
fn version_of_a_file_is_shown_with_its_author_and_content() {
    let home = Home::new();
    for content in ["one\n", "two\n", "three\n"] {
        home.ok(&["--thread", "monday", "--agent", "cook", "write", "/memories/notes.md", content]);
    }
    home.ok(&["checkpoint", "create", "--label", "kept"]);
    home.ok(&["mv", "/memories/notes.md", "/memories/moved.md"]);
    for (what, content) in
        [("/memories/notes.md@v1", "one\n"), ("/memories/notes.md@~1", "three\n"), ("/memories/notes.md@kept", "three\n")]
    {
        let shown = home.ok(&["show", what]);
        let (header, shown) = shown.split_once("\n\n").unwrap();
        assert_eq!(shown, content, "{what}: {header}");
    }
    let shown = home.ok(&["show", "/memories/notes.md@v2"]);
    let time = home.json(&["log", "/memories/notes.md", "--json"])[2]["at"].as_str().unwrap()[..19].to_owned();
    let expected = format!(
        "path      /memories/notes.md\nversion   v2\nchanged   {time}Z\nby        write\nnoted     thread=monday actor=cook tool=write\nsize      4\n\ntwo\n"
    );
    assert_eq!(shown, expected);
    let shown = home.ok(&["show", "/memories/notes.md"]);
    assert!(
        shown.contains("version   v4\n") && shown.contains("to /memories/moved.md\n") && shown.ends_with("size      removed\n"),
        "{shown}"
    );
    let shown = home.ok(&["show", "/memories/moved.md"]);
    assert!(shown.contains("from /memories/notes.md\n") && shown.ends_with("\n\nthree\n"), "{shown}");
    let version = home.json(&["show", "/memories/notes.md@v2", "--json"]);
    assert_eq!((&version["number"], &version["content"], &version["encoding"]), (&json!(2), &json!("two\n"), &json!("utf-8")));
    assert_eq!((&version["author"]["thread"], &version["path"]), (&json!("monday"), &json!("/memories/notes.md")));
    let removed = home.json(&["show", "/memories/notes.md@v4", "--json"]);
    assert_eq!((&removed["content"], removed.get("encoding")), (&Value::Null, None));
    for (what, code) in [
        ("/memories/notes.md@v9", 3),
        ("/memories/notes.md@~9", 3),
        ("/memories/notes.md@2001-01-01", 3),
        ("/memories/none.md", 3),
        ("/memories/notes.md@none", 3),
        ("/workspace/none", 2),
        ("/memories", 2),
    ] {
        home.error(&["show", what], code);
    }
    home.error(&["show", "/memories/notes.md@v1", "--stat"], 2);
    home.error(&["show", "/memories/notes.md@v1", "-U", "1"], 2);
}

#[test]
fn version_of_a_file_of_the_thread_is_that_of_a_checkpoint() {
    let home = home();
    let (first, latest) = (id(&home, "~2"), id(&home, "latest"));
    for (what, checkpoint, content) in [
        ("/plan.md".to_owned(), &latest, "1. measure\n2. saw\n"),
        ("/plan.md@latest".to_owned(), &latest, "1. measure\n2. saw\n"),
        // The checkpoint `before` changed nothing, so the version is that of the one before.
        ("/plan.md@before".to_owned(), &first, "1. measure\n2. cut\n"),
        ("/plan.md@~1".to_owned(), &first, "1. measure\n2. cut\n"),
        (format!("/plan.md@{first}"), &first, "1. measure\n2. cut\n"),
    ] {
        let shown = home.ok(&["show", &what]);
        assert!(
            shown.contains(&format!("version   of checkpoint {checkpoint}\n")) && shown.ends_with(&format!("\n\n{content}")),
            "{what}: {shown}"
        );
    }
    home.error(&["show", "/oil.md@before"], 3);
    home.ok(&["rm", "/plan.md"]);
    assert!(home.ok(&["show", "/plan.md"]).ends_with("size      removed\n"));
}

/// A path that contains an `@` is a path if it exists as written.
#[test]
fn at_sign_in_a_path_names_no_version() {
    let home = Home::new();
    home.ok(&["write", "/memories/a@v1", "mail\n"]);
    assert!(home.ok(&["show", "/memories/a@v1"]).ends_with("\n\nmail\n"));
    assert!(home.ok(&["show", "/memories/a@v1@v1"]).ends_with("\n\nmail\n"));
}

#[test]
fn terminal_gets_short_ids_ages_colors_and_the_pager() {
    let home = home();
    home.ok(&["write", "/memories/notes.md", "one\n"]);
    let (shown, _) = at_terminal(&home, &[], &["show"]);
    assert!(shown.contains(" now\n") || shown.contains("seconds ago\n") || shown.contains("second ago\n"), "{shown}");
    let short = shown.lines().next().unwrap().split_whitespace().nth(1).unwrap();
    assert!(short.len() == 8 && shown.contains(&id(&home, "latest")), "{shown}");
    assert_eq!(id(&home, short), id(&home, "latest"));
    assert!(shown.ends_with(PATCH));
    let (shown, _) = at_terminal(&home, &[], &["show", "/plan.md"]);
    let version = shown.lines().nth(1).unwrap();
    assert!(version.starts_with("version   of checkpoint ") && version.len() == "version   of checkpoint ".len() + 8, "{shown}");
    let colored = |variables: &[(&str, &str)]| String::from_utf8(on_terminal_of(&home, 80, variables, &["show"], b"")).unwrap();
    assert!(colored(&[("TREEHOLD_PAGER", "")]).contains("\u{1b}[32m+2. saw\u{1b}[0m\n"));
    assert!(!colored(&[("TREEHOLD_PAGER", ""), ("NO_COLOR", "1")]).contains('\u{1b}'));
    let paged = colored(&[("TREEHOLD_PAGER", "sed 's/^/paged: /'"), ("NO_COLOR", "1")]);
    assert!(paged.lines().all(|line| line.starts_with("paged: ")), "{paged}");
}
