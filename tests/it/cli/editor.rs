//! `edit` with an editor of the user, which is a script here, on a terminal and without one.

use super::terminal::at_terminal;
use super::{Home, binary};
use std::path::PathBuf;

/// A home with a directory for temporary files of its own.
struct Desk {
    home: Home,
    temporary: PathBuf,
}

impl Desk {
    fn new() -> Self {
        let home = Home::new();
        let temporary = home.work().join("../temporary");
        std::fs::create_dir(&temporary).unwrap();
        home.ok(&["write", "/plan.md", "1. measure\n2. cut\n"]);
        Self { home, temporary }
    }

    /// Runs `edit` with an editor on a terminal. Returns what it shows and its exit code.
    fn edit(&self, editor: &str, args: &[&str]) -> (String, i32) {
        let temporary = self.temporary.to_str().unwrap();
        at_terminal(&self.home, &[("TREEHOLD_EDITOR", editor), ("TMPDIR", temporary)], &[&["edit"], args].concat())
    }

    /// A script as the editor. `$1` is the file, `$TREEHOLD` this program.
    fn script(&self, lines: &str) -> String {
        let file = self.home.work().join("../editor.sh");
        std::fs::write(&file, format!("TREEHOLD='{}'\n{lines}\n", binary().display())).unwrap();
        format!("sh {}", file.display())
    }

    fn plan(&self) -> String {
        self.home.ok(&["cat", "/plan.md"])
    }

    /// The files that are left in the directory for temporary files.
    fn left(&self) -> Vec<PathBuf> {
        let directories = std::fs::read_dir(&self.temporary).unwrap().map(|entry| entry.unwrap().path());
        directories.flat_map(|directory| std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path())).collect()
    }
}

#[test]
fn edited_file_is_written_and_the_copy_is_removed() {
    let desk = Desk::new();
    let versions = |desk: &Desk| desk.home.json(&["log", "/plan.md", "--json"]).as_array().unwrap().len();
    assert_eq!(desk.edit("sed -i s/cut/saw/", &["/plan.md"]), (String::new(), 0));
    assert_eq!(desk.plan(), "1. measure\n2. saw\n");
    assert_eq!(versions(&desk), 2);
    let (shown, code) = desk.edit("true", &["/plan.md", "--editor"]);
    assert!(code == 0 && shown.contains("`/plan.md` is unchanged; nothing was written"), "{shown}");
    assert_eq!(versions(&desk), 2);
    // The editor sees the name of the file, which nobody else can read, and this terminal.
    let script = desk.script("test -t 0 && test -t 1 && basename \"$1\" && stat -c %a \"$1\" \"$(dirname \"$1\")\"; cat \"$1\"");
    let (shown, code) = desk.edit(&script, &["/plan.md"]);
    assert!(code == 0 && shown.starts_with("plan.md\n600\n700\n1. measure\n2. saw\n"), "{shown}");
    // Editors leave backups.
    desk.edit(&desk.script("cp \"$1\" \"$1~\"; echo 3 >> \"$1\""), &["/plan.md"]);
    assert_eq!(desk.plan(), "1. measure\n2. saw\n3\n");
    assert_eq!(std::fs::read_dir(&desk.temporary).unwrap().count(), 0, "{:?}", desk.left());
}

#[test]
fn editor_is_the_first_that_the_environment_names() {
    let desk = Desk::new();
    let echo = |word: &str| format!("sh -c 'echo {word} > \"$1\"' editor");
    let (treehold, visual, editor) = (echo("treehold"), echo("visual"), echo("editor"));
    for (variables, expected) in [
        (vec![("TREEHOLD_EDITOR", treehold.as_str()), ("VISUAL", &visual), ("EDITOR", &editor)], "treehold\n"),
        (vec![("TREEHOLD_EDITOR", " "), ("VISUAL", visual.as_str()), ("EDITOR", &editor)], "visual\n"),
        (vec![("TREEHOLD_EDITOR", ""), ("VISUAL", ""), ("EDITOR", editor.as_str())], "editor\n"),
    ] {
        let (shown, code) = at_terminal(&desk.home, &variables, &["edit", "/plan.md"]);
        assert_eq!((desk.plan().as_str(), code), (expected, 0), "{shown}");
    }
    // Without any, it is `vi`.
    let programs = desk.home.work().join("../programs");
    std::fs::create_dir(&programs).unwrap();
    std::fs::write(programs.join("vi"), "#!/bin/sh\necho vi > \"$1\"\n").unwrap();
    std::fs::set_permissions(programs.join("vi"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    at_terminal(&desk.home, &[("TREEHOLD_EDITOR", ""), ("PATH", &path)], &["edit", "/plan.md"]);
    assert_eq!(desk.plan(), "vi\n");
}

#[test]
fn new_file_is_created_if_the_editor_writes_one() {
    let desk = Desk::new();
    let (shown, code) = desk.edit("true", &["/notes/new.md"]);
    assert!(code == 0 && shown.contains("nothing was written"), "{shown}");
    desk.home.error(&["cat", "/notes/new.md"], 3);
    assert_eq!(desk.edit(&desk.script("test ! -e \"$1\" && echo new > \"$1\""), &["/notes/new.md"]), (String::new(), 0));
    assert_eq!(desk.home.ok(&["cat", "/notes/new.md"]), "new\n");
    assert_eq!(desk.edit("touch", &["/memories/empty.md"]).1, 0);
    assert_eq!(desk.home.ok(&["cat", "/memories/empty.md"]), "");
    // Somebody else creates it meanwhile.
    let editor = desk.script("echo mine > \"$1\"; $TREEHOLD write /raced.md theirs");
    let (shown, code) = desk.edit(&editor, &["/raced.md"]);
    assert!(code == 4 && shown.contains("the edited text is kept in"), "{shown}");
    assert_eq!(desk.home.ok(&["cat", "/raced.md"]), "theirs");
}

#[test]
fn conflict_keeps_the_edited_text_in_the_file_it_names() {
    for path in ["/plan.md", "/memories/plan.md", "/workspace/plan.md"] {
        let desk = Desk::new();
        desk.home.ok(&["write", path, "one\n"]);
        let editor = desk.script(&format!("echo mine > \"$1\"; $TREEHOLD write {path} theirs"));
        let (shown, code) = desk.edit(&editor, &[path]);
        assert_eq!(code, 4, "{path}: {shown}");
        assert_eq!(desk.home.ok(&["cat", path]), "theirs", "{path}");
        let left = desk.left();
        assert!(left.len() == 1 && shown.contains(&format!("kept in `{}`", left[0].display())), "{path}: {shown} {left:?}");
        assert_eq!((std::fs::read_to_string(&left[0]).unwrap().as_str(), left[0].file_name().unwrap()), ("mine\n", "plan.md".as_ref()));
    }
}

#[test]
fn failure_of_the_editor_writes_nothing() {
    let desk = Desk::new();
    for (editor, reason) in [
        ("sh -c 'echo lost > \"$1\"; exit 3' editor", "failed with exit status: 3"),
        ("/no/such/editor", "failed with exit status: 127"),
        ("rm", "the editor removed the file"),
    ] {
        let (shown, code) = desk.edit(editor, &["/plan.md"]);
        assert!(code == 6 && shown.contains(reason), "{code} {shown}");
        assert_eq!(desk.plan(), "1. measure\n2. cut\n");
    }
    assert_eq!(std::fs::read_dir(&desk.temporary).unwrap().count(), 0);
}

#[test]
fn file_that_no_editor_should_open_is_refused_before_it_opens() {
    let desk = Desk::new();
    let opened = desk.home.work().join("../opened");
    let editor = format!("touch {}", opened.display());
    desk.home.with_stdin(&["write", "/binary", "-"], b"a\0b").success();
    desk.home.put("large", vec![b'x'; (16 << 20) + 1]);
    let version = desk.home.json(&["stat", "/plan.md", "--json"])[0]["version"].as_str().unwrap().to_owned();
    desk.home.ok(&["append", "/plan.md", "3. sand\n"]);
    for (args, expected, reason) in [
        (&["/binary"][..], 2, "is binary"),
        (&["/workspace/large"], 2, "larger than 16777216 bytes"),
        (&["/workspace"], 2, "is a directory"),
        (&["/plan.md", "--if-version", &version], 4, "nothing was opened"),
        (&["/none", "--if-version", &version], 3, "/none"),
        (&["/plan.md", "--editor", "old", "new"], 2, "cannot be used with"),
        (&["/plan.md", "old"], 2, "required"),
    ] {
        let (shown, code) = desk.edit(&editor, args);
        assert!(code == expected && shown.contains(reason), "{args:?}: {code} {shown}");
        assert!(!opened.exists(), "{args:?}");
    }
    let now = desk.home.json(&["stat", "/plan.md", "--json"])[0]["version"].as_str().unwrap().to_owned();
    assert_eq!(desk.edit("sed -i s/sand/oil/", &["/plan.md", "--if-version", &now]).1, 0);
    assert_eq!(desk.plan(), "1. measure\n2. cut\n3. oil\n");
}

#[test]
fn text_that_grew_too_large_or_is_refused_is_kept() {
    let desk = Desk::new();
    let (shown, code) = desk.edit(&desk.script("head -c 17000000 /dev/zero | tr '\\0' x > \"$1\""), &["/plan.md"]);
    assert!(code == 2 && shown.contains("it is kept in"), "{shown}");
    assert_eq!(desk.left().len(), 1);
    desk.home.put(
        "treehold.toml",
        "[routes.\"/\"]\ntype = \"state\"\n[[layers.permissions]]\neffect = \"deny\"\noperations = [\"write\"]\npaths = [\"/plan.md\"]\n",
    );
    let (shown, code) = desk.edit("sed -i s/cut/saw/", &["/plan.md"]);
    assert!(code == 5 && shown.contains("the edited text is kept in"), "{shown}");
    assert_eq!(desk.plan(), "1. measure\n2. cut\n");
    assert_eq!(desk.left().len(), 2);
}

#[test]
fn editor_opens_without_a_terminal_only_if_it_is_asked_for() {
    let desk = Desk::new();
    let error = desk.home.error(&["edit", "/plan.md"], 2);
    assert!(error.contains("name OLD and NEW, or open the file in an editor with `--editor`"), "{error}");
    let edit = |args: &[&str]| {
        let output = desk.home.command(args).env("TREEHOLD_EDITOR", "sed -i s/cut/saw/").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let changed = edit(&["edit", "/plan.md", "--editor", "--json"]);
    assert_eq!((changed["operation"].as_str(), changed["path"].as_str()), (Some("write"), Some("/plan.md")));
    assert_eq!(edit(&["edit", "/plan.md", "--editor", "--json"]), serde_json::json!({"path": "/plan.md", "unchanged": true}));
    // JSON is for a program, even on a terminal.
    let (shown, code) = desk.edit("true", &["/plan.md", "--json"]);
    assert!(code == 2 && shown.contains("invalid_argument"), "{shown}");
}
