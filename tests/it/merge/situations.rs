//! The result of a merge for each path, by the changes of each side.

use super::{Edit, all, files, path};
use treehold::checkpoint::{MergeConflictKind, MergeOptions, MergeResolution, MergeStatus, MergeStrategy};

/// A situation and its expected results: without a strategy, with `ours`, and with `theirs`.
struct Situation {
    name: &'static str,
    base: Edits,
    ours: Edits,
    theirs: Edits,
    conflicts: &'static [(&'static str, MergeConflictKind)],
    ours_wins: &'static [(&'static str, &'static str)],
    theirs_wins: &'static [(&'static str, &'static str)],
}

use MergeConflictKind::{Binary, BothAdded, BothChanged, ChangedAndRemoved, DirectoryRemoved, FileAndDirectory};

type Edits = &'static [Edit<'static>];

/// Merges without a conflict: name, base, ours, theirs, and the result.
type Clean = (&'static str, Edits, Edits, Edits, &'static [(&'static str, &'static str)]);

const CLEAN: &[Clean] = &[
    (
        "each side changes a file of its own",
        &[("/a", Some("a")), ("/b", Some("b"))],
        &[("/a", Some("A"))],
        &[("/b", Some("B")), ("/c", Some("C"))],
        &[("/a", "A"), ("/b", "B"), ("/c", "C")],
    ),
    ("only the other side changed", &[("/a", Some("a"))], &[], &[("/a", None), ("/d/", Some(""))], &[("/d/", "")]),
    (
        "both do the same",
        &[("/a", Some("a")), ("/b", Some("b"))],
        &[("/a", Some("x")), ("/b", None), ("/n", Some("n"))],
        &[("/a", Some("x")), ("/b", None), ("/n", Some("n"))],
        &[("/a", "x"), ("/n", "n")],
    ),
    (
        "lines apart from each other",
        &[("/d/t", Some("1\n2\n3\n4\n5"))],
        &[("/d/t", Some("one\n2\n3\n4\n5"))],
        &[("/d/t", Some("1\n2\n3\n4\nfive"))],
        &[("/d/", ""), ("/d/t", "one\n2\n3\n4\nfive")],
    ),
    (
        "lines that end with \\r\\n",
        &[("/t", Some("1\r\n2\r\n3\r\n"))],
        &[("/t", Some("1\r\n2\r\n3\r\n4\r\n"))],
        &[("/t", Some("0\r\n1\r\n2\r\n3\r\n"))],
        &[("/t", "0\r\n1\r\n2\r\n3\r\n4\r\n")],
    ),
    (
        "a rename is a removal and an addition",
        &[("/old", Some("x")), ("/k", Some("k"))],
        &[("/k", Some("K"))],
        &[("/old", None), ("/new", Some("x"))],
        &[("/k", "K"), ("/new", "x")],
    ),
    (
        "a file becomes a directory, and a directory a file",
        &[("/f", Some("f")), ("/d/x", Some("x")), ("/o", Some("o"))],
        &[("/o", Some("O"))],
        &[("/f", None), ("/f/a/b", Some("b")), ("/d", None), ("/d", Some("d"))],
        &[("/f/", ""), ("/f/a/", ""), ("/f/a/b", "b"), ("/d", "d"), ("/o", "O")],
    ),
    (
        "a directory of ours becomes a file where theirs only removes",
        &[("/d/x", Some("x")), ("/d/y", Some("y"))],
        &[("/d", None), ("/d", Some("d"))],
        &[("/d/x", None)],
        &[("/d", "d")],
    ),
    (
        "both remove files, one side more than the other",
        &[("/d/x", Some("x")), ("/d/e/y", Some("y"))],
        &[("/d/x", None)],
        &[("/d", None)],
        &[],
    ),
    (
        "both make a directory",
        &[("/k", Some("k"))],
        &[("/d/a", Some("a"))],
        &[("/d/b", Some("b"))],
        &[("/d/", ""), ("/d/a", "a"), ("/d/b", "b"), ("/k", "k")],
    ),
];

const CONFLICTS: &[Situation] = &[
    Situation {
        name: "the same line, and a file beside it",
        base: &[("/t", Some("1\n2\n3\n"))],
        ours: &[("/t", Some("1\nours\n3\n"))],
        theirs: &[("/t", Some("1\ntheirs\n3\n")), ("/n", Some("n"))],
        conflicts: &[("/t", BothChanged)],
        ours_wins: &[("/t", "1\nours\n3\n"), ("/n", "n")],
        theirs_wins: &[("/t", "1\ntheirs\n3\n"), ("/n", "n")],
    },
    Situation {
        name: "each side changes only the end of the file, differently",
        base: &[("/t", Some("1\n2"))],
        ours: &[("/t", Some("1\n2\n"))],
        theirs: &[("/t", Some("1\n2\n3"))],
        conflicts: &[("/t", BothChanged)],
        ours_wins: &[("/t", "1\n2\n")],
        theirs_wins: &[("/t", "1\n2\n3")],
    },
    Situation {
        name: "both added",
        base: &[("/k", Some("k"))],
        ours: &[("/d/n", Some("ours"))],
        theirs: &[("/d/n", Some("theirs"))],
        conflicts: &[("/d/n", BothAdded)],
        ours_wins: &[("/k", "k"), ("/d/", ""), ("/d/n", "ours")],
        theirs_wins: &[("/k", "k"), ("/d/", ""), ("/d/n", "theirs")],
    },
    Situation {
        name: "no text",
        base: &[("/b", Some("\0"))],
        ours: &[("/b", Some("\0o"))],
        theirs: &[("/b", Some("\0t"))],
        conflicts: &[("/b", Binary)],
        ours_wins: &[("/b", "\0o")],
        theirs_wins: &[("/b", "\0t")],
    },
    Situation {
        name: "changed here, removed there, and the other way round",
        base: &[("/a", Some("a")), ("/b", Some("b"))],
        ours: &[("/a", Some("A")), ("/b", None)],
        theirs: &[("/a", None), ("/b", Some("B"))],
        conflicts: &[("/a", ChangedAndRemoved), ("/b", ChangedAndRemoved)],
        ours_wins: &[("/a", "A")],
        theirs_wins: &[("/b", "B")],
    },
    Situation {
        name: "changed in a directory that the other removed",
        base: &[("/d/e/a", Some("a")), ("/d/b", Some("b"))],
        ours: &[("/d/e/a", Some("A"))],
        theirs: &[("/d", None)],
        conflicts: &[("/d/e/a", ChangedAndRemoved)],
        ours_wins: &[("/d/", ""), ("/d/e/", ""), ("/d/e/a", "A")],
        theirs_wins: &[],
    },
    Situation {
        name: "added to a directory that the other removed",
        base: &[("/d/a", Some("a"))],
        ours: &[("/d", None)],
        theirs: &[("/d/n/x", Some("x")), ("/d/n/y", Some("y"))],
        conflicts: &[("/d/n", DirectoryRemoved)],
        ours_wins: &[],
        theirs_wins: &[("/d/", ""), ("/d/n/", ""), ("/d/n/x", "x"), ("/d/n/y", "y")],
    },
    Situation {
        name: "added by us to a directory that they removed",
        base: &[("/d/a", Some("a"))],
        ours: &[("/d/n/x", Some("x")), ("/d/z", Some("z"))],
        theirs: &[("/d", None)],
        conflicts: &[("/d/n", DirectoryRemoved), ("/d/z", DirectoryRemoved)],
        ours_wins: &[("/d/", ""), ("/d/n/", ""), ("/d/n/x", "x"), ("/d/z", "z")],
        theirs_wins: &[],
    },
    Situation {
        name: "a file and a directory of the same name are added",
        base: &[("/k", Some("k"))],
        ours: &[("/n", Some("file"))],
        theirs: &[("/n/a", Some("a")), ("/n/b/c", Some("c"))],
        conflicts: &[("/n", FileAndDirectory)],
        ours_wins: &[("/k", "k"), ("/n", "file")],
        theirs_wins: &[("/k", "k"), ("/n/", ""), ("/n/a", "a"), ("/n/b/", ""), ("/n/b/c", "c")],
    },
    Situation {
        name: "a directory becomes a file here, and its content changes there",
        base: &[("/d/a", Some("a")), ("/d/b", Some("b"))],
        ours: &[("/d", None), ("/d", Some("file"))],
        theirs: &[("/d/a", Some("A")), ("/d/n", Some("n"))],
        conflicts: &[("/d", FileAndDirectory)],
        ours_wins: &[("/d", "file")],
        theirs_wins: &[("/d/", ""), ("/d/a", "A"), ("/d/b", "b"), ("/d/n", "n")],
    },
    Situation {
        name: "a directory becomes a file there, and its content changes here",
        base: &[("/d/a", Some("a")), ("/d/b", Some("b"))],
        ours: &[("/d/a", Some("A")), ("/d/b", None)],
        theirs: &[("/d", None), ("/d", Some("file"))],
        conflicts: &[("/d", FileAndDirectory)],
        ours_wins: &[("/d/", ""), ("/d/a", "A")],
        theirs_wins: &[("/d", "file")],
    },
    Situation {
        name: "a file is removed here and becomes a directory there",
        base: &[("/f", Some("f"))],
        ours: &[("/f", None)],
        theirs: &[("/f", None), ("/f/a", Some("a"))],
        conflicts: &[("/f", ChangedAndRemoved)],
        ours_wins: &[],
        theirs_wins: &[("/f/", ""), ("/f/a", "a")],
    },
    Situation {
        name: "a file is changed here and becomes a directory there",
        base: &[("/f", Some("f"))],
        ours: &[("/f", Some("F"))],
        theirs: &[("/f", None), ("/f/a", Some("a"))],
        conflicts: &[("/f", FileAndDirectory)],
        ours_wins: &[("/f", "F")],
        theirs_wins: &[("/f/", ""), ("/f/a", "a")],
    },
];

#[tokio::test]
async fn compatible_changes_are_merged() {
    for threads in all() {
        for (name, base, ours, theirs, expected) in CLEAN {
            threads.edit("main", base).await;
            threads.fork("main", "fork").await;
            threads.edit("main", ours).await;
            threads.edit("fork", theirs).await;
            let dry = threads.merge("fork", "main", &MergeOptions::new().with_dry_run(true)).await.unwrap();
            let before = (threads.files("main").await, threads.count("main").await);
            let outcome = threads.merge("fork", "main", &MergeOptions::new()).await.unwrap();
            assert_eq!((outcome.status, outcome.conflicts_total), (MergeStatus::Merged, 0), "{name}: {outcome:?}");
            assert_eq!((dry.changes.clone(), dry.checkpoint), (outcome.changes.clone(), None), "{name}");
            assert_eq!(threads.count("main").await, before.1 + 1);
            assert_eq!(threads.files("main").await, files(expected), "{name}");
            let changed = before.0 != threads.files("main").await;
            assert_eq!(outcome.changes_total > 0, changed, "{name}: {:?}", outcome.changes);
            assert_eq!(threads.merge("fork", "main", &MergeOptions::new()).await.unwrap().status, MergeStatus::UpToDate, "{name}");
            for thread in ["main", "fork"] {
                threads.0.delete(&super::scope(thread)).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn incompatible_changes_conflict_until_resolved() {
    for threads in all() {
        for Situation { name, base, ours, theirs, conflicts, ours_wins, theirs_wins } in CONFLICTS {
            for (strategy, expected) in [(MergeStrategy::Ours, ours_wins), (MergeStrategy::Theirs, theirs_wins)] {
                for by_path in [false, true] {
                    threads.edit("main", base).await;
                    threads.fork("main", "fork").await;
                    threads.edit("main", ours).await;
                    threads.edit("fork", theirs).await;
                    let before = (threads.files("main").await, threads.count("main").await);
                    let outcome = threads.merge("fork", "main", &MergeOptions::new()).await.unwrap();
                    let met: Vec<_> = outcome.conflicts.iter().map(|conflict| (conflict.path.as_str(), conflict.kind)).collect();
                    assert_eq!((outcome.status, met.as_slice()), (MergeStatus::Conflict, *conflicts), "{name}");
                    assert_eq!(before, (threads.files("main").await, threads.count("main").await), "{name}: nothing is written");
                    let options = match by_path {
                        false => MergeOptions::new().with_strategy(strategy),
                        true => conflicts.iter().fold(MergeOptions::new(), |options, (at, _)| options.with_resolution(path(at), strategy)),
                    };
                    let outcome = threads.merge("fork", "main", &options).await.unwrap();
                    assert_eq!((outcome.status, outcome.undecided), (MergeStatus::Merged, 0), "{name}");
                    assert_eq!(threads.files("main").await, files(expected), "{name}, {strategy} wins");
                    for thread in ["main", "fork"] {
                        threads.0.delete(&super::scope(thread)).await.unwrap();
                    }
                }
            }
        }
    }
}

#[tokio::test]
async fn conflicting_lines_are_resolved_by_union_markers_or_content() {
    for threads in all() {
        threads.edit("main", &[("/t", Some("1\n2\n3\n")), ("/b", Some("\0")), ("/d/x", Some("x"))]).await;
        threads.fork("main", "fork").await;
        threads.edit("main", &[("/t", Some("1\nours\n3\n")), ("/b", Some("\0o")), ("/d/x", Some("ours"))]).await;
        threads.edit("fork", &[("/t", Some("1\ntheirs\n3\n")), ("/b", Some("\0t")), ("/d/x", Some("theirs"))]).await;
        let options = MergeOptions::new().with_dry_run(true).with_strategy(MergeStrategy::Union);
        let outcome = threads.merge("fork", "main", &options).await.unwrap();
        assert_eq!((outcome.status, outcome.undecided), (MergeStatus::Conflict, 1), "binary content cannot be merged by lines");
        let hunk = &outcome.conflicts[2].hunks[0];
        assert_eq!((hunk.base.line, hunk.base.lines, hunk.base.text.as_str()), (2, 1, "2\n"));
        assert_eq!((hunk.ours.text.as_str(), hunk.theirs.text.as_str(), hunk.ours.truncated), ("ours\n", "theirs\n", false));
        let options = MergeOptions::new()
            .with_strategy(MergeStrategy::Markers)
            .with_resolution(path("/b"), MergeResolution::Content("decided".into()))
            .with_resolution(path("/d"), MergeStrategy::Union);
        threads.merge("fork", "main", &options).await.unwrap();
        let expected =
            [("/b", "decided"), ("/d/", ""), ("/d/x", "ours\ntheirs"), ("/t", "1\n<<<<<<< main\nours\n=======\ntheirs\n>>>>>>> fork\n3\n")];
        assert_eq!(threads.files("main").await, files(&expected));
    }
}

#[tokio::test]
async fn conflict_can_be_resolved_by_removal_and_unused_resolution_is_refused() {
    for threads in all() {
        threads.edit("main", &[("/k", Some("k"))]).await;
        threads.fork("main", "fork").await;
        threads.edit("main", &[("/n", Some("file"))]).await;
        threads.edit("fork", &[("/n/a", Some("a")), ("/k", Some("K"))]).await;
        let wrong = MergeOptions::new().with_resolution(path("/k"), MergeStrategy::Ours).with_strategy(MergeStrategy::Ours);
        let error = threads.merge("fork", "main", &wrong).await.unwrap_err();
        assert_eq!((error.kind(), error.path().map(|path| path.as_str())), (treehold::ErrorKind::InvalidArgument, Some("/k")));
        let options = MergeOptions::new().with_resolution(path("/n"), MergeResolution::Remove);
        threads.merge("fork", "main", &options).await.unwrap();
        assert_eq!(threads.files("main").await, files(&[("/k", "K")]));
    }
}

#[tokio::test]
async fn merge_lists_are_bounded_and_all_changes_are_counted() {
    for threads in all() {
        threads.edit("main", &[("/k", Some("k"))]).await;
        threads.fork("main", "fork").await;
        let long = "line\n".repeat(1_000);
        for (thread, long) in [("main", format!("{long}ours")), ("fork", format!("{long}theirs"))] {
            let edits: Vec<(String, String)> = (0..10).map(|at| (format!("/{thread}{at}"), "x".to_owned())).collect();
            let edits: Vec<_> = edits.iter().map(|(path, content)| (path.as_str(), Some(content.as_str()))).collect();
            threads.edit(thread, &edits).await;
            threads.edit(thread, &[("/t", Some(&long)), ("/u", Some(&long))]).await;
        }
        let outcome = threads.merge("fork", "main", &MergeOptions::new().with_limit(1)).await.unwrap();
        assert_eq!((outcome.changes.len(), outcome.changes_total, outcome.conflicts.len(), outcome.conflicts_total), (1, 10, 1, 2));
        let lines = &outcome.conflicts[0].hunks[0].ours;
        assert_eq!((lines.lines, lines.text.len(), lines.truncated), (1_001, 2 << 10, true));
    }
}
