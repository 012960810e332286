//! Edits of [`treehold_core::text`] against the kit: its table of line endings, and its model.

use proptest::prelude::*;
use treehold_conformance::backend::LINE_ENDING_EDITS;
use treehold_conformance::model;
use treehold_core::ops::Edit;

#[test]
fn edits_treat_line_endings_as_units() {
    for (content, old, new, replace_all, expected) in LINE_ENDING_EDITS {
        let edit = Edit { old: (*old).to_owned(), new: (*new).to_owned(), replace_all: *replace_all };
        let (bytes, _) = treehold_core::text::edit(content.as_bytes(), &[edit]).expect("it occurs");
        assert_eq!(String::from_utf8_lossy(&bytes), *expected, "{old:?} to {new:?} in {content:?}");
    }
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
    fn edit_agrees_with_model(content in text(0..24), edit in some_edit()) {
        let (content, edits) = (content.as_bytes(), std::slice::from_ref(&edit));
        match (treehold_core::text::edit(content, edits), model::replaced(content, &edit)) {
            (Ok(done), Ok(expected)) => prop_assert_eq!(done, expected),
            (Err(error), Err(expected)) => {
                prop_assert_eq!(error.kind(), expected.kind());
                prop_assert_eq!(error.lines(), expected.lines());
            }
            (done, expected) => prop_assert!(false, "{done:?}, and not {expected:?}"),
        }
    }
}
