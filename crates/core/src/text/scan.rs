//! Scans of contents of any size, which end when nobody waits for them any more ([`work::advance`]).

use crate::work::{self, LOOK_BYTES};
use memchr::memchr_iter;
use memchr::memmem::Finder;

/// Finds the first occurrence of a text, part by part.
pub fn find(finder: &Finder<'_>, content: &[u8]) -> Option<usize> {
    let overlap = finder.needle().len().saturating_sub(1);
    // A part is no shorter than the text, so overlapping parts scan each byte at most twice.
    let part = LOOK_BYTES.max(overlap);
    let mut start = 0;
    loop {
        let end = content.len().min(start + part + overlap);
        let found = finder.find(&content[start..end]);
        work::advance(found.unwrap_or(end - start));
        if found.is_some() || end == content.len() {
            return found.map(|at| start + at);
        }
        start += part;
    }
}

/// Finds the ends of all occurrences of a text from the left, including overlapping ones, in one pass for any repetition (Knuth, Morris,
/// Pratt). Occurrences that overlap one accepted by `keep` are skipped.
pub(crate) fn ends<'c>(content: &'c [u8], text: &'c [u8], keep: impl Fn(usize) -> bool + 'c) -> impl Iterator<Item = usize> + 'c {
    let borders = borders(text);
    let (mut matched, mut at) = (0_usize, 0);
    std::iter::from_fn(move || {
        while !text.is_empty() && at < content.len() {
            work::advance(1);
            while matched > 0 && text[matched] != content[at] {
                matched = borders[matched - 1] as usize;
            }
            matched += usize::from(text[matched] == content[at]);
            at += 1;
            if matched == text.len() {
                let is_kept = keep(at);
                matched = if is_kept { 0 } else { borders[matched - 1] as usize };
                if is_kept {
                    return Some(at);
                }
            }
        }
        None
    })
}

/// Returns for each prefix of a text the length of its longest proper prefix that is also its suffix.
fn borders(text: &[u8]) -> Vec<u32> {
    let mut borders = vec![0_u32; text.len()];
    let mut length = 0;
    for index in 1..text.len() {
        work::advance(1);
        while length > 0 && text[length] != text[index] {
            length = borders[length - 1] as usize;
        }
        length += usize::from(text[length] == text[index]);
        borders[index] = u32::try_from(length).unwrap_or(u32::MAX);
    }
    borders
}

/// Appends a part of the content.
pub fn push(to: &mut Vec<u8>, part: &[u8]) {
    for part in part.chunks(LOOK_BYTES) {
        work::advance(part.len());
        to.extend_from_slice(part);
    }
}

/// Counts the ends of lines.
pub fn count_ends(content: &[u8]) -> usize {
    let count = |part: &[u8]| {
        work::advance(part.len());
        memchr_iter(b'\n', part).count()
    };
    content.chunks(LOOK_BYTES).map(count).sum()
}

/// Returns the start of the line after `lines` lines; `None` if the content has fewer line endings.
pub fn after_lines(content: &[u8], lines: usize) -> Option<usize> {
    let (mut left, mut start) = (lines, 0);
    if left == 0 {
        return Some(0);
    }
    for part in content.chunks(LOOK_BYTES) {
        work::advance(part.len());
        for at in memchr_iter(b'\n', part) {
            left -= 1;
            if left == 0 {
                return Some(start + at + 1);
            }
        }
        start += part.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_across_parts_is_found() {
        for length in [1, 2, 3, 1_000, LOOK_BYTES, LOOK_BYTES + 7] {
            for at in [0, LOOK_BYTES - 1, LOOK_BYTES, 2 * LOOK_BYTES + 5] {
                let mut content = vec![b'.'; at];
                content.resize(at + length, b'x');
                content.resize(at + length + LOOK_BYTES, b'.');
                assert_eq!(find(&Finder::new(&vec![b'x'; length]), &content), Some(at), "{length} {at}");
            }
        }
        assert_eq!(find(&Finder::new(b"x"), &vec![b'.'; 3 * LOOK_BYTES]), None);
        assert_eq!(find(&Finder::new(b""), b""), Some(0));
    }

    #[test]
    fn lines_are_counted_and_passed_across_parts() {
        let content = [vec![b'.'; LOOK_BYTES - 1], b"\n\nx\n".to_vec(), vec![b'.'; LOOK_BYTES]].concat();
        assert_eq!(count_ends(&content), 3);
        let starts: Vec<_> = (0..5).map(|lines| after_lines(&content, lines)).collect();
        assert_eq!(starts, [Some(0), Some(LOOK_BYTES), Some(LOOK_BYTES + 1), Some(LOOK_BYTES + 3), None]);
    }

    proptest! {
        #[test]
        fn rejected_occurrences_may_overlap_and_accepted_ones_do_not(content in "[ab]{0,30}", text in "[ab]{1,4}") {
            let (content, text) = (content.as_bytes(), text.as_bytes());
            let wanted: Vec<usize> = (text.len()..=content.len()).filter(|end| content[..*end].ends_with(text)).collect();
            let seen = std::cell::RefCell::new(Vec::new());
            prop_assert_eq!(ends(content, text, |end| { seen.borrow_mut().push(end); false }).next(), None);
            prop_assert_eq!(seen.into_inner(), wanted);
            let kept: Vec<usize> = ends(content, text, |_| true).collect();
            let apart: Vec<usize> = memchr::memmem::find_iter(content, text).map(|at| at + text.len()).collect();
            prop_assert_eq!(kept, apart);
        }
    }
}
