//! Random edits of random content, compared with a naive replacement; and windows of lines that must add up to the
//! content.
//!
//! Input: the content, then an old and a new text per edit, separated by [`SEPARATOR`].

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use treehold_core::ErrorKind;
use treehold_core::ops::{Edit, ReadOptions};
use treehold_core::text;

/// Ends a field of the input.
const SEPARATOR: u8 = 0x1e;

/// Marks a text that is to be replaced everywhere.
const ALL: u8 = 0x01;

fuzz_target!(|input: &[u8]| {
    let mut fields = input.split(|byte| *byte == SEPARATOR);
    let content = fields.next().unwrap_or_default();
    let mut edits = Vec::new();
    while let (Some(old), Some(new)) = (fields.next(), fields.next()) {
        let (old, all) = old.strip_prefix(&[ALL]).map_or((old, false), |old| (old, true));
        let (Ok(old), Ok(new)) = (str::from_utf8(old), str::from_utf8(new)) else { return };
        edits.push(if all { Edit::all(old, new) } else { Edit::new(old, new) });
    }
    check_edits(content, &edits);
    check_windows(content, content.len() % 7 + 1);
});

fn check_edits(content: &[u8], edits: &[Edit]) {
    let result = text::edit(content, edits);
    if let [edit] = edits {
        let (old, new) = (folded(edit.old.as_bytes()), folded(edit.new.as_bytes()));
        let content = folded(content);
        let places = places(&content, &old);
        match &result {
            // An edit that changes only line endings counts those that match exactly.
            Ok((edited, count)) if old == new && edit.old != edit.new => {
                assert!((1..=places.len()).contains(count));
                assert_eq!(bare(edited), bare(&content));
            }
            // Line endings follow their surroundings; everything else is as given.
            Ok((edited, count)) => {
                assert_eq!(*count, places.len());
                assert_eq!(bare(edited), bare(&replaced(&content, &places, old.len(), &new)));
            }
            Err(error) if places.is_empty() => assert!(matches!(error.kind(), ErrorKind::NoMatch | ErrorKind::InvalidArgument)),
            Err(error) => assert!(error.kind() == ErrorKind::Ambiguous || (old == new && error.kind() == ErrorKind::NoMatch)),
        }
    }
    if let Ok((edited, count)) = &result {
        // Applying all edits at once equals applying them one after the other.
        let (mut stepwise, mut total) = (content.to_vec(), 0);
        for edit in edits {
            let (next, replaced) =
                text::edit(&stepwise, std::slice::from_ref(edit)).expect("each edit fits on its own if all fit together");
            (stepwise, total) = (next, total + replaced);
        }
        assert_eq!((&stepwise, total), (edited, *count));
    }
}

/// Finds all occurrences of a text from the left, without overlap; an empty text never occurs.
fn places(content: &[u8], old: &[u8]) -> Vec<usize> {
    let (mut places, mut at) = (Vec::new(), 0);
    while !old.is_empty() && at + old.len() <= content.len() {
        if &content[at..at + old.len()] == old {
            places.push(at);
            at += old.len();
        } else {
            at += 1;
        }
    }
    places
}

fn replaced(content: &[u8], places: &[usize], old_len: usize, new: &[u8]) -> Vec<u8> {
    let (mut result, mut end) = (Vec::new(), 0);
    for place in places {
        result.extend_from_slice(&content[end..*place]);
        result.extend_from_slice(new);
        end = place + old_len;
    }
    result.extend_from_slice(&content[end..]);
    result
}

/// Normalizes every line ending to `\n`.
fn folded(text: &[u8]) -> Vec<u8> {
    let mut folded = Vec::with_capacity(text.len());
    for byte in text {
        if *byte == b'\n' && folded.last() == Some(&b'\r') {
            folded.pop();
        }
        folded.push(*byte);
    }
    folded
}

/// Removes every `\r` before a `\n`, because a stray one may end up before a line ending.
fn bare(text: &[u8]) -> Vec<u8> {
    let mut bare = Vec::with_capacity(text.len());
    for byte in text {
        while *byte == b'\n' && bare.last() == Some(&b'\r') {
            bare.pop();
        }
        bare.push(*byte);
    }
    bare
}

fn check_windows(content: &[u8], step: usize) {
    let content = Bytes::copy_from_slice(content);
    let (mut joined, mut offset) = (Vec::new(), 0);
    loop {
        let (bytes, window) = text::cut(&content, &ReadOptions::lines(offset, step)).expect("an offset that was given");
        let window = window.expect("lines were asked for");
        assert_eq!(window.total_lines, text::count_lines(&content));
        assert_eq!(text::count_lines(&bytes), window.lines);
        joined.extend_from_slice(&bytes);
        match window.next_offset() {
            Some(next) => offset = next,
            None => break,
        }
    }
    assert_eq!(joined, content);
}
