//! `overlay diff --git`: `git apply` makes of the lower directory what `overlay apply` makes of it.

use super::Home;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// A file of the host: content and whether it is executable, or the target of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    File(Vec<u8>, bool),
    Link(String),
}

type Files = BTreeMap<String, Found>;

/// Returns all files beneath a directory. Empty directories do not count: git records none.
fn files(directory: &Path) -> Files {
    fn collect(root: &Path, directory: &Path, all: &mut Files) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let found = std::fs::symlink_metadata(&path).unwrap();
            if found.is_dir() {
                collect(root, &path, all);
            } else if found.is_symlink() {
                all.insert(name, Found::Link(std::fs::read_link(&path).unwrap().to_str().unwrap().to_owned()));
            } else {
                all.insert(name, Found::File(std::fs::read(&path).unwrap(), found.permissions().mode() & 0o100 != 0));
            }
        }
    }
    let mut all = Files::new();
    collect(directory, directory, &mut all);
    all
}

fn write(directory: &Path, files: &Files) {
    for (name, found) in files {
        let path = directory.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match found {
            Found::Link(target) => symlink(target, &path).unwrap(),
            Found::File(content, is_executable) => {
                std::fs::write(&path, content).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(if *is_executable { 0o755 } else { 0o644 })).unwrap();
            }
        }
    }
}

/// Applies a patch to a directory, which need not be a repository.
fn apply(directory: &Path, patch: &[u8]) {
    use std::io::Write;
    let mut git = Command::new("git");
    git.args(["-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"]).current_dir(directory);
    git.env("GIT_CEILING_DIRECTORIES", directory.parent().unwrap()).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", directory);
    let mut git = git.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    git.stdin.take().unwrap().write_all(patch).unwrap();
    let ended = git.wait_with_output().unwrap();
    assert!(
        ended.status.success() && ended.stderr.is_empty(),
        "{}\n{}",
        String::from_utf8_lossy(&ended.stderr),
        String::from_utf8_lossy(patch)
    );
}

const OVERLAY: &str = "[routes.\"/workspace\"]\ntype = \"filesystem\"\nroot = \"repo\"\noverlay = {}\n";

/// Makes the changes through an overlay, and compares what git and the overlay make of them. Returns the patch.
fn compare(lower: &Files, removed: &BTreeSet<String>, written: &Files) -> Vec<u8> {
    let home = Home::new();
    let directory = |name: &str| {
        let path = home.work().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    let (repo, copy, new) = (directory("repo"), directory("copy"), directory("new"));
    home.put("treehold.toml", OVERLAY);
    write(&repo, lower);
    write(&copy, lower);
    write(&new, written);
    if !removed.is_empty() {
        let paths: Vec<String> = removed.iter().map(|name| format!("/workspace/{name}")).collect();
        home.ok(&[&["rm", "-rf"][..], &paths.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    }
    home.ok(&["import", "new", "/workspace", "--force"]);
    let made = home.command(&["overlay", "diff", "--git"]).output().unwrap();
    let is_empty = home.command(&["overlay", "diff"]).output().unwrap().stdout.is_empty();
    assert_eq!(made.status.code(), Some(i32::from(is_empty)), "{made:?}");
    if !made.stdout.is_empty() {
        apply(&copy, &made.stdout);
    }
    home.command(&["overlay", "apply"]).output().unwrap();
    assert_eq!(files(&copy), files(&repo), "{}", String::from_utf8_lossy(&made.stdout));
    made.stdout
}

fn file(content: impl AsRef<[u8]>) -> Found {
    Found::File(content.as_ref().to_vec(), false)
}

fn named(files: &[(&str, Found)]) -> Files {
    files.iter().map(|(name, found)| ((*name).to_owned(), found.clone())).collect()
}

#[test]
fn git_applies_the_changes_of_an_overlay() {
    let binary: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let lower = named(&[
        ("changed.txt", file("one\ntwo\nthree\n")),
        ("crlf.txt", file("one\r\ntwo\r\nthree\rfour\r\n")),
        ("no newline", file("one\ntwo")),
        ("gains newline", file("one")),
        ("run.sh", Found::File(b"#!/bin/sh\n".to_vec(), true)),
        ("old.sh", Found::File(b"#!/bin/sh\nold\n".to_vec(), true)),
        ("same", file("same")),
        ("removed/a.txt", file("a\n")),
        ("removed/deep/b.bin", file([0, 1, 2, 255])),
        ("empties", file("content")),
        ("emptied.bin", file([0; 100])),
        ("was-empty", file("")),
        ("binary", file(&binary)),
        ("link", Found::Link("changed.txt".to_owned())),
        ("file", file("a file\n")),
        ("directory/x", file("x\n")),
        ("latin", file(b"caf\xe9\n")),
    ]);
    let removed = ["old.sh", "removed", "was-empty", "link", "file", "directory"].map(str::to_owned).into();
    let written = named(&[
        ("changed.txt", file("one\n2\nthree\nfour\n")),
        ("crlf.txt", file("one\r\n2\r\nthree\rfive\r\n")),
        ("no newline", file("one\n2")),
        ("gains newline", file("one\n")),
        ("run.sh", file("#!/bin/sh\nexit\n")),
        ("empties", file("")),
        ("emptied.bin", file("")),
        ("binary", file([&binary[..], b"\0more"].concat())),
        ("file/inner", file("in a directory now\n")),
        ("directory", file("a file now\n")),
        ("new/empty", file("")),
        ("new/with space.txt", file("x\n")),
        ("new/quote\" and \\ back.txt", file("no newline")),
        ("new/größe \u{1f375}.md", file("tea\n")),
        ("new/-dash", file("--- a\n+++ b\n@@ -1 +1 @@\n")),
        ("new/data.bin", file(b"a\0b")),
        ("latin", file(b"caf\xe9s\n")),
    ]);
    let patch = String::from_utf8_lossy(&compare(&lower, &removed, &written)).into_owned();
    for part in [
        "deleted file mode 100755\n",
        "deleted file mode 120000\n",
        "new file mode 100644\n",
        " 100755\n--- a/run.sh\n",
        "GIT binary patch\nliteral 70005\n",
        "diff --git \"a/new/gr\\303\\266\\303\\237e \\360\\237\\215\\265.md\"",
        "\\ No newline at end of file\n",
    ] {
        assert!(patch.contains(part), "{part:?} is not in {patch}");
    }
    assert!(!patch.contains("/same") && !patch.contains("/workspace"), "{patch}");
}

const NAMES: &[&str] = &["a", "b c", "d", "d/e", "d/f g", "é", "q\"", "t\\"];

fn content() -> impl Strategy<Value = Vec<u8>> {
    let lines = prop::collection::vec(prop::sample::select(vec!["a\n", "b\n", "\n", "c\r\n", "d\r", "- x\n", "tail", "\t \n"]), 0..30);
    prop_oneof![
        8 => lines.prop_map(|lines| lines.concat().into_bytes()),
        2 => prop::collection::vec(any::<u8>(), 0..300),
    ]
}

/// Files without one in the place of another's directory.
fn generated() -> impl Strategy<Value = Files> {
    let found = (content(), any::<bool>()).prop_map(|(content, is_executable)| Found::File(content, is_executable));
    prop::collection::btree_map(prop::sample::select(NAMES), found, 0..6).prop_map(|files| {
        let has_directory = files.keys().any(|name| name.starts_with("d/"));
        files.into_iter().filter(|(name, _)| !(has_directory && *name == "d")).map(|(name, found)| (name.to_owned(), found)).collect()
    })
}

#[test]
fn git_applies_any_changes() {
    let config = Config { cases: 24, failure_persistence: None, max_shrink_iters: 50, ..Config::default() };
    let removed = prop::collection::btree_set(prop::sample::select(NAMES).prop_map(str::to_owned), 0..4);
    TestRunner::new(config)
        .run(&(generated(), removed, generated()), |(lower, mut removed, written)| {
            // What is in the way of a written file goes first.
            let has = |files: &Files, name: &str| files.contains_key(name);
            let is_beneath = |files: &Files| files.keys().any(|name| name.starts_with("d/"));
            if (has(&lower, "d") && is_beneath(&written)) || (is_beneath(&lower) && has(&written, "d")) {
                removed.insert("d".to_owned());
            }
            compare(&lower, &removed, &written);
            Ok(())
        })
        .unwrap();
}

#[test]
fn what_git_cannot_apply_is_left_out_and_told() {
    let home = Home::new();
    home.put("repo/a", "a\n");
    home.put("open.toml", OVERLAY);
    let rules = "[[layers.permissions]]\neffect = \"deny\"\noperations = [\"read\"]\npaths = [\"/workspace/a\"]\n";
    home.put("ruled.toml", format!("{OVERLAY}{rules}"));
    let open = |args: &[&str]| home.command(&[&["--config", "open.toml"], args].concat()).output().unwrap();
    assert_eq!(open(&["overlay", "diff", "--git"]).status.code(), Some(1));
    for args in [&["write", "/workspace/a", "b\n"][..], &["write", "/workspace/c", "c\n"], &["mkdir", "/workspace/empty"]] {
        assert!(open(args).status.success(), "{args:?}");
    }
    let told = open(&["overlay", "diff", "--git"]);
    assert_eq!(told.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&told.stderr).contains("1 empty directory is left out"), "{told:?}");
    let one = open(&["overlay", "diff", "--git", "/workspace/c"]);
    assert!(String::from_utf8_lossy(&one.stdout).starts_with("diff --git a/c b/c\nnew file mode 100644\n"), "{one:?}");
    assert_eq!(open(&["overlay", "diff", "--git", "--json"]).status.code(), Some(2));
    assert_eq!(open(&["overlay", "diff", "--git", "--patch"]).status.code(), Some(2));
    let ruled = home.command(&["--config", "ruled.toml", "overlay", "diff", "--git"]).output().unwrap();
    let shown = String::from_utf8_lossy(&ruled.stdout);
    assert!(shown.contains("+c\n") && !shown.contains("a/a"), "{ruled:?}");
}

/// The patch between two checkpoints has the paths of the thread's tree.
#[test]
fn git_applies_the_changes_between_checkpoints() {
    let home = Home::new();
    let (before, after) = (home.work().join("before"), home.work().join("after"));
    write(&before, &named(&[("a b.txt", file("one\n")), ("old", file("old")), ("data", file([0, 1]))]));
    write(&after, &named(&[("a b.txt", file("two\n")), ("new/é", file("new")), ("data", file([0, 2]))]));
    home.ok(&["import", "before", "/"]);
    home.ok(&["checkpoint", "create", "--label", "before"]);
    home.ok(&["rm", "/old"]);
    home.ok(&["import", "after", "/", "--force"]);
    let patch = home.ok(&["checkpoint", "diff", "before", "--git"]);
    apply(&before, patch.as_bytes());
    assert_eq!(files(&before), files(&after), "{patch}");
    home.error(&["checkpoint", "diff", "--git", "--stat"], 2);
    home.run(&["checkpoint", "diff", "latest", "--git"], 1).stdout("");
}
