//! Paths as resource URIs: `vfs:///memories/AGENTS.md`, percent-encoded by [RFC 3986](https://www.rfc-editor.org/rfc/rfc3986).

use treehold_core::escape::{escape_bytes, is_unreserved, unescape};
use treehold_core::path::{VfsPath, VfsPathBuf};

/// The prefix of every URI of this tree. The authority is empty, since the caller determines the tree.
const SCHEME: &str = "vfs://";

/// Returns the URI of a path.
pub(super) fn of(path: &VfsPath) -> String {
    let is_plain = |character| character == '/' || is_unreserved(character);
    format!("{SCHEME}{}", escape_bytes(path.as_str().as_bytes(), is_plain))
}

/// Returns the template of the URIs beneath a path, by [RFC 6570](https://www.rfc-editor.org/rfc/rfc6570).
pub(super) fn template_beneath(path: &VfsPath) -> String {
    let slash = if path.is_root() { "" } else { "/" };
    format!("{}{slash}{{+path}}", of(path))
}

/// Returns the path that a URI names, or `None` if it is not a URI of this tree.
pub(super) fn path(uri: &str) -> Option<VfsPathBuf> {
    let text = uri.strip_prefix(SCHEME).filter(|rest| rest.starts_with('/') && !rest.contains(['?', '#']))?;
    VfsPathBuf::parse(unescape(text)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_round_trip_through_uris() {
        for (text, uri) in
            [("/", "vfs:///"), ("/memories/a.md", "vfs:///memories/a.md"), ("/a b/ü%?#[x]&", "vfs:///a%20b/%C3%BC%25%3F%23%5Bx%5D%26")]
        {
            let path = VfsPathBuf::parse(text).expect("a legal path");
            assert_eq!(of(&path), uri);
            assert_eq!(super::path(uri), Some(path));
        }
        assert_eq!(path("vfs:///a//b/"), VfsPathBuf::parse("/a/b").ok());
        assert_eq!(path("vfs:///%61"), VfsPathBuf::parse("/a").ok());
    }

    #[test]
    fn uri_without_a_path_is_refused() {
        for uri in [
            "vfs://host/a",
            "vfs:/a",
            "file:///a",
            "/a",
            "",
            "vfs:///a?b",
            "vfs:///a#b",
            "vfs:///%2e%2e/a",
            "vfs:///../a",
            "vfs:///%",
            "vfs:///%4",
            "vfs:///%+1",
            "vfs:///%ff",
            "vfs:///%00",
        ] {
            assert_eq!(path(uri), None, "{uri}");
        }
    }

    #[test]
    fn template_extends_the_uri_of_its_path() {
        assert_eq!(template_beneath(VfsPath::ROOT), "vfs:///{+path}");
        assert_eq!(template_beneath(&VfsPathBuf::parse("/memories").expect("legal")), "vfs:///memories/{+path}");
    }
}
