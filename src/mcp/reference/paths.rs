//! Which paths are allowed, and what a path means: as that server reads it, `..` and relative paths included.

use super::Refused;
use crate::backend::Backend;
use crate::error::ErrorKind;
use crate::path::{VfsPath, VfsPathBuf};

/// The directories that the tools reach.
#[derive(Debug)]
pub(super) struct Allowed(Vec<VfsPathBuf>);

impl Allowed {
    pub(super) fn new(directories: &[VfsPathBuf]) -> Self {
        if directories.is_empty() { Self(vec![VfsPathBuf::root()]) } else { Self(directories.to_vec()) }
    }

    /// Returns the directories, with something between each two.
    pub(super) fn joined(&self, between: &str) -> String {
        self.0.iter().map(|directory| directory.as_str()).collect::<Vec<_>>().join(between)
    }

    fn holds(&self, path: &str) -> bool {
        self.0.iter().any(|directory| {
            directory.is_root() || path.strip_prefix(directory.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Returns the path that a text names.
    pub(super) async fn path(&self, tree: &dyn Backend, text: &str) -> Result<VfsPathBuf, Refused> {
        if is_drive(text) {
            return Err(Refused(format!("Access denied - Windows-style path received on a POSIX host: {text}")));
        }
        let absolute = if text.starts_with('/') { resolved("", text) } else { self.beneath_allowed(text) };
        if !self.holds(&absolute) {
            let message = format!("Access denied - path outside allowed directories: {absolute} not in {}", self.joined(", "));
            return Err(Refused(message));
        }
        let path = VfsPathBuf::parse(&absolute).map_err(|invalid| Refused(invalid.to_string()))?;
        match tree.stat(&path).await {
            Err(error) if error.kind() == ErrorKind::NotADirectory => Err(Refused(format!("ENOTDIR: not a directory, realpath '{path}'"))),
            // What is not there may be about to be made; anything else is said by what is done with the path.
            _ => Ok(path),
        }
    }

    /// Resolves a relative path against the first directory that it stays allowed in.
    fn beneath_allowed(&self, text: &str) -> String {
        let mut candidates = self.0.iter().map(|directory| resolved(directory.as_str(), text));
        candidates.clone().find(|candidate| self.holds(candidate)).or_else(|| candidates.next()).unwrap_or_default()
    }
}

/// Returns an absolute path without `.`, `..` and doubled slashes.
pub(super) fn resolved(base: &str, text: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in base.split('/').chain(text.split('/')) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

fn is_drive(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|letter| letter.is_ascii_alphabetic())
        && chars.next() == Some(':')
        && chars.next().is_none_or(|next| next == '/' || next == '\\')
}

/// Tells whether the directory that a path lies in is there.
pub(super) async fn has_parent(tree: &dyn Backend, path: &VfsPath) -> bool {
    match path.parent() {
        Some(parent) => tree.stat(parent).await.is_ok_and(|entry| entry.is_directory()),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_and_held_by_whole_segments() {
        assert_eq!(resolved("/a/b", "../c//./d/"), "/a/c/d");
        assert_eq!(resolved("", "/../.."), "/");
        let allowed = Allowed::new(&[VfsPathBuf::parse("/a").expect("legal"), VfsPathBuf::parse("/b/c").expect("legal")]);
        assert!(allowed.holds("/a") && allowed.holds("/a/x") && allowed.holds("/b/c"));
        assert!(!allowed.holds("/ab") && !allowed.holds("/b") && !allowed.holds("/"));
        assert!(Allowed::new(&[]).holds("/any"));
        assert_eq!(allowed.beneath_allowed("x"), "/a/x");
        assert_eq!(allowed.beneath_allowed("../b/c/x"), "/b/c/x");
        assert_eq!(["C:", "c:/x", "C:\\x", "C:x", "/C:", "::"].map(is_drive), [true, true, true, false, false, false]);
    }
}
