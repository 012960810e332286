//! Changes: writing, editing, moving and removing.

use super::Subject;
use std::collections::HashSet;
use treehold_core::error::ErrorKind;
use treehold_core::ops::{
    ApplyOptions, Change, Difference, Edit, EntryKind, OpKind, ReadOptions, Review, ReviewPurpose, Sight, Standing, WriteMode,
};
use treehold_tree::backend::Backend;

/// The parents of a written file are created as directories.
pub(super) async fn write_creates_missing_parents(tree: Subject) {
    let changed = tree.put("/a/b/c/file", "x").await;
    assert!(changed.created);
    for directory in ["/a", "/a/b", "/a/b/c"] {
        assert_eq!(tree.stat(directory).await.expect("the directory was created").kind, EntryKind::Directory);
    }
    assert_eq!((tree.names("/").await, tree.names("/a/b").await), (vec!["a/".to_owned()], vec!["c/".to_owned()]));
}

/// Overwriting replaces the whole content but keeps the creation time.
pub(super) async fn overwrite_replaces_content_and_keeps_creation_time(tree: Subject) {
    tree.put("/a", "a longer content").await;
    let before = tree.stat("/a").await.expect("it was written");
    let changed = tree.put("/a", "short").await;
    let after = tree.stat("/a").await.expect("it was written");
    assert_eq!((tree.content("/a").await, changed.created, after.size_bytes), ("short".into(), false, 5));
    assert!(after.modified_at >= before.modified_at);
    // A host filesystem may not know creation times, or may count a replacement as a creation.
    if tree.backend().capabilities().atomic_batch {
        assert_eq!(after.created_at, before.created_at);
        assert!(after.created_at.is_some());
    }
}

/// Reviewing a change does not apply it, and every path gets an answer.
pub(super) async fn review_answers_for_each_path_and_changes_nothing(tree: Subject) {
    tree.put("/a", "one").await;
    let version = tree.version("/a").await;
    let differences = vec![
        Difference::new(tree.path("/a"), Some(Standing::File(3)), Some(Standing::File(4))),
        Difference::new(tree.path("/b"), None, Some(Standing::Directory)),
        Difference::new(tree.path("/c"), Some(Standing::File(1)), None),
    ];
    for purpose in [ReviewPurpose::Change, ReviewPurpose::Permit, ReviewPurpose::Show, ReviewPurpose::Consent] {
        let review = Review::new(purpose, tree.path("/"), differences.clone());
        assert_eq!(tree.backend().review(&review).await.expect("no path is withheld"), [Sight::Open; 3]);
    }
    assert_eq!((tree.content("/a").await, tree.version("/a").await), ("one".into(), version));
    assert_eq!(tree.names("/").await, ["a"]);
}

/// `CreateNew` never replaces anything.
pub(super) async fn create_new_rejects_existing_path(tree: Subject) {
    assert!(tree.try_put("/a", "one", WriteMode::CreateNew).await.expect("nothing exists there").created);
    let error = tree.refused(tree.try_put("/a", "two", WriteMode::CreateNew).await, ErrorKind::AlreadyExists);
    assert_eq!(error.path(), Some(&*tree.path("/a")));
    tree.create_dir("/d").await.expect("nothing exists there");
    tree.refused(tree.try_put("/d", "two", WriteMode::CreateNew).await, ErrorKind::IsDirectory);
    assert_eq!(tree.content("/a").await, "one");
}

/// `IfVersion` writes only if the version is current, and otherwise reports the current one.
pub(super) async fn conditional_write_requires_current_version(tree: Subject) {
    let first = tree.put("/a", "one").await.version.expect("a file has a version");
    let second =
        tree.try_put("/a", "two", WriteMode::IfVersion(first)).await.expect("it is current").version.expect("a file has a version");
    let error = tree.refused(tree.try_put("/a", "three", WriteMode::IfVersion(first)).await, ErrorKind::Conflict);
    assert_eq!((error.current_version(), error.path()), (Some(second), Some(&*tree.path("/a"))));
    assert_eq!(tree.content("/a").await, "two");
    let error = tree.refused(tree.try_put("/absent", "x", WriteMode::IfVersion(first)).await, ErrorKind::Conflict);
    assert_eq!(error.current_version(), None);
    tree.refused(tree.stat("/absent").await, ErrorKind::NotFound);
}

/// A path is either a file or a directory.
pub(super) async fn path_is_never_both_file_and_directory(tree: Subject) {
    tree.put("/d/a", "x").await;
    tree.refused(tree.try_put("/d", "x", WriteMode::Overwrite).await, ErrorKind::IsDirectory);
    tree.refused(tree.append("/d", "x").await, ErrorKind::IsDirectory);
    tree.refused(tree.create_dir("/d/a").await, ErrorKind::AlreadyExists);
    tree.create_dir("/empty").await.expect("nothing exists there");
    tree.refused(tree.try_put("/empty", "x", WriteMode::Overwrite).await, ErrorKind::IsDirectory);
    tree.delete("/empty", false, None).await.expect("it is empty");
    tree.put("/empty", "now a file").await;
    tree.delete("/d", true, None).await.expect("it exists");
    tree.put("/d", "now a file").await;
    assert_eq!(tree.names("/").await, ["d", "empty"]);
}

/// A rejected write changes nothing, not even by creating parents.
pub(super) async fn rejected_write_creates_no_parents(tree: Subject) {
    let version = tree.put("/seed", "x").await.version.expect("a file has a version");
    tree.refused(tree.try_put("/new/deep/a", "x", WriteMode::IfVersion(version)).await, ErrorKind::Conflict);
    tree.refused(tree.copy("/missing", "/new/deep/a", false).await, ErrorKind::NotFound);
    tree.refused(tree.rename("/missing", "/new/deep/a", false).await, ErrorKind::NotFound);
    tree.refused(tree.edit("/new/deep/a", &[Edit::new("a", "b")]).await, ErrorKind::NotFound);
    assert_eq!(tree.names("/").await, ["seed"]);
}

/// `append` adds at the end, and creates a missing file.
pub(super) async fn append_creates_file_and_adds_to_it(tree: Subject) {
    let first = tree.append("/d/log", "one\n").await.expect("it is created");
    assert_eq!((first.created, first.size_bytes), (true, 4));
    let second = tree.append("/d/log", "two").await.expect("it exists");
    assert_eq!((second.created, second.size_bytes), (false, 7));
    tree.append("/d/log", "").await.expect("nothing is added");
    assert_eq!(tree.content("/d/log").await, "one\ntwo");
    assert_ne!(first.version, second.version);
}

/// An edit replaces one occurrence and leaves all other bytes unchanged.
pub(super) async fn edit_replaces_single_occurrence(tree: Subject) {
    tree.put("/a", "one\ntwo\nthree").await;
    let changed = tree.edit("/a", &[Edit::new("two", "2")]).await.expect("it occurs once");
    assert_eq!((changed.replacements, changed.size_bytes, changed.operation), (1, 11, OpKind::Edit));
    assert_eq!(tree.content("/a").await, "one\n2\nthree");
    tree.edit("/a", &[Edit::new("one\n2\n", "")]).await.expect("it occurs once");
    assert_eq!(tree.content("/a").await, "three");
}

/// Several occurrences are an error that counts them and lists their lines. The file does not change.
pub(super) async fn edit_rejects_ambiguous_match(tree: Subject) {
    tree.put("/a", "x\ny\nx x\n").await;
    let version = tree.version("/a").await;
    let error = tree.refused(tree.edit("/a", &[Edit::new("x", "z")]).await, ErrorKind::Ambiguous);
    assert_eq!((error.lines(), error.path()), (&[1, 3, 3][..], Some(&*tree.path("/a"))));
    assert!(error.message().contains('3'), "{error}");
    assert_eq!((tree.content("/a").await, tree.version("/a").await), ("x\ny\nx x\n".into(), version));
}

/// A text that does not occur is an error. The file does not change.
pub(super) async fn edit_rejects_no_match(tree: Subject) {
    tree.put("/a", "one\n").await;
    let version = tree.version("/a").await;
    let error = tree.refused(tree.edit("/a", &[Edit::new("two", "2")]).await, ErrorKind::NoMatch);
    assert_eq!(error.path(), Some(&*tree.path("/a")));
    tree.refused(tree.edit("/a", &[Edit::all("two", "2")]).await, ErrorKind::NoMatch);
    assert_eq!((tree.content("/a").await, tree.version("/a").await), ("one\n".into(), version));
}

/// Neither the replaced text nor the list of edits may be empty.
pub(super) async fn edit_rejects_empty_text(tree: Subject) {
    tree.put("/a", "abc").await;
    tree.refused(tree.edit("/a", &[Edit::new("", "Z")]).await, ErrorKind::InvalidArgument);
    tree.refused(tree.edit("/a", &[Edit::all("", "Z")]).await, ErrorKind::InvalidArgument);
    tree.refused(tree.edit("/a", &[]).await, ErrorKind::InvalidArgument);
    assert_eq!(tree.content("/a").await, "abc");
}

/// `replace_all` replaces every occurrence and counts them.
pub(super) async fn edit_with_replace_all_replaces_every_occurrence(tree: Subject) {
    tree.put("/a", "a-a-a").await;
    assert_eq!(tree.edit("/a", &[Edit::all("a", "bb")]).await.expect("it occurs").replacements, 3);
    assert_eq!(tree.content("/a").await, "bb-bb-bb");
}

/// Edits build on each other, and if one fails none takes effect.
pub(super) async fn edits_of_one_call_are_atomic(tree: Subject) {
    tree.put("/a", "one two").await;
    tree.refused(tree.edit("/a", &[Edit::new("one", "1"), Edit::new("three", "3")]).await, ErrorKind::NoMatch);
    assert_eq!(tree.content("/a").await, "one two");
    let changed = tree
        .edit("/a", &[Edit::new("one", "three"), Edit::new("three two", "done")])
        .await
        .expect("each text occurs in the result of the edit before");
    assert_eq!((tree.content("/a").await, changed.replacements), ("done".into(), 2));
}

/// Text with `\n` matches stored `\r\n`, and new lines take the line ending of the file.
pub(super) async fn edit_with_lf_matches_crlf_content(tree: Subject) {
    tree.put("/a", "one\r\ntwo\r\nthree\r\n").await;
    tree.edit("/a", &[Edit::new("one\ntwo", "1\n2\n2b")]).await.expect("the text occurs as written");
    assert_eq!(tree.content("/a").await, "1\r\n2\r\n2b\r\nthree\r\n");
    tree.edit("/a", &[Edit::new("three", "3\n4")]).await.expect("it occurs once");
    assert_eq!(tree.content("/a").await, "1\r\n2\r\n2b\r\n3\r\n4\r\n");
}

/// An edit keeps the line endings of other lines, even in files that mix them.
pub(super) async fn edit_in_mixed_file_keeps_other_line_endings(tree: Subject) {
    tree.put("/a", "\u{feff}one\r\ntwo\nthree\r\nfour").await;
    tree.edit("/a", &[Edit::new("two", "2")]).await.expect("it occurs once");
    assert_eq!(tree.content("/a").await, "\u{feff}one\r\n2\nthree\r\nfour");
}

/// Edits that show how line endings act as units: content, old, new, whether to replace all, result.
pub const LINE_ENDING_EDITS: &[(&str, &str, &str, bool, &str)] = &[
    // `\n` matches a whole `\r\n`, never just its second half.
    ("x\r\nfoo\r\n", "\nfoo", "bar", false, "xbar\r\n"),
    ("x\r\nbar\r\n", "\nbar", "\nline\nbar", false, "x\r\nline\r\nbar\r\n"),
    ("a\r\nb\r\n", "\n", "", true, "ab"),
    ("a\r\nb\n", "a\n", "a", false, "ab\n"),
    ("a\nb\n", "a\r\nb", "x\r\ny", false, "x\ny\n"),
    // Lines match regardless of their endings, and unchanged lines keep theirs.
    ("a\r\nb\nc\r\nd", "a\nb\nc\nd", "a\nB\nc\nd", false, "a\r\nB\nc\r\nd"),
    ("a\r\nb\nc\r\n", "a\nb\nc\n", "a\nnew\nb\nc\n", false, "a\r\nnew\r\nb\nc\r\n"),
    ("a\nb\r\nc\n", "a\nb\nc", "A\nB\nC", false, "A\nB\r\nC\n"),
    ("a\nb\r\nc\n", "a\nb\n", "A\nB\nC\nD\n", false, "A\nB\r\nC\r\nD\r\nc\n"),
    ("a\r\nb\na\nb\r\n", "a\nb", "b\na\nc", true, "b\r\na\r\nc\nb\na\nc\r\n"),
    // Within one line, its own ending applies; on a last line without one, that of the line before.
    ("a\r\nb\nc\r\n", "b", "1\n2", false, "a\r\n1\n2\nc\r\n"),
    ("a\nb\r\nc", "c", "1\r\n2\n", false, "a\nb\r\n1\r\n2\r\n"),
    ("x x\r\nx\nx", "x", "1\n2", true, "1\r\n2 1\r\n2\r\n1\n2\n1\n2"),
    ("a", "a", "1\r\n2\n", false, "1\r\n2\n"),
    // An edit of nothing but line endings takes them as written.
    ("a\r\nb\nc\r\n", "\r\n", "\n", true, "a\nb\nc\n"),
    ("a\r\nb\nc\r\n", "\n", "\r\n", true, "a\r\nb\r\nc\r\n"),
    ("a\r\na\n", "a\n", "a\r\n", false, "a\r\na\r\n"),
    // A `\r` that ends no line is an ordinary character.
    ("a\rb\r\r\nc", "\r", "-", true, "a-b-\r\nc"),
    ("a\r\r\nb", "\n", "", false, "a\rb"),
];

/// Line endings are units: an edit matches whole endings of either kind, and new ones take the kind that is used where they are inserted.
pub(super) async fn edit_treats_line_endings_as_units(tree: Subject) {
    for (content, old, new, replace_all, expected) in LINE_ENDING_EDITS {
        tree.put("/a", *content).await;
        let edit = Edit { old: (*old).to_owned(), new: (*new).to_owned(), replace_all: *replace_all };
        tree.edit("/a", &[edit]).await.unwrap_or_else(|error| panic!("{old:?} in {content:?}: {error}"));
        assert_eq!(tree.content("/a").await, *expected, "{old:?} to {new:?} in {content:?}");
    }
}

/// Occurrences count regardless of line endings, and neither half of a `\r\n` matches by itself.
pub(super) async fn edit_counts_occurrences_across_line_endings(tree: Subject) {
    let content = "a\r\nb\nx\na\nb\r\n";
    tree.put("/a", content).await;
    let error = tree.refused(tree.edit("/a", &[Edit::new("a\nb", "c")]).await, ErrorKind::Ambiguous);
    assert_eq!(error.lines(), [1, 4]);
    for old in ["\r", "a\r", "\r\r\n", "b\r\n\n"] {
        tree.refused(tree.edit("/a", &[Edit::all(old, "c")]).await, ErrorKind::NoMatch);
    }
    assert_eq!(tree.content("/a").await, content);
    let edits = [Edit::all("a\nb", "1\n2"), Edit::new("2\nx\n", "3\n4\n5\n")];
    assert_eq!(tree.edit("/a", &edits).await.expect("the edits apply in order").replacements, 3);
    assert_eq!(tree.content("/a").await, "1\r\n3\n4\n5\n1\n2\r\n");
}

/// An edit keeps bytes next to it that are not valid UTF-8.
pub(super) async fn edit_keeps_binary_content(tree: Subject) {
    tree.put("/a", &b"\xff\0text\xfe"[..]).await;
    tree.edit("/a", &[Edit::new("text", "other")]).await.expect("it occurs once");
    assert_eq!(tree.content("/a").await, &b"\xff\0other\xfe"[..]);
}

/// An edit with an expected version is rejected if the content has another one.
pub(super) async fn edit_requires_expected_version(tree: Subject) {
    let first = tree.put("/a", "one").await.version;
    let second = tree.put("/a", "one two").await.version;
    let edit = |expect| Change::Edit { path: tree.path("/a"), edits: vec![Edit::new("one", "1")], expect };
    let error = tree.refused(tree.apply(edit(first)).await, ErrorKind::Conflict);
    assert_eq!(error.current_version(), second);
    assert_eq!(tree.content("/a").await, "one two");
    tree.apply(edit(second)).await.expect("it is current");
    assert_eq!(tree.content("/a").await, "1 two");
}

/// Neither a directory nor a missing path can be edited.
pub(super) async fn edit_requires_a_file(tree: Subject) {
    tree.put("/d/a", "x").await;
    tree.refused(tree.edit("/missing", &[Edit::new("x", "y")]).await, ErrorKind::NotFound);
    tree.refused(tree.edit("/d", &[Edit::new("x", "y")]).await, ErrorKind::IsDirectory);
    tree.refused(tree.edit("/", &[Edit::new("x", "y")]).await, ErrorKind::IsDirectory);
}

/// `stat`, `read` and `ls` report the version that the write returned, and no two writes share one.
pub(super) async fn every_write_creates_new_version(tree: Subject) {
    let mut seen = HashSet::new();
    for round in 0..10 {
        let written = tree.put("/a", format!("same size {round}")).await.version.expect("a file has a version");
        assert_eq!(tree.version("/a").await, written);
        assert_eq!(tree.read("/a", &ReadOptions::lines(0, 1)).await.expect("it was written").version, written);
        assert!(seen.insert(written), "{written} was used before");
        let edited = tree.edit("/a", &[Edit::new("same", "SAME")]).await.expect("it occurs once").version.expect("a file has a version");
        assert!(seen.insert(edited), "{edited} was used before");
    }
}

/// Deleting and recreating a file never brings back an old version, so a write that expects one is rejected.
pub(super) async fn versions_are_never_reused(tree: Subject) {
    let mut seen = HashSet::new();
    for round in 0..20 {
        let version = tree.put("/a", format!("{round:02}")).await.version.expect("a file has a version");
        assert!(seen.insert(version), "{version} was used before");
        tree.delete("/a", false, Some(version)).await.expect("it is current");
        tree.refused(tree.try_put("/a", "x", WriteMode::IfVersion(version)).await, ErrorKind::Conflict);
    }
    let moved = tree.put("/b", "one").await.version.expect("a file has a version");
    tree.rename("/b", "/c", false).await.expect("it exists");
    tree.put("/b", "two").await;
    tree.refused(tree.try_put("/b", "x", WriteMode::IfVersion(moved)).await, ErrorKind::Conflict);
}

/// An explicitly created directory exists without content, and creating it again is not an error.
pub(super) async fn create_dir_creates_empty_directory(tree: Subject) {
    let changed = tree.create_dir("/a/b").await.expect("nothing exists there");
    assert!(changed.created);
    assert_eq!((tree.names("/a").await, tree.names("/a/b").await), (vec!["b/".to_owned()], vec![]));
    let again = tree.create_dir("/a/b").await.expect("it exists already");
    assert_eq!((again.created, again.entries), (false, 0));
    tree.put("/a/b/file", "x").await;
    tree.delete("/a/b/file", false, None).await.expect("it was written");
    assert_eq!(tree.names("/a").await, ["b/"], "a directory stays when its last file goes");
}

/// Deleting a file removes it and nothing else.
pub(super) async fn delete_removes_a_file(tree: Subject) {
    for path in ["/d/a", "/d/ab", "/d/a.b", "/e/a"] {
        tree.put(path, "x").await;
    }
    let changed = tree.delete("/d/a", false, None).await.expect("it was written");
    assert_eq!((changed.entries, changed.version), (1, None));
    tree.refused(tree.stat("/d/a").await, ErrorKind::NotFound);
    assert_eq!((tree.names("/d").await, tree.names("/e").await), (vec!["a.b".to_owned(), "ab".to_owned()], vec!["a".to_owned()]));
    tree.refused(tree.delete("/d/a", false, None).await, ErrorKind::NotFound);
}

/// Only `recursive` removes a directory with its contents, and it removes nothing else.
pub(super) async fn delete_of_filled_directory_requires_recursive(tree: Subject) {
    for path in ["/d/a", "/d/e/f/g", "/d-x/a", "/d.x", "/dd/a"] {
        tree.put(path, "x").await;
    }
    let error = tree.refused(tree.delete("/d", false, None).await, ErrorKind::InvalidArgument);
    assert!(error.message().contains("recursive"), "{error}");
    assert_eq!(tree.names("/d").await, ["a", "e/"]);
    let changed = tree.delete("/d", true, None).await.expect("it exists");
    assert_eq!(changed.entries, 5);
    assert_eq!(tree.names("/").await, ["d-x/", "d.x", "dd/"]);
    tree.create_dir("/empty").await.expect("nothing exists there");
    tree.delete("/empty", false, None).await.expect("an empty directory needs no recursive delete");
}

/// The root cannot be deleted, recursively or not.
pub(super) async fn delete_of_root_is_rejected(tree: Subject) {
    tree.put("/a", "x").await;
    if !tree.is_whole() {
        return;
    }
    tree.refused(tree.delete("/", true, None).await, ErrorKind::InvalidArgument);
    tree.refused(tree.delete("/", false, None).await, ErrorKind::InvalidArgument);
    assert_eq!(tree.content("/a").await, "x");
}

/// A delete with an expected version is rejected if the content has another one.
pub(super) async fn delete_requires_expected_version(tree: Subject) {
    let first = tree.put("/a", "one").await.version;
    let second = tree.put("/a", "two").await.version;
    let error = tree.refused(tree.delete("/a", false, first).await, ErrorKind::Conflict);
    assert_eq!(error.current_version(), second);
    tree.delete("/a", false, second).await.expect("it is current");
    tree.create_dir("/d").await.expect("nothing exists there");
    tree.refused(tree.delete("/d", false, second).await, ErrorKind::InvalidArgument);
}

/// A renamed file is only at its new path, with its content.
pub(super) async fn rename_moves_a_file(tree: Subject) {
    tree.put("/a", "x").await;
    let before = tree.stat("/a").await.expect("it was written");
    let changed = tree.rename("/a", "/new/deep/b", false).await.expect("nothing exists there");
    assert_eq!((&changed.path, changed.created, changed.entries), (&tree.path("/new/deep/b"), true, 1));
    let after = tree.stat("/new/deep/b").await.expect("it exists now");
    assert_eq!((changed.version, after.size_bytes), (after.version, 1));
    if tree.backend().capabilities().atomic_batch {
        assert_eq!(after.created_at, before.created_at);
    }
    assert_eq!((tree.names("/").await, tree.content("/new/deep/b").await), (vec!["new/".to_owned()], "x".into()));
}

/// A renamed directory moves with all its contents, including empty directories.
pub(super) async fn rename_moves_a_directory(tree: Subject) {
    tree.put("/d/a", "1").await;
    tree.put("/d/e/b", "2").await;
    tree.create_dir("/d/empty").await.expect("nothing exists there");
    tree.put("/d-x", "3").await;
    let changed = tree.rename("/d", "/f/d2", false).await.expect("nothing exists there");
    assert_eq!((changed.version, &changed.path), (None, &tree.path("/f/d2")));
    assert_eq!(
        (tree.names("/").await, tree.names("/f/d2").await),
        (vec!["d-x".to_owned(), "f/".into()], vec!["a".to_owned(), "e/".into(), "empty/".into()])
    );
    assert_eq!(tree.content("/f/d2/e/b").await, "2");
    tree.refused(tree.stat("/d/a").await, ErrorKind::NotFound);
}

/// A rejected rename changes neither end.
pub(super) async fn rename_rejects_impossible_moves(tree: Subject) {
    tree.put("/d/a", "1").await;
    tree.put("/b", "2").await;
    tree.refused(tree.rename("/missing", "/c", false).await, ErrorKind::NotFound);
    let error = tree.refused(tree.rename("/d", "/d/e/f", false).await, ErrorKind::InvalidArgument);
    assert!(error.message().contains(tree.path("/d").as_str()), "{error}");
    if tree.is_whole() {
        tree.refused(tree.rename("/", "/c", false).await, ErrorKind::InvalidArgument);
        tree.refused(tree.rename("/b", "/", true).await, ErrorKind::InvalidArgument);
    }
    tree.refused(tree.rename("/d/a", "/b/c", false).await, ErrorKind::NotADirectory);
    tree.refused(tree.rename("/b/x", "/c", false).await, ErrorKind::NotADirectory);
    assert_eq!(tree.rename("/b", "/b", false).await.expect("it exists already").entries, 0);
    assert_eq!((tree.content("/d/a").await, tree.content("/b").await), ("1".into(), "2".into()));
    assert_eq!(tree.names("/").await, ["b", "d/"]);
}

/// A rename may replace a file if asked. It never replaces a directory, nor a file by a directory.
pub(super) async fn rename_overwrites_only_files_and_only_if_asked(tree: Subject) {
    tree.put("/a", "1").await;
    tree.put("/b", "2").await;
    tree.put("/d/x", "3").await;
    tree.create_dir("/empty").await.expect("nothing exists there");
    let error = tree.refused(tree.rename("/a", "/b", false).await, ErrorKind::AlreadyExists);
    assert_eq!(error.path(), Some(&*tree.path("/b")));
    tree.refused(tree.rename("/a", "/d", true).await, ErrorKind::AlreadyExists);
    tree.refused(tree.rename("/a", "/empty", true).await, ErrorKind::AlreadyExists);
    tree.refused(tree.rename("/d", "/b", true).await, ErrorKind::AlreadyExists);
    tree.refused(tree.rename("/d", "/empty", true).await, ErrorKind::AlreadyExists);
    let changed = tree.rename("/a", "/b", true).await.expect("a file replaces a file");
    assert_eq!((changed.created, tree.content("/b").await), (false, "1".into()));
    assert_eq!(tree.names("/").await, ["b", "d/", "empty/"]);
}

/// A copy is independent of its source.
pub(super) async fn copy_is_independent_of_source(tree: Subject) {
    let source = tree.put("/a", "x").await;
    let copied = tree.copy("/a", "/d/b", false).await.expect("nothing exists there");
    assert_eq!((copied.created, copied.size_bytes, &copied.path), (true, 1, &tree.path("/d/b")));
    assert_eq!((tree.version("/a").await, tree.version("/d/b").await), (source.version.expect("a file"), copied.version.expect("a file")));
    tree.put("/d/b", "changed").await;
    assert_eq!(tree.content("/a").await, "x");
    tree.refused(tree.copy("/a", "/d/b", false).await, ErrorKind::AlreadyExists);
    assert!(!tree.copy("/a", "/d/b", true).await.expect("a file replaces a file").created);
    assert_eq!(tree.content("/d/b").await, "x");
}

/// A copied directory contains copies of all its contents.
pub(super) async fn copy_of_directory_copies_contents(tree: Subject) {
    tree.put("/d/a", "1").await;
    tree.put("/d/e/b", "2").await;
    tree.create_dir("/d/empty").await.expect("nothing exists there");
    let changed = tree.copy("/d", "/x/y", false).await.expect("nothing exists there");
    assert_eq!(changed.entries, 5);
    assert_eq!(
        (tree.names("/d").await, tree.names("/x/y").await),
        (vec!["a".to_owned(), "e/".into(), "empty/".into()], tree.names("/d").await)
    );
    tree.put("/x/y/e/b", "changed").await;
    assert_eq!(tree.content("/d/e/b").await, "2");
}

/// A rejected copy changes nothing.
pub(super) async fn copy_rejects_impossible_copies(tree: Subject) {
    tree.put("/d/a", "1").await;
    tree.put("/b", "2").await;
    tree.refused(tree.copy("/missing", "/c", false).await, ErrorKind::NotFound);
    tree.refused(tree.copy("/b", "/b", true).await, ErrorKind::InvalidArgument);
    tree.refused(tree.copy("/d", "/d/e", false).await, ErrorKind::InvalidArgument);
    if tree.is_whole() {
        tree.refused(tree.copy("/", "/c", false).await, ErrorKind::InvalidArgument);
        tree.refused(tree.copy("/b", "/", true).await, ErrorKind::InvalidArgument);
    }
    tree.refused(tree.copy("/b", "/d", true).await, ErrorKind::AlreadyExists);
    tree.refused(tree.copy("/d", "/b", true).await, ErrorKind::AlreadyExists);
    assert_eq!((tree.names("/").await, tree.names("/d").await), (vec!["b".to_owned(), "d/".into()], vec!["a".to_owned()]));
}

/// Later changes of a batch see the earlier ones, and each has its own result.
pub(super) async fn batch_is_applied_in_order(tree: Subject) {
    let changes = [
        Change::Write { path: tree.path("/a"), content: "one\n".into(), mode: WriteMode::CreateNew },
        Change::Append { path: tree.path("/a"), content: "two\n".into() },
        Change::Edit { path: tree.path("/a"), edits: vec![Edit::new("one", "1")], expect: None },
        Change::Copy { from: tree.path("/a"), to: tree.path("/d/copy"), overwrite: false },
        Change::Rename { from: tree.path("/a"), to: tree.path("/b"), overwrite: false },
        Change::Write { path: tree.path("/a"), content: "new".into(), mode: WriteMode::CreateNew },
        Change::CreateDir { path: tree.path("/e") },
        Change::Delete { path: tree.path("/d/copy"), recursive: false, expect: None },
    ];
    let results = tree.backend().apply(&changes, &ApplyOptions::new()).await.expect("each change fits the result of the one before");
    assert_eq!(results.iter().map(|changed| changed.operation).collect::<Vec<_>>(), changes.each_ref().map(Change::kind));
    assert_eq!((tree.content("/a").await, tree.content("/b").await), ("new".into(), "1\ntwo\n".into()));
    assert_eq!((tree.names("/").await, tree.names("/d").await.len()), (vec!["a".to_owned(), "b".into(), "d/".into(), "e/".into()], 0));
    assert_eq!(results[5].version, tree.stat("/a").await.expect("it was written").version);
    assert_eq!(results[4].version, tree.stat("/b").await.expect("it was moved").version);
}

/// A batch whose last change fails has no effect, or reports how much was applied.
pub(super) async fn failing_batch_reports_failed_change(tree: Subject) {
    tree.put("/a", "old").await;
    let version = tree.version("/a").await;
    let changes = [
        Change::Write { path: tree.path("/a"), content: "new".into(), mode: WriteMode::Overwrite },
        Change::Write { path: tree.path("/x/b"), content: "new".into(), mode: WriteMode::Overwrite },
        Change::Delete { path: tree.path("/missing"), recursive: false, expect: None },
    ];
    let error = tree.refused(tree.backend().apply(&changes, &ApplyOptions::new()).await, ErrorKind::NotFound);
    assert_eq!((error.change(), error.path()), (Some(2), Some(&*tree.path("/missing"))));
    if tree.backend().capabilities().atomic_batch {
        assert_eq!(error.applied(), 0);
        assert_eq!(
            (tree.content("/a").await, tree.version("/a").await, tree.names("/").await),
            ("old".into(), version, vec!["a".to_owned()])
        );
    } else {
        assert_eq!((error.applied(), tree.content("/a").await, tree.content("/x/b").await), (2, "new".into(), "new".into()));
    }
}

/// An empty batch succeeds without effect.
pub(super) async fn empty_batch_has_no_effect(tree: Subject) {
    assert_eq!(tree.backend().apply(&[], &ApplyOptions::new()).await.expect("nothing can fail"), []);
}
