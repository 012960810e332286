//! Paths relative to a directory of the tree.

use crate::{InvalidPath, VfsPath, VfsPathBuf};

/// Returns the path that a text names in a directory. `.` and `..` are resolved by name; the parent of the root is the root.
///
/// # Errors
/// For a name that no path may have.
pub(crate) fn resolved(directory: &VfsPath, text: &str) -> Result<VfsPathBuf, InvalidPath> {
    let mut names: Vec<&str> = Vec::new();
    let above = if text.starts_with('/') { "" } else { directory.as_str() };
    for name in above.split('/').chain(text.split('/')) {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    VfsPathBuf::parse(format!("/{}", names.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_from_a_directory() {
        let directory = VfsPathBuf::parse("/a/b").expect("a path");
        for (text, path) in [
            ("", "/a/b"),
            (".", "/a/b"),
            ("c", "/a/b/c"),
            ("c/", "/a/b/c"),
            ("../c", "/a/c"),
            ("../../../..", "/"),
            ("/", "/"),
            ("/x/./y/..", "/x"),
        ] {
            assert_eq!(resolved(&directory, text).expect(text).as_str(), path, "{text}");
        }
        resolved(&directory, "a\u{1b}").expect_err("a control character");
    }
}
