//! Allowed directories, and path resolution as in the reference server, including `..`, relative paths and links.
//!
//! A path is resolved to its real path first, and later operations follow no links. [`Permissions`] restrict the tree to the directories,
//! so that a link that replaces a directory in the meantime leads nowhere either.

use super::Refused;
use std::sync::Arc;
use treehold_core::error::{Error, ErrorKind};
use treehold_core::ops::{Entry, EntryKind, StatOptions};
use treehold_core::path::{VfsPath, VfsPathBuf};
use treehold_tree::backend::Backend;
use treehold_tree::layer::{Effect, Operations, Permissions, Rule};

/// The most links that one path may traverse; the same as in the Linux kernel.
const LINKS_MAX: usize = 40;

/// The directories that the tools may access.
#[derive(Debug, Clone)]
pub(super) struct Allowed {
    /// As configured.
    named: Vec<VfsPathBuf>,
    /// With links resolved.
    real: Vec<VfsPathBuf>,
}

impl Allowed {
    pub(super) fn new(directories: &[VfsPathBuf]) -> Self {
        let named = if directories.is_empty() { vec![VfsPathBuf::root()] } else { directories.to_vec() };
        Self { real: named.clone(), named }
    }

    /// Returns the directories with links resolved, and the tree restricted to them.
    pub(super) async fn within(&self, tree: Arc<dyn Backend>) -> Result<(Self, Arc<dyn Backend>), Refused> {
        if self.named.iter().any(|directory| directory.is_root()) {
            return Ok((self.clone(), tree));
        }
        let mut real = Vec::with_capacity(self.named.len());
        for directory in &self.named {
            real.push(match real_path(&*tree, directory).await {
                Ok(path) => path,
                // If the directory is missing or leads out of the tree, each path in it reports that.
                Err(_) => directory.clone(),
            });
        }
        let rule = Rule::within(Operations::ALL, &real).map_err(|error| Refused(error.message().to_owned()))?;
        let kept = Permissions::new([rule], tree).with_default(Effect::Deny);
        Ok((Self { named: self.named.clone(), real }, Arc::new(kept)))
    }

    /// Restricts the directories to some subtrees; none restrict nothing. If they do not overlap, nothing is allowed.
    pub(super) fn restricted_to(self, shown: &[VfsPathBuf]) -> Self {
        if shown.is_empty() {
            return self;
        }
        let mut named: Vec<VfsPathBuf> = Vec::new();
        for directory in &self.named {
            for root in shown {
                let common = if root.starts_with(directory) {
                    root
                } else if directory.starts_with(root) {
                    directory
                } else {
                    continue;
                };
                if !named.contains(common) {
                    named.push(common.clone());
                }
            }
        }
        Self { real: named.clone(), named }
    }

    /// Returns the directories as text, separated by `between`.
    pub(super) fn joined(&self, between: &str) -> String {
        self.named.iter().map(|directory| directory.as_str()).collect::<Vec<_>>().join(between)
    }

    fn holds(&self, path: &str) -> bool {
        self.named.iter().chain(&self.real).any(|directory| {
            directory.is_root() || path.strip_prefix(directory.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    fn is_whole(&self) -> bool {
        self.named.iter().any(|directory| directory.is_root())
    }

    /// Resolves a path argument, including its links.
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
        let not_a_directory = || Refused(format!("ENOTDIR: not a directory, realpath '{path}'"));
        if self.is_whole() {
            return match tree.stat(&path, &StatOptions::new()).await {
                Err(error) if error.kind() == ErrorKind::NotADirectory => Err(not_a_directory()),
                // A missing path may be about to be created; the operation itself reports any other error.
                _ => Ok(path),
            };
        }
        let outside =
            || Refused(format!("Access denied - symlink target outside allowed directories: {path} not in {}", self.joined(", ")));
        // The restricted tree contains the real directories, not the links that lead to them.
        let start = self.named.iter().zip(&self.real).find_map(|(named, real)| Some(real.concat(path.strip_prefix(named)?)));
        match real_path(tree, start.as_ref().unwrap_or(&path)).await {
            Ok(real) if self.real.iter().any(|directory| real.starts_with(directory)) => Ok(real),
            Err(error) if error.kind() == ErrorKind::NotADirectory => Err(not_a_directory()),
            _ => Err(outside()),
        }
    }

    /// Resolves a relative path against the first directory in which the result is allowed.
    fn beneath_allowed(&self, text: &str) -> String {
        let mut candidates = self.named.iter().map(|directory| resolved(directory.as_str(), text));
        candidates.clone().find(|candidate| self.holds(candidate)).or_else(|| candidates.next()).unwrap_or_default()
    }
}

/// Returns an absolute path without `.`, `..` and repeated slashes.
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

/// Returns a path with every link in it resolved, including the last segment. Missing segments stay as they are.
///
/// # Errors
/// `not_a_directory` beneath a file, `permission_denied` for a link that leads out of the tree or to nothing, and errors of the tree.
async fn real_path(tree: &dyn Backend, path: &VfsPath) -> treehold_core::error::Result<VfsPathBuf> {
    let (mut real, mut links) = (VfsPathBuf::root(), 0);
    let mut rest: Vec<String> = path.segments().rev().map(str::to_owned).collect();
    while let Some(segment) = rest.pop() {
        let next = real.child(&segment)?;
        match tree.stat(&next, &StatOptions::new()).await {
            Ok(Entry { kind: EntryKind::Symlink, leads_to, .. }) => {
                links += 1;
                let Some(target) = leads_to.filter(|_| links <= LINKS_MAX) else {
                    return Err(Error::new(ErrorKind::PermissionDenied, format!("`{next}` leads out of the tree or to nothing")).at(&next));
                };
                // The target may be in another mount and contain links again.
                rest.extend(target.segments().rev().map(str::to_owned));
                real = VfsPathBuf::root();
            }
            Ok(_) => real = next,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return rest.iter().rev().try_fold(next, |above, segment| Ok(above.child(segment)?));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(real)
}

fn is_drive(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|letter| letter.is_ascii_alphabetic())
        && chars.next() == Some(':')
        && chars.next().is_none_or(|next| next == '/' || next == '\\')
}

/// Returns whether the parent directory of a path exists.
pub(super) async fn has_parent(tree: &dyn Backend, path: &VfsPath) -> bool {
    match path.parent() {
        Some(parent) => tree.stat(parent, &StatOptions::new()).await.is_ok_and(|entry| entry.is_directory()),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_and_matched_by_whole_segments() {
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
