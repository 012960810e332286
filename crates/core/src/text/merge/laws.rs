//! Property tests of the line merge, and a comparison with git.

use super::*;
use crate::text::trim_terminator;
use proptest::prelude::*;
use proptest::sample::SizeRange;
use std::io::Write as _;
use std::process::Command;

const NAMES: MarkerNames<'_> = MarkerNames { ours: "ours", base: "base", theirs: "theirs" };

/// Texts of few different lines, with and without `\r`, and with and without a final line break.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(&["a\n", "b\n", "c\r\n", "d\n", "\n"][..]);
    (prop::collection::vec(line, SizeRange::from(0..8)), any::<bool>()).prop_map(|(lines, is_ended)| {
        let mut text = lines.concat().into_bytes();
        if !is_ended {
            text.extend_from_slice(b"end");
        }
        text
    })
}

/// An edit of one line of the base: keep it, remove it, insert a line before it, or replace it.
#[derive(Debug, Clone, Copy)]
enum Edit {
    Keep,
    Remove,
    Before(u8),
    Instead(u8),
}

/// A text of distinct lines, and two edited versions of it. Both sides insert at most one line at each position, from a small pool,
/// so there is only one way to align the lines.
fn edited() -> impl Strategy<Value = [Vec<u8>; 3]> {
    let edit = prop_oneof![5 => Just(Edit::Keep), 1 => Just(Edit::Remove), 1 => (0..3u8).prop_map(Edit::Before), 1 => (0..3u8).prop_map(Edit::Instead)];
    let side = || prop::collection::vec(edit.clone(), SizeRange::from(12));
    let end = || prop::sample::select(&["\n", "\r\n"][..]);
    (2..12usize, side(), side(), end(), end(), prop::array::uniform3(any::<bool>())).prop_map(
        |(len, ours, theirs, end, other, is_ended)| {
            let line = |at: usize| format!("line {at}{}", if at % 5 == 3 { other } else { end });
            let side = |edits: &[Edit]| -> String {
                let lines = edits[..len].iter().enumerate().map(|(at, edit)| match edit {
                    Edit::Keep => line(at),
                    Edit::Remove => String::new(),
                    Edit::Before(new) => format!("new {at} {new}{end}{}", line(at)),
                    Edit::Instead(new) => format!("new {at} {new}{end}"),
                });
                let behind = match edits[len] {
                    Edit::Before(new) | Edit::Instead(new) => format!("new {len} {new}{end}"),
                    _ => String::new(),
                };
                lines.chain([behind]).collect()
            };
            let texts = [(0..len).map(line).collect(), side(&ours), side(&theirs)];
            let mut is_ended = is_ended.into_iter();
            texts.map(|text| {
                let is_ended = is_ended.next().unwrap_or(true);
                if is_ended { text } else { text.trim_end_matches(['\r', '\n']).to_owned() }.into_bytes()
            })
        },
    )
}

fn merged(base: &[u8], ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    merge(base, ours, theirs).merged()
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn unchanged_side_yields_other_side(base in text(), side in text()) {
        prop_assert_eq!(merged(&base, &side, &base), Some(side.clone()));
        prop_assert_eq!(merged(&base, &base, &side), Some(side.clone()));
        prop_assert_eq!(merged(&base, &side, &side), Some(side));
    }

    #[test]
    fn merge_is_symmetric(base in text(), ours in text(), theirs in text()) {
        prop_assert_eq!(merged(&base, &ours, &theirs), merged(&base, &theirs, &ours));
        let (one, other) = (merge(&base, &ours, &theirs), merge(&base, &theirs, &ours));
        let turned = |hunk: &Hunk| Hunk { base: hunk.base.clone(), ours: hunk.theirs.clone(), theirs: hunk.ours.clone() };
        prop_assert_eq!(one.conflicts().cloned().collect::<Vec<_>>(), other.conflicts().map(turned).collect::<Vec<_>>());
        prop_assert_eq!(one.taking(Take::Ours), other.taking(Take::Theirs));
    }

    /// The regions cover each of the three texts fully and in order, and a union contains every line that a side added.
    #[test]
    fn merge_regions_cover_all_lines(base in text(), ours in text(), theirs in text()) {
        let merge = merge(&base, &ours, &theirs);
        let whole = |pick: fn(&Hunk) -> &Range<usize>, lines: &[&[u8]]| {
            let mut at = 0;
            for region in &merge.regions {
                assert_eq!(pick(&region.hunk).start, at);
                at = pick(&region.hunk).end;
            }
            assert_eq!(at, lines.len());
        };
        whole(|hunk| &hunk.base, &merge.base);
        whole(|hunk| &hunk.ours, &merge.ours);
        whole(|hunk| &hunk.theirs, &merge.theirs);
        let union = merge.taking(Take::Union);
        let union_lines = lines(&union);
        let has = |line: &&[u8]| union_lines.iter().any(|other| trim_terminator(other) == trim_terminator(line));
        for line in merge.ours.iter().chain(&merge.theirs).filter(|line| !merge.base.contains(line)) {
            prop_assert!(has(line), "{:?} is not in {:?}", shown(line), shown(&union));
        }
    }

    #[test]
    fn each_conflict_has_one_set_of_markers(base in text(), ours in text(), theirs in text()) {
        let merge = merge(&base, &ours, &theirs);
        for style in [MarkerStyle::Sides, MarkerStyle::Diff3] {
            let marked = shown(&merge.marked(NAMES, style));
            let count = |marker: &str| marked.lines().filter(|line| line.starts_with(marker)).count();
            let conflicts = merge.conflicts().count();
            prop_assert_eq!([count("<<<<<<< ours"), count("======="), count(">>>>>>> theirs")], [conflicts; 3]);
            prop_assert_eq!(count("||||||| base"), if style == MarkerStyle::Diff3 { conflicts } else { 0 });
        }
    }
}

#[test]
fn touching_edits_conflict_and_separate_ones_do_not() {
    let base = b"1\n2\n3\n4\n5\n";
    for (ours, theirs, expected) in [
        ("one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", Some("one\n2\n3\n4\nfive\n")),
        ("1\n2!\n3\n4\n5\n", "1\n2\n3\n4!\n5\n", Some("1\n2!\n3\n4!\n5\n")),
        ("1\n2!\n3\n4\n5\n", "1\n2\n3!\n4\n5\n", None),
        ("1\n2!\n3\n4\n5\n", "1\n2\nnew\n3\n4\n5\n", None),
        ("1\n2\n3\n4\n5\nours\n", "1\n2\n3\n4\n5\ntheirs\n", None),
        ("1\n2\n3\n4\n5\nboth\n", "1\n2\n3\n4\n5\nboth\n", Some("1\n2\n3\n4\n5\nboth\n")),
        ("2\n3\n4\n5\n", "1\n2\n3\n4\n", Some("2\n3\n4\n")),
        ("1\r\n2\n3\n4\n5\n", "1\n2\n3\n4\n5", Some("1\r\n2\n3\n4\n5")),
        ("", "1\n2\n3\n4\n5\n", Some("")),
        ("", "1\n2\n3\n4\n5\n6\n", None),
    ] {
        let merged = merged(base, ours.as_bytes(), theirs.as_bytes());
        assert_eq!(merged.as_deref().map(shown).as_deref(), expected, "{ours:?} and {theirs:?}");
    }
}

#[test]
fn conflict_markers_match_git() {
    let (base, ours, theirs) = (b"a\nx\nz\n", b"a\nsame\nours\nz\n", b"a\nsame\ntheirs\nz\n");
    let merge = merge(base, ours, theirs);
    let hunk = merge.conflicts().next().expect("both changed line 2");
    assert_eq!((hunk.base.clone(), hunk.ours.clone(), hunk.theirs.clone()), (1..2, 1..3, 1..3));
    assert_eq!(merge.texts(hunk).map(|text| shown(&text)), ["x\n", "same\nours\n", "same\ntheirs\n"]);
    let sides = "a\nsame\n<<<<<<< ours\nours\n=======\ntheirs\n>>>>>>> theirs\nz\n";
    assert_eq!(shown(&merge.marked(NAMES, MarkerStyle::Sides)), sides);
    let diff3 = "a\n<<<<<<< ours\nsame\nours\n||||||| base\nx\n=======\nsame\ntheirs\n>>>>>>> theirs\nz\n";
    assert_eq!(shown(&merge.marked(NAMES, MarkerStyle::Diff3)), diff3);
    assert_eq!(shown(&merge.taking(Take::Union)), "a\nsame\nours\ntheirs\nz\n");
    let unended = super::merge(b"", b"one", b"two");
    assert_eq!(shown(&unended.marked(NAMES, MarkerStyle::Sides)), "<<<<<<< ours\none\n=======\ntwo\n>>>>>>> theirs\n");
    assert_eq!(shown(&unended.taking(Take::Union)), "one\ntwo");
}

#[test]
fn large_or_binary_content_is_not_mergeable() {
    assert!(is_mergeable(b"") && is_mergeable(b"text\n") && is_mergeable(b"\xff\n"));
    assert!(!is_mergeable(b"a\0b"));
    assert!(!is_mergeable(&b"\n".repeat(MERGE_LINES_MAX + 1)));
    assert!(!is_mergeable(&vec![b'a'; MERGE_BYTES_MAX as usize + 1]));
}

/// Every line differs and all are shuffled, which is the worst case for the search for a minimal difference.
#[test]
fn merge_of_shuffled_texts_finishes() {
    let shuffled = |step: usize| -> Vec<u8> { (0..20_000).flat_map(|at| format!("{}\n", at * step % 20_011).into_bytes()).collect() };
    let (base, ours, theirs) = (shuffled(1), shuffled(7_919), shuffled(104_729));
    assert!(merge(&base, &ours, &theirs).conflicts().next().is_some());
}

/// Runs `git merge-file`. Returns its output and the number of conflicts.
fn git(texts: &[Vec<u8>; 3], options: &[&str]) -> (Vec<u8>, i32) {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in ["base", "ours", "theirs"].iter().zip(texts) {
        std::fs::File::create(directory.path().join(name)).and_then(|mut file| file.write_all(text)).expect("written");
    }
    let labels = ["-L", "ours", "-L", "base", "-L", "theirs"];
    let mut command = Command::new("git");
    command.arg("merge-file").arg("-p").args(options).args(labels).args(["ours", "base", "theirs"]).current_dir(directory.path());
    let output = command.output().expect("git is installed");
    (output.stdout, output.status.code().expect("an end"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    #[ignore = "needs git: install it, then run with --include-ignored"]
    fn line_merge_agrees_with_git(texts in edited()) {
        let (diff3, conflicts) = git(&texts, &["--diff3"]);
        let [base, ours, theirs] = &texts;
        let merge = merge(base, ours, theirs);
        prop_assert_eq!(merge.conflicts().count() as i32, conflicts);
        prop_assert_eq!(shown(&merge.marked(NAMES, MarkerStyle::Diff3)), shown(&diff3));
        for (option, take) in [("--ours", Take::Ours), ("--theirs", Take::Theirs)] {
            let (taken, _) = git(&texts, &["--diff3", option]);
            prop_assert_eq!(shown(&merge.taking(take)), shown(&taken));
        }
        if conflicts == 0 {
            prop_assert_eq!(merge.merged().map(|text| shown(&text)), Some(shown(&git(&texts, &[]).0)));
        }
    }
}
