//! Searches one large content part by part, so that memory does not grow with its size.

use bytes::Bytes;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use treehold_core::error::Result;
use treehold_core::file::part_bytes;
use treehold_core::path::VfsPath;
use treehold_core::search::{FileOutcome, GrepMatcher, TOGETHER_BYTES_MAX, Window};
use treehold_core::work;

/// Searches a content of `size_bytes` bytes that `read` returns in parts, each of them up to a line break. Returns `None` if it must be
/// searched whole: with context lines or matches across lines, if it must be decoded, or for the rest of a file in the middle of which a
/// page ended.
///
/// Memory: two parts of 4 to 16 MiB, or the longest line, which may have 1 GiB.
///
/// # Errors
/// Those of `read`.
pub(in crate::backend) async fn search_parts<F: Future<Output = Result<Bytes>>>(
    matcher: &Arc<GrepMatcher>,
    path: &VfsPath,
    size_bytes: u64,
    mut read: impl FnMut(Range<u64>) -> F,
) -> Result<Option<FileOutcome>> {
    if matcher.is_too_large(size_bytes) {
        return Ok(Some(FileOutcome::TooLarge));
    }
    let Some(mut seeker) = matcher.seek(|| path) else { return Ok(Some(FileOutcome::Gone)) };
    if !matcher.supports_windows() || !seeker.supports_parts() {
        return Ok(None);
    }
    let (mut rest, mut origin, mut at) = (Vec::new(), 0, 0);
    while at < size_bytes {
        let end = (at + part_bytes(size_bytes)).min(size_bytes);
        let part = read(at..end).await?;
        if at == 0 && matcher.starts_with_mark(&part) {
            return Ok(None);
        }
        if at == 0 && matcher.skips(&part) {
            return Ok(Some(FileOutcome::Binary));
        }
        at = end;
        let lines = match memchr::memrchr(b'\n', &part) {
            _ if at == size_bytes => rest.len() + part.len(),
            Some(line_break) => rest.len() + line_break + 1,
            None if rest.len() + part.len() > TOGETHER_BYTES_MAX => return Ok(Some(FileOutcome::TooLarge)),
            None => 0,
        };
        rest.extend_from_slice(&part);
        if lines == 0 {
            continue;
        }
        let next = rest.split_off(lines);
        let window = Window::new(std::mem::replace(&mut rest, next).into(), origin);
        origin += lines;
        let of = matcher.clone();
        let found = work::run(lines as u64, move |_| (!of.is_beyond_one_call(&window.content)).then(|| of.find(&window))).await?;
        let Some(found) = found else { return Ok(Some(FileOutcome::TooLarge)) };
        if seeker.push_found(found).is_break() {
            break;
        }
    }
    Ok(Some(seeker.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use treehold_core::ops::{GrepOptions, GrepOutput};
    use treehold_core::path::VfsPathBuf;

    /// Searches a content whole and in parts, and returns both outcomes as text, with the most bytes that one read returned.
    async fn both(options: &GrepOptions, content: &Bytes) -> (String, Option<String>, usize) {
        let matcher = Arc::new(GrepMatcher::compile(options).expect("a legal pattern"));
        let largest = Cell::new(0);
        let read = |range: Range<u64>| {
            let part = content.slice(range.start as usize..range.end as usize);
            largest.set(largest.get().max(part.len()));
            async move { Ok(part) }
        };
        let path = VfsPathBuf::parse("/f").expect("a path");
        let parts = search_parts(&matcher, &path, content.len() as u64, read).await.expect("read");
        (format!("{:?}", matcher.search(&path, content)), parts.map(|outcome| format!("{outcome:?}")), largest.get())
    }

    #[tokio::test]
    async fn search_in_parts_equals_search_of_whole_content() {
        const SIZE: usize = 10 << 20;
        let mut lines = Vec::new();
        while lines.len() < SIZE {
            lines.extend_from_slice(
                format!("line {} {}\n", lines.len(), if lines.len() % 7_919 < 40 { "needle" } else { "hay" }).as_bytes(),
            );
        }
        let unended = [&lines[..], b"the last needle"].concat();
        let one_line = [&vec![b'x'; SIZE][..], b" needle\n", &lines].concat();
        let binary = [b"\0", &lines[..]].concat();
        for content in [lines, unended, one_line, binary] {
            let content = Bytes::from(content);
            let needle = GrepOptions::new("needle");
            for options in [
                needle.clone(),
                needle.clone().with_output(GrepOutput::Files),
                needle.clone().with_output(GrepOutput::Counts),
                needle.clone().with_matches_max(3),
                needle.clone().with_file_matches_max(5),
                needle.clone().with_invert(true).with_matches_max(100),
                GrepOptions::regex("^line [0-9]*1 needle$"),
            ] {
                let (whole, parts, largest) = both(&options, &content).await;
                assert!(parts.as_ref() == Some(&whole), "{options:?}");
                assert!(largest <= 4 << 20, "{largest}");
            }
        }
    }

    #[tokio::test]
    async fn search_that_needs_more_than_parts_is_left_to_the_caller() {
        let content = Bytes::from("needle\n".repeat(10));
        for options in [GrepOptions::new("needle").with_context(1, 0), GrepOptions::regex("a\nb").with_multiline(true)] {
            assert_eq!(both(&options, &content).await.1, None, "{options:?}");
        }
        let decoded = GrepOptions::new("needle").with_encoding(treehold_core::ops::Encoding::Auto);
        assert_eq!(both(&decoded, &Bytes::from_static(b"\xff\xfen\0e\0")).await.1, None);
    }
}
