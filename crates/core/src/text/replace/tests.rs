//! Tables of edits, and property tests against the model.

use super::*;
use proptest::prelude::*;

fn edited(content: &str, edits: &[Edit]) -> Result<String> {
    edit(content.as_bytes(), edits).map(|(bytes, _)| String::from_utf8(bytes).expect("text stays text"))
}

fn kind(result: Result<String>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn edit_replaces_one_or_all_occurrences() {
    assert_eq!(edited("a b a", &[Edit::new("b", "c")]).expect("unique"), "a c a");
    assert_eq!(edited("a b a", &[Edit::all("a", "")]).expect("all"), " b ");
    assert_eq!(kind(edited("a b a", &[Edit::new("a", "c")])), Some(ErrorKind::Ambiguous));
    let told = |text| edited(text, &[Edit::new("a", "c")]).expect_err("ambiguous").message().to_owned();
    assert!(told("a b a").contains("occurs 2 times (line 1); "), "a line is named once: {}", told("a b a"));
    assert!(told("a a\nb\na").contains("occurs 3 times (lines 1, 3); "));
    assert_eq!(kind(edited("a", &[Edit::new("x", "y")])), Some(ErrorKind::NoMatch));
    assert_eq!(kind(edited("abc", &[Edit::all("", "Z")])), Some(ErrorKind::InvalidArgument));
    assert_eq!(kind(edited("abc", &[])), Some(ErrorKind::InvalidArgument));
    // Overlapping occurrences count once, from the left.
    assert_eq!(edited("aaa", &[Edit::all("aa", "b")]).expect("all"), "ba");
}

#[test]
fn edits_apply_in_order_and_fail_together() {
    assert_eq!(edited("one two", &[Edit::new("one", "three"), Edit::new("three two", "done")]).expect("in order"), "done");
    let error = edited("one two", &[Edit::new("one", "x"), Edit::new("one", "y")]).expect_err("the second fails");
    assert!(error.message().starts_with("edit 2 of 2: "), "{error}");
}

#[test]
fn edit_with_huge_result_is_rejected_before_it_is_built() {
    // A few occurrences would grow to half a gigabyte, so the edit only counts them.
    let new = "b".repeat(1 << 20);
    assert_eq!(kind(edited(&"a".repeat((2 * EDITED_BYTES_MAX) >> 20), &[Edit::all("a", new)])), Some(ErrorKind::TooLarge));
    // A lower limit shows the rest without a large content.
    let up_to = |content: &str, edits: &[Edit], limit| edit_up_to(content.as_bytes(), edits, limit).map(|(bytes, _)| bytes.len());
    let kind = |result: Result<usize>| result.map_err(|error| error.kind());
    let doubling = vec![Edit::all("a", "aa"); 40];
    assert_eq!(kind(up_to("aaaaaaaa", &doubling, 1 << 10)), Err(ErrorKind::TooLarge));
    assert_eq!(kind(up_to("aaaaaaaa", &doubling[..7], 1 << 10)), Ok(1 << 10));
    assert_eq!(kind(up_to("aaaaaaaa", &doubling[..1], 16)), Ok(16));
    assert_eq!(kind(up_to("aaaaaaaa", &doubling[..1], 15)), Err(ErrorKind::TooLarge));
    // The minimum size fits, but the line endings in force make the result larger.
    let lines = Edit::all("a", "\n\n\n\n");
    assert_eq!(kind(up_to("aa\r\n", std::slice::from_ref(&lines), 17)), Err(ErrorKind::TooLarge));
    assert_eq!(kind(up_to("aa\r\n", &[lines], 18)), Ok(18));
}

#[test]
fn too_many_edits_of_large_file_are_rejected_up_front() {
    let content = "a".repeat(1 << 20);
    let edits = vec![Edit::new("b", "c"); 200_000];
    let error = edit(content.as_bytes(), &edits).expect_err("a hundred gigabytes of work");
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.message().ends_with("send at most 4096 at once, or write the whole file"), "{error}");
    // The same number of edits of a small file is little work.
    assert_eq!(edited("a b", &vec![Edit::new("a", "a"); 200_000]).expect("little work"), "a b");
}

/// Regression: each match was compared with the whole text, even where matches overlapped.
#[test]
fn endings_that_repeat_are_found_in_one_pass() {
    let (content, old) = ("\r\n".repeat(400_000), format!("\n{}", "\r\n".repeat(100_000)));
    let new = old.replace("\r\n", "\n");
    assert_eq!(kind(edited(&content, &[Edit::all(old, new)])), Some(ErrorKind::NoMatch), "each match would split a line ending");
}

#[test]
fn ambiguous_error_lists_lines() {
    let error = edited("x\ny\nx\n", &[Edit::new("x", "z")]).expect_err("two places");
    assert_eq!(error.lines(), [1, 3]);
    assert!(error.message().contains("lines 1, 3"), "{error}");
}

#[test]
fn edit_keeps_line_endings_of_other_lines() {
    assert_eq!(edited("a\r\nb\nc\r\n", &[Edit::new("b", "x")]).expect("unique"), "a\r\nx\nc\r\n");
}

#[test]
fn edit_text_matches_either_line_ending() {
    assert_eq!(edited("a\r\nb\r\nc\r\n", &[Edit::new("a\nb", "x\ny\nz")]).expect("adapted"), "x\r\ny\r\nz\r\nc\r\n");
    assert_eq!(edited("a\nb\n", &[Edit::new("a\r\nb", "x\r\ny")]).expect("adapted"), "x\ny\n");
    assert_eq!(edited("a\r\nb\r\n", &[Edit::new("b", "x\ny")]).expect("one line becomes two"), "a\r\nx\r\ny\r\n");
    assert_eq!(edited("a\r\nb\n", &[Edit::new("b", "x\ny")]).expect("the ending of its line"), "a\r\nx\ny\n");
    assert_eq!(edited("a\nb\r\n", &[Edit::new("a\nb", "x\ny")]).expect("each line keeps its own ending"), "x\ny\r\n");
}

#[test]
fn no_match_error_explains_closest_match() {
    let message = |content: &str, old: &str| edited(content, &[Edit::new(old, "x")]).expect_err("a miss").message().to_owned();
    assert!(message("end", "end\n").contains("final line break"));
    assert!(message("\tlet x = 1;\n", "    let x = 1;\n    let y").contains("line 1"));
    assert!(message("", "a").contains("empty"));
    assert!(message("x\r\nfoo\r\nbar", "foo\r").contains("without its final `\\r` it occurs on line 2;"));
    let converted = edited("a\nb\n", &[Edit::all("b\r\n", "b\n")]).expect_err("no such ending");
    assert!(converted.message().contains("it occurs on line 2 with another line ending"), "{converted}");
}

#[test]
fn replacing_all_in_one_long_line_takes_linear_time() {
    // The ending in force is far away from each of a million occurrences. Searching for it at each of them would take minutes.
    let content = format!("{}\r\n", "a".repeat(1 << 20));
    let (result, count) = edit(content.as_bytes(), &[Edit::all("a", "\n")]).expect("it occurs");
    assert_eq!((result.len(), count), (2 * count + 2, 1 << 20));
}

/// Texts of few characters with both line endings and stray `\r`.
fn text(pieces: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    let piece = prop::sample::select(&["a", "b", "\n", "\r\n", "\n", "\r\n", "\r"][..]);
    prop::collection::vec(piece, pieces).prop_map(|pieces| pieces.concat())
}

fn some_edit() -> impl Strategy<Value = Edit> {
    (text(0..5), text(0..6), any::<bool>()).prop_map(|(old, new, replace_all)| Edit { old, new, replace_all })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn edit_of_uniform_line_endings_equals_plain_replacement(content in text(0..24), edit in some_edit(), crlf in any::<bool>()) {
        // Without stray `\r`, the result equals a plain replacement in the text with `\n`, converted to the file's line ending.
        let plain = |text: &str| text.replace("\r\n", "\n").replace('\r', "c");
        let (content, old, new) = (plain(&content), plain(&edit.old), plain(&edit.new));
        if old.is_empty() || !content.contains(&old) || !content.contains('\n') {
            return Ok(());
        }
        let stored = |text: &str| if crlf { text.replace('\n', "\r\n") } else { text.to_owned() };
        let expected = stored(&content.replace(&old, &new));
        let edits = [Edit::all(old, new)];
        prop_assert_eq!(edited(&stored(&content), &edits).expect("it occurs"), expected);
    }

    #[test]
    fn short_text_is_edited_as_any(content in text(0..24), edit in some_edit(), limit in 0..64_usize, keeps_cr in any::<bool>()) {
        let of = |text: &str| if keeps_cr { text.to_owned() } else { text.replace('\r', "") };
        let (content, edit) = (of(&content), Edit { old: of(&edit.old), new: of(&edit.new), ..edit });
        if edit.old.is_empty() {
            return Ok(());
        }
        let any = edit_any(content.as_bytes(), &edit, limit);
        match edit_short(content.as_bytes(), &edit, limit) {
            Some(short) => prop_assert_eq!(short, any.expect("it was edited")),
            None => prop_assert!(keeps_cr || any.is_err()),
        }
    }

    #[test]
    fn bytes_outside_match_do_not_change(content in text(0..24), edit in some_edit()) {
        if edit.old.is_empty() {
            return Ok(());
        }
        if let Some(place) = position(content.as_bytes(), &edit) {
            let spliced = splice(content.as_bytes(), place.clone(), edit.new.as_bytes());
            prop_assert!(spliced.starts_with(&content.as_bytes()[..place.start]));
            prop_assert!(spliced.ends_with(&content.as_bytes()[place.end..]));
            let first = replace_first(content.as_bytes(), &edit).expect("it occurs");
            prop_assert!(first.starts_with(&content.as_bytes()[..place.start]) && first.ends_with(&content.as_bytes()[place.end..]));
            if occurrences(content.as_bytes(), &edit) == 1 {
                prop_assert_eq!(first, super::edit(content.as_bytes(), &[edit]).expect("it occurs").0);
            }
        }
    }
}
