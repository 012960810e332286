//! Which paths the memory tool takes.

use crate::error::{Error, ErrorKind, Result};
use crate::path::{PATH_BYTES_MAX, VfsPathBuf};

/// Where memories stand.
pub(super) const ROOT: &str = "/memories";

/// Says that a path leads out of `/memories`.
pub(super) fn escapes(shown: &str) -> String {
    format!("Path {shown} would escape {ROOT} directory")
}

/// Reads a path within `/memories`. `..` goes up a segment of the text, as in the helpers of the SDKs, and never above `/memories`; it
/// is refused where it is percent-encoded or stands between backslashes, which some reader further on might take for it.
pub(super) fn within(shown: &str) -> Result<VfsPathBuf> {
    let Some(rest) = shown.strip_prefix(ROOT).filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
        return Err(Error::new(ErrorKind::InvalidPath, format!("Path must start with {ROOT}, got: {shown}")));
    };
    if shown.len() > PATH_BYTES_MAX {
        // What is refused for its length is not decoded first.
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

/// Tells whether a segment is or holds `..` once it is decoded, however often it was encoded.
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
    fn paths_within() {
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

    /// Each round of decoding takes a part of it away, so a long one took time that grew with its square.
    #[test]
    fn what_is_too_long_is_not_decoded() {
        let error = within(&format!("/memories/%{}", "25".repeat(500_000))).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::InvalidPath);
    }

    #[test]
    fn paths_that_lead_elsewhere() {
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
