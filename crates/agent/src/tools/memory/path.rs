//! Validation of the memory tool's paths.

use treehold_core::error::{Error, ErrorKind, Result};
use treehold_core::path::{PATH_BYTES_MAX, VfsPathBuf};

/// The directory of memories.
pub(super) const ROOT: &str = "/memories";

/// Returns the message for a path that leads outside `/memories`.
pub(super) fn escapes(shown: &str) -> String {
    format!("Path {shown} would escape {ROOT} directory")
}

/// Parses a path within `/memories`. As in the SDK helpers, `..` removes the segment before it, but never leads above
/// `/memories`. It is refused if it is percent-encoded or between backslashes, because a later reader might decode it.
pub(super) fn within(shown: &str) -> Result<VfsPathBuf> {
    let Some(rest) = shown.strip_prefix(ROOT).filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return Err(Error::new(ErrorKind::InvalidPath, format!("Path must start with {ROOT}, got: {shown}")));
    };
    if shown.len() > PATH_BYTES_MAX {
        // A path that is refused for its length need not be decoded.
        return Ok(VfsPathBuf::parse(shown)?);
    }
    let out = || Error::new(ErrorKind::InvalidPath, escapes(shown));
    let mut segments = vec![ROOT];
    for segment in rest.split('/') {
        match segment {
            "" | "." => {}
            ".." if segments.len() == 1 => return Err(out()),
            ".." => drop(segments.pop()),
            segment if hides_parent(segment) => return Err(out()),
            segment => segments.push(segment),
        }
    }
    Ok(VfsPathBuf::parse(segments.join("/"))?)
}

/// Returns whether a segment is or contains `..` after any number of percent-decodings.
fn hides_parent(segment: &str) -> bool {
    let mut bytes = segment.as_bytes().to_vec();
    loop {
        if bytes.split(|byte| matches!(byte, b'/' | b'\\')).any(|part| part == b"..") {
            return true;
        }
        let decoded = percent_decoded(&bytes);
        if decoded.len() == bytes.len() {
            return false;
        }
        bytes = decoded;
    }
}

fn percent_decoded(bytes: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_within_memories_are_accepted() {
        for (shown, path) in [
            ("/memories", "/memories"),
            ("/memories/", "/memories"),
            ("/memories/.", "/memories"),
            ("/memories//a.md", "/memories/a.md"),
            ("/memories/./d/a.md/", "/memories/d/a.md"),
            ("/memories/d/..", "/memories"),
            ("/memories/d/../a.md", "/memories/a.md"),
            ("/memories/a..b", "/memories/a..b"),
            ("/memories/...", "/memories/..."),
            ("/memories/100%", "/memories/100%"),
            ("/memories/%2e", "/memories/%2e"),
            ("/memories/a\\b", "/memories/a\\b"),
            ("/memories/%2e%2e.md", "/memories/%2e%2e.md"),
            ("/memories/\u{2025}", "/memories/\u{2025}"),
        ] {
            assert_eq!(within(shown).expect(shown), path, "{shown}");
        }
    }

    /// Regression: each round of decoding shortens the text a little, so long texts took quadratic time.
    #[test]
    fn overlong_path_is_refused_without_decoding() {
        let error = within(&format!("/memories/%{}", "25".repeat(500_000))).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidPath);
    }

    #[test]
    fn paths_outside_memories_are_refused() {
        for shown in [
            "",
            "/",
            "memories",
            "memories/a",
            "/memory",
            "/memories_old",
            "/memories.bak/a",
            "/memoriesa",
            "/Memories",
            "/etc/passwd",
            "/memories\\..\\a",
            "/../memories",
        ] {
            let error = within(shown).expect_err(shown);
            assert_eq!(
                (error.kind(), error.message()),
                (ErrorKind::InvalidPath, &*format!("Path must start with /memories, got: {shown}"))
            );
        }
        for shown in [
            "/memories/..",
            "/memories/../etc/passwd",
            "/memories/../memories/a",
            "/memories/d/../../memories/a",
            "/memories/%2e%2e/a",
            "/memories/%2E%2e%2fa",
            "/memories/.%2e/a",
            "/memories/%252e%252e/a",
            "/memories/d%2f..%2f..%2fa",
            "/memories/..\\a",
            "/memories/d\\..\\..\\a",
            "/memories/%5c..%5ca",
        ] {
            let error = within(shown).expect_err(shown);
            assert_eq!(
                (error.kind(), error.message()),
                (ErrorKind::InvalidPath, &*format!("Path {shown} would escape /memories directory"))
            );
        }
        assert_eq!(within("/memories/a\u{0}").expect_err("a control character").kind(), ErrorKind::InvalidPath);
    }
}
